"""Fixtures of the Tofino tests: the client is our own, and also the SDE's where $SDE_INSTALL names one; the same tests
run on both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controlplane.planner.generators import parse_topology
from controlplane.planner.topology import Topology
from controlplane.targets.base import SwitchAddress
from controlplane.targets.bri import session
from controlplane.targets.bri.ledger import Ledger
from controlplane.targets.bri.ports import Panel
from controlplane.targets.bri.program import Program
from controlplane.targets.bri.sde import load_client
from controlplane.targets.bri.target import BriTarget
from p4src.artifacts import find
from tests.deploy.conftest import until
from tests.tofino.switch import TofinoSwitch
from tests.tofino.wire import client as wire_client

__all__ = ["until"]
TESTBED = "topologies/data/testbed_tofino.json"
BFRT = find("tna").program


CLIENTS = ["own client", "SDE's client"] if os.environ.get("SDE_INSTALL") else ["own client"]


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(session, "SUBSCRIBE_SECONDS", 1.0)
    return wire_client if request.param == "own client" else load_client()


@pytest.fixture(scope="session")
def topology() -> Topology:
    return parse_topology(TESTBED)


@pytest.fixture(scope="session")
def program() -> Program:
    return Program.load(BFRT)


@pytest.fixture
def switches() -> Iterator[dict[str, TofinoSwitch]]:
    made = {name: TofinoSwitch(BFRT) for name in ("V1", "V2")}
    yield made
    for switch in made.values():
        switch.stop()


@pytest.fixture
def make_target(client, program, topology, tmp_path) -> Iterator[Callable[..., BriTarget]]:
    """Yield make_target(switch, name, ...), which returns a target; all targets are closed at the end."""
    made: list[BriTarget] = []

    def make(switch: TofinoSwitch, name: str = "V1", *, panel: bool = True, ledger: str = "ports.json") -> BriTarget:
        target = BriTarget(
            SwitchAddress(name, switch.address, 0),
            program,
            client,
            panel=Panel.of(topology, name) if panel else None,
            ledger=Ledger(f"{name}", 0, tmp_path / ledger),
        )
        made.append(target)
        return target

    yield make
    for target in made:
        target.close()


@pytest.fixture
def targets(make_target, switches) -> list[BriTarget]:
    return [make_target(switch, name) for name, switch in switches.items()]
