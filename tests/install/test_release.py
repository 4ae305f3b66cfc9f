"""The parts of a release agree: versions, the citation file, and the requirements of the tests."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import yaml

import inart

ROOT = Path(__file__).resolve().parents[2]


def test_the_citation_has_the_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == inart.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Paper"].endswith(citation["preferred-citation"]["doi"])


def test_the_changelog_begins_with_the_version():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert headings[0] == inart.__version__


def test_packages_of_the_dependency_groups_are_pinned():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    words = [entry for group in groups.values() for entry in group if isinstance(entry, str)]
    names = {re.split(r"[<>=\[]", word)[0].lower() for word in words}
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower() for line in lines if "==" in line}
    assert names <= pinned


def test_the_lock_file_has_the_pinned_packages_with_their_digests():
    def pins(name: str) -> dict[str, str]:
        found = re.findall(r"^([\w.-]+)==([^\s\\]+)", (ROOT / name).read_text(), flags=re.M)
        return {package.lower().replace("_", "-"): version for package, version in found}

    assert pins("requirements.lock") == pins("requirements.txt"), "run .ci/release lock"
    packages = re.split(r"^(?=\w)", (ROOT / "requirements.lock").read_text(), flags=re.M)[1:]
    assert all("--hash=sha256:" in package for package in packages)


def test_every_part_of_a_release_is_explained():
    done = subprocess.run([ROOT / ".ci" / "release", "--help"], capture_output=True, text=True, check=True)
    assert {"wheels", "lock", "licence"} <= set(done.stdout.split())
    assert subprocess.run([ROOT / ".ci" / "release", "publish"], capture_output=True, check=False).returncode == 2
