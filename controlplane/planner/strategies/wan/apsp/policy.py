"""APSP's policy: it chooses server and routes again when bandwidths change (APSP paper, end of section IV)."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx

from controlplane.planner.plan.task import Edge, SumTree, Task
from controlplane.planner.strategies.wan.apsp.algorithm import Delay, Placement, place
from controlplane.planner.strategies.wan.policy import (
    BROKEN_MBPS,
    BrokenLinks,
    Changed,
    Measured,
    Rounds,
    rates_changed,
)

MOST_PATHS = 60


@dataclass(frozen=True)
class ApspSettings:
    """Settings of APSP's policy.

    Attributes:
        seed: As for `place`.
        delay: As for `place`.
        change: The server is placed again when some link's rate has changed by more than this part; None for never.
        chunk_values: Values of a chunk in tasks.
        window: Window of tasks, in chunks.
    """

    seed: int = 0
    delay: Delay = "stored"
    change: float | None = 0.1
    chunk_values: int = 65_536
    window: int = 64


USUAL = ApspSettings()


class Apsp(Rounds):
    """Rounds that have one parameter server, placed by Algorithm 2, and use the paths that Algorithm 2 chose; agents on
    a path forward chunks.

    The network is known, as in the paper: it tells its changes (`Changed`).

    Args:
        graph: Agents as nodes, with "mbps" of each directed link.
        settings: The settings of the policy.
        root: Fixes the server, so that only routes change.
    """

    def __init__(self, graph: nx.DiGraph, settings: ApspSettings = USUAL, *, root: str | None = None) -> None:
        super().__init__(tuple(graph.nodes))
        if root is not None and root not in graph:
            raise ValueError(f"the server {root} is no node of the network")
        self.belief, self.decided = graph.copy(), graph.copy()
        self.cut = BrokenLinks()
        self.settings, self.fixed = settings, root
        self.decisions = 0
        self.placement = self._decide()

    def _decide(self) -> Placement:
        self.decisions += 1
        roots = None if self.fixed is None else [self.fixed]
        return place(
            self.decided,
            1.0,
            seed=self.settings.seed,
            roots=roots,
            delay=self.settings.delay,
            most_paths=MOST_PATHS,
        )

    def learn(self, event: Measured | Changed, now: float) -> None:
        if isinstance(event, Changed) and self.belief.has_edge(event.sender, event.receiver):
            self.cut.told((event.sender, event.receiver))
            self.belief.edges[event.sender, event.receiver]["mbps"] = event.mbps

    def broken(self, node: str, other: str) -> None:
        for link in ((node, other), (other, node)):
            if self.belief.has_edge(*link):
                self.cut.add(link, self.belief.edges[link]["mbps"])
                self.belief.edges[link]["mbps"] = BROKEN_MBPS

    def mended(self, node: str) -> None:
        for link, mbps in self.cut.mended(node).items():
            self.belief.edges[link]["mbps"] = mbps

    def _refresh(self) -> None:
        if self.settings.change is not None and rates_changed(self.decided, self.belief, self.settings.change):
            self.decided = self.belief.copy()
            self.placement = self._decide()

    def task(self, number: int, values: int, now: float) -> Task:
        self._refresh()
        root, paths = self.placement.root, self.placement.paths
        up = tuple(Edge(node, root, path[1:-1]) for node, path in paths.items())
        down = tuple(Edge(root, edge.sender, edge.via[::-1]) for edge in up)
        tree = SumTree(root, 0, values, up, down, self.nodes, self.nodes)
        return Task(
            number, values, (tree,), round=number, chunk_values=self.settings.chunk_values, window=self.settings.window
        )
