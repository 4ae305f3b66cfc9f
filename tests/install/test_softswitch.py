"""softswitch is a package of its own: only its benchmark and tests import it, and its wheel is complete."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py")) and path.name != "softswitch"}
DEMO = ROOT / "softswitch" / "tests" / "p4runtime" / "demo.json"


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def importers(folders: set[str], of: set[str]) -> set[str]:
    """Return the files of these folders that import one of these packages."""
    found = set()
    for folder in folders:
        for file in (ROOT / folder).rglob("*.py"):
            if any(name.split(".")[0] in of for name in imported(file)):
                found.add(file.relative_to(ROOT).as_posix())
    return found


def test_only_its_benchmark_and_tests_import_it() -> None:
    assert {"controlplane", "evaluation", "p4src", "tests", "topologies"} <= OURS
    users = importers(OURS - {"tests"}, {"softswitch"})
    assert {user for user in users if not user.startswith("evaluation/softswitch/")} == set()
    assert users, "the search finds nothing at all"


def test_softswitch_imports_no_other_package_of_the_repository() -> None:
    assert importers({"softswitch"}, OURS) == set()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the content of the wheel, and nothing else of the repository."""
    if importlib.util.find_spec("pip") is None or importlib.util.find_spec("setuptools") is None:
        pytest.skip("this environment has no pip or no setuptools")
    folder = tmp_path_factory.mktemp("package")
    source = folder / "softswitch"  # a build writes into it
    shutil.copytree(ROOT / "softswitch", source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_runs_without_the_repository(installed: Path, tmp_path: Path) -> None:
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler (cc)")
    code = (
        "import softswitch, sys\n"
        f"assert softswitch.__file__.startswith({str(installed)!r}), softswitch.__file__\n"
        "with softswitch.Fabric() as fabric:\n"
        "    device = fabric.add_device(1)\n"
        "    device.load(softswitch.Program.load(open(sys.argv[1]).read()))\n"
        "    print(sorted(device.program.tables))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    environment["XDG_CACHE_HOME"] = str(tmp_path)  # its own C sources are compiled, and no cached library is used
    run = [sys.executable, "-c", code, str(DEMO)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "MyIngress" in done.stdout


def test_the_wheel_has_a_command_and_every_c_file(installed: Path) -> None:
    (entries,) = installed.glob("*.dist-info/entry_points.txt")
    assert "softswitch = softswitch.__main__:main" in entries.read_text()
    sources = {file.name for file in (ROOT / "softswitch" / "runtime").glob("*.[ch]")}
    assert {file.name for file in (installed / "softswitch" / "runtime").glob("*.[ch]")} == sources
