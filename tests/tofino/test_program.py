"""Plans go through the whole chain without a switch: rules, entries over BRI, the program's tables and registers.

Switches have two pipes with registers of their own, and ports of both in turns, so that flows have to meet.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.planner.entries import RuleSet
from controlplane.planner.plan.limits import DoesNotFit
from controlplane.planner.rules import Deployment, build
from controlplane.planner.topology import Topology
from controlplane.targets.bri.chip import PORTS_PER_PIPE, TOFINO_2
from controlplane.targets.bri.entries import Entry
from controlplane.targets.bri.kind import TofinoKind
from controlplane.targets.bri.ports import Panel, PortMap
from controlplane.targets.bri.schema import local
from p4src.artifacts import find
from p4src.protocol import Flag
from tests.controlplane.instances import instances, random_plan
from tests.model.packet import Packet, decode
from tests.support.examples import examples
from tests.tofino.dataplane import Switch
from tests.tofino.plans import deployment, with_front_panel

VALUES = 4
LIMITS = TofinoKind(find("tna")).limits
FEW = settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def switch(entries: list[Entry], ports: PortMap, kind: type[Switch] = Switch) -> Switch:
    """Return a switch with these entries in its tables; its loopback ports bring back what leaves there."""
    labels: dict[tuple[int, int], tuple[str, dict[str, int]]] = {}
    nodes: dict[int, tuple[int, ...]] = {}
    groups: dict[int, tuple[int, ...]] = {}
    for entry in entries:
        data = dict(entry.data)
        if local(entry.table) == "label_table":
            key = dict(entry.key)
            labels[key["ingress_port"], key["label"]] = local(entry.action or ""), data  # type: ignore[index, assignment]
        elif entry.table == "$pre.node":
            nodes[entry.key[0][1]] = data["$DEV_PORT"]  # type: ignore[index, assignment]
    for entry in entries:
        if entry.table == "$pre.mgid":
            (node,) = dict(entry.data)["$MULTICAST_NODE_ID"]  # type: ignore[misc, union-attr]
            groups[entry.key[0][1]] = nodes[node]  # type: ignore[index]
    loopback = {ports.named(port.name) for port in ports.panel.loopback}
    loopback |= {PORTS_PER_PIPE * at + port for at in range(2) for port in TOFINO_2.recirculation}
    return kind(labels, groups, loopback)  # type: ignore[arg-type]


class Network:
    """All switches of a deployment, and the packets that arrive at the servers.

    make: returns a switch with these entries and ports.
    """

    def __init__(  # type: ignore[no-untyped-def]
        self,
        topology: Topology,
        rulesets: dict[str, RuleSet],
        program,
        *,
        values: int = VALUES,
        make: Callable[[list[Entry], PortMap], Any] = switch,
    ) -> None:
        self.topology, self.values = topology, values
        self.ports: dict[str, PortMap] = {}
        self.switches: dict[str, Any] = {}
        for name, rules in rulesets.items():
            panel = Panel.of(topology, name)
            devices = {port.name: port.connector % 2 * PORTS_PER_PIPE + 8 + port.connector for port in panel.ports}
            self.ports[name] = PortMap(panel, devices)
            self.switches[name] = make(program.entries(rules, self.ports[name]), self.ports[name])
        self.arrived: dict[str, list[Packet]] = {server: [] for server in topology.servers}

    def send(self, server: str, packet: Packet) -> None:
        """Send a packet from a server and process everything that follows from it."""
        queue = deque([(server, self.topology.access_switch(server), packet)])
        while queue:
            before, node, packet = queue.popleft()
            if node in self.arrived:
                self.arrived[node].append(packet)
                continue
            port = self.ports[node].device(self.topology.port(node, before))
            assert isinstance(port, int)
            for out, leaving in self.switches[node].process(port, packet):
                number = self.ports[node].number(out)
                following = next(n for n in self.topology.neighbours(node) if self.topology.port(node, n) == number)
                assert decode(leaving.encode(), self.values) == leaving
                queue.append((node, following, leaving))


def all_reduce(network: Network, made: Deployment, source: random.Random) -> None:
    """Run two chunks on every tree, with the workers in any order; checks the sums at the roots, then one result at
    each worker.
    """
    workers = [agent for agent in made.agents.values() if agent.role == "worker"]
    for sequence, flags in ((0, 0), (1, int(Flag.MAXIMUM))):
        data = {
            (worker.index, tree.tree): tuple(source.getrandbits(24) for _ in range(network.values))
            for worker in workers
            for tree in worker.worker_trees
        }
        sending = [(worker, tree) for worker in workers for tree in worker.worker_trees]
        source.shuffle(sending)
        for worker, tree in sending:
            packet = Packet(tree.up_label, 7, sequence, 0, data[worker.index, tree.tree], flags)
            network.send(worker.node, packet)
        for agent in made.agents.values():
            arrived = network.arrived[agent.node]
            for root in agent.root_trees:
                flows = {flow.label: flow for flow in root.flows}
                packets = [packet for packet in arrived if packet.label in flows]
                assert len({packet.label for packet in packets}) == len(packets), "one packet of a flow at most"
                there = [
                    worker
                    for packet in packets
                    for bit, part in enumerate(flows[packet.label].parts)
                    for worker in part
                    if not flows[packet.label].partial or packet.bitmap >> bit & 1
                ]
                assert sorted(there) == list(range(len(workers)))
                merge = max if flags else sum
                columns = zip(*(packet.values for packet in packets), strict=True)
                wanted = zip(*(data[worker.index, root.tree] for worker in workers), strict=True)
                assert [merge(column) for column in columns] == [merge(column) for column in wanted]
                network.send(agent.node, Packet(root.return_label, 7, sequence, len(workers), packets[0].values, 2))
        for worker in workers:
            results = Counter(packet.label for packet in network.arrived[worker.node] if packet.result)
            assert results == Counter(tree.return_label for tree in worker.worker_trees)
        for packets in network.arrived.values():
            packets.clear()


def test_the_testbed(program, topology) -> None:  # type: ignore[no-untyped-def]
    made = deployment(topology)
    network = Network(topology, made.rulesets, program)
    all_reduce(network, made, random.Random(1))
    points = {
        data["next_label"]
        for switch in network.switches.values()
        for action, data in switch.labels.values()
        if action == "aggregate"
    }
    assert sum(switch.round for switch in network.switches.values()) == 2 * len(points) > 0


@given(instance=instances(), seed=st.integers(0, 2**16))
@FEW
def test_any_plan(program, instance, seed) -> None:  # type: ignore[no-untyped-def]
    topology, job = instance
    hardware = with_front_panel(topology, loopback=2)
    try:
        made = build(random_plan(hardware, job, seed), hardware, LIMITS, job_id=1, epoch=0)
    except DoesNotFit:
        return
    all_reduce(Network(hardware, made.rulesets, program), made, random.Random(seed))
