"""The network of links as SelMcast's manager knows it: which links multicasts cross, and how fast they can be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise

import networkx as nx
import numpy as np

from controlplane.planner.simulate import Simulator
from controlplane.planner.strategies.wan.links import Link, Links
from controlplane.planner.strategies.wan.policy import BROKEN_MBPS

BROKEN_SECONDS = 30.0
"""Seconds after which two workers that could not reach each other are tried again, unless the network tells of it
before.
"""


class Network:
    """The network of links between workers, which are the nodes of a graph whose directed links have "mbps".

    Args:
        graph: The workers and links.
        routes: The fixed routes of TCP between any two workers, over the graph's nodes.
        switch: Returns the name of a node's switch, which copies multicasts (L3); each multicast then gets a tree of
            its own, of the least loaded paths when it begins. None makes senders send to each receiver on its own (L7),
            along the routes.
    """

    def __init__(
        self,
        graph: nx.DiGraph,
        routes: Mapping[Link, Sequence[str]],
        *,
        switch: Callable[[str], str] | None = None,
    ) -> None:
        self.nodes = tuple(graph.nodes)
        self.index = {node: k for k, node in enumerate(self.nodes)}
        rates = {(u, v): float(data["mbps"]) for u, v, data in graph.edges(data=True)}
        self.connections = Links(self.nodes, routes, rates)
        self.switch = switch
        self._trees: dict[int, dict[str, list[str]]] = {}
        self.links = self.connections
        """The links that multicasts cross; where switches copy, a sender's row is its present tree."""
        if switch is not None:
            self.links = Links(self.nodes, routes, rates)
            for i in range(len(self.nodes)):
                self.plant(i, ())
        self._cut: dict[tuple[int, int], float] = {}  # pairs that cannot reach each other -> since when
        self._before: dict[Link, tuple[float, float]] = {}  # broken links -> (Mbit/s before, since when)

    # --- changes ---

    def change(self, link: Link, mbps: float) -> None:
        """Take the rate of a link that the network has told; pairs that were cut off may reach each other again over
        this link.
        """
        if link in self.links.index:
            self._before.pop(link, None)
            self._set(link, mbps)
            for pair in [each for each in self._cut if self.connections.crosses[(*each, self.links.index[link])]]:
                del self._cut[pair]

    def broken(self, node: str, other: str, now: float) -> None:
        """Take note that two workers cannot reach each other; a link between them counts as broken."""
        i, j = self.index[node], self.index[other]
        self._cut |= {(i, j): now, (j, i): now}
        for link in ((node, other), (other, node)):
            if link in self.links.index and link not in self._before:
                self._before[link] = float(self.links.mbps[self.links.index[link]]), now
                self._set(link, BROKEN_MBPS)

    def try_again(self, now: float) -> None:
        """Count links and pairs that were found broken more than BROKEN_SECONDS ago as whole again, as a connection may
        end because of a cut that is over already.
        """
        late = now - BROKEN_SECONDS
        self._cut = {pair: since for pair, since in self._cut.items() if since > late}
        for link in [link for link, (_, since) in self._before.items() if since <= late]:
            self._set(link, self._before.pop(link)[0])

    def mended(self, node: str) -> None:
        """Take note that a worker was lost, or is back: connections to it were broken because of that, and not because
        of links.
        """
        i = self.index[node]
        self._cut = {pair: since for pair, since in self._cut.items() if i not in pair}
        for link in [link for link in self._before if node in link]:
            self._set(link, self._before.pop(link)[0])

    def _set(self, link: Link, mbps: float) -> None:
        for links in (self.connections, self.links):
            links.change(link, mbps)

    def reached(self, i: int) -> np.ndarray:
        """Return, (n,) bool, the workers to which this worker can send. TCP counts, too, where switches copy, since
        lost packets are replaced over TCP.
        """
        off = np.zeros(len(self.links.mbps), bool)
        off[[self.links.index[link] for link in self._before]] = True
        found = ~((self.connections.crosses[i] | self.links.crosses[i]) & off).any(axis=1)
        found[[j for a, j in self._cut if a == i]] = False
        found[i] = False
        return found

    # --- trees and rates ---

    def plant(self, i: int, others: Collection[tuple[int, np.ndarray]]) -> None:
        """Give a worker a new tree, of the least loaded paths beside these multicasts: (sender, its receivers)."""
        load = np.ones(len(self.links.mbps))
        for sender, receivers in others:
            load += self._used(sender, receivers)
        index, mbps = self.links.index, self.links.mbps
        graph = nx.DiGraph()
        graph.add_nodes_from(self.nodes)
        graph.add_weighted_edges_from([(u, v, load[e] / max(mbps[e], BROKEN_MBPS)) for (u, v), e in index.items()])
        trees = self._trees[i] = nx.single_source_dijkstra_path(graph, self.nodes[i])
        self.links.crosses[i] = False
        for node, path in trees.items():
            for link in pairwise(path):
                self.links.crosses[i, self.index[node], index[link]] = True

    def routes(self, i: int, receivers: Collection[int]) -> tuple[tuple[str, ...], ...]:
        """Return the routes of the sender's present tree to these receivers, over switches; none where no switch
        copies.
        """
        if self.switch is None:
            return ()
        paths = [self._trees[i][self.nodes[j]] for j in receivers]
        return tuple((path[0], *map(self.switch, path), path[-1]) for path in paths)

    def rates(self, multicasts: Mapping[int, np.ndarray]) -> dict[int, float]:
        """Return the max-min fair rates, in Mbit/s, of the senders' multicasts to these receivers; each crosses a link
        once.
        """
        simulator = Simulator(self.links.mbps)
        flows = {
            i: simulator.send(1.0, np.flatnonzero(self._used(i, receivers)).tolist())
            for i, receivers in multicasts.items()
            if receivers.any()
        }
        return {i: simulator.rate(flow) for i, flow in flows.items()}

    def _used(self, i: int, receivers: np.ndarray) -> np.ndarray:
        return self.links.crosses[i][receivers].any(axis=0)
