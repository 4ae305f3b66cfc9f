"""Searches on arrays, for large networks: hop counts, in a millisecond with ten thousand nodes, and least-loaded routes
of many nodes to one target at once.

All traffic to the target that comes to a node leaves it over one link, so that the routes of a tree with a thousand
racks are found in one pass over the links instead of a search for each rack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.planner.routing import Network, Router, Unreachable


@dataclass(frozen=True)
class Neighbours:
    """Neighbours of each node, one after the other in the array `nodes`: those of node i are nodes[first[i]:first[i +
    1]]. Servers, which do not forward, have none.
    """

    first: np.ndarray
    nodes: np.ndarray

    @classmethod
    def of(cls, adjacency: Sequence[Sequence[tuple[int, int]]]) -> Neighbours:
        first = np.zeros(len(adjacency) + 1, dtype=np.int64)
        np.cumsum([len(near) for near in adjacency], out=first[1:])
        return cls(first, np.array([node for near in adjacency for node, _ in near], dtype=np.int64))

    def distances(self, near: Sequence[int], start: int) -> np.ndarray:
        """Return the hops from the node `start`, whose neighbours are `near`, to every node; -1 where no route leads
        there.
        """
        distance = np.full(len(self.first) - 1, -1, dtype=np.int32)
        distance[start] = 0
        found, hops = np.array(near, dtype=np.int64), 1
        while len(found):
            mark = np.zeros(len(distance), dtype=bool)
            mark[found] = True
            nodes = np.flatnonzero(mark & (distance < 0))
            distance[nodes] = hops
            begin, many = self.first[nodes], self.first[nodes + 1] - self.first[nodes]
            offsets = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
            found, hops = self.nodes[np.repeat(begin, many) + offsets], hops + 1
        return distance


class InTrees:
    """Routes many nodes to one target at once. It keeps the router's loads (in any one unit per Mbit/s of capacity)
    also as an array.
    """

    def __init__(self, router: Router) -> None:
        self.router, network = router, router.network
        self.network: Network = network
        forwards = np.array(network.forwards)
        ends = np.array(network.ends, dtype=np.int64).reshape(-1, 2)
        use = np.flatnonzero(forwards[ends[:, 0]] & (np.array(network.capacity) > 0))
        use = use[np.argsort(ends[use, 0], kind="stable")]  # `_cheapest` needs links in the order of their sources
        self.link, self.source, self.target = use, ends[use, 0], ends[use, 1]
        self.passes = forwards[self.target]
        self.inverse = np.array(router.inverse)
        self.load = np.array(router.load)

    def add(self, links: Sequence[int], amount: float) -> None:
        """Take note of a load that other code has added to the router's."""
        np.add.at(self.load, np.asarray(links, dtype=np.int64), amount)

    def route(self, target: int, flows: dict[int, float]) -> list[int]:
        """Return for each node the next one on its route to the target (-1 where the node has no part in it), and add
        the load.

        `flows` says what each switch sends. Routes are shortest ones; of these each node takes the one whose fullest
        link is least full now (of equals, the one with the least sum over its links), as if an average flow were added.
        Raise Unreachable where a sender has no route.
        """
        network = self.network
        distance = network.hops_to(target)
        amounts = np.zeros(len(network.names))
        amounts[list(flows)] = list(flows.values())
        lost = next((node for node in flows if distance[node] < 0), None)
        if lost is not None:
            raise Unreachable(network.topology, network.names[lost], network.names[target])
        onwards = distance[self.target] == distance[self.source] - 1
        edges = np.flatnonzero(onwards & (distance[self.source] > 0) & (self.passes | (self.target == target)))
        levels = distance[self.source[edges]]
        farthest = int(distance[list(flows)].max(initial=0))
        highest, total = np.zeros(len(amounts)), np.zeros(len(amounts))
        chosen = np.full(len(amounts), -1)
        share = sum(flows.values()) / len(flows)
        for level in range(1, farthest + 1):
            self._cheapest(edges[levels == level], share, highest, total, chosen)
        following = [-1] * len(amounts)
        used: list[int] = []
        for level in range(farthest, 0, -1):
            nodes = np.flatnonzero((distance == level) & (amounts > 0))
            edge = chosen[nodes]
            np.add.at(amounts, self.target[edge], amounts[nodes])
            np.add.at(self.load, self.link[edge], amounts[nodes])
            used += self.link[edge].tolist()
            for node, after in zip(nodes.tolist(), self.target[edge].tolist(), strict=True):
                following[node] = after
        for link in used:
            self.router.load[link] = float(self.load[link])
        return following

    def _cheapest(
        self, edges: np.ndarray, share: float, highest: np.ndarray, total: np.ndarray, chosen: np.ndarray
    ) -> None:
        """Choose the next link of each node of one level (one distance from the target), and note the utilisation of
        the fullest link of its route and the sum over its links.
        """
        if not len(edges):
            return
        source, target = self.source[edges], self.target[edges]
        own = (self.load[self.link[edges]] + share) * self.inverse[self.link[edges]]
        fullest, sums = np.maximum(own, highest[target]), own + total[target]
        first = np.flatnonzero(np.r_[True, source[1:] != source[:-1]])
        group = np.repeat(np.arange(len(first)), np.diff(np.r_[first, len(source)]))
        even = fullest <= np.minimum.reduceat(fullest, first)[group]
        left = np.where(even, sums, np.inf)
        best = np.flatnonzero(left <= np.minimum.reduceat(left, first)[group])[::-1]
        taken = np.empty(len(first), dtype=np.int64)
        taken[group[best]] = best  # of equals the first one stays, as it is written last
        nodes = source[taken]
        chosen[nodes], highest[nodes], total[nodes] = edges[taken], fullest[taken], sums[taken]
