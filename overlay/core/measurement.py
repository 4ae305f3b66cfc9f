"""Measures the network with the chunks that it carries (NetStorm paper, section V): throughputs and clock offsets."""

from __future__ import annotations

import math
from collections import deque

PROBE_CHUNKS = 4
"""A throughput is that of this many chunks (PROBE_CHUNK_NUM in NetStorm's Table II)."""

PAUSE_SECONDS = 0.1
"""Least seconds that the chunks of a measurement take together: an agent that the scheduler did not let run for a while
finds several chunks at once, and the last of these alone would measure how fast it reads its memory."""

EXCHANGES = 16
"""The clock offset is taken from the quickest of this many latest exchanges with the coordinator."""


class ThroughputEstimator:
    """The throughput from one other agent to this one, by Eq. (17): the sizes of the last `chunks` chunks over the
    times from their stamps to their arrival.

    A chunk that was stamped before the previous one arrived has waited behind that one, in a buffer of the kernel or a
    queue of the network; its time counts from that arrival on, or it would measure the wait. The equation takes the
    mean of the chunks' own throughputs; here their sizes are divided together, since where two chunks are read at once,
    the second one took no time at all.
    """

    def __init__(self, chunks: int = PROBE_CHUNKS) -> None:
        self._most = chunks
        self._last = -math.inf
        self._chunks: deque[tuple[float, float]] = deque()  # size and seconds of each
        self._size = self._seconds = 0.0  # of all of them together

    def arrived(self, stamp: float, now: float, size: float, *, counts: bool = True) -> float | None:
        """A chunk has arrived. stamp, now: when its sender began to send it and when it arrived, in seconds of one
        clock. counts: it is large enough to measure by (PROBE_CHUNK_SIZE); others wait, and are waited for, only.
        Returns the throughput in units of `size` per second; None while too few chunks have come, or for one that does
        not count."""
        seconds, self._last = max(0.0, now - max(stamp, self._last)), now
        if not counts:
            return None
        self._chunks.append((size, seconds))
        self._size, self._seconds = self._size + size, self._seconds + seconds
        while len(self._chunks) > self._most and self._seconds - self._chunks[0][1] >= PAUSE_SECONDS:
            size, seconds = self._chunks.popleft()
            self._size, self._seconds = self._size - size, self._seconds - seconds
        return self._size / self._seconds if len(self._chunks) >= self._most and self._seconds > 0 else None


class ClockOffset:
    """The difference between the coordinator's clock and this agent's, as NTP estimates it: the answer to a question
    counts as written in the middle of the exchange. The error is at most half of the exchange's duration."""

    def __init__(self) -> None:
        self._exchanges: deque[tuple[float, float]] = deque(maxlen=EXCHANGES)

    def answered(self, asked: float, there: float, now: float) -> None:
        """asked, now: by this agent's clock, in seconds; there: by the coordinator's clock when it answered."""
        self._exchanges.append((now - asked, there - (asked + now) / 2))

    @property
    def seconds(self) -> float | None:
        """Seconds to add to this agent's clock to get the coordinator's time; None before the first exchange."""
        return min(self._exchanges)[1] if self._exchanges else None
