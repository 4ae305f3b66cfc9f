"""Which elements of a tensor travel on which tree: the same on every worker, from the configuration alone."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from controlplane.common.agentconfig import AgentConfig
from p4src.protocol import data_values
from worker_agent.collectives import Collective
from worker_agent.fields import FIELDS, bits_of
from worker_agent.gathered import WORD_BYTES, gathered_words
from worker_agent.operands import BYTES, DTYPES, item_bytes

ROUNDED = 1e-3


def chunk_counts(chunks: int, shares: Sequence[float]) -> list[int]:
    """`chunks` in proportion to `shares` (positive weights), whole: each tree gets its quota rounded down, what is left
    goes to the largest remainders, ties to the first. The tree of the largest share (the first of equals) gets at least
    one when there is any, so every operation meets all workers there, whatever they believe its size to be."""
    total = math.fsum(shares)  # sum() rounds otherwise from Python 3.12 on
    quotas = [chunks * share / total for share in shares]
    counts = [int(quota) for quota in quotas]
    order = sorted(range(len(shares)), key=lambda tree: (counts[tree] - quotas[tree], tree))
    for tree in order[: chunks - sum(counts)]:
        counts[tree] += 1
    return counts


def turn_counts(turns: int, shares: Sequence[float], workers: int) -> list[int]:
    """Of an operation whose chunks take turns: so many turns, of a chunk a worker, for each tree that the tree which is
    done last is done as early as can be.

    Turns are few and cannot be cut, and each tree sends a chunk more than its data (what the workers check), so with
    rounded quotas a slow tree is done long after the others. With n turns a tree is done after the time of (n * workers
    + 1) / share chunks; each turn goes where it is done first, ties to the first tree. So the tree of the largest share
    (the first of equals) gets at least one, as in chunk_counts.
    """
    return list(_turn_counts(turns, tuple(shares), workers))


@lru_cache(maxsize=256)
def _turn_counts(turns: int, shares: tuple[float, ...], workers: int) -> tuple[int, ...]:
    ahead = 1 / workers
    level = _level(turns, shares, ahead)
    # Rather one too few than one too many, however that was rounded: all machines must find the same.
    counts = [max(0, int(level * share - ahead - ROUNDED)) for share in shares]
    done = [((count + 1 + ahead) / share, tree) for tree, (count, share) in enumerate(zip(counts, shares, strict=True))]
    heapq.heapify(done)
    for _ in range(turns - sum(counts)):
        _, tree = done[0]
        counts[tree] += 1
        heapq.heapreplace(done, ((counts[tree] + 1 + ahead) / shares[tree], tree))
    return tuple(counts)


def _level(turns: int, shares: tuple[float, ...], ahead: float) -> float:
    """When all trees that have turns were done, if these could be cut."""
    total, trees, level = 0.0, 0, math.inf
    for share in sorted(shares, reverse=True):
        if share * level <= ahead:
            break  # not one that is done by then
        total, trees = total + share, trees + 1
        level = (turns + trees * ahead) / total
    return level


def counts_of(chunks: int, shares: Sequence[float], at_once: int) -> list[int]:
    """at_once: 1, or the workers of an operation whose chunks take turns; `chunks` are its turns."""
    return chunk_counts(chunks, shares) if at_once == 1 else turn_counts(chunks, shares, at_once)


def ranges(elements: int, values_per_chunk: int, shares: Sequence[float], at_once: int = 1) -> list[tuple[int, int]]:
    """(first element, number of elements) of each tree: contiguous, in the order of the trees, cut at whole chunks; a
    small tensor leaves trees out (0 elements). at_once: see counts_of."""
    counts = counts_of(-(-elements // values_per_chunk), shares, at_once)
    starts = [0, *accumulate(counts)]
    bounds = [min(start * values_per_chunk, elements) for start in starts]
    return [(bounds[tree], bounds[tree + 1] - bounds[tree]) for tree in range(len(shares))]


def part_sizes(collective: Collective, config: AgentConfig, elements: int, dtype: str) -> tuple[int, int, int]:
    """What is cut over the trees: elements (of each worker's part), how many a chunk has, and how many chunks go
    together. Raises ValueError."""
    workers, values = len(config.workers), data_values(config.values_per_packet)
    if collective.source >= workers:
        raise ValueError(f"there is no worker {collective.source}: the job has {workers}")
    parts = workers if collective.in_parts else 1
    if collective.feedback:
        if dtype != "float32" or elements % 2:
            raise ValueError(
                f"an operation with feedback takes float32, twice as many as values, not {elements} of {dtype}"
            )
        elements //= 2
    if elements % parts:
        raise ValueError(f"the array has {elements} elements, which are not {workers} parts of the same size")
    if words := gathered_words(collective, dtype, elements, workers, values):
        own = elements // parts if collective.raw else elements
        return own, WORD_BYTES * words // item_bytes(dtype), 1
    if collective.merge or (dtype not in DTYPES and dtype != BYTES and elements):
        raise ValueError(
            f"{collective.plain} of {elements} elements of {dtype} is too large: a few values may be of any type and "
            "be merged in any way, more only float32, float16 or bfloat16 that are added up"
        )
    if dtype not in DTYPES and dtype != BYTES:
        return 0, 1, 1
    return elements // parts, values * (4 if dtype == BYTES else fields_of(collective, dtype, workers)), parts


def fields_of(collective: Collective, dtype: str, workers: int) -> int:
    """How many values share a word. Raises ValueError."""
    return 1 if dtype == BYTES else FIELDS[bits_of(dtype, collective.bits, workers)]
