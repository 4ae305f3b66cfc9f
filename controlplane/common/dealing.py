"""Deals an operation's chunks to the trees. Agents cut tensors in this way, and the planner computes costs by it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import lru_cache

ROUNDED = 1e-3


def dealt(turns: int, shares: Sequence[float], at_once: int = 1) -> list[int]:
    """Deal turns to the trees so that the tree which is done last is done as early as possible. Return the turns of
    each tree.

    Args:
        shares: the trees' rates, in any unit, all above 0.
        at_once: chunks of a turn, which cannot be cut (1 chunk, or one for each worker where chunks take turns).

    Each tree that is used sends a chunk more than its data (exponents, or what the workers check), so with n turns it
    is done after the time of (n * at_once + 1) / share chunks. Each turn goes to the tree where it is done first, and
    among equals to the first tree. So no tree is done long after the others, however slow it is: were the turns rounded
    in proportion to the shares, a tree of a packet in 100 s would have had a chunk of an operation of 35 s. The tree of
    the largest share (the first of equals) has at least one turn where there is any, so every operation meets all
    workers there, whatever size they believe it to have.
    """
    return list(_dealt(turns, tuple(shares), at_once))


@lru_cache(maxsize=256)
def _dealt(turns: int, shares: tuple[float, ...], at_once: int) -> tuple[int, ...]:
    ahead = 1 / at_once
    level = _level(turns, shares, ahead)
    # Each count is rather one too low than one too high, so that rounding does not matter: all machines must agree.
    counts = [max(0, int(level * share - ahead - ROUNDED)) for share in shares]
    done = [((count + 1 + ahead) / share, tree) for tree, (count, share) in enumerate(zip(counts, shares, strict=True))]
    heapq.heapify(done)
    for _ in range(turns - sum(counts)):
        _, tree = done[0]
        counts[tree] += 1
        heapq.heapreplace(done, ((counts[tree] + 1 + ahead) / shares[tree], tree))
    return tuple(counts)


def _level(turns: int, shares: tuple[float, ...], ahead: float) -> float:
    """Return the time at which all trees that have turns would be done, if turns could be cut."""
    total, trees, level = 0.0, 0, math.inf
    for share in sorted(shares, reverse=True):
        if share * level <= ahead:
            break  # by then this tree, and slower ones, would not even be done with the chunk beside their data
        total, trees = total + share, trees + 1
        level = (turns + trees * ahead) / total
    return level
