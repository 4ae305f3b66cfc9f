"""Memory for chunks is used again when nobody has it any more, and never before."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlay.core.buffers import LEAST_VALUES, MOST_BYTES, Buffers

SIZES = (16, LEAST_VALUES, 2 * LEAST_VALUES, MOST_BYTES // 8 + 4)
USES = {
    "itself": lambda taken: taken,
    "a part": lambda taken: taken[5:9],
    "bytes": lambda taken: memoryview(taken.data).cast("B"),
    "words": lambda taken: taken.view(np.uint64)[1:],
}


@given(st.lists(st.tuples(st.sampled_from(SIZES), st.sampled_from(sorted(USES)), st.integers(0, 9)), max_size=60))
def test_what_somebody_has_is_not_taken_again(steps):
    """Each take, or view of it, keeps the value that its holder wrote, whatever is taken until the holder drops it."""
    buffers, held = Buffers(), []
    for number, (size, use, drop) in enumerate(steps):
        taken = buffers.take(size)
        assert taken.shape == (size,) and taken.dtype == np.float32
        taken[[0, 5, 8, -2, -1]] = taken[2:4] = number
        held.append((number, USES[use](taken)))
        del taken
        if drop < len(held):
            del held[drop]
        for known, view in held:
            ends = np.frombuffer(view, np.float32)[[0, -1]]
            assert (ends == known).all()


def test_memory_is_used_again_and_bounded():
    buffers = Buffers()
    first = buffers.take(LEAST_VALUES)
    at = first.ctypes.data
    other = buffers.take(LEAST_VALUES)
    assert other.ctypes.data != at
    del first
    assert buffers.take(LEAST_VALUES).ctypes.data == at
    most = MOST_BYTES // 4
    everything = [buffers.take(size) for size in (most // 2, most // 2, most // 2, most, 2 * most, most)]
    assert buffers.bytes_kept <= MOST_BYTES and len({each.ctypes.data for each in everything}) == 6
    at = everything.pop().ctypes.data
    assert buffers.take(most - 1).ctypes.data == at
