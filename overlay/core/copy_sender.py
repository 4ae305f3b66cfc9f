"""Sends a copy of a trainer's values (SelMcast, SSP) to each receiver as fast as the receiver's connection takes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

PROGRESS_REPORTS = 16
"""Number of reports, for each copy and receiver, of how much of the copy is still to be sent."""

COPY_AHEAD = 8
"""Most chunks of a copy that wait in the queue of the connection to one receiver."""


class CopySender:
    """Sends the copies of one task from the agent whose trainer submitted the values.

    Args:
        progress: called as progress(receiver, part) when this part (0 to 1) of the copy is still to be sent to the
            receiver.
    """

    def __init__(self, progress: Callable[[str, float], None]) -> None:
        self._progress = progress
        self._posted: Counter[str] = Counter()  # by receiver, number of chunks in a connection's queue or sent
        self._sent: Counter[str] = Counter()  # by receiver, number of chunks that its connection has taken
        self._sending: set[str] = set()  # receivers for which `send` is on the stack

    def sent(self, receiver: str, chunks: int) -> None:
        """Take note that a connection has taken one more of the copy's `chunks` chunks for this receiver."""
        self._sent[receiver] += 1
        sent = self._sent[receiver]
        if sent % max(1, chunks // PROGRESS_REPORTS) == 0 or sent == chunks:
            self._progress(receiver, 1 - sent / chunks)

    def send(self, receiver: str, chunks: int, post: Callable[[int], bool]) -> None:
        """Post chunks for a receiver, at most COPY_AHEAD more than its connection has taken.

        Args:
            receiver: name of the agent that gets the copy.
            chunks: number of chunks of the whole copy.
            post: puts the chunk of this number into the connection's queue, and returns whether it did: a receiver may
                have been dropped.
        """
        if receiver in self._sending:
            return  # a connection took a chunk at once: the loop further up the stack continues
        self._sending.add(receiver)
        while self._posted[receiver] < min(chunks, self._sent[receiver] + COPY_AHEAD) and post(self._posted[receiver]):
            self._posted[receiver] += 1
        self._sending.discard(receiver)
