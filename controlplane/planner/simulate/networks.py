"""Resources of simulated networks: overlays (one directed link per pair), a non-blocking switch, the links of a
topology.

Changes over time are here, too: capacities that follow a trace, outages of links and nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from controlplane.planner.simulate.engine import Simulator
from controlplane.planner.simulate.native import SimulationError
from controlplane.planner.topology import Topology


class Overlay:
    """An overlay of n nodes, each pair with its own directed link: resource i * n + j leads from i to j; i -> i has no
    limit.
    """

    def __init__(self, bandwidth_mbps: ArrayLike) -> None:
        """Make an overlay from an (n, n) array of bandwidths in Mbit/s, whose diagonal is ignored."""
        matrix = np.array(bandwidth_mbps, dtype=float)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise SimulationError(f"an overlay needs a square matrix of bandwidths, got shape {matrix.shape}")
        np.fill_diagonal(matrix, np.inf)
        self.bandwidth = matrix
        self.n = len(matrix)

    @property
    def capacities(self) -> NDArray[np.float64]:
        return self.bandwidth.ravel()

    def link(self, source: int, destination: int) -> int:
        return source * self.n + destination

    def node(self, node: int) -> list[int]:
        """Return all links from and to the node, which its outage takes away."""
        others = [k for k in range(self.n) if k != node]
        return [*(self.link(node, k) for k in others), *(self.link(k, node) for k in others)]


class BigSwitch:
    """A non-blocking switch: resource i is node i's link into it (upload), n + j its link to node j (download)."""

    def __init__(self, upload_mbps: Sequence[float], download_mbps: Sequence[float]) -> None:
        if len(upload_mbps) != len(download_mbps):
            raise SimulationError(f"{len(upload_mbps)} uploads but {len(download_mbps)} downloads")
        self.n = len(upload_mbps)
        self.capacities = np.concatenate([np.asarray(upload_mbps, float), np.asarray(download_mbps, float)])

    def unicast(self, source: int, destination: int) -> list[int]:
        return [source, self.n + destination]

    def multicast(self, source: int, destinations: Iterable[int]) -> list[int]:
        """Return the resources of an L3 multicast: the sender's upload once, and each receiver's download."""
        return [source, *(self.n + j for j in destinations)]

    def node(self, node: int) -> list[int]:
        """Return the resources that the node's outage takes away."""
        return [node, self.n + node]


class LinkNetwork:
    """The directed links of a topology, with their residual bandwidth."""

    def __init__(self, topology: Topology) -> None:
        self.index = {link: i for i, link in enumerate(topology.links)}
        self.capacities = np.array([topology.residual_bandwidth_mbps(u, v) for u, v in topology.links])

    def link(self, u: str, v: str) -> int:
        try:
            return self.index[u, v]
        except KeyError:
            raise SimulationError(f"link {u} -> {v} does not exist") from None

    def node(self, name: str) -> list[int]:
        """Return all links from and to the node, which its outage takes away."""
        found = [k for link, k in self.index.items() if name in link]
        if not found:
            raise SimulationError(f"node {name} does not exist or has no links")
        return found

    def route(self, nodes: Sequence[str]) -> list[int]:
        return [self.link(u, v) for u, v in pairwise(nodes)]


def follow(simulator: Simulator, resource: int, trace: Iterable[tuple[float, float]]) -> None:
    """Let the resource's capacity follow steps (time in s, Mbit/s)."""
    for time, mbps in trace:
        simulator.at(time, lambda mbps=mbps: simulator.set_capacity(resource, mbps))  # type: ignore[misc]


def outage(simulator: Simulator, resources: Sequence[int], start: float, end: float, capacities: ArrayLike) -> None:
    """Let the resources carry nothing from `start` to `end` (s), while flows on them wait; after that they have their
    entry of `capacities`, an array over all resources.
    """
    if not end > start:
        raise SimulationError(f"an outage must end after it starts, got {start} to {end} s")
    after = np.asarray(capacities, float)

    def switch(on: bool) -> None:
        for resource in resources:
            simulator.set_capacity(resource, float(after[resource]) if on else 0.0)

    simulator.at(start, lambda: switch(False))
    simulator.at(end, lambda: switch(True))
