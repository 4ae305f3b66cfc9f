"""Keeps memory for chunks that arrive and uses it again, since new memory costs a page fault for each 4 KB of it."""

from __future__ import annotations

import sys
from collections import deque

import numpy as np

from overlay.core.message import Values

LEAST_VALUES = 8192
"""Smaller arrays come from memory that the C library uses again by itself."""

MOST_BYTES = 1 << 26
"""An agent keeps at most this much memory, and one array that is larger than half of that, for what a round has to
remember of the trainer's tensor. What is needed beside that is given back to the system."""

TRIED = 4
"""Number of arrays that are looked at for a free one, those first that were taken longest ago."""

_FREE, _FREE_LARGE = 2, 3
"""`sys.getrefcount` of an array of which nobody has a view. A local variable and the call that counts refer to it; to
the large one, the attribute does, too."""


class Buffers:
    """Arrays of one agent, by their number of values. Not thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[int, deque[Values]] = {}  # the one that was taken longest ago first
        self._bytes = 0
        self._large: Values | None = None

    def take(self, values: int) -> Values:
        """Return an array of so many values, with any content. It belongs to whoever has it or a view of it: when all
        these are gone, it may be taken again."""
        if values < LEAST_VALUES:
            return np.empty(values, np.float32)
        if 4 * values > MOST_BYTES // 2:
            return self._take_large(values)
        kept = self._kept.get(values, deque())
        for _ in range(min(TRIED, len(kept))):
            each = kept.popleft()
            free = sys.getrefcount(each) == _FREE
            kept.append(each)
            if free:
                return each[:]
        each = np.empty(values, np.float32)
        while self._bytes + each.nbytes > MOST_BYTES:
            self._drop_of(max(self._kept, key=lambda size: size * len(self._kept[size])))
        self._kept.setdefault(values, deque()).append(each)
        self._bytes += each.nbytes
        return each[:]

    def _take_large(self, values: int) -> Values:
        large = self._large
        if large is None or sys.getrefcount(large) > _FREE_LARGE or large.size < values:
            large = self._large = np.empty(values, np.float32)
        return large[:values]

    def _drop_of(self, values: int) -> None:
        self._bytes -= self._kept[values].popleft().nbytes
        if not self._kept[values]:
            del self._kept[values]
