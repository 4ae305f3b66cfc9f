"""What chunks tell of the way that they came (NetStorm paper, V): Eq. (17) on stamps, and clocks that agree."""

from __future__ import annotations

import math
from collections import deque

EXCHANGES = 16
"""Of the last so many exchanges with the coordinator, the quickest tells the offset of the clocks."""


class Throughput:
    """Of what one agent sends to this one.

    Eq. (17) divides a chunk's size by the time from its stamp to its arrival. A chunk whose stamp is older than the
    arrival of the one before it waited behind that, in a buffer of the kernel or in a queue on the way, and would tell
    of the wait: chunks that follow one another so count as one, from the first one's stamp.
    """

    def __init__(self) -> None:
        self._began, self._last, self._size = 0.0, -math.inf, 0.0

    def arrived(self, stamp: float, now: float, size: float) -> float | None:
        """A chunk of this size has come, stamped and received at these times; size a second, None: no time has gone."""
        if stamp >= self._last:
            self._began, self._size = stamp, 0.0
        self._last = now
        self._size += size
        return self._size / (now - self._began) if now > self._began else None


class ClockOffset:
    """What to add to this agent's clock to have the coordinator's, as NTP finds it: the answer to a question is taken
    to be from the middle of the time that the exchange took. Wrong by at most half of that."""

    def __init__(self) -> None:
        self._found: deque[tuple[float, float]] = deque(maxlen=EXCHANGES)

    def answered(self, asked: float, there: float, now: float) -> None:
        """asked, now: by this clock; there: by the other one, when it answered."""
        self._found.append((now - asked, there - (asked + now) / 2))

    @property
    def seconds(self) -> float | None:
        """None: nothing is known yet."""
        return min(self._found)[1] if self._found else None
