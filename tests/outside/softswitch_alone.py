"""softswitch's source distribution, installed in a fresh environment, passes its tests there.

    python -m tests.outside.softswitch_alone [PYTEST'S ARGUMENTS]       # default: tests/softswitch

Builds the sdist of softswitch/, installs it with pip in a new environment that has nothing else but pytest and
hypothesis, copies the tests (and of the repository nothing else) beside it, and runs them. Left out are the tests of
the repository itself (`test_package.py`) and those that start its command for p4runtime-shell (`test_shell.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ("pytest", "pytest-timeout", "hypothesis")
FOLDERS = ("softswitch", "conformance", "support")
LEFT_OUT = ("softswitch/test_package.py", "softswitch/p4runtime/test_shell.py")
SETTINGS = "[pytest]\nmarkers =\n    namespaces: makes network namespaces (needs root)\ntimeout = 180\n"
BUILD = "import setuptools.build_meta as build, sys; build.build_sdist(sys.argv[1])"
NO_REST = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")


def make(folder: Path) -> Path:
    """Make the environment and the copy of the tests in a folder; returns the environment's Python."""
    shutil.copytree(ROOT / "softswitch", folder / "source" / "softswitch", ignore=NO_REST)
    words = [sys.executable, "-c", BUILD, str(folder)]
    subprocess.run(words, cwd=folder / "source" / "softswitch", check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(folder / "source")
    (distribution,) = folder.glob("softswitch-*.tar.gz")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True)
    python = folder / "environment" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", str(distribution), *BESIDE], check=True)
    for name in FOLDERS:
        shutil.copytree(ROOT / "tests" / name, folder / "alone" / "tests" / name, ignore=NO_REST)
    for name in LEFT_OUT:
        (folder / "alone" / "tests" / name).unlink()
    (folder / "alone" / "tests" / "__init__.py").touch()
    (folder / "alone" / "pytest.ini").write_text(SETTINGS)
    return python


def main() -> int:
    """Command line; returns pytest's exit status."""
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory(prefix="softswitch-alone-") as folder:
        python = make(Path(folder))
        words = [str(python), "-m", "pytest", "-q", *(sys.argv[1:] or ["tests/softswitch"])]
        return subprocess.run(words, cwd=Path(folder, "alone"), env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
