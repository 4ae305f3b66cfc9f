"""The division of a tensor among the trees."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.common.dealing import dealt
from worker_agent.split import ranges

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


def rounded(turns: int, shares: list[float]) -> list[int]:
    """Return the turns in proportion to the shares: rounded down, and what is left to the largest remainders."""
    quotas = [turns * share / sum(shares) for share in shares]
    order = sorted(range(len(shares)), key=lambda tree: int(quotas[tree]) - quotas[tree])
    left = order[: turns - sum(map(int, quotas))]
    return [int(quota) + (tree in left) for tree, quota in enumerate(quotas)]


def done_at(counts: list[int], shares: list[float], at_once: int) -> float:
    """Return when the last tree is done, in chunks' times."""
    pairs = zip(counts, shares, strict=True)
    return max((at_once * count + 1) / share for count, share in pairs if count) * sum(shares)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1_000), shares_of, st.integers(1, 16))
def test_each_turn_goes_where_it_is_done_first(turns: int, shares: list[float], at_once: int) -> None:
    """The closed form finds what a search of one turn after the other would find."""
    counts = [0] * len(shares)
    for _ in range(turns):
        counts[min(range(len(shares)), key=lambda tree: ((counts[tree] + 1 + 1 / at_once) / shares[tree], tree))] += 1
    assert dealt(turns, shares, at_once) == counts


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 10_000_000), shares_of, st.integers(1, 16))
def test_no_tree_is_done_long_after_the_others(turns: int, shares: list[float], at_once: int) -> None:
    """The result is at most a turn of each tree later than if turns could be divided."""
    counts = dealt(turns, shares, at_once)
    assert sum(counts) == turns and min(counts) >= 0
    assert counts[shares.index(max(shares))] >= 1
    assert done_at(counts, shares, at_once) <= (turns * at_once + (at_once + 1) * len(shares)) * (1 + 1e-9)


def test_a_slow_tree_has_no_turn_of_a_small_tensor() -> None:
    """In a layer's all-gather over a plan with eight trees, the slowest tree once had a turn and took half as long
    again.
    """
    shares = [0.292, 0.292, 0.133, 0.008, 0.067, 0.042, 0.054, 0.112]
    assert done_at(rounded(97, shares), shares, 8) > 1.4 * 97 * 8
    assert done_at(dealt(97, shares, 8), shares, 8) < 1.05 * 97 * 8


def test_a_very_slow_tree_has_no_chunk_of_an_operation_that_would_wait_for_it() -> None:
    """A plan of 114 trees at 327 packets a second had one of a packet in 100 s. By its share it once got a chunk of an
    all-reduce of 35 s, which failed after 60 s without progress there.
    """
    shares = [1.0] * 100 + [0.003]
    chunks = 16_833
    assert rounded(chunks, shares)[-1] == 1 and done_at(rounded(chunks, shares), shares, 1) > 3 * chunks
    assert dealt(chunks, shares)[-1] == 0 and done_at(dealt(chunks, shares), shares, 1) < 1.02 * chunks
    assert dealt(1_000_000, shares)[-1] > 20, "a long one uses it"
