"""A pulled cable that a Tofino reports over BRI makes the controller reroute its jobs around that link."""

from __future__ import annotations

from itertools import pairwise

import pytest

from controlplane.common.log_lines import calling
from controlplane.planner.job import Job
from controlplane.planner.topology import Topology
from controlplane.service.core import ports
from controlplane.service.epochs import EpochStore
from controlplane.service.failures import Watch
from controlplane.service.measure import Measurements
from controlplane.service.network import Network
from controlplane.targets import fabric
from controlplane.targets.base import SwitchAddress, Traffic
from controlplane.targets.bri.kind import TofinoKind
from controlplane.targets.bri.ledger import Ledger
from controlplane.targets.bri.ports import Panel
from controlplane.targets.bri.target import BriTarget
from p4src.artifacts import find
from tests.tofino.conftest import BFRT
from tests.tofino.switch import TofinoSwitch, device_port

PORT = {"bandwidth_mbps": 100000, "speed": "100G", "fec": "rs"}
TRIANGLE = {
    "nodes": [
        *({"id": name, "kind": "switch", "loopback_ports": [{"front_panel": "7/0", "speed": "100G"}]}
          for name in ("V1", "V2", "V3")),
        *({"id": name, "kind": "server", "role": "worker"} for name in ("W1", "W2")),
        {"id": "S1", "kind": "server", "role": "parameter_server"},
    ],
    "edges": [
        {"source": "V1", "target": "V2", "front_panel": {"V1": "6/0", "V2": "6/0"}, **PORT},
        {"source": "V1", "target": "V3", "front_panel": {"V1": "5/0", "V3": "5/0"}, **PORT},
        {"source": "V2", "target": "V3", "front_panel": {"V2": "4/0", "V3": "4/0"}, **PORT},
        {"source": "W1", "target": "V1", "front_panel": {"V1": "1/0"}, **PORT},
        {"source": "W2", "target": "V1", "front_panel": {"V1": "2/0"}, **PORT},
        {"source": "S1", "target": "V2", "front_panel": {"V2": "1/0"}, **PORT},
    ],
}  # fmt: skip
CABLES = [(6, "V1"), (6, "V2"), (5, "V1"), (5, "V3"), (4, "V2"), (4, "V3"), (1, "V1"), (2, "V1"), (1, "V2")]


@pytest.fixture
def topology():
    return Topology.load(TRIANGLE)


@pytest.fixture
def switches():
    made = {name: TofinoSwitch(BFRT) for name in ("V1", "V2", "V3")}
    yield made
    for switch in made.values():
        switch.stop()


@pytest.fixture
def targets(switches, topology, program, client, tmp_path):
    made = [
        BriTarget(
            SwitchAddress(name, switch.address, 0), program, client,
            panel=Panel.of(topology, name), ledger=Ledger(name, 0, tmp_path / "ports.json"),
        )
        for name, switch in switches.items()
    ]  # fmt: skip
    fabric.connect(made, 20.0)
    yield made
    for target in made:
        target.close()


@pytest.fixture
def log():
    return []


@pytest.fixture
def network(topology, targets, client, log, tmp_path):
    kind = TofinoKind(find("tna"), client)
    with Network(topology, kind, targets, epochs=EpochStore(tmp_path), log=calling(log.append)) as made:
        made.switches.fill()
        made.switches.watch()
        yield made


def test_ports_are_read_by_the_topologys_numbers(network, switches, targets, topology):
    assert [target.read_ports(20.0)[1] for target in targets] == [False] * 3
    for connector, switch in CABLES:
        switches[switch].plug(connector, 0, up=True)
    numbers = [topology.port("V1", other) for other in ("V2", "V3", "W1", "W2")]
    assert targets[0].read_ports(20.0) == dict.fromkeys(numbers, True)


def test_jobs_are_rerouted_around_a_pulled_cable_which_is_used_again_later(network, switches, log, until, monkeypatch):
    monkeypatch.setattr(ports, "STEADY_SECONDS", 0.0)
    topology = network.topology
    job = network.launch(Job("one", ("W1", "W2"), ("S1",), 1_000_000), "inart")[1]
    for connector, switch in CABLES:
        switches[switch].plug(connector, 0, up=True)
    watch = Watch(network, calling(log.append))
    watch.start()
    try:
        ends = [(switch, topology.port(switch, "V1")) for switch in ("V2", "V3")]
        until(lambda: all(network.state.parts.ports.up.get(end) for end in ends), "asked", 60)
        switches["V2"].plug(6, 0, up=False)
        until(lambda: network.state.off == {"V1-V2": "port down"}, "noticed", 60)
        until(lambda: any("trees rerouted around it" in line for line in log), "rerouted", 60)
        routes = {pair for tree in job.migrator.plan.trees for flow in tree.flows for pair in pairwise(flow.route)}
        assert ("V1", "V2") not in routes
        assert ("V1", "V3") in routes
        switches["V2"].plug(6, 0, up=True)
        until(lambda: not network.state.off, "used again", 60)
    finally:
        watch.close()


def test_what_passes_a_port_is_read_and_less_what_jobs_send_it_is_other_traffic(
    network, switches, targets, topology, monkeypatch
):
    """A Tofino counts all bytes of a port; aggregation packets are counted by label."""
    monkeypatch.setattr("controlplane.service.measure.FRESH_SECONDS", 0.0)
    measurements = Measurements(network, others=True)
    measurements.read()
    device = device_port(6, 0)  # of V2, where V1 comes in
    switches["V2"].passed = {device: (0, 0), device_port(1, 0): (0, 0), 7: (1, 1)}
    number = topology.port("V2", "V1")
    assert targets[1].read_traffic() == Traffic({number: (0, 0), topology.port("V2", "S1"): (0, 0)}, whole=True)
    measurements.read()
    switches["V2"].passed = {device: (3_000_000, 0), device_port(1, 0): (0, 2_000_000)}
    others = measurements.read().others
    assert others["V1", "V2"].total == pytest.approx(3_000_000, abs=1)
    assert others["V2", "S1"].total == pytest.approx(2_000_000, abs=1)
    assert ("V2", "V1") not in others or others["V2", "V1"].mbps == 0
