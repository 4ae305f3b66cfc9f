"""Connections that share links: which of them each crosses, and what the links carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Link = tuple[str, str]


class Links:
    """The network's links, and which of them each connection crosses.

    nodes: the n workers. routes: the network's nodes from one worker to another, of every pair. mbps: of each link on
    the routes; others bind nobody.
    """

    def __init__(
        self, nodes: Sequence[str], routes: Mapping[Link, Sequence[str]], mbps: Mapping[Link, float]
    ) -> None:
        n = len(nodes)
        self.index = {link: k for k, link in enumerate(mbps)}
        self.mbps = np.array(list(mbps.values()), dtype=float)
        self.crosses = np.zeros((n, n, len(mbps)), dtype=bool)
        """[i, j, e]: what i sends to j goes over link e."""
        for i, sender in enumerate(nodes):
            for j, receiver in enumerate(nodes):
                if i != j:
                    for link in pairwise(routes[sender, receiver]):
                        if link in self.index:
                            self.crosses[i, j, self.index[link]] = True

    def change(self, link: Link, mbps: float) -> None:
        """From now on."""
        self.mbps[self.index[link]] = mbps

    def narrowest(self) -> NDArray[np.float64]:
        """(n, n) Mbit/s: what each connection gets when nobody else sends."""
        return np.where(self.crosses, self.mbps, np.inf).min(axis=2, initial=np.inf)
