"""Connections that share links: the links that each connection crosses, and the links' rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Link = tuple[str, str]


class Links:
    """The network's links, and the links that each connection crosses.

    Args:
        nodes: The n workers.
        routes: For every pair of workers, the network's nodes from one to the other.
        mbps: The rate of each link that may be a limit, in Mbit/s; other links on the routes are ignored.
    """

    def __init__(self, nodes: Sequence[str], routes: Mapping[Link, Sequence[str]], mbps: Mapping[Link, float]) -> None:
        n = len(nodes)
        self.index = {link: k for k, link in enumerate(mbps)}
        self.mbps = np.array(list(mbps.values()), dtype=float)
        self.crosses = np.zeros((n, n, len(mbps)), dtype=bool)
        """(n, n, links): whether the connection from i to j crosses link e."""
        for i, sender in enumerate(nodes):
            for j, receiver in enumerate(nodes):
                if i != j:
                    for link in pairwise(routes[sender, receiver]):
                        if link in self.index:
                            self.crosses[i, j, self.index[link]] = True

    def change(self, link: Link, mbps: float) -> None:
        """Set the rate of a link in Mbit/s."""
        self.mbps[self.index[link]] = mbps

    def narrowest(self) -> NDArray[np.float64]:
        """Return the rate in Mbit/s of each connection when no other one sends, shape (n, n)."""
        return np.where(self.crosses, self.mbps, np.inf).min(axis=2, initial=np.inf)
