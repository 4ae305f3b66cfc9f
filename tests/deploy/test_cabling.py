"""`deploy cabling` says where cables lead, from nothing but what switches count, and leaves no entry behind."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.cli.deploy import main
from controlplane.planner.entries import LabelEntry, MulticastGroup
from controlplane.planner.generators import parse_topology
from controlplane.planner.topology import Topology
from controlplane.targets import cabling
from controlplane.targets.base import (
    Change,
    Counters,
    InstallError,
    Operation,
    SwitchAddress,
    UpdateFailure,
    difference,
)
from controlplane.targets.cabling import End, cables_of, ends_of, faults, frame, trace
from controlplane.targets.p4runtime.target import P4RuntimeTarget
from softswitch.tests.support import switches as switches_
from softswitch.tests.support.switches import missing_with_cables, run
from tests.deploy.rules import small
from tests.model.packet import decode

CPU = 64
NETWORK = parse_topology("fattree:k=4")


@dataclass
class Model:
    """A switch as far as tracing sees it. cables: where its ports lead in truth; lost: ports whose packets vanish."""

    name: str
    cables: Mapping[End, End]
    network: dict[str, Model]
    lost: frozenset[End] = frozenset()
    entries: dict[object, object] = field(default_factory=dict)
    counted: Counter[int] = field(default_factory=Counter)

    def apply(self, changes: list[Change]) -> None:
        for change in changes:
            key = (change.item.kind, change.item.key)
            if (key in self.entries) == (change.operation is Operation.INSERT):
                raise InstallError(self.name, [UpdateFailure(change, "NOT_FOUND or ALREADY_EXISTS", "")], 1)
            self.entries[key] = change.item
            if change.operation is Operation.DELETE:
                del self.entries[key]

    def packet_out(self, packet: bytes) -> None:
        assert decode(packet, 256) is not None, "switches would drop it"
        (group,) = (item for item in self.entries.values() if isinstance(item, MulticastGroup))
        for port in group.ports:
            there = self.cables.get(End(self.name, port))
            if there is not None and End(self.name, port) not in self.lost:
                self.network[there.switch].counted[there.port] += 1

    def read_counters(self, timeout: float = 1.0) -> Counters:
        entries = [item for item in self.entries.values() if isinstance(item, LabelEntry)]
        return Counters({}, {item.key: (self.counted[item.ingress_port], 0) for item in entries})


def heard_in(cables: Mapping[End, End], lost: frozenset[End] = frozenset()) -> dict[End, End | None]:
    network: dict[str, Model] = {}
    for name in NETWORK.switches:
        network[name] = Model(name, cables, network, lost)
    with patch.multiple(cabling, PATIENCE_SECONDS=0.0, LOOK_SECONDS=0.0):  # in the model packets arrive at once
        heard = trace(list(network.values()), ends_of(NETWORK), cables_of(NETWORK), cpu_port=CPU, values=256)
    assert not any(model.entries for model in network.values()), "entries were left"
    return heard


def test_right_cables_have_no_fault():
    wanted = cables_of(NETWORK)
    assert len(wanted) == 64
    assert not faults(wanted, heard_in(wanted))


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_exchanged_pulled_or_dead_cable_is_found(data: st.DataObject) -> None:
    """Whatever is plugged wrongly, each direction is reported with the ports that hear it in truth, and no other is."""
    wanted = cables_of(NETWORK)
    senders = sorted(wanted)
    moved = data.draw(st.lists(st.sampled_from(senders), max_size=6, unique=True))
    order = data.draw(st.permutations(moved))
    cables = {**wanted, **{end: wanted[other] for end, other in zip(moved, order, strict=True)}}
    for end in data.draw(st.lists(st.sampled_from(senders), max_size=2, unique=True)):
        cables.pop(end)
    dead = frozenset(data.draw(st.lists(st.sampled_from(senders), max_size=2, unique=True)))
    found = {fault.sender: fault for fault in faults(wanted, heard_in(cables, dead))}
    truth = {end: there for end, there in cables.items() if end not in dead}
    assert set(found) == {end for end in senders if truth.get(end) != wanted[end]}
    for end, fault in found.items():
        assert fault.leads == ((truth[end],) if end in truth else ())


def test_a_cable_in_a_hosts_port_is_named():
    wanted = cables_of(NETWORK)
    sender = min(wanted)
    host = next(end for end in ends_of(NETWORK) if end not in wanted)
    (fault,) = faults(wanted, heard_in({**wanted, sender: host}))
    assert str(fault) == f"{sender} should lead to {wanted[sender]}, and leads to {host}"


def test_entries_go_when_a_switch_fails_in_the_middle():
    network: dict[str, Model] = {}
    for name in NETWORK.switches:
        network[name] = Model(name, cables_of(NETWORK), network)

    def fail(packet: bytes) -> None:
        raise InstallError("a0", [], 0)

    network[NETWORK.switches[3]].packet_out = fail  # type: ignore[method-assign]
    with pytest.raises(InstallError):
        trace(list(network.values()), ends_of(NETWORK), cables_of(NETWORK), cpu_port=CPU, values=256)
    assert not any(model.entries for model in network.values())


def test_the_packet_is_one_of_ours():
    packet = decode(frame(0xABCDEF01, 64), 64)
    assert packet is not None and packet.label == 0xABCDEF01


def test_tofino_is_refused_with_the_reason(capsys, tmp_path):
    assert main(["cabling", "--topology", "testbed", "--tofino", "--switches", str(tmp_path / "none.json")]) == 2
    assert "cabling needs switches that take packets over P4Runtime" in capsys.readouterr().err


RING = {"s1": {1: "s2", 2: "s3"}, "s2": {1: "s3", 2: "s1"}, "s3": {1: "s1", 2: "s2"}}
"""Three switches, each connected with both others; port 3 of each has a host."""


@pytest.fixture(params=["softswitch", "bmv2"])
def ring(request, tmp_path) -> Iterator[tuple[list[str], dict[str, switches_.Switch]]]:
    """Real switches in a namespace; yields the command's options, and the switches.

    The cables of s1's two ports are exchanged.
    """
    reason = missing_with_cables(request.param)
    if reason:
        pytest.skip(reason)
    links = [(a, b, {"bandwidth_mbps": 100.0, "ports": {a: port}}) for a, of in RING.items() for port, b in of.items()]
    for number, name in enumerate(RING, 1):
        links += [
            (f"h{number}", name, {"bandwidth_mbps": 100.0, "ports": {name: 3}}),
            (name, f"h{number}", {"bandwidth_mbps": 100.0, "ports": {name: 3}}),
        ]
    hosts = {f"h{n}": {"kind": "server", "ip": f"10.0.0.{n}", "mac": f"02:00:0a:00:00:0{n}"} for n in (1, 2, 3)}
    topology = Topology({**{name: {"kind": "switch"} for name in RING}, **hosts}, links)
    (tmp_path / "topology.json").write_text(json.dumps(topology.to_json()))
    namespace = f"inart-t-cab-{os.getpid()}"
    with ExitStack() as stack:
        run("ip", "netns", "add", namespace)
        stack.callback(subprocess.run, ["ip", "netns", "delete", namespace], check=False)
        inside = ("ip", "netns", "exec", namespace)
        run(*inside, "sysctl", "-q", "-w", "net.ipv6.conf.default.disable_ipv6=1")
        for end, other in (
            ("s1-2", "s2-2"),
            ("s1-1", "s3-1"),
            ("s2-1", "s3-2"),
            *((f"s{n}-3", f"h{n}") for n in (1, 2, 3)),
        ):
            run(*inside, "ip", "link", "add", end, "type", "veth", "peer", "name", other)
            for name in (end, other):
                run(*inside, "ip", "link", "set", name, "up")
        made, addresses = {}, {}
        for number, name in enumerate(RING, 1):
            folder = tmp_path / name
            folder.mkdir()
            cables = switches_.Wires(inside, {port: f"{name}-{port}" for port in (1, 2, 3)})
            made[name] = switches_.Switch(
                request.param, folder, device_id=number, cables=cables, options=("--cpu-port", str(CPU))
            )
            stack.callback(made[name].close)
            made[name].start()
            addresses[name] = {"address": made[name].address, "device_id": number}
        (tmp_path / "switches.json").write_text(json.dumps(addresses))
        given = ["--bmv2", "--topology", str(tmp_path / "topology.json"), "--switches", str(tmp_path / "switches.json")]
        yield given, made


@pytest.mark.namespaces
def test_exchanged_cables_of_real_switches_are_named_and_jobs_stay(ring, capsys, program):
    options, made = ring
    assert main(["cabling", *options]) == 1
    said = capsys.readouterr().err
    assert "s1 port 1 should lead to s2 port 2, and leads to s3 port 1" in said
    assert "s3 port 1 should lead to s1 port 2, and leads to s1 port 1" in said
    assert "2 of 6 directions are as the file says; 3 ports of hosts not checked" in said
    target = P4RuntimeTarget(SwitchAddress("s1", made["s1"].address, 1), program)
    target.connect(60.0)
    rules = target.read()
    assert not rules.labels and not rules.groups
    job = small("s1")
    target.apply(difference(rules, job))
    target.close()
    assert main(["cabling", *options, "--json"]) == 1
    wrong = json.loads(capsys.readouterr().out)
    assert wrong["directions"] == 6 and len(wrong["wrong"]) == 4
    target.connect(60.0)
    assert set(target.read().labels) == set(job.labels)
    target.close()


@pytest.mark.namespaces
def test_a_wrong_cpu_port_is_suspected(ring, capsys):
    options, _ = ring
    assert main(["cabling", *options, "--cpu-port", "99"]) == 1
    assert "no packet arrived anywhere: is 99 the switches' CPU port" in capsys.readouterr().err


@pytest.mark.namespaces
def test_a_switch_without_a_cpu_port_says_how_to_start_it(tmp_path, capsys):
    reason = switches_.missing("softswitch")
    if reason:
        pytest.skip(reason)
    made = {}
    with ExitStack() as stack:
        for number, name in enumerate(("s1", "s2"), 1):
            folder = tmp_path / name
            folder.mkdir()
            switch = switches_.Switch("softswitch", folder, device_id=number)
            stack.callback(switch.close)
            switch.start()
            made[name] = {"address": switch.address, "device_id": number}
        link = {"bandwidth_mbps": 100.0}
        topology = Topology({name: {"kind": "switch"} for name in made}, [("s1", "s2", link), ("s2", "s1", link)])
        for name, content in (("topology", topology.to_json()), ("switches", made)):
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        files = ["--topology", str(tmp_path / "topology.json"), "--switches", str(tmp_path / "switches.json")]
        assert main(["cabling", "--bmv2", *files]) == 1
    said = capsys.readouterr().err
    assert "has no CPU port" in said and "start it with --cpu-port 64" in said
