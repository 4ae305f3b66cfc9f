"""Measures at the sender what a link carries: bytes that have arrived at the receiver's kernel, over time.

A process of a busy machine may not run for a while, and then finds everything at once that arrived meanwhile: bytes
divided by the time between two reads of the receiver can be any number. So the sender asks its kernel, which counts
whether the process runs or not, how many bytes have arrived and when the last of them did. It divides the bytes between
two such times by the whole time. The result is never more than what was sent in that time.
"""

from __future__ import annotations

from collections.abc import Callable

WARM_UP = 1 / 3
"""Fraction of a measurement that does not count, since TCP still finds out how much it may send."""


class LinkRate:
    """Measures one link, from now on. The sender keeps the link busy and calls `read` until that returns True.

    Args:
        clock: returns the time in seconds.
        arrived: returns the bytes that have arrived at the receiver's kernel so far, as the sender's kernel knows.
        quiet: returns the seconds since the sender's kernel learned that of the last of them.
        seconds: shortest duration. It lasts longer if the sender does not run meanwhile.

    Attributes:
        began: when it began.
        mbps: the rate, when the measurement is over.
    """

    def __init__(
        self, clock: Callable[[], float], arrived: Callable[[], int], quiet: Callable[[], float], seconds: float
    ) -> None:
        self._clock, self._arrived, self._quiet, self._seconds = clock, arrived, quiet, seconds
        self.began, self._bytes = clock(), arrived()
        self._steady: tuple[float, int] | None = None  # when the warm-up was over, and the bytes at that time
        self.mbps = 0.0

    def bytes_per_second(self) -> float:
        """Return the mean rate since the measurement began, to choose the size of messages."""
        return (self._arrived() - self._bytes) / max(self._clock() - self.began, 1e-3)

    def read(self) -> bool:
        """Read the counter, and return whether the measurement is over."""
        # The process may stop in between: the first time is not later than the bytes, and the second not earlier.
        now = self._clock()
        before, arrived, quiet = now - self._quiet(), self._arrived(), self._quiet()
        after = self._clock() - quiet
        if self._steady is None:
            if now >= self.began + WARM_UP * self._seconds:
                self._steady = before, arrived
            return False
        since, had = self._steady
        if after < since + (1 - WARM_UP) * self._seconds:
            return False
        self.mbps = (arrived - had) * 8e-6 / (after - since)
        return True
