"""Equivalent switches as one: a smaller network in which to search for trees, and the way back.

In a fat-tree the aggregation switches of a pod are the same switch many times over, and so are the core switches. Where
links are the bottleneck, that makes column generation slow (every tree has many twins, and the prices jump between
them). Here switches without servers that have the same capacities and the same neighbours, as far as these can be told
apart, become one with all their capacity; so do the links between them. Every plan of the network is one of the smaller
network, so that one's bounds hold. A tree found there is lifted (`Lifting`): each merged switch in it becomes one of
its members, in as many ways as there are, and the master program decides how much each carries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from controlplane.planner.plan.assignments import Assignments, Way
from controlplane.planner.plan.model import Relay, Tree
from controlplane.planner.strategies.fabric.master import Column, Master
from controlplane.planner.topology import Topology

DIGITS = 9  # decimal digits to which capacities have to agree
Edge = tuple[str, str]


@dataclass(frozen=True)
class Merged:
    """A network with equivalent switches merged, in which a merged switch has the name of its first member, and the
    members of each merged switch.
    """

    topology: Topology
    members: dict[str, tuple[str, ...]]


@lru_cache(maxsize=4)  # strategy and bounds ask for the same network
def merge_equivalent(topology: Topology) -> Merged | None:
    """Return the network with equivalent switches merged; None where no two switches are equivalent."""
    kind: dict[str, object] = {}
    for node in topology.nodes:
        near = topology.neighbours(node)
        alone = topology.kind(node) != "switch" or any(topology.kind(v) != "switch" for v in near)
        kind[node] = node if alone else round(topology.residual_aggregation_mbps(node), DIGITS)
    free = [node for node in topology.nodes if kind[node] != node]
    known = len(set(kind.values()))
    while True:  # two switches are alike as long as they have like links to like neighbours
        signatures = {node: (kind[node], _links(topology, node, kind)) for node in free}
        numbers = {signature: number for number, signature in enumerate(dict.fromkeys(signatures.values()))}
        kind.update({node: ("merged", numbers[signatures[node]]) for node in free})
        if len(set(kind.values())) == known:
            break
        known = len(set(kind.values()))
    together: dict[object, list[str]] = {}
    for node in topology.nodes:
        together.setdefault(kind[node], []).append(node)
    if len(together) == len(topology.nodes):
        return None
    name = {node: nodes[0] for nodes in together.values() for node in nodes}
    nodes = {}
    for members in together.values():
        nodes[members[0]] = dict(topology.graph.nodes[members[0]])
        if len(members) > 1:
            total = sum(topology.residual_aggregation_mbps(v) for v in members)
            nodes[members[0]] = {"kind": "switch", "aggregation_mbps": total}
    links: dict[Edge, float] = {}
    for u, v in topology.links:
        if name[u] != name[v]:
            pair = name[u], name[v]
            links[pair] = links.get(pair, 0.0) + topology.residual_bandwidth_mbps(u, v)
    small = Topology(
        nodes,
        [(u, v, {"bandwidth_mbps": mbps}) for (u, v), mbps in links.items()],
        topology.name,
        results_on_links=topology.results_on_links,
    )
    return Merged(small, {nodes[0]: tuple(nodes) for nodes in together.values() if len(nodes) > 1})


def _links(topology: Topology, node: str, kind: dict[str, object]) -> frozenset[tuple[object, int]]:
    """Return the number of the node's links of each sort: kind of the neighbour and residual bandwidths."""
    found: dict[object, int] = {}
    for v in topology.neighbours(node):
        out, into = (
            round(topology.residual_bandwidth_mbps(*pair), DIGITS) if topology.has_link(*pair) else 0.0
            for pair in ((node, v), (v, node))
        )
        sort = (kind[v], out, into)
        found[sort] = found.get(sort, 0) + 1
    return frozenset(found.items())


