"""The systemd units and the container file in examples/services: the programs that they start accept these options."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from controlplane.cli.serve import make_parser as serve
from inart.command import PLUGINS, VERBS
from overlay.sites.command import make_parser as site
from ps_server.__main__ import make_parser as ps
from worker_agent.__main__ import make_parser as agent

FOLDER = Path(__file__).resolve().parents[2] / "examples/services"
UNITS = sorted(FOLDER.glob("*.service"))
PARSERS = {"serve": serve, "ps": ps, "agent": agent, "site": site}
VALUES = {"${SITES}": "3", "${LISTEN}": "10.0.0.1:9700"}


def section(unit: Path) -> dict[str, str]:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return dict(parser["Service"])


def test_there_are_units():
    assert [unit.stem for unit in UNITS] == ["inart-agent", "inart-controller", "inart-ps", "inart-site-coordinator"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_programs_of_units_accept_their_options(unit):
    path, verb, *words = shlex.split(section(unit)["ExecStart"])
    assert path == "/opt/inart/bin/inart"
    PARSERS[verb]().parse_args([*(VERBS | PLUGINS)[verb].first, *(VALUES.get(word, word) for word in words)])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_it_is_an_ordinary_user_without_a_capability(unit):
    service = section(unit)
    assert (service["User"], service["CapabilityBoundingSet"], service["NoNewPrivileges"]) == ("inart", "", "true")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_verifies_the_units(unit, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (apt-get install systemd)")
    command = tmp_path / "inart"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/inart/bin/inart", str(command)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if unit.stem in line]
    assert not ours
    assert done.returncode == 0, done.stderr


def test_the_container_file_copies_and_installs_existing_files():
    text = (FOLDER / "Containerfile").read_text()
    assert set(re.findall(r"^FROM (\S+)", text, re.M)) == {"debian:12-slim"}
    assert "USER inart" in text
    extras = re.search(r"ARG EXTRAS=(\S+)", text)
    assert extras is not None
    project = (FOLDER.parents[1] / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in project for extra in extras[1].split(","))
