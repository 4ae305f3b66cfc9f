"""Measures the network with the chunks that it carries (NetStorm paper, section V): throughputs and clock offsets."""

from __future__ import annotations

import math
from collections import deque

EXCHANGES = 16
"""The clock offset is taken from the quickest of this many latest exchanges with the coordinator."""


class ThroughputEstimator:
    """The throughput from one other agent to this one, by Eq. (17): a chunk's size divided by the time from its stamp
    to its arrival.

    A chunk that was stamped before the previous chunk arrived has waited behind that one, in a buffer of the kernel or
    a queue of the network; by itself it would measure the wait. Chunks that follow each other in this way count as one
    chunk with the stamp of the first.
    """

    def __init__(self) -> None:
        self._began, self._last, self._size = 0.0, -math.inf, 0.0

    def arrived(self, stamp: float, now: float, size: float) -> float | None:
        """A chunk has arrived. stamp, now: when its sender began to send it and when it arrived, in seconds of one
        clock. Returns the throughput in units of `size` per second; None when no time has passed between the two."""
        if stamp >= self._last:
            self._began, self._size = stamp, 0.0
        self._last = now
        self._size += size
        return self._size / (now - self._began) if now > self._began else None


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
        """What to add to this agent's clock to get the coordinator's time; None before the first exchange."""
        return min(self._exchanges)[1] if self._exchanges else None
