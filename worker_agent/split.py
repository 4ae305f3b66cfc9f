"""Which elements of a tensor travel on which tree: the same on every worker, from the configuration alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def chunk_counts(chunks: int, shares: Sequence[float]) -> list[int]:
    """`chunks` in proportion to `shares` (positive weights), whole: each tree gets its quota rounded down, what is left
    goes to the largest remainders, ties to the first. The tree of the largest share (the first of equals) gets at least
    one when there is any, so every operation meets all workers there, whatever they believe its size to be."""
    total = sum(shares)
    quotas = [chunks * share / total for share in shares]
    counts = [int(quota) for quota in quotas]
    order = sorted(range(len(shares)), key=lambda tree: (counts[tree] - quotas[tree], tree))
    for tree in order[: chunks - sum(counts)]:
        counts[tree] += 1
    return counts


def ranges(elements: int, values_per_packet: int, shares: Sequence[float]) -> list[tuple[int, int]]:
    """(first element, number of elements) of each tree: contiguous, in the order of the trees, cut at whole chunks; a
    small tensor leaves trees out (0 elements)."""
    counts = chunk_counts(-(-elements // values_per_packet), shares)
    starts = [0, *accumulate(counts)]
    bounds = [min(start * values_per_packet, elements) for start in starts]
    return [(bounds[tree], bounds[tree + 1] - bounds[tree]) for tree in range(len(shares))]
