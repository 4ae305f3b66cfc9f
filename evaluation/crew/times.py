"""Seconds of CREW's baselines that move whole models, hop by hop: PS and Ring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from controlplane.planner.strategies.wan.crew.algorithm import mesh
from controlplane.planner.strategies.wan.errors import WanError


def server_time(bandwidth_mbps: ArrayLike, members: Sequence[int], server: int) -> float:
    """Return the seconds per Mbit to bring all members' models to the server and the result back. Raise WanError where
    a member and the server have no bandwidth between them.
    """
    matrix = mesh(bandwidth_mbps)
    others = [i for i in members if i != server]
    for i in others:
        if not min(matrix[i, server], matrix[server, i]) > 0:
            raise WanError(f"worker {i} and the server {server} have no bandwidth between them, or one way only")
    if not others:
        return 0.0
    return float(1 / matrix[others, server].min() + 1 / matrix[server, others].min())


def ring_time(bandwidth_mbps: ArrayLike, ring: Sequence[int]) -> float:
    """Return the seconds per Mbit of a ring: it has 2 (p - 1) steps of 1 / p each, and a step is sent when the step
    before has arrived.
    """
    matrix = mesh(bandwidth_mbps)
    p = len(ring)
    if p == 1:
        return 0.0
    links = [matrix[ring[k], ring[(k + 1) % p]] for k in range(p)]
    if min(links) <= 0:
        raise WanError(f"the ring {list(ring)} has a link without bandwidth")
    cost = np.array([1 / (p * b) for b in links])
    sent = np.zeros(p)
    for _ in range(2 * (p - 1)):
        sent = np.maximum(sent, np.roll(sent, 1)) + cost
    return float(sent.max())
