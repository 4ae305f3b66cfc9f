"""Switches that share an ordinary network: frames that are neither ours nor IPv4 to a host reach their destination
once.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter, deque
from contextlib import ExitStack

import pytest

from controlplane.cli.deploy import main
from controlplane.planner.bridging import FLOOD_GROUPS, bridged, is_flood
from controlplane.planner.entries import Forward, LabelEntry, MulticastGroup, Replicate, RuleSet
from controlplane.planner.generators import parse_topology
from controlplane.planner.rules import routes
from controlplane.planner.topology import Topology
from controlplane.service.room import split
from controlplane.service.switches import Switches
from controlplane.targets import fabric
from controlplane.targets.base import SwitchAddress, difference, empty
from controlplane.targets.p4runtime.target import P4RuntimeTarget
from softswitch.tests.support import switches as switches_
from softswitch.tests.support.switches import Cables, missing_with_cables, run
from tests.deploy.rules import small
from tests.model import switch as model
from tests.support.config import config

NETWORKS = ["testbed", "fattree:k=4", "topologies/data/testbed_tofino.json"]
ARP, IPV6, VLAN, LLDP = 0x0806, 0x86DD, 0x8100, 0x88CC
BROADCAST, TO_THE_BRIDGE = "ff:ff:ff:ff:ff:ff", "01:80:c2:00:00:0e"
CPU = 64


def number(mac: str) -> int:
    return int(mac.replace(":", ""), 16)


def switches(topology: Topology, cpu_port: int | None = None) -> dict[str, model.Switch]:
    """Return the reference model of every switch with its bridging."""
    made = {}
    rulesets = bridged(topology, {name: empty(name) for name in topology.switches}, cpu_port)
    for name, rules in rulesets.items():
        entries = []
        for entry in sorted(rules.bridge, key=lambda entry: -entry.priority):
            action: model.Forward | model.Replicate | None = None
            if isinstance(entry.action, Forward):
                action = model.Forward(entry.action.port)
            elif entry.action is not None:
                action = model.Replicate(entry.action.group)
            entries.append(model.Bridge(entry.ingress_port, number(entry.mac), number(entry.mask), action))
        groups = {group.group: group.ports for group in rules.groups}
        made[name] = model.Switch(4, 16, groups=groups, bridge=tuple(entries))
    return made


def reached(topology: Topology, network: dict[str, model.Switch], server: str, frame: bytes) -> Counter[str]:
    """Return how often a frame reaches each server ("CPU of V1": a switch's CPU)."""
    found: Counter[str] = Counter()
    queue = deque([(server, topology.access_switch(server))])
    steps = 0
    while queue:
        before, node = queue.popleft()
        steps += 1
        assert steps < 1000, "it goes round"
        if node not in network:
            found[node] += 1
            continue
        neighbours = {topology.port(node, other): other for other in topology.neighbours(node)}
        for out, leaving in network[node].process(topology.port(node, before), frame):
            assert leaving == frame
            if out in neighbours:
                queue.append((node, neighbours[out]))
            else:
                found[f"CPU of {node}"] += 1
    return found


def frame(topology: Topology, source: str, destination: str, ether_type: int) -> bytes:
    macs = number(destination).to_bytes(6, "big") + number(topology.mac(source)).to_bytes(6, "big")
    return macs + ether_type.to_bytes(2, "big") + bytes(46)


@pytest.mark.parametrize("name", NETWORKS)
def test_frames_reach_their_destinations(name):
    """Broadcasts and frames to unknown addresses reach all others once; frames to a server reach it; frames to the
    bridge reach nobody.
    """
    topology = parse_topology(name)
    network = switches(topology)
    servers = topology.servers
    for server in servers[:3]:
        others = Counter(other for other in servers if other != server)
        for destination, kind in ((BROADCAST, ARP), ("33:33:00:00:00:01", IPV6), ("02:99:00:00:00:01", VLAN)):
            assert reached(topology, network, server, frame(topology, server, destination, kind)) == others
        for other in servers:
            if other != server:
                sent = frame(topology, server, topology.mac(other), ARP)
                assert reached(topology, network, server, sent) == Counter([other])
        assert not reached(topology, network, server, frame(topology, server, TO_THE_BRIDGE, LLDP))


def test_frames_for_the_switch_go_to_its_cpu_port():
    topology = parse_topology("fattree:k=4")
    server = topology.servers[0]
    found = reached(topology, switches(topology, CPU), server, frame(topology, server, TO_THE_BRIDGE, LLDP))
    assert found == Counter([f"CPU of {topology.access_switch(server)}"])


def rules_of(topology: Topology, name: str, labels: RuleSet | None = None) -> RuleSet:
    return bridged(topology, {name: labels or empty(name)}, 500)[name]


def test_a_switch_takes_it_and_gives_it_back(target):
    """The rules are installed over P4Runtime beside a job's entries, on softswitch and, where it is installed, bmv2."""
    rules = bridged(parse_topology("testbed"), {"V1": empty("V1")})["V1"]
    both = RuleSet("s1", small("s1").labels, (*small("s1").groups, *rules.groups), (), bridge=rules.bridge)
    fabric.install([target], {"s1": both})
    assert difference(target.read(), both) == []
    assert sum(fabric.install([target], {"s1": both}).values()) == 0
    fabric.install([target], {"s1": small("s1")})
    assert difference(target.read(), small("s1")) == []
    fabric.remove([target])
    assert target.read() == empty("s1")


def test_floods_are_the_networks_and_no_jobs():
    """When a switch is read, its groups for floods belong to no job; removing a job leaves them installed."""
    flood = MulticastGroup(FLOOD_GROUPS + 1, (2, 3))
    job = MulticastGroup(1, (1, 2))
    held = RuleSet("s1", (LabelEntry(1, 5, Replicate(1)),), (job, flood), ())
    assert is_flood(flood) and not is_flood(job)
    assert split(held)[1].groups == (job,)


def test_jobs_come_and_go_beside_it(targets):
    rules = rules_of(parse_topology("testbed"), "V1")
    base = RuleSet("s1", (), rules.groups, (), bridge=rules.bridge)
    fabric.connect(targets[:1], 5.0)
    network = Switches(targets[:1], {"s1": base})
    network.install(1, {"s1": small("s1")})
    assert difference(targets[0].read(), RuleSet("s1", small("s1").labels, (*base.groups, *small("s1").groups), (),
                                                 bridge=base.bridge)) == []  # fmt: skip
    network.remove(1)
    assert difference(targets[0].read(), base) == []


@pytest.mark.parametrize("kind", [[], ["--tofino"], ["--tofino", "2"]])
def test_a_dry_run_shows_it(kind, tmp_path, capsys):
    number = {"--tofino": "", "2": "2"}.get(kind[-1] if kind else "", "")
    file = f"topologies/data/testbed_tofino{number}.json"
    assert (
        main([*kind, "--topology", file, "--dry-run", *config(tmp_path, switches={"bridge": True, "cpu_port": 320})])
        == 0
    )
    text = capsys.readouterr().out
    assert "bridge_table" in text and "01:80:c2:00:00:00" in text.replace("0x180c2000000", "01:80:c2:00:00:00")
    assert main([*kind, "--topology", file, "--dry-run", *config(tmp_path, switches={"bridge": True}), "--json"]) == 0
    bridge = json.loads(capsys.readouterr().out)["switches"]["V1"]["bridge"]
    assert len(bridge) == 1 + 8 + 6
    assert main([*kind, "--topology", file, "--dry-run"]) == 0
    assert "bridge_table" not in capsys.readouterr().out


@pytest.mark.namespaces
@pytest.mark.parametrize("kind", ["softswitch", "bmv2"])
def test_hosts_without_neighbour_entries_reach_each_other(kind, tmp_path, program):
    """Real hosts in namespaces ask by ARP, and their IPv4 packets are routed."""
    reason = missing_with_cables(kind)
    if reason:
        pytest.skip(reason)
    hosts = {f"h{port}": f"inart-t-h{os.getpid()}-{port}" for port in (1, 2, 3)}
    nodes = {name: {"kind": "server", "ip": f"10.0.0.{name[1]}", "mac": f"02:00:0a:00:00:0{name[1]}"} for name in hosts}
    links = []
    for name in hosts:
        wire = {"bandwidth_mbps": 100.0, "ports": {"s1": int(name[1])}}
        links += [(name, "s1", wire), ("s1", name, wire)]
    topology = Topology({"s1": {"kind": "switch"}, **nodes}, links)
    with ExitStack() as stack:
        cables = Cables((1, 2, 3))
        stack.callback(cables.close)
        switch = switches_.Switch(kind, tmp_path, cables=cables)
        stack.callback(switch.close)
        switch.start()
        for name, namespace in hosts.items():
            run("ip", "netns", "add", namespace)
            stack.callback(run, "ip", "netns", "delete", namespace)
            run("ip", "-n", cables.namespace, "link", "set", f"t{name[1]}", "netns", namespace, "name", "eth0")
            run("ip", "netns", "exec", namespace, "ethtool", "-K", "eth0", "tx", "off")
            run("ip", "-n", namespace, "link", "set", "eth0", "address", topology.mac(name), "up")
            run("ip", "-n", namespace, "address", "add", f"10.0.0.{name[1]}/24", "dev", "eth0")
        target = P4RuntimeTarget(SwitchAddress("s1", switch.address, 1), program)
        stack.callback(target.close)
        target.connect(60.0)
        fabric.install([target], bridged(topology, {"s1": RuleSet("s1", (), (), routes(topology)["s1"])}))
        for one, other in (("h1", 2), ("h3", 1)):
            # ping ends with the first answer.
            ping = f"ip netns exec {hosts[one]} ping -q -c 1 -w 60 10.0.0.{other}"
            done = subprocess.run(ping.split(), capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr + switch.log()
