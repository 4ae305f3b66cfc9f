"""Fixtures for tests with real namespaces, agents and switches. They need root; bmv2 is used where it is installed."""

import os
import shutil
from collections.abc import Iterator

import pytest

from controlplane.service import hanging
from topologies.emulation import NEEDED_COMMANDS


def missing() -> str:
    """Return why these tests cannot run here; empty when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = sorted({package for command, package in NEEDED_COMMANDS.items() if shutil.which(command) is None})
    return f"not installed: {', '.join(absent)} (make setup)" if absent else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing()
    for item in items:
        if "tests/emulation" in str(item.path):
            item.add_marker(pytest.mark.namespaces)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(params=["softswitch", "bmv2"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kind of switch; each test runs with every kind."""
    if request.param == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("simple_switch_grpc is not on PATH")
    yield request.param


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent counts as hanging because this machine is so busy that it has not run for a second or two: for tests of
    other failures.
    """
    monkeypatch.setattr(hanging, "HUNG_SECONDS", 60.0)
    for name in ("SILENT_SECONDS", "SILENT_SPARED_SECONDS", "SILENT_AT_FIRST_SECONDS"):
        monkeypatch.setattr(hanging, name, 60.0)
