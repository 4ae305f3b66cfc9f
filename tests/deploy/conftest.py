"""Fixtures for the tests of deployment: switches, rules, networks in memory, and waiting with a deadline."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.targets.base import SwitchAddress
from controlplane.targets.p4runtime.kind import P4RuntimeKind
from controlplane.targets.p4runtime.program import Program
from controlplane.targets.p4runtime.target import P4RuntimeTarget
from p4src.artifacts import find
from softswitch.tests.support.switches import missing
from tests.deploy.fake_switch import FakeSwitch
from tests.deploy.memory_network import RACKS, Clock, MemoryNetwork
from tests.deploy.switch import Switch
from tests.support.waiting import wait_until


@pytest.fixture(scope="session")
def program() -> Program:
    artifact = find("v1model", 4)
    return Program.load(artifact.program, artifact.p4info)


@pytest.fixture(scope="session")
def kind() -> P4RuntimeKind:
    return P4RuntimeKind(find("v1model", 4))


@pytest.fixture
def switches() -> Iterator[list[FakeSwitch]]:
    made = [FakeSwitch(device_id=number) for number in (1, 2, 3)]
    yield made
    for switch in made:
        switch.stop()


@pytest.fixture
def targets(switches: list[FakeSwitch], program: Program) -> Iterator[list[P4RuntimeTarget]]:
    made = [P4RuntimeTarget(SwitchAddress(f"s{s.device_id}", s.address, s.device_id), program) for s in switches]
    yield made
    for target in made:
        target.close()


@pytest.fixture(params=["softswitch", "bmv2"])
def switch(request, tmp_path) -> Iterator[Switch]:
    reason = missing(request.param)
    if reason:
        pytest.skip(reason)
    made = Switch(request.param, tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def target(switch, program) -> Iterator[P4RuntimeTarget]:
    made = P4RuntimeTarget(SwitchAddress("s1", switch.address, 7), program)
    made.connect(20.0)
    yield made
    made.close()


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MemoryNetwork]:
    """Yield a network in memory, of the module's NETWORK or of two racks."""
    made = MemoryNetwork(tmp_path, getattr(request.module, "NETWORK", RACKS))
    yield made
    made.close()


@pytest.fixture
def address(rig: MemoryNetwork) -> str:
    """Return the address of a controller of the rig's network."""
    return rig.serve()


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield an address where connections are accepted, and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made.monotonic)
    return made


@pytest.fixture
def until() -> Callable[..., None]:
    """Return until(condition), which polls the condition."""
    return wait_until
