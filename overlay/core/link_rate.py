"""Measures at the sender what a link carries: bytes that have arrived at the receiver's kernel, over time.

A process of a busy machine may not run for a while, and then finds everything at once that arrived meanwhile: bytes
divided by the time between two reads of the receiver can be any number. So the sender reads a counter of its kernel,
which counts whether the process runs or not, and divides what it gained by the whole time between the two readings.
The result is never more than what was sent in that time.
"""

from __future__ import annotations

from collections.abc import Callable

WARM_UP = 1 / 3
"""Fraction of a measurement that does not count, since TCP still finds out how much it may send."""


class LinkRate:
    """One measurement, which begins now. The sender keeps the link busy and calls `read` until that returns True.

    Args:
        clock: returns the time in seconds.
        arrived: returns the bytes that have arrived at the receiver's kernel so far, as the sender's kernel knows.
        seconds: shortest duration. It lasts longer if the sender does not run meanwhile.

    Attributes:
        began: when it began.
        mbps: the rate, when the measurement is over.
    """

    def __init__(self, clock: Callable[[], float], arrived: Callable[[], int], seconds: float) -> None:
        self._clock, self._arrived, self._seconds = clock, arrived, seconds
        self.began, self._bytes = clock(), arrived()
        self._steady: tuple[float, int] | None = None  # when the warm-up was over, and the bytes at that time
        self.mbps = 0.0

    @property
    def warmed_up(self) -> bool:
        return self._steady is not None

    def bytes_per_second(self) -> float:
        """Return the mean rate since the measurement began, to choose the size of messages."""
        return (self._arrived() - self._bytes) / max(self._clock() - self.began, 1e-3)

    def read(self) -> bool:
        """Read the counter, and return whether the measurement is over."""
        before, arrived, after = self._clock(), self._arrived(), self._clock()  # the process may stop in between
        if self._steady is None:
            if before >= self.began + WARM_UP * self._seconds:
                self._steady = before, arrived
            return False
        since, had = self._steady
        if after < since + (1 - WARM_UP) * self._seconds:
            return False
        self.mbps = (arrived - had) * 8e-6 / (after - since)
        return True