class Lifting:
    """Makes trees of the smaller network columns of the network's own master program, each beside those before it."""

    def __init__(self, master: Master, merged: Merged) -> None:
        self.master, self.network, self.merged = master, master.network, merged
        self._rows = {pair: e for e, pair in enumerate(master.network.topology.links)}
        self._load = np.zeros(len(master.capacity))  # by row
        # As lists, since reading single numbers from these is three times as fast.
        self._loads, self._capacity = self._load.tolist(), np.asarray(master.capacity).tolist()

    def columns(self, tree: Tree, *, most: bool) -> Iterator[tuple[Column, float]]:
        """Yield the tree once for every member of one of the merged switches in it (the one with the most members, or
        the fewest), with each copy's part of the tree's share.
        """
        edges, points = tree.crossed(), tree.ends()
        if self.network.topology.results_on_links:
            edges.update(tree.return_edges)
        members, rest = self.merged.members, np.zeros(self.master.split_row0)
        near: dict[str, dict[Edge, int]] = {}
        for (u, v), count in edges.items():
            if u in members or v in members:
                for node in (u, v):
                    near.setdefault(node, {})[u, v] = count
            else:
                link = self._rows[u, v]
                rest[link] += count * self.master.counted[link]
        for point, count in points.items():
            if point not in members:
                rest[self._point(point)] += count
        inside = [v for v in near if v in members]
        sign = -1 if most else 1
        pivot = min(inside, key=lambda v: (sign * len(members[v]), -sum(near[v].values()), v), default="")
        choices = members.get(pivot, ("",))
        links = [pair for v in inside for pair in near[v]]
        # A link between two merged switches is met from both ends.
        counts = [count / (1 + (u in members and v in members)) for at in inside for (u, v), count in near[at].items()]
        for first in choices:
            chosen = self._chosen(pivot, first, near, points) if pivot else {}
            if chosen is None:
                continue
            now = chosen.get
            rows = [self._rows[now(u, u), now(v, v)] for u, v in links]
            ends = [point for point in chosen if point in points]
            use = rest.copy()
            np.add.at(use, rows + [self._point(chosen[point]) for point in ends], counts + [points[p] for p in ends])
            self._load += tree.share / len(choices) * use
            self._loads = self._load.tolist()
            column = self.master.column(self.master.root_position[tree.root], use, partial(_renamed, tree, chosen))
            if column is not None:
                yield column, tree.share / len(choices)

    def _point(self, name: str) -> int:
        root = self.master.root_position.get(name)
        if root is not None:
            return self.master.root_row0 + root
        return self.master.switch_row0 + self.master.switch_position[self.network.index[name]]

    def _chosen(
        self, pivot: str, first: str, near: dict[str, dict[Edge, int]], flows: dict[str, int]
    ) -> dict[str, str] | None:
        """Return a member for every merged switch, the least loaded one with which every link exists; None where there
        is none.
        """
        chosen = {pivot: first}
        seen, queue = {pivot}, [pivot]
        # Merged switches that only links between other nodes join to the pivot are chosen after those around it.
        elsewhere = sorted((node for node in near if node in self.merged.members), reverse=True)
        while queue or elsewhere:
            node = queue.pop(0) if queue else elsewhere.pop()
            seen.add(node)
            if node in self.merged.members and node not in chosen:
                costs = [
                    (cost, member)
                    for member in self.merged.members[node]
                    if (cost := self._cost(node, member, near[node], chosen, flows)) is not None
                ]
                if not costs:
                    return None
                chosen[node] = min(costs)[1]
            for pair in near[node]:
                for other in pair:
                    if other not in seen:
                        seen.add(other)
                        queue.append(other)
        return chosen

    def _cost(
        self, node: str, member: str, links: dict[Edge, int], chosen: dict[str, str], flows: dict[str, int]
    ) -> float | None:
        """Return how full the resources of this member are that the tree needs; None where it lacks a link to a chosen
        one.
        """
        loads, capacity, residual, members = self._loads, self._capacity, self.network.capacity, self.merged.members
        total = 0.0
        if node in flows:
            row = self._point(member)
            if capacity[row] <= 0:
                return None
            total = flows[node] * loads[row] / capacity[row]
        for (u, v), count in links.items():
            other = v if u == node else u
            there = chosen.get(other)
            if there is None:
                if other in members:
                    continue  # its member is chosen later, to fit this one
                there = other
            link = self._rows.get((member, there) if u == node else (there, member))
            if link is None or residual[link] <= 0:
                return None
            total += count * loads[link] / capacity[link]
        return total


def _renamed(tree: Tree, chosen: dict[str, str]) -> Tree:
    now, own = chosen.get, tree.assignments

    def way(route: tuple[str, ...]) -> tuple[str, ...]:
        return tuple([now(node, node) for node in route])

    return Tree(
        tree.root,
        tree.share,
        Assignments(own.workers, tuple([Way(now(p, p), way(behind)) for p, behind in own.ways]), own.which),
        tuple([Relay(now(r.node, r.node), now(r.next, r.next), way(r.route)) for r in tree.relays]),
        tuple([(now(u, u), now(v, v)) if u in chosen or v in chosen else (u, v) for u, v in tree.return_edges]),
    )
