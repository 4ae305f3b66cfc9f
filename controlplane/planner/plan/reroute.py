"""Rerouting the trees of a running plan around a failure, in place: trees, flows and shares stay, routes and points
change.

A tree's flows keep their names, so no worker and no parameter server has to be told, and chunks under way go on: to the
protocol a switch that takes over from a lost one is a switch that has forgotten its memory. The rate may be lower than
before; a replan (replan.py) comes next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import networkx as nx

from controlplane.planner.plan.assignments import Assignments
from controlplane.planner.plan.model import Plan, PlanError, Tree
from controlplane.planner.topology import Topology

FULL = 0.02
"""The rest of a link's bandwidth, as a fraction, below which the link counts as full: its length grows no further."""


SEARCHES = 64
"""Most searches for shortest routes, each of which counts the load that earlier trees have put on links."""


class CannotReroute(Exception):
    """Error: a tree has no other route; the message names the tree and why."""


@dataclass(frozen=True)
class Rerouted:
    """A rerouted plan.

    Attributes:
        plan: The plan, with the same trees in the same order.
        moved: (tree, switch that added before, switch that adds now).
        trees: Indices of the trees that were rerouted.
        up: Indices of the trees whose flows were.
        down: Indices of the trees whose results were.
    """

    plan: Plan
    moved: tuple[tuple[int, str, str], ...]
    trees: tuple[int, ...]
    up: frozenset[int]
    down: frozenset[int]


def intact(tree: Tree, topology: Topology) -> bool:
    """Return whether all links that the tree uses exist."""
    routes = [flow.route for flow in tree.flows]
    return all(topology.has_link(u, v) for route in [*routes, *tree.return_edges] for u, v in pairwise(route))


def unbroken(plan: Plan, topology: Topology) -> bool:
    """Return whether all trees of the plan are intact."""
    return all(intact(tree, topology) for tree in plan.trees)


