"""softswitch's source distribution, installed in a fresh environment, passes its tests there.

    python -m tests.outside.softswitch_alone [PYTEST'S ARGUMENTS]

Builds the sdist of softswitch/, installs it with pip in a new environment that has nothing else but what its tests need
(`softswitch[test]`), and runs them as whoever has installed it does: `python -m pytest --pyargs softswitch.tests`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = "import setuptools.build_meta as build, sys; build.build_sdist(sys.argv[1])"
NO_REST = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")


def make(folder: Path) -> Path:
    """Make the environment in a folder; returns the environment's Python."""
    shutil.copytree(ROOT / "softswitch", folder / "source" / "softswitch", ignore=NO_REST)
    words = [sys.executable, "-c", BUILD, str(folder)]
    subprocess.run(words, cwd=folder / "source" / "softswitch", check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(folder / "source")
    (distribution,) = folder.glob("softswitch-*.tar.gz")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True)
    python = folder / "environment" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", f"{distribution}[test]"], check=True)
    return python


def main() -> int:
    """Command line; returns pytest's exit status."""
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory(prefix="softswitch-alone-") as folder:
        python = make(Path(folder))
        words = [str(python), "-m", "pytest", "-q", "--timeout", "180", "--pyargs", "softswitch.tests", *sys.argv[1:]]
        return subprocess.run(words, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
