"""Kinds of chunks: the collective to which they belong, the workers that add to them, and those that need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p4src.protocol import Flag, HostFlag

ALL, SCATTER, SCATTER_ALL, SINGLE, SINGLE_ALL = "rsSgG"
"""Kinds of chunks.

r: all-reduce (all add, all need it). s, S: reduce-scatter (all add, the owner needs it); the result of s goes to the
owner only. g, G: all-gather (the owner's values, all need them); g is sent by the owner only, and goes to all others;
to G all add, the others zeros.
"""


@dataclass(frozen=True)
class Schedule:
    """The chunks of an epoch, by kind; later chunks are ALL. The owner of a chunk is sequence modulo workers.

    source: the worker that owns all chunks of gathers (a broadcast). period: in a gather, at least one chunk of so many
    in a row is SINGLE_ALL. Every gather has one at its end and an ALL (the check values) before it.
    """

    kinds: str
    workers: int
    slots: int
    period: int = 1
    source: int | None = None

    def kind(self, chunk: int) -> str:
        return self.kinds[chunk] if chunk < len(self.kinds) else ALL

    def owner(self, chunk: int) -> int:
        gather = self.kind(chunk) in (SINGLE, SINGLE_ALL)
        return self.source if gather and self.source is not None else chunk % self.workers

    def window(self, chunk: int) -> int:
        """Return the window of this chunk: how far beyond its oldest unanswered chunk a worker may send it,
        exclusive.
        """
        gather = self.kind(chunk) in (SINGLE, SINGLE_ALL) or self.kind(chunk + 1) in (SINGLE, SINGLE_ALL)
        return self.slots - self.period + 1 if gather else self.slots

    def adds(self, worker: int, chunk: int) -> bool:
        """Return whether the worker sends it."""
        return self.kind(chunk) != SINGLE or worker == self.owner(chunk)

    def counts(self, worker: int, chunk: int) -> bool:
        """Return whether the worker's contribution is more than zeros."""
        return self.kind(chunk) not in (SINGLE, SINGLE_ALL) or worker == self.owner(chunk)

    def needs(self, worker: int, chunk: int) -> bool:
        """Return whether the worker needs the values; otherwise it only needs to know that the chunk is complete."""
        if self.kind(chunk) == SINGLE:
            return worker != self.owner(chunk)
        return self.kind(chunk) not in (SCATTER, SCATTER_ALL) or worker == self.owner(chunk)

    def flags(self, worker: int, chunk: int, resend: bool) -> int:
        """Return the flags of the worker's packet."""
        kind = self.kind(chunk)
        flags = int(Flag.RESEND) if resend else 0
        if kind == SCATTER:
            flags |= HostFlag.SCATTER
        if kind == SINGLE:  # a RESEND waits in no switch
            flags |= Flag.RESEND | (HostFlag.SINGLE if worker == self.owner(chunk) else HostFlag.ASK)
        return int(flags)

    def heard(self, worker: int, complete: int, answered: Sequence[int] | set[int] | frozenset[int]) -> list[int]:
        """Return the chunks for which a worker need not wait any more when all below ``complete`` are complete."""
        return [chunk for chunk in range(complete) if chunk not in answered and not self.needs(worker, chunk)]
