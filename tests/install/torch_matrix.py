"""Which versions of torch, Python and protobuf the distribution trains with: a table, from fresh environments.

    python -m tests.install.torch_matrix --torch 2.13.0 2.6.0 --python 3.11 3.13 --protobuf 4.25.8 newest

A wheel is built from this tree, and each environment gets it, torch from the package index (gigabytes each, unless a
CPU build is served) and protobuf; then tests/install/train_briefly.py runs there, from another folder. What is not
served, or has no interpreter here, is said so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
NEWEST = "newest"
COLUMNS = ("python", "torch", "protobuf", "hook", "backend", "fsdp2")
SECONDS = 1800


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.install.torch_matrix",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--torch", nargs="+", default=[NEWEST])
    parser.add_argument("--python", nargs="+", default=[f"{sys.version_info[0]}.{sys.version_info[1]}"])
    parser.add_argument("--protobuf", nargs="+", default=[NEWEST])
    return parser


def run(*command: object, **options) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS, **options)


def interpreter(version: str) -> str | None:
    """Return the interpreter of this version on PATH, or pyenv's."""
    pyenv = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, pyenv)):
        if candidate and run(candidate, "-c", "import venv, ensurepip").returncode == 0:
            return candidate
    return None


def build_wheel(folder: Path) -> Path:
    """Build a wheel of the files that git has. Raises RuntimeError."""
    source = folder / "source"
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    made = run(sys.executable, "-c", "from setuptools import build_meta as b; print(b.build_wheel('..'))", cwd=source)
    if made.returncode:
        raise RuntimeError(made.stderr)
    return folder / made.stdout.splitlines()[-1]


def pinned(name: str, version: str) -> str:
    return name if version == NEWEST else f"{name}=={version}"


def trial(wheel: Path, folder: Path, python: str, torch: str, protobuf: str) -> dict[str, str]:
    """Test one environment and return its row of the table by column."""
    row = {"python": python, "torch": torch, "protobuf": protobuf}
    found = interpreter(python)
    if found is None:
        return row | {"hook": "no such Python here"}
    run(found, "-m", "venv", folder)
    mine = folder / "bin" / "python"
    what = [wheel, pinned("torch", torch), pinned("protobuf", protobuf)]
    installed = run(mine, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)
    if installed.returncode:
        return row | {"hook": f"not served: {installed.stderr.strip().splitlines()[-1]}"}
    program = shutil.copy(HERE.with_name("train_briefly.py"), folder)
    done = run(mine, program, cwd=folder, env={"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": str(folder)})
    if done.returncode:
        return row | {"hook": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    return row | json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    arguments = make_parser().parse_args()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder))
        print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
        for number, key in enumerate(itertools.product(arguments.python, arguments.torch, arguments.protobuf)):
            where = Path(folder) / str(number)
            row = trial(wheel, where, *key)
            shutil.rmtree(where, ignore_errors=True)
            print("| " + " | ".join(row.get(column, "") for column in COLUMNS) + " |", flush=True)
            good &= all(row.get(column) == "ok" for column in COLUMNS[3:])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
