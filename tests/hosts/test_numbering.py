"""The order in which a tree carries an operation's exponents and data."""

from __future__ import annotations

import ctypes
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.planner.plan.follow import exponent_place, exponent_words
from tests.hosts.conversions import library

EXPONENTS, DATA = 0, 1

_library = library()


def chunks(data: int, values: int, slots: int, total: int) -> list[tuple[int, int]]:
    """Return for each number in the part whether it is exponents or data, and which of them."""
    index = ctypes.c_uint32()
    found = []
    for place in range(total):
        kind = _library.numbering_kind(data, values, slots, place, ctypes.byref(index))
        found.append((kind, index.value))
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(4, 300), st.integers(0, 11).map(lambda n: 1 << n))
def test_exponents_are_back_when_the_window_lets_their_data_go(data: int, values: int, slots: int) -> None:
    exponents = -(-exponent_words(data) // values)
    order = chunks(data, values, slots, data + exponents)
    assert [index for kind, index in order if kind == EXPONENTS] == list(range(exponents))
    assert [index for kind, index in order if kind == DATA] == list(range(data))
    first_data = next(place for place, (kind, _) in enumerate(order) if kind == DATA)
    for place, (kind, index) in enumerate(order):
        assert _library.numbering_number(data, values, slots, kind, index) == place
        if kind == EXPONENTS and place > first_data:
            # It may be up to `slots` - 1 after the oldest chunk that is not answered.
            first = next(i for i in range(data) if exponent_place(i) >= index * values)
            assert order.index((DATA, first)) - place >= slots


def test_operations_within_one_window_send_all_exponents_first() -> None:
    kinds = [kind for kind, _ in chunks(512, 64, 512, 512 + 10)]
    assert kinds == [EXPONENTS] * 10 + [DATA] * 512


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 14).map(lambda n: 1 << n), st.integers(1, 300))
def test_everybodys_chunks_are_each_workers_in_turn(slots: int, workers: int) -> None:
    """At least one place is in a quarter of the window, as the search assumes, and not always the same worker's."""
    period, most = _library.numbering_period(slots, workers), max(1, slots // 4)
    assert most / 2 < period <= most
    owners = {sequence % workers for sequence in range(period - 1, 4 * period * workers, period)}
    if any(math.gcd(one, workers) == 1 for one in range(most // 2 + 1, most + 1)):
        assert owners == set(range(workers))
