"""Memory for chunks that arrive, which is used again and again: new memory costs a page fault for each 4 KB of it."""

from __future__ import annotations

import sys
from collections import deque

import numpy as np

from overlay.core.message import Values

LEAST_VALUES = 8192
"""Fewest values of an array that is kept: the C library itself uses the memory of smaller ones again."""

MOST_BYTES = 1 << 26
"""Most bytes of arrays that an agent keeps. Beside these it keeps one array that is larger than half of this, for the
values of the trainer's tensor that a round has to remember. Further memory goes back to the system.
"""

TRIED = 4
"""Number of arrays that are examined for a free one: this many that were taken last, which the processor's caches may
still have, then this many that were taken longest ago, which are free most likely.
"""

_FREE, _FREE_LARGE = 2, 3
"""The count that `sys.getrefcount` returns for an array of which nobody holds a view: a local variable and the counting
call itself refer to it, and to the large array also the attribute that keeps it.
"""


class Buffers:
    """Arrays of float32 values that one agent uses again, sorted by their number of values. Not thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[int, deque[Values]] = {}  # by size, the array that was taken longest ago first
        self.bytes_kept = 0
        self._large: Values | None = None

    def take(self, values: int) -> Values:
        """Return an array of this many float32 values, with any content. It belongs to whoever holds it or a view of
        it; when all of these are gone, it may be handed out again.
        """
        if values < LEAST_VALUES:
            return np.empty(values, np.float32)
        if 4 * values > MOST_BYTES // 2:
            return self._take_large(values)
        kept = self._kept.get(values, deque())
        tried = min(TRIED, len(kept))
        for k in (*range(-1, -tried - 1, -1), *range(tried)):
            if sys.getrefcount(kept[k]) == _FREE:
                each = kept[k]
                del kept[k]
                kept.append(each)
                return each[:]
        each = np.empty(values, np.float32)
        while self.bytes_kept + each.nbytes > MOST_BYTES:
            self._drop_of(max(self._kept, key=lambda size: size * len(self._kept[size])))
        self._kept.setdefault(values, deque()).append(each)
        self.bytes_kept += each.nbytes
        return each[:]

    def _take_large(self, values: int) -> Values:
        large = self._large
        if large is None or sys.getrefcount(large) > _FREE_LARGE or large.size < values:
            large = self._large = np.empty(values, np.float32)
        return large[:values]

    def _drop_of(self, values: int) -> None:
        self.bytes_kept -= self._kept[values].popleft().nbytes
        if not self._kept[values]:
            del self._kept[values]
