"""APSP's policy: it chooses server and routes again when bandwidths change (APSP paper, end of section IV)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx

from controlplane.planner.plan.task import Edge, SumTree, Task
from controlplane.planner.strategies.wan.apsp.algorithm import Delay, Placement, place
from controlplane.planner.strategies.wan.policy import (
    BROKEN_MBPS,
    Changed,
    Event,
    Lost,
    Measured,
    Order,
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
        momentum: Momentum of the server's optimiser.
        paced: Whether flows keep to the bandwidths of the placement, less the part `headroom`.
        headroom: See `paced`.
        chunk_values: Values of a chunk in tasks.
        window: Window of tasks, in chunks.
    """

    seed: int = 0
    delay: Delay = "stored"
    change: float | None = 0.1
    momentum: float = 0.0
    paced: bool = False
    headroom: float = 0.05
    chunk_values: int = 65_536
    window: int = 64


USUAL = ApspSettings()


class Apsp(Rounds):
    """Rounds that have one parameter server, placed by Algorithm 2, and use the paths that Algorithm 2 chose; agents on
    a path forward chunks.

    The network is known, as in the paper: it tells its changes (`Changed`). With momentum the velocity moves with the
    server, over the new paths, before the first round in the new place; the velocity of a lost server is lost.

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
        self.settings, self.fixed = settings, root
        self.holder: str | None = None  # the agent that has the velocity
        self.moving: dict[int, str] = {}  # task -> the agent that has the velocity afterwards
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
            self.belief.edges[event.sender, event.receiver]["mbps"] = event.mbps

    def broken(self, node: str, other: str) -> None:
        for link in ((node, other), (other, node)):
            if self.belief.has_edge(*link):
                self.belief.edges[link]["mbps"] = BROKEN_MBPS

    def _refresh(self) -> None:
        if self.settings.change is not None and rates_changed(self.decided, self.belief, self.settings.change):
            self.decided = self.belief.copy()
            self.placement = self._decide()

    def handle(self, event: Event, now: float) -> Sequence[Order]:
        orders = super().handle(event, now)
        if isinstance(event, Lost):
            self.moving.clear()
            if event.other is None and event.node == self.holder:
                self.holder = None
        return orders

    def done(self, number: int) -> None:
        self.holder = self.moving.pop(number, self.holder)

    def task(self, number: int, values: int, now: float) -> Task:
        if self.settings.momentum and self.moving:
            raise ValueError("a server with momentum adds one tensor at a time, and the last round has not ended")
        self._refresh()
        root, paths = self.placement.root, self.placement.paths
        up = tuple(Edge(node, root, path[1:-1]) for node, path in paths.items())
        down = tuple(Edge(root, edge.sender, edge.via[::-1]) for edge in up)
        rates: tuple[float, ...] = ()
        if self.settings.paced:
            own = self.placement.bandwidth
            rates = tuple(own[node] * (1 - self.settings.headroom) if node != root else 0.0 for node in self.nodes)
        state = None
        if self.settings.momentum:
            self.moving[number] = root
            if self.holder not in (None, root):
                state = next(edge for edge in up if edge.sender == self.holder)
        tree = SumTree(root, 0, values, up, down, self.nodes, self.nodes, rates_mbps=rates, state=state)
        return Task(
            number, values, (tree,), round=number, chunk_values=self.settings.chunk_values, window=self.settings.window,
            momentum=self.settings.momentum,
        )  # fmt: skip
