"""Links and names of files in the documentation are of files that exist, and its sources can be read in a terminal."""

import inspect
import os
import re
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from controlplane.planner.generators import parse_topology
from controlplane.planner.job import parse_job

ROOT = Path(__file__).parent.parent
COMMAND = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
FILES = {
    file
    for file in subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    if (ROOT / file).exists()
}
"""The files of the repository without ignored ones, which a clone does not have."""
LINKED = FILES | {parent.as_posix() for file in FILES for parent in Path(file).parents}
PAGES = sorted(file for file in FILES if file.endswith(".md"))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    text = re.sub(r"^(```.*?^```|    .*?$)", "", (ROOT / page).read_text(), flags=re.M | re.S)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file = target.partition("#")[0]
        if file and "://" not in file and os.path.normpath(Path(page).parent / file) not in LINKED:
            broken.append(target)
    assert not broken, f"{page} links to {', '.join(broken)}"


def test_lines_have_at_most_120_characters_but_rows_of_tables() -> None:
    lines = [(page, k, line) for page in PAGES for k, line in enumerate((ROOT / page).read_text().splitlines(), 1)]
    assert lines
    long = [f"{page}:{k}" for page, k, line in lines if len(line) > 120 and not line.lstrip().startswith("|")]
    assert not long, f"longer than 120: {', '.join(long)}"


def test_files_of_code_that_manuals_name_exist() -> None:
    """A manual names a file by the end of its path, from any folder on."""
    ends = {"/".join(file.split("/")[k:]) for file in FILES for k in range(file.count("/") + 1)}
    elsewhere = "docs/outside.md"  # files of others
    named = [
        (page, name)
        for page in PAGES if not page.startswith(elsewhere)
        for name in re.findall(r"`([a-z][\w./-]*\.(?:py|c|h|p4|proto))`", (ROOT / page).read_text())
    ]  # fmt: skip
    assert len(named) > 100
    examples = {"fabric/one_switch.py"}
    assert [(page, name) for page, name in named if name not in ends | examples] == []


def test_tests_that_are_named_exist() -> None:
    """A page that says which test finds a defect is wrong when that test has another name."""
    page = (ROOT / "docs" / "defects.md").read_text()
    file, missing = "", []
    for folder, path, name in re.findall(r"`(softswitch:)?([\w/]+\.py)?(?:::(test_\w+))?`", page):
        if path and (folder or "/" in path):
            file = f"softswitch/tests/{path}" if folder else f"tests/{path}"
        if name and not re.search(rf"^def {name}\(", (ROOT / file).read_text(), flags=re.M):
            missing.append(f"{file}::{name}")
    assert not missing


def test_the_strategy_in_contributing_can_be_copied() -> None:
    """The first change that the manual describes passes `make test` as it is printed."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    example = re.search(r"^   ```python\n(.*?)^   ```$", page, flags=re.M | re.S)
    assert example is not None
    source = textwrap.dedent(example[1])
    as_file = ("--stdin-filename", "controlplane/planner/strategies/fabric/one_switch.py", "-")
    for command in (("check",), ("format", "--check")):
        words = [sys.executable, "-m", "ruff", *command, *as_file]
        done = subprocess.run(words, cwd=ROOT, input=source, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    module: dict[str, Any] = {}
    exec(source, module)
    annotated = module["one_switch"].__annotations__
    assert set(annotated) == {*inspect.signature(module["one_switch"]).parameters, "return"}, "mypy asks for types"
    topology = parse_topology("testbed")
    plan = module["one_switch"](topology, parse_job("workers=6,ps=2", topology))
    assert {plan.strategy, *(a.point for tree in plan.trees for a in tree.assignments)} == {"one-switch", "V1"}


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed: make setup")
def test_the_site_is_built_and_every_name_of_the_api_is_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert made.returncode == 0, made.stderr
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        built = (tmp_path / "api" / page.stem / "index.html").read_text()
        for name in re.findall(r"^::: (\S+)", page.read_text(), flags=re.M):
            assert name in built, f"{page.name} has nothing of {name}"
