"""NetStorm's policy: it makes trees again from measured throughputs (NetStorm paper, sections IV to VI)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx

from controlplane.planner.plan.task import Edge, SumTree, Task
from controlplane.planner.strategies.wan.apsp.algorithm import Node
from controlplane.planner.strategies.wan.netstorm.algorithm import (
    AggregationTree,
    auxiliary_paths,
    balanced_tree,
    choose_roots,
    chunk_roots,
    multi_root,
    star,
    widest_tree,
)
from controlplane.planner.strategies.wan.policy import (
    BROKEN_MBPS,
    BrokenLinks,
    Changed,
    Measured,
    Rounds,
    rates_changed,
)

TOPOLOGIES = ("FAPT", "MST", "BKT", "STAR")


@dataclass(frozen=True)
class NetStormSettings:
    """Settings of NetStorm's policy. Raises ValueError for another topology.

    Attributes:
        topology: "FAPT" (NetStorm), or a baseline with one root: "MST" (TSEngine), "BKT" (MLNET), "STAR" (MXNET).
        roots: How many roots FAPT has; None for all agents.
        root: The root of a baseline, and of FAPT with one root (default: the first agent, and the best one).
        aware: Whether throughputs are measured (Eq. (17), overlay/core/measurement.py), and trees are decided every
            `update` seconds (UPDATE_TIME) when a throughput has changed by more than the part `update_rate`.
        auxiliary: Whether chunks may take idle links.
        update: See `aware`.
        update_rate: See `aware`.
        busy_bound: PRIMARY_BUSY_BOUND of the paper.
        auxiliary_length: AUXILIARY_QUEUE_LENGTH of the paper.
        lazy: Where the auxiliary paths are busy, too, a chunk waits until a path has room; if not set, it takes the
            primary path, as VI-A has it.
        chunk_values: Values of a chunk in tasks.
        window: Window of tasks, in chunks.
    """

    topology: str = "FAPT"
    roots: int | None = None
    root: Node | None = None
    aware: bool = True
    auxiliary: bool = True
    update: float = 5.0
    update_rate: float = 0.0
    busy_bound: int = 2
    auxiliary_length: int = 1
    lazy: bool = False
    chunk_values: int = 1_000_000
    window: int = 64

    def __post_init__(self) -> None:
        if self.topology not in TOPOLOGIES:
            raise ValueError(f"unknown topology {self.topology!r}; known: {', '.join(TOPOLOGIES)}")

    def roots_in(self, graph: nx.DiGraph) -> tuple[Node, ...]:
        """Return the roots in this network."""
        if self.root is not None and (self.topology != "FAPT" or self.roots == 1):
            return (self.root,)
        if self.topology == "FAPT":
            return choose_roots(graph, self.roots or len(graph))
        return (next(iter(graph)),)


USUAL = NetStormSettings()


class NetStorm(Rounds):
    """Rounds that use the trees of the latest decision; a round that has begun keeps its trees and auxiliary paths. The
    first decision fixes the roots, so that no key range moves later.

    `graph` has the agents as nodes, with "mbps", the believed rate of each directed link at the start.
    """

    def __init__(self, graph: nx.DiGraph, settings: NetStormSettings = USUAL) -> None:
        super().__init__(tuple(graph.nodes))
        self.settings = settings
        self.belief, self.decided = graph.copy(), graph.copy()
        self.roots = settings.roots_in(graph)
        self.cut = BrokenLinks()
        self.updated = 0.0
        self.decisions = 1
        self.trees = self._decide()
        self.detours = self._detours()

    # --- awareness ---

    def learn(self, event: Measured | Changed, now: float) -> None:
        """Take a measured throughput, where `aware`; take a rate that the network tells only for a link that was
        cut.
        """
        link = (event.sender, event.receiver)
        if isinstance(event, Changed) and self.cut.told(link):
            self.belief.edges[link]["mbps"] = event.mbps
            self.updated = -math.inf
        if isinstance(event, Measured) and self.settings.aware and self.belief.has_edge(*link):
            self.belief.edges[link]["mbps"] = event.mbps

    def broken(self, node: str, other: str) -> None:
        """Avoid this link with the trees, in both directions, until the network tells its rate."""
        for link in ((node, other), (other, node)):
            if self.belief.has_edge(*link):
                self.cut.add(link, self.belief.edges[link]["mbps"])
                self.belief.edges[link]["mbps"] = BROKEN_MBPS
                self.updated = -math.inf

    def mended(self, node: str) -> None:
        for link, mbps in self.cut.mended(node).items():
            self.belief.edges[link]["mbps"] = mbps
            self.updated = -math.inf

    def refresh(self, now: float) -> bool:
        """Decide again when `update` seconds have passed and believed rates have changed, and return whether that was
        so.
        """
        told = self.updated == -math.inf  # of a link that was cut, or of one that is whole again
        if (not self.settings.aware and not told) or now < self.updated + self.settings.update:
            return False
        if rates_changed(self.decided, self.belief, self.settings.update_rate):
            self.updated = now
            self.decided = self.belief.copy()
            self.decisions += 1
            self.trees = self._decide()
            self.detours = self._detours()
            return True
        return False

    # --- decisions ---

    def _decide(self) -> tuple[AggregationTree, ...]:
        if self.settings.topology == "STAR":
            return (star(self.decided, self.roots[0]),)
        if self.settings.topology == "BKT":
            return (balanced_tree(self.decided, self.roots[0]),)
        if self.settings.topology == "MST":
            return (widest_tree(self.decided, self.roots[0]),)
        return multi_root(self.decided, self.roots)

    def _detours(self) -> tuple[Edge, ...]:
        if not self.settings.auxiliary:
            return ()
        pairs = {pair for tree in self.trees for v, above in tree.parent.items() for pair in ((v, above), (above, v))}
        return tuple(
            Edge(u, v, tuple(path[1:-1]))
            for u, v in sorted(pairs)
            for path in auxiliary_paths(self.decided, u, v)
            if 2 < len(path) <= 9
        )

    def task(self, number: int, values: int, now: float) -> Task:
        self.refresh(now)
        chunks = max(1, round(values / self.settings.chunk_values))
        owners = chunk_roots(self.trees, chunks)
        counts = [owners.count(k) for k in range(len(self.trees))]
        trees: list[SumTree] = []
        first = 0
        for tree, count in zip(self.trees, counts, strict=True):
            last = sum(count > 0 for count in counts) == len(trees) + 1
            size = values - first if last else min(values - first, count * self.settings.chunk_values)
            if count:
                trees.append(sum_tree(tree, self.nodes, first, size))
                first += size
        return Task(
            number,
            values,
            tuple(trees),
            round=number,
            chunk_values=self.settings.chunk_values,
            window=self.settings.window,
            detours=self.detours,
            busy_bound=self.settings.busy_bound,
            detour_length=self.settings.auxiliary_length,
            lazy=self.settings.lazy,
        )


def sum_tree(tree: AggregationTree, members: Sequence[str], first: int, count: int) -> SumTree:
    """Return the tree of a task: sums go up the aggregation tree, and the result goes down the same tree."""
    up = tuple(Edge(str(v), str(above)) for v, above in tree.parent.items())
    down = tuple(Edge(edge.receiver, edge.sender) for edge in up)
    return SumTree(str(tree.root), first, count, up, down, tuple(members), tuple(members))