def reroute(plan: Plan, topology: Topology, take: Callable[[str, int], bool] = lambda switch, tree: True) -> Rerouted:
    """Return the plan rerouted around all that `topology`, the network's present state, lacks. Raise CannotReroute
    where a tree has no other route.

    `take` is asked for aggregation memory at a switch for a tree, and returns False where there is none.
    """
    broken = [index for index, tree in enumerate(plan.trees) if not intact(tree, topology)]
    for node in (*plan.job.workers, *plan.job.parameter_servers):
        if node not in topology or not topology.neighbours(node):
            raise CannotReroute(f"{node} is cut off")
    ways = _Ways(topology, [(plan.trees[index], plan.tree_rate_mbps(index)) for index in range(len(plan.trees))])
    trees = list(plan.trees)
    moved: list[tuple[int, str, str]] = []
    # Trees that need another point come first, then the fastest ones: small flows fit into the rest.
    broken.sort(key=lambda index: (all(p in topology for p in trees[index].points), -plan.tree_rate_mbps(index)))
    for number, index in enumerate(broken):
        if number % -(-len(broken) // SEARCHES) == 0:
            ways.look_again()
        trees[index], changes = _around(index, trees[index], plan.tree_rate_mbps(index), ways, take)
        moved += [(index, before, after) for before, after in changes.items()]
    rerouted = replace(plan, trees=tuple(trees))
    try:
        rerouted.check(topology)
    except PlanError as error:
        raise CannotReroute(str(error)) from None
    up = frozenset(index for index in broken if set(plan.trees[index].flows) != set(trees[index].flows))
    down = frozenset(index for index in broken if plan.trees[index].return_edges != trees[index].return_edges)
    return Rerouted(rerouted, tuple(moved), tuple(sorted(broken)), up, down)


class _Ways:
    """Shortest routes between switches, on which nearly full links count as long."""

    def __init__(self, topology: Topology, running: list[tuple[Tree, float]]) -> None:
        self.topology = topology
        self.adding: defaultdict[str, float] = defaultdict(float)
        self._loads: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._found: dict[str, tuple[dict[str, float], dict[str, list[str]]]] = {}
        self._graph = nx.DiGraph()
        self._graph.add_nodes_from(topology.switches)
        for tree, rate in running:  # broken trees count, too, as they keep most of their links
            self.use(tree, rate)

    def use(self, tree: Tree, rate: float) -> None:
        """Add a tree's rate to the load of its links and points; a negative rate takes it off again."""
        for flow in tree.flows:
            for pair in pairwise(flow.route):
                self._loads[pair] += rate
            self.adding[flow.end] += rate
        for pair in tree.return_edges:
            self._loads[pair] += rate

    def look_again(self) -> None:
        """Forget the shortest routes that were found, and weigh links by their present load."""
        self._found = {}
        for u, v in self.topology.links:
            if self.topology.kind(u) == self.topology.kind(v) == "switch":
                bandwidth = self.topology.bandwidth_mbps(u, v)
                left = self.topology.residual_bandwidth_mbps(u, v) - self._loads[u, v]
                self._graph.add_edge(u, v, weight=1 / max(left / bandwidth, FULL) if bandwidth else 1 / FULL)

    def _from(self, switch: str) -> tuple[dict[str, float], dict[str, list[str]]]:
        if switch not in self._found:
            self._found[switch] = nx.single_source_dijkstra(self._graph, switch)
        return self._found[switch]

    def first(self, source: str, ends: Sequence[str]) -> str:
        """Return the switch next to a server from which all these ends together are nearest, as results leave a
        parameter server over one link; for a switch, return itself.
        """
        return min(self._switches(source), key=lambda switch: sum(self.length(switch, end) for end in ends))

    def _switches(self, node: str) -> tuple[str, ...]:
        """Return where a route from or to a node may begin or end: a switch itself, or the switches that a server hangs
        on.
        """
        topology = self.topology
        if topology.kind(node) == "switch":
            return (node,)
        return tuple(
            near
            for near in topology.neighbours(node)
            if topology.has_link(node, near) and topology.has_link(near, node)
        )

    def length(self, source: str, end: str) -> float:
        """Return the length of the shortest route; infinity where there is none."""
        found = (self._from(first)[0].get(last) for first in self._switches(source) for last in self._switches(end))
        return min((length for length in found if length is not None), default=float("inf"))

    def route(self, source: str, end: str, first: str | None = None) -> tuple[str, ...]:
        """Return the shortest route, from a server over its link to `first` (None: any link). Raise CannotReroute where
        there is none.
        """
        pairs = [
            (self._from(near)[0][last], near, last)
            for near in ((first,) if first is not None else self._switches(source))
            for last in self._switches(end)
            if last in self._from(near)[0]
        ]
        if not pairs:
            raise CannotReroute(f"there is no way from {source} to {end}")
        _, near, last = min(pairs)
        path = self._from(near)[1][last]
        route = [*([source] if source != path[0] else []), *path, *([end] if end != path[-1] else [])]
        return tuple(route)

    def full(self, switch: str, rate: float) -> bool:
        """Return whether the switch cannot add this much more, in Mbit/s."""
        return self.adding[switch] + rate > self.topology.residual_aggregation_mbps(switch)


def _around(
    index: int, tree: Tree, rate: float, ways: _Ways, take: Callable[[str, int], bool]
) -> tuple[Tree, dict[str, str]]:
    """Return the tree over other routes, and the new switch for each aggregation point that was replaced."""
    topology = ways.topology
    ways.use(tree, -rate)
    onwards = {relay.node: relay.next for relay in tree.relays}
    inputs: dict[str, list[str]] = {}
    for flow in tree.flows:
        inputs.setdefault(flow.end, []).append(flow.source)
    instead: dict[str, str] = {}
    for point, after in onwards.items():
        if point in topology and topology.neighbours(point):
            continue
        # Lost neighbours in the tree have no replacement yet: stay near the others.
        near = [node for node in (*inputs[point], after) if node in topology]

        def cost(switch: str, near: list[str] = near, flows: int = len(inputs[point])) -> float:
            length = sum(ways.length(node, switch) for node in near)
            return length * (10 if ways.full(switch, rate * flows) else 1)

        candidates = sorted((v for v in topology.switches if v not in onwards and v not in instead.values()), key=cost)
        chosen = next((v for v in candidates if cost(v) < float("inf") and take(v, index)), None)
        if chosen is None:
            raise CannotReroute(f"tree {index} (root {tree.root}): no switch has room to add instead of {point}")
        instead[point] = chosen

    def now(node: str) -> str:
        return instead.get(node, node)

    def led(source: str, end: str, route: tuple[str, ...]) -> tuple[str, ...]:
        same = (source, end) == (route[0], route[-1]) and all(topology.has_link(u, v) for u, v in pairwise(route))
        return route if same else ways.route(source, end)

    assignments = Assignments.of(
        [a._replace(point=now(a.point), route=led(a.worker, now(a.point), a.route)) for a in tree.assignments]
    )
    relays = tuple(
        r._replace(node=now(r.node), next=now(r.next), route=led(now(r.node), now(r.next), r.route))
        for r in tree.relays
    )
    edges = tree.return_edges
    if not all(topology.has_link(u, v) for u, v in edges):
        found: dict[tuple[str, str], None] = {}
        workers = [
            a.worker for a in tree.assignments if a.worker != tree.root
        ]  # a worker on the root's host needs no result sent
        first = ways.first(tree.root, workers)
        for worker in workers:
            found.update(dict.fromkeys(pairwise(ways.route(tree.root, worker, first))))
        edges = tuple(found)
    rerouted = replace(tree, assignments=assignments, relays=relays, return_edges=edges)
    ways.use(rerouted, rate)
    return rerouted, instead
