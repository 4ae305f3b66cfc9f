"""The parts of a release agree: versions, the citation file, and the requirements of the tests."""

from __future__ import annotations

import re
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


def test_the_changelog_has_the_version():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert headings[0] == "Unreleased"
    assert inart.__version__ in headings


def test_packages_of_the_dependency_groups_are_pinned():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    words = [entry for group in groups.values() for entry in group if isinstance(entry, str)]
    names = {re.split(r"[<>=\[]", word)[0].lower() for word in words}
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower() for line in lines if "==" in line}
    assert names <= pinned
