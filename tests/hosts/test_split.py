"""The division of a tensor among the trees."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from worker_agent.split import chunk_counts, ranges, turn_counts

shares_of = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 5_000_000), st.integers(4, 512), shares_of, st.integers(1, 16))
def test_parts_are_contiguous_and_cut_at_chunks(elements: int, values: int, shares: list[float], at_once: int) -> None:
    position = 0
    for first, count in ranges(elements, values, shares, at_once):
        assert first == position
        assert first % values == 0 or count == 0
        position += count
    assert position == elements


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 100_000), shares_of)
def test_each_tree_gets_its_share_to_a_chunk(chunks: int, shares: list[float]) -> None:
    counts = chunk_counts(chunks, shares)
    assert sum(counts) == chunks
    for count, share in zip(counts, shares, strict=True):
        assert abs(count - chunks * share / sum(shares)) < 1 + 1e-6


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 100_000), shares_of)
def test_the_tree_of_the_largest_share_takes_part_in_everything(chunks: int, shares: list[float]) -> None:
    assert chunk_counts(chunks, shares)[shares.index(max(shares))] >= 1


def done_at(counts: list[int], shares: list[float], workers: int) -> float:
    """Return when the last tree is done, in chunks' times."""
    pairs = zip(counts, shares, strict=True)
    return max((workers * count + 1) / share for count, share in pairs if count) * sum(shares)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1_000), shares_of, st.integers(2, 16))
def test_each_turn_goes_where_it_is_done_first(turns: int, shares: list[float], workers: int) -> None:
    """The closed form finds what a search of one turn after the other would find."""
    counts = [0] * len(shares)
    for _ in range(turns):
        counts[min(range(len(shares)), key=lambda tree: ((counts[tree] + 1 + 1 / workers) / shares[tree], tree))] += 1
    assert turn_counts(turns, shares, workers) == counts


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 10_000_000), shares_of, st.integers(2, 16))
def test_no_tree_is_done_long_after_the_others(turns: int, shares: list[float], workers: int) -> None:
    """The result is at most a turn of each tree later than if turns could be divided."""
    counts = turn_counts(turns, shares, workers)
    assert sum(counts) == turns and min(counts) >= 0
    assert counts[shares.index(max(shares))] >= 1
    assert done_at(counts, shares, workers) <= (turns * workers + (workers + 1) * len(shares)) * (1 + 1e-9)


def test_a_slow_tree_has_no_turn_of_a_small_tensor() -> None:
    """In a layer's all-gather over a plan with eight trees, the slowest tree once had a turn and took half as long
    again.
    """
    shares = [0.292, 0.292, 0.133, 0.008, 0.067, 0.042, 0.054, 0.112]
    assert done_at(chunk_counts(97, shares), shares, 8) > 1.4 * 97 * 8
    assert done_at(turn_counts(97, shares, 8), shares, 8) < 1.05 * 97 * 8
