"""The root of a tree (parameter server): adds what arrives, answers when a chunk is complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.model.merge import Values, merger
from tests.model.packet import Packet


@dataclass(frozen=True)
class RootFlow:
    """What a label means: the contributions of all ``parts`` (sets of workers, as bits), or, ``partial``, of those
    whose bits the packet has in its bitmap.
    """

    parts: tuple[int, ...]
    partial: bool

    def workers(self, bitmap: int) -> int:
        """Whose contributions are in a packet with this bitmap; 0: that cannot be."""
        if not self.partial:
            return sum(self.parts)
        if bitmap >> len(self.parts):
            return 0
        return sum(part for bit, part in enumerate(self.parts) if bitmap >> bit & 1)


class RootSlot(NamedTuple):
    """One entry of the ring; sequence -1: unused."""

    sequence: int = -1
    bitmap: int = 0
    values: Values | None = None


class Answer(NamedTuple):
    """A result that the root sends: to all workers (``workers`` 0) or to those bits."""

    sequence: int
    values: Values
    workers: int


class IncompleteChunkLost(AssertionError):
    """A newer chunk would take the ring entry of a chunk that is not complete: the window has been broken."""


def root_receive(slot: RootSlot, packet: Packet, flow: RootFlow, expected: int) -> tuple[RootSlot, Answer | None]:
    """What a packet of the root's own epoch does to its ring entry, and the answer that it causes."""
    bits = flow.workers(packet.bitmap)
    if packet.result or bits == 0 or packet.sequence < slot.sequence:
        return slot, None
    if packet.sequence > slot.sequence:
        if slot.sequence >= 0 and slot.bitmap != expected:
            raise IncompleteChunkLost(f"{slot} is not complete when {packet} arrives")
        slot = RootSlot(packet.sequence)
    if slot.bitmap == expected:
        assert slot.values is not None
        return slot, Answer(slot.sequence, slot.values, bits) if packet.resend else None
    if bits & slot.bitmap:
        return slot, None
    values = packet.values if slot.values is None else merger(packet.maximum)(slot.values, packet.values)
    slot = RootSlot(slot.sequence, slot.bitmap | bits, values)
    return slot, Answer(slot.sequence, values, 0) if slot.bitmap == expected else None
