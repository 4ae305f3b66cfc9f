"""Measures the network with the chunks that it carries (NetStorm paper, section V): throughputs and clock offsets."""

from __future__ import annotations

import math
from collections import deque

PROBE_CHUNKS = 4
"""Least number of chunks of which a throughput is taken (PROBE_CHUNK_NUM in NetStorm's Table II)."""

PAUSE_SECONDS = 0.1
"""Least seconds that the chunks of a measurement take together. An agent that the scheduler did not let run for a while
finds several chunks at once, and the last of these alone would measure how fast the agent reads its memory.
"""

EXCHANGES = 16
"""Number of latest exchanges with the coordinator of which the quickest gives the clock offset."""


class ThroughputEstimator:
    """Estimates the throughput from one other agent to this one by Eq. (17) of the NetStorm paper: the sizes of the
    last `chunks` chunks, divided by the times from their stamps to their arrival.

    A chunk that was stamped before the previous one arrived has waited behind that one, in a buffer of the kernel or a
    queue of the network; its time counts from that arrival on, or it would measure the wait. The equation takes the
    mean of the chunks' own throughputs. Here the sum of their sizes is divided by the sum of their times, since where
    two chunks are read at once, the second one took no time at all.
    """

    def __init__(self, chunks: int = PROBE_CHUNKS) -> None:
        self._most = chunks
        self._last = -math.inf
        self.chunks: deque[tuple[float, float]] = deque()  # size and seconds of each chunk
        self._size = self._seconds = 0.0  # sums over the chunks

    def arrived(self, stamp: float, now: float, size: float, *, counts: bool = True) -> float | None:
        """Take note of a chunk that has arrived. Return the throughput in units of `size` per second; None while too
        few chunks have come, or for a chunk that does not count.

        Args:
            stamp: when the sender began to send the chunk, in seconds.
            now: when it arrived, by the same clock.
            size: size of the chunk.
            counts: whether the chunk is large enough to measure by (PROBE_CHUNK_SIZE in NetStorm's Table II). Others
                only move the time of the last arrival.
        """
        seconds, self._last = max(0.0, now - max(stamp, self._last)), now
        if not counts:
            return None
        self.chunks.append((size, seconds))
        self._size, self._seconds = self._size + size, self._seconds + seconds
        while len(self.chunks) > self._most and self._seconds - self.chunks[0][1] >= PAUSE_SECONDS:
            size, seconds = self.chunks.popleft()
            self._size, self._seconds = self._size - size, self._seconds - seconds
        return self._size / self._seconds if len(self.chunks) >= self._most and self._seconds > 0 else None


class ClockOffset:
    """Estimates the difference between the coordinator's clock and this agent's as NTP does: the answer to a question
    counts as written in the middle of the exchange. The error is at most half of the exchange's duration.

    Attributes:
        seconds: to add to this agent's clock to get the coordinator's time; None before the first exchange.
    """

    def __init__(self) -> None:
        self._exchanges: deque[tuple[float, float]] = deque(maxlen=EXCHANGES)
        self.seconds: float | None = None

    def answered(self, asked: float, there: float, now: float) -> None:
        """Take note of the coordinator's answer to a question.

        Args:
            asked: when this agent asked, by its own clock, in seconds.
            there: when the coordinator answered, by the coordinator's clock.
            now: when the answer arrived, by this agent's clock.
        """
        self._exchanges.append((now - asked, there - (asked + now) / 2))
        self.seconds = min(self._exchanges)[1]
