"""How a tensor is cut over the trees."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from worker_agent.split import chunk_counts, ranges

shares_of = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 5_000_000), st.integers(4, 512), shares_of)
def test_parts_are_contiguous_and_cut_at_chunks(elements: int, values: int, shares: list[float]) -> None:
    position = 0
    for first, count in ranges(elements, values, shares):
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
