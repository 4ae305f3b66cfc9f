"""The exact optimum of model (12) of SelMcast's paper, beside which its figures show Algorithm 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, lil_matrix
from scipy.sparse.csgraph import maximum_flow

from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.selmcast.algorithm import TOLERANCE, Bools, Instance


def _flow(task: Instance, x: Bools, senders: NDArray[np.int64], rooms: NDArray[np.int64]) -> tuple[int, Bools]:
    """Add as many receivers to x as fit, at most senders[i] more for i and rooms[j] more at j, and move those that are
    not in D. Return how many were added, and the new x.
    """
    n = task.n
    movable = x & ~task.must
    free = ~x
    np.fill_diagonal(free, False)
    capacity = lil_matrix((2 * n + 2, 2 * n + 2), dtype=np.int32)
    capacity[0, 1 : n + 1] = np.maximum(senders, 0)
    capacity[n + 1 : 2 * n + 1, 2 * n + 1] = np.maximum(rooms, 0)[:, None]
    capacity[1 : n + 1, n + 1 : 2 * n + 1] = free.astype(np.int32)
    capacity[n + 1 : 2 * n + 1, 1 : n + 1] = movable.T.astype(np.int32)
    result = maximum_flow(csr_matrix(capacity), 0, 2 * n + 1)
    flow = result.flow.toarray()[1 : n + 1, n + 1 : 2 * n + 1]
    return int(result.flow_value), (x | (flow > 0)) & ~(flow < 0)


def optimal_equal(task: Instance) -> Bools:
    """Return the exact optimum for equal volumes. With t given, receivers and senders have whole numbers of places, so
    whether t is possible is a maximum flow; t* is the least of the values (k volumes over some bandwidth) that is
    possible.

    Senders' degree vectors form a polymatroid, so the second objective extends a solution of the first by augmenting
    paths, which never take a receiver from any sender. Raise WanError for unequal volumes.
    """
    if np.ptp(task.volumes) > 0:
        raise WanError("volumes differ: the flow formulation does not hold")
    n, size = task.n, float(task.volumes[0])
    base = task.must
    need = np.maximum(task.receivers - base.sum(axis=1), 0)
    out_now, in_now = base.sum(axis=1), base.sum(axis=0)

    def places(t: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        up = np.floor(np.minimum(t * task.upload / size * TOLERANCE, n)).astype(np.int64)
        down = np.floor(np.minimum(t * task.download / size * TOLERANCE, n)).astype(np.int64)
        if task.layer == "L3":
            up = np.where(up >= 1, n, 0)
        return up - out_now, down - in_now

    def attempt(t: float) -> Bools | None:
        up, down = places(t)
        if (up < need).any() or (down < 0).any():
            return None
        total, x = _flow(task, base, need, down)
        return x if total == need.sum() else None

    counts = np.arange(1, n + 1)
    senders = counts if task.layer == "L7" else np.array([1])
    with np.errstate(divide="ignore"):
        values = np.concatenate(
            [(size * counts[:, None] / task.download).ravel(), (size * senders[:, None] / task.upload).ravel()]
        )
    candidates = np.unique(values[np.isfinite(values)])
    low, high = 0, len(candidates) - 1
    found = attempt(float(candidates[high]))
    if found is None:
        raise WanError("no selection gives every worker its receivers")
    if not need.any() and not base.any():
        return base.copy()
    while low < high:
        middle = (low + high) // 2
        x = attempt(float(candidates[middle]))
        if x is None:
            low = middle + 1
        else:
            high, found = middle, x
    up, down = places(float(candidates[high]))
    added = found & ~base
    _, best = _flow(task, found, up - added.sum(axis=1), down - added.sum(axis=0))
    return best
