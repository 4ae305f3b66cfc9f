"""Sends a copy (SelMcast, SSP) to each receiver as fast as the connection to that one takes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

PROGRESS_REPORTS = 16
"""Number of reports, per copy, of how much of it a receiver still lacks."""

COPY_AHEAD = 8
"""Most chunks of a copy that wait for the connection to one receiver."""


class CopySender:
    """The copies of one task at its sender. progress(receiver, part): this part (0 to 1) is still to be sent to it."""

    def __init__(self, progress: Callable[[str, float], None]) -> None:
        self._progress = progress
        self._posted: Counter[str] = Counter()  # by receiver: chunks that have been handed to a connection's queue
        self._sent: Counter[str] = Counter()  # by receiver: chunks that a connection has taken
        self._sending: set[str] = set()  # receivers for which `send` is on the stack

    def sent(self, receiver: str, chunks: int) -> None:
        """A connection has taken the next of so many chunks for a receiver."""
        self._sent[receiver] += 1
        sent = self._sent[receiver]
        if sent % max(1, chunks // PROGRESS_REPORTS) == 0 or sent == chunks:
            self._progress(receiver, 1 - sent / chunks)

    def send(self, receiver: str, chunks: int, post: Callable[[int], bool]) -> None:
        """Posts chunks for a receiver, at most COPY_AHEAD before a connection has taken them. post(chunk): hands the
        chunk to a connection's queue; returns whether it did, since a receiver may have been dropped."""
        if receiver in self._sending:
            return  # a connection took a chunk at once: the loop further up the stack continues
        self._sending.add(receiver)
        while self._posted[receiver] < min(chunks, self._sent[receiver] + COPY_AHEAD) and post(self._posted[receiver]):
            self._posted[receiver] += 1
        self._sending.discard(receiver)
