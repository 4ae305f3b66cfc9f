"""Splits a tensor's elements over the trees and their lanes, in the same way on all workers, from the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.dealing import dealt
from p4src.protocol import data_values
from worker_agent.collectives import Collective
from worker_agent.fields import FIELDS, bits_of
from worker_agent.gathered import WORD_BYTES, gathered_words
from worker_agent.operands import BYTES, DTYPES, item_bytes


def ranges(elements: int, values_per_chunk: int, shares: Sequence[float], at_once: int = 1) -> list[tuple[int, int]]:
    """Return (first element, number of elements) of each tree.

    The ranges are contiguous, in the order of the trees, and cut at whole chunks; a small tensor leaves trees out (0
    elements).

    Args:
        elements: number of elements; where chunks take turns, of each worker's part.
        values_per_chunk: number of elements of a chunk.
        shares: the trees' shares.
        at_once: 1, or the number of workers of an operation whose chunks take turns.
    """
    counts = dealt(-(-elements // values_per_chunk), shares, at_once)
    starts = [0, *accumulate(counts)]
    bounds = [min(start * values_per_chunk, elements) for start in starts]
    return [(bounds[tree], bounds[tree + 1] - bounds[tree]) for tree in range(len(shares))]


def lane_shares(config: AgentConfig) -> list[float]:
    """Return the part of the gradient that each lane of each tree carries, in the order of `lanes_of`."""
    return [tree.share / tree.lanes for tree in config.worker_trees for _ in range(tree.lanes)]


def part_sizes(collective: Collective, config: AgentConfig, elements: int, dtype: str) -> tuple[int, int, int]:
    """Return the number of elements (of each worker's part) that are split over the trees, how many of them a chunk
    has, and how many chunks go together.

    Raise ValueError for an operation that cannot be.
    """
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
    """Return how many values share a word. Raise ValueError for a type that cannot travel in so many bits."""
    return 1 if dtype == BYTES else FIELDS[bits_of(dtype, collective.bits, workers)]
