"""CREW's decisions (Luo et al., "Efficient Cross-Cloud Partial Reduce With CREW").

n workers, p of them (the initiators P) synchronise: initiator i scatters block j of its model to aggregator j, which
adds the p blocks and sends the sum back to P. bandwidth[i, j] is in Mbit/s, directed; the diagonal is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from controlplane.planner.strategies.wan.errors import WanError

Ranges = tuple[tuple[int, int], ...]  # of chunk indexes, half open, ascending, disjoint


def mesh(bandwidth_mbps: ArrayLike) -> NDArray[np.float64]:
    """Return the checked matrix of bandwidths, with an unlimited diagonal. Raise WanError where it is none."""
    matrix = np.array(bandwidth_mbps, dtype=float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise WanError(f"bandwidths must be a square matrix, got shape {matrix.shape}")
    np.fill_diagonal(matrix, np.inf)
    if np.isnan(matrix).any() or (matrix < 0).any():
        raise WanError("bandwidths must be numbers >= 0")
    return matrix


def _checked(initiators: Sequence[int], n: int) -> list[int]:
    if not initiators:
        raise WanError("a partial reduce needs at least one initiator")
    if len(set(initiators)) != len(initiators) or not all(0 <= i < n for i in initiators):
        raise WanError(f"initiators must be different workers of 0 .. {n - 1}, got {list(initiators)}")
    return list(initiators)


@dataclass(frozen=True)
class Split:
    """A split of the model among the workers that add.

    Attributes:
        weights: The part of the model that each worker adds; shape (n,), sum 1.
        scatter: Seconds of the scatter per Mbit of the model.
        multicast: Seconds of the multicast per Mbit.
    """

    weights: NDArray[np.float64]
    scatter: float
    multicast: float

    @property
    def time(self) -> float:
        """T of LP (2): the seconds for scatter and then multicast, per Mbit of the model."""
        return self.scatter + self.multicast


def optimal_split(
    bandwidth_mbps: ArrayLike, initiators: Sequence[int], aggregators: Sequence[int] | None = None
) -> Split:
    """Return the solution of LP (2) in closed form, O(n log n) after the minima.

    With a_j = min_i b_ij and c_j = min_i b_ji, a fraction s of the time for scatter lets aggregator j carry min(a_j s,
    c_j (1 - s)) per unit of time. G(s), their sum, is concave and piecewise linear with breakpoints s_j = c_j / (a_j +
    c_j), so the best s is one of them, T* = 1 / G(s*) and x_j = T* min(a_j s*, c_j (1 - s*)).

    `aggregators` may add (default: all; OPR: the initiators). Raise WanError where none of them is reached by all.
    """
    matrix = mesh(bandwidth_mbps)
    n = len(matrix)
    group = np.array(_checked(initiators, n))
    allowed = np.arange(n) if aggregators is None else np.array(_checked(aggregators, n))
    a = matrix[np.ix_(group, allowed)].min(axis=0)
    c = matrix[np.ix_(allowed, group)].min(axis=1)
    weights = np.zeros(n)
    if np.isinf(a).any():  # a single initiator adds by itself
        weights[allowed[int(np.argmax(np.isinf(a)))]] = 1.0
        return Split(weights, 0.0, 0.0)
    usable = (a > 0) & (c > 0)
    if not usable.any():
        raise WanError(f"no worker has bandwidth from and to all of the initiators {group.tolist()}")
    a, c = np.where(usable, a, 0.0), np.where(usable, c, 0.0)
    points = np.where(usable, c / np.where(usable, a + c, 1.0), 0.0)
    order = np.argsort(points, kind="stable")
    s = points[order]
    limited_down = np.cumsum(c[order])
    limited_up = a.sum() - np.cumsum(a[order])
    volume = (1 - s) * limited_down + s * limited_up
    best = float(s[int(np.argmax(volume))])
    rates = np.minimum(a * best, c * (1 - best))
    time = 1 / rates.sum()
    weights[allowed] = rates * time
    return Split(weights, best * time, (1 - best) * time)


def even_split(n: int, aggregators: Sequence[int] | None = None) -> NDArray[np.float64]:
    """Return the weights of E-D: equal blocks for all aggregators, shape (n,)."""
    weights = np.zeros(n)
    weights[list(range(n) if aggregators is None else aggregators)] = 1.0
    return weights / weights.sum()


def block_bounds(weights: ArrayLike, chunks: int) -> NDArray[np.int64]:
    """Return the rounded prefixes of Algorithm 1: block i is chunks bounds[i] .. bounds[i + 1] - 1. Shape (n + 1,).

    The pseudo-code's u = y k is a real number; rounding the prefixes (and not the blocks) makes every chunk belong to
    exactly one block, each within one chunk of its weight. The last is k whatever the sum's rounding.
    """
    x = np.asarray(weights, float)
    if chunks < 0 or (x < 0).any() or abs(x.sum() - 1) > 1e-6:
        raise WanError(f"weights must be >= 0 with sum 1 (got {x.sum()}), chunks >= 0 (got {chunks})")
    bounds = np.rint(np.concatenate([[0.0], np.cumsum(x)]) * chunks).astype(np.int64)
    bounds[-1] = chunks
    last = int(np.flatnonzero(x)[-1])  # a worker of weight 0 gets no rest of the rounding
    bounds[last + 1 :] = chunks
    return np.minimum(bounds, chunks)


def split_model(weights: ArrayLike, chunks: int) -> tuple[Ranges, ...]:
    """Return the chunks of each block, by Algorithm 1."""
    bounds = block_bounds(weights, chunks).tolist()
    return tuple(((a, b),) if b > a else () for a, b in pairwise(bounds))


def size(ranges: Ranges) -> int:
    return sum(end - begin for begin, end in ranges)


def _merge(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(pieces):
        if merged and merged[-1][1] == begin:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


def rearrange(weights: ArrayLike, current: Sequence[Ranges]) -> tuple[Ranges, ...]:
    """Return a splitting by these weights to which as few chunks as possible move from the present one (Algorithm 2, on
    ranges).

    A block gives its largest indexes away (they are sent last), a block that needs chunks takes the smallest of those.
    The loops of the pseudo-code start at 0 but mean 1; d_i is rounded as in Algorithm 1, so that all of L finds a home.
    """
    wanted = np.diff(block_bounds(weights, sum(size(block) for block in current))).tolist()
    if len(wanted) != len(current):
        raise WanError(f"{len(wanted)} weights for {len(current)} blocks")
    kept: list[list[tuple[int, int]]] = []
    moved: list[tuple[int, int]] = []
    for block, want in zip(current, wanted, strict=True):
        left = list(block)
        surplus = size(block) - want
        while surplus > 0:
            begin, end = left.pop()
            cut = max(begin, end - surplus)
            moved.append((cut, end))
            surplus -= end - cut
            if cut > begin:
                left.append((begin, cut))
        kept.append(left)
    pool = _merge(moved)[::-1]
    for own, want in zip(kept, wanted, strict=True):
        missing = want - sum(end - begin for begin, end in own)
        while missing > 0:
            begin, end = pool.pop()
            cut = min(end, begin + missing)
            own.append((begin, cut))
            missing -= cut - begin
            if cut < end:
                pool.append((cut, end))
    return tuple(tuple(_merge(own)) for own in kept)


def replacement(
    bandwidth_mbps: ArrayLike,
    initiators: Sequence[int],
    loads: ArrayLike,
    block: float,
    excluded: Sequence[int] = (),
) -> int | None:
    """Return the worker that takes over a lost aggregator's block, by Eq. (3); None where none can, and the task has to
    be given up. Of equals, take the one with the lowest number.

    loads[k] is what k is to add already (the paper writes l_i, but it is the candidate's), `block` the lost block's
    size, both in the same unit. A worker is a candidate only with bandwidth in both directions.
    """
    matrix = mesh(bandwidth_mbps)
    group = _checked(initiators, len(matrix))
    link = np.minimum(matrix[group].min(axis=0), matrix[:, group].min(axis=1))
    with np.errstate(divide="ignore"):
        cost = np.where(link > 0, (np.asarray(loads, float) + block) / link, np.inf)
    cost[list(excluded)] = np.inf
    best = int(np.argmin(cost))
    return best if np.isfinite(cost[best]) else None
