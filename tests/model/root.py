"""The root of a tree (parameter server): it adds what arrives, and answers when a chunk is complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.merge import Values, merger
from tests.model.packet import Packet


@dataclass(frozen=True)
class RootFlow:
    """The meaning of a label at the root.

    Its packets have the contributions of all ``parts`` (sets of workers, as bits), or, if ``partial``, of those whose
    bits are set in the packet's bitmap.
    """

    parts: tuple[int, ...]
    partial: bool

    def workers(self, bitmap: int) -> int:
        """Return whose contributions are in a packet with this bitmap; 0: such a packet is impossible."""
        if not self.partial:
            return sum(self.parts)
        if bitmap >> len(self.parts):
            return 0
        return sum(part for bit, part in enumerate(self.parts) if bitmap >> bit & 1)


class RootSlot(NamedTuple):
    """One entry of the ring; sequence -1: unused.

    single: one worker's packet is the whole chunk. maximum: how it merges. alone: its sum was wrong once, so that each
    packet of it is verified before it is added.
    """

    sequence: int = -1
    bitmap: int = 0
    values: Values | None = None
    single: bool = False
    maximum: bool = False
    alone: bool = False

    def complete(self, expected: int) -> bool:
        """Return whether the result is complete. ``expected``: the bits of all workers."""
        return self.single or (self.values is not None and self.bitmap == expected)


class Answer(NamedTuple):
    """A result that the root sends: to all workers (``workers`` 0) or to those bits. again: a worker asked for it.

    sender: for a SINGLE chunk, its worker, as a bit.
    """

    sequence: int
    values: Values
    workers: int
    again: bool = False
    sender: int = 0


class IncompleteChunkLost(AssertionError):
    """A newer chunk would take the ring entry of an incomplete chunk: the window has been violated."""


def root_receive(slot: RootSlot, packet: Packet, flow: RootFlow, expected: int) -> tuple[RootSlot, Answer | None]:
    """Return the ring entry after a packet of the root's own epoch, and the answer to it."""
    bits = flow.workers(packet.bitmap)
    if packet.result or bits == 0 or packet.sequence < slot.sequence:
        return slot, None
    if packet.sequence == slot.sequence and slot.complete(expected):
        assert slot.values is not None
        return slot, Answer(slot.sequence, slot.values, bits, True) if packet.resend else None
    if packet.ask or (packet.single and bits & (bits - 1)):
        return slot, None
    if packet.sequence > slot.sequence:
        if slot.sequence >= 0 and not slot.complete(expected):
            raise IncompleteChunkLost(f"{slot} is not complete when {packet} arrives")
        slot = RootSlot(packet.sequence)
    if slot.values is not None and slot.maximum != packet.maximum:
        # One of them is wrong. The one with more workers counts; a single worker cannot keep the others out.
        if bits.bit_count() < slot.bitmap.bit_count():
            return slot, None
        slot = RootSlot(packet.sequence)
    if bits & slot.bitmap:
        if bits.bit_count() <= slot.bitmap.bit_count():
            return slot, None
        slot = RootSlot(packet.sequence)  # A sum of more workers takes its place; who is not in it sends again.
    values = packet.values if slot.values is None else merger(packet.maximum)(slot.values, packet.values)
    slot = RootSlot(slot.sequence, slot.bitmap | bits, values, packet.single, packet.maximum)
    sender = bits if packet.single else 0
    return slot, Answer(slot.sequence, values, 0, sender=sender) if slot.complete(expected) else None


def root_receive_checked(
    slot: RootSlot, packet: Packet, flow: RootFlow, expected: int, right: Callable[[int, Packet], bool]
) -> tuple[RootSlot, Answer | None]:
    """Return the same as root_receive, with check words (ps_server/native/verify.c).

    Whatever may have been changed on the way, no answer is wrong. right: whether a packet's values are what these
    workers (bits) have sent for its chunk, which its check word tells.
    """
    bits = flow.workers(packet.bitmap)
    if packet.sequence == slot.sequence and bits and not packet.result and not slot.complete(expected):
        other = slot.values is not None and slot.maximum != packet.maximum
        if (other or slot.alone) and not right(bits, packet):
            return slot, None
        if other and not slot.alone:  # what came before was never sent by this job
            slot = RootSlot(packet.sequence, alone=True)
    after, answer = root_receive(slot, packet, flow, expected)
    if answer is not None and not answer.again:
        if not right(expected if not after.single else answer.sender, packet._replace(values=answer.values)):
            return RootSlot(packet.sequence, alone=True), None
        return after, answer
    return after._replace(alone=slot.alone and after.sequence == slot.sequence), answer


def oldest_incomplete(ring: Sequence[RootSlot], expected: int) -> int:
    """Return the first chunk of the epoch that is not complete; all before it are."""
    sequence = 0
    while (slot := ring[sequence % len(ring)]).sequence > sequence or (
        slot.sequence == sequence and slot.complete(expected)
    ):
        sequence += 1
    return sequence


def recipients(packet: Packet, answer: Answer, ring: Sequence[RootSlot], before: int, expected: int) -> int:
    """Return who gets the answer, as bits. ring: after the packet. before: the oldest incomplete chunk before it.
    expected: the bits of all workers.

    A SCATTER chunk goes to its owner, sequence modulo workers, a SINGLE chunk to all but its owner, who has it. If
    later chunks had to wait for it, all workers must learn that those are complete: a SCATTER chunk goes to all then,
    and a SINGLE chunk, too, unless something is still to become complete, from whose result its owner learns it.
    """
    if answer.workers:
        return answer.workers
    after = oldest_incomplete(ring, expected)
    late = after - before > 1
    if packet.scatter:
        return expected if late else 1 << packet.sequence % expected.bit_length()
    return expected if late and not more_comes(ring, after) else expected & ~answer.sender


def more_comes(ring: Sequence[RootSlot], oldest: int) -> bool:
    """Return whether some chunk is still to become complete. oldest: the oldest incomplete one.

    After a chunk of one worker there is: the last of an operation is everybody's.
    """
    newest = max(ring, key=lambda slot: slot.sequence)
    return oldest <= newest.sequence or newest.single
