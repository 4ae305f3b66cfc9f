"""The entries that count a flow's packets before and behind every link, by which links are judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controlplane.planner.entries import Aggregate
from controlplane.planner.plan import Plan
from controlplane.planner.rules import Deployment
from controlplane.planner.topology import Topology
from controlplane.planner.topology_cables import beyond, port_back
from controlplane.targets.base import Counters

Entry = tuple[str, int, int]
"""A table entry: its switch, ingress port and label."""
Readings = Mapping[str, tuple[float, Counters]]
"""By switch, its counters and the time (`time.monotonic`) at which the switch gave them."""


@dataclass(frozen=True)
class Hop:
    """A flow's way over one link: the entries that send its packets into the link, the entry that takes them out, the
    ends of the link, and the tree."""

    into: tuple[Entry, ...]
    out: Entry
    ends: tuple[str, str]
    tree: int

    @property
    def link(self) -> str:
        """The name of the link."""
        return "-".join(self.ends)


def hops_of(plan: Plan, deployment: Deployment, topology: Topology) -> Iterable[Hop]:
    """Yield the way of every flow of a plan over every link between switches."""

    def hop(into: Iterable[Entry], node: str, after: str, label: int) -> Hop:
        out = beyond(topology, node, after), port_back(topology, node, after), label
        return Hop(tuple(into), out, (node, after), index)

    def counts(node: str, after: str) -> bool:
        """Return whether packets are counted before and behind a link, which is so between switches, also over one of
        several cables."""
        if node in topology.cables or topology.kind(node) != "switch":
            return False
        return topology.kind(beyond(topology, node, after)) == "switch"

    def along(route: tuple[str, ...], label: int) -> Iterable[Hop]:
        for before, node, after in zip(route, route[1:], route[2:], strict=False):
            if counts(node, after):
                yield hop([(node, topology.port(node, before), label)], node, after, label)

    configs = deployment.agents
    trees = {node: {tree.tree: tree for tree in config.worker_trees} for node, config in configs.items()}
    sums = {
        (switch, entry.label): entry.action.next_label
        for switch, rules in deployment.rulesets.items()
        for entry in rules.labels
        if isinstance(entry.action, Aggregate)
    }
    index = 0
    for index, tree in enumerate(plan.trees):
        partial: dict[str, int] = {}
        inputs: dict[str, list[Entry]] = {}
        waiting = [(a.worker, a.point, a.route, trees[a.worker][index].up_label) for a in tree.assignments]
        onwards = {relay.node: relay for relay in tree.relays}
        while waiting:
            _, point, route, label = waiting.pop()
            yield from along(route, label)
            if point == tree.root:
                continue
            inputs.setdefault(point, []).append((point, topology.port(point, route[-2]), label))
            if point not in partial:
                partial[point] = sums[point, label]
                relay = onwards[point]
                waiting.append((point, relay.next, relay.route, partial[point]))
        for point, label in partial.items():
            after = onwards[point].route[1]
            if counts(point, after):
                yield hop(inputs[point], point, after, label)
        parent = {child: above for above, child in tree.return_edges}
        for above, child in tree.return_edges:
            if counts(above, child):
                label = trees[tree.assignments[0].worker][index].return_label
                yield hop([(above, topology.port(above, parent[above]), label)], above, child, label)
        for a in tree.assignments:
            way = [a.worker]
            while way[-1] != tree.root:
                way.append(parent[way[-1]])
            yield from along(tuple(reversed(way)), trees[a.worker][index].answer_label)


def packets(read: Readings) -> dict[Entry, int]:
    """Return the number of packets that each entry has counted."""
    return {
        (switch, port, label): count
        for switch, (_, counters) in read.items()
        for (port, label), (count, _) in counters.labels.items()
    }
