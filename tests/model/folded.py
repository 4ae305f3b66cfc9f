"""The Tofino program folded (p4src/tofino/fold.p4): packets of twice the values that a pass can hold.

As in :mod:`tests.model.tofino`, decisions come from the compiled tables' entries, here of the program for Tofino 2 with
128 values; register actions are functions on one cell. Packets between two passes are frames, too, so that a caller can
lose, repeat and delay them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from p4src.protocol import ETHERTYPE_IPV4, HEADER_OFFSET, VALUES_OFFSET, VERSION, Flag, Verdict, frame_bytes
from tests.model import tofino
from tests.model.merge import WORD, signed
from tests.model.packet import HEADER, Packet, decode, ours
from tests.model.switch import Forward, Replicate
from tests.model.tofino import CODES, GROUP_ADDRESS, LOOPBACK, Cell, Contribution, ReadOut, StaticTable, static_tables

VALUES = 128
"""Values of the compiled program whose tables these are. A model of it may have another even number."""
FIRST, STAYS, LEAVES, READ = (CODES[f"STEP_{name}"] for name in ("FIRST", "STAYS", "LEAVES", "READ"))
FOLDED = 0x80 | VERSION
FOLD = struct.Struct(">BBI")
"""Format of step, operation and ticket."""

Values = tuple[int, ...]


class Fold(NamedTuple):
    """The header that a packet has between two passes."""

    step: int
    operation: int
    ticket: int


class Folded(NamedTuple):
    """The content of all registers at one slot: of the decision, and of both halves of the values, each with its
    ticket.
    """

    slot: Cell = Cell()
    tickets: tuple[int, int] = (0, 0)
    sums: tuple[Values, Values] = ((), ())


class Outcome(NamedTuple):
    """The outcome of a packet.

    fold: it recirculates, with one half of its values. verdict None: not counted. overtaken: it ends on its way.
    """

    verdict: Verdict | None
    packet: Packet | None
    fold: Fold | None = None
    overtaken: bool = False


# These are the register actions of slot_ticket: (cell, ticket of the packet, the one before) -> (cell, result).


def next_ticket(cell: int, ticket: int, previous: int) -> tuple[int, int]:
    return cell + 1 & WORD, cell + 1 & WORD


def put_ticket(cell: int, ticket: int, previous: int) -> tuple[int, int]:
    return ticket, 1


def follow_ticket(cell: int, ticket: int, previous: int) -> tuple[int, int]:
    return (ticket, 1) if cell == previous else (cell, 0)


def check_ticket(cell: int, ticket: int, previous: int) -> tuple[int, int]:
    return cell, int(cell == ticket)


TICKETS: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
    "do_next_ticket": next_ticket,
    "do_put_ticket": put_ticket,
    "do_follow_ticket": follow_ticket,
    "do_check_ticket": check_ticket,
}


def tables() -> dict[str, StaticTable]:
    """Return the tables of the compiled program."""
    return static_tables("t2na", VALUES)


def ingress(
    cell: Folded, packet: Packet, fold: Fold | None, entry: Contribution | ReadOut, table: dict[str, StaticTable]
) -> tuple[Folded, Outcome]:
    """Run one pass of one packet.

    In the first (no ``fold``) a packet has all its values; on its way it has only those of the half that the pass
    handles, or, to fetch the first half, those of the second.
    """
    slot, left, step = cell.slot, 0, FIRST
    if fold is None:
        slot, packet, operation, left, _ = tofino.slots(cell.slot, packet, entry, table)
    elif isinstance(entry, ReadOut):
        step, operation = fold.step, fold.operation
    else:
        return cell, Outcome(Verdict.REFUSED, None)

    # Fold
    half = int(table["cell_table"].apply(step=step)[0] == "in_second_half")
    tickets = list(cell.tickets)
    result = 0
    action, _ = table["ticket_table"].apply(step=step, operation=operation)
    if action != "NoAction":
        known = (fold.ticket, fold.ticket - 1 & WORD) if fold else (0, 0)
        tickets[half], result = TICKETS[action](tickets[half], *known)
    kind = CODES["KIND_READ" if isinstance(entry, ReadOut) else "KIND_FLOW"]
    action, _ = table["settle_table"].apply(kind=kind, step=step, joined=result if fold else 0)
    if action == "forget":
        operation = CODES["DO_FORGET"]
    ticket = result if fold is None else fold.ticket

    # Values
    size = len(packet.values) // (2 if fold is None else 1)
    passing, rest = packet.values[:size], packet.values[size:]
    if step == READ:
        passing, rest = (0,) * size, packet.values
    sums = list(cell.sums)
    action, _ = table["sum_table"].apply(operation=operation)
    if action == "do_store":
        sums[half] = passing
    elif action != "NoAction":
        merge: Callable[[int, int], int] = {
            "do_add": lambda a, b: a + b & WORD,
            "do_maximum": lambda a, b: max(a, b, key=signed),
            "do_read": lambda a, b: a,
        }[action]
        sums[half] = passing = tuple(map(merge, sums[half] or (0,) * size, passing))
    cell = Folded(slot, (tickets[0], tickets[1]), (sums[0], sums[1]))

    # Finish and Verdicts
    action, arguments = table["finish_table"].apply(operation=operation, left=left, flags=packet.flags, step=step)
    verdict = Verdict(arguments[0]) if arguments else None
    if action == "drop":
        overtaken = operation == CODES["DO_FORGET"]
        counted = step == FIRST or operation == CODES["DO_REFUSE"]
        return cell, Outcome(verdict if counted else None, None, overtaken=overtaken)
    if action == "leave":
        return cell, Outcome(None, packet._replace(values=passing + rest))
    if action == "fetch":
        assert fold is not None
        onward = fold._replace(step=READ, operation=CODES["DO_READ"])
        return cell, Outcome(None, packet._replace(values=passing), onward)
    if action.endswith("_complete"):
        assert isinstance(entry, Contribution)
        verdict, packet = Verdict.COMPLETED, packet._replace(label=entry.next_label)
    if action in ("send", "send_complete"):
        return cell, Outcome(verdict, packet)
    if action == "stay":
        verdict = Verdict.ABSORBED
    onward = Fold(STAYS if action == "stay" else LEAVES, operation, ticket)
    return cell, Outcome(verdict, packet._replace(values=rest), onward)


@dataclass
class FoldedSwitch(tofino.TofinoSwitch):
    """A switch with this program. Recirculating packets leave by port LOOPBACK if ``delayed``."""

    halves: dict[int, Any] = field(default_factory=dict)
    tables: dict[str, StaticTable] = field(default_factory=tables)

    def ingress(self, index: int, packet: Packet, fold: Fold | None, entry: Contribution | ReadOut) -> Outcome:
        """Run a pass over the registers at an index."""
        cell = self.halves.get(index, Folded())
        self.halves[index], outcome = ingress(cell, packet, fold, entry, self.tables)
        return outcome

    def on_the_way(self, step: int) -> tuple[int, int] | None:
        """Return the number of values of a packet in a pass after the first, and how many of these the parser asks for.

        None: there is no such pass.
        """
        half = self.values_per_packet // 2
        return {STAYS: (half, half), LEAVES: (half, half), READ: (half, 0)}.get(step)

    def reboot(self) -> None:
        self.halves.clear()

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Process a frame as :meth:`TofinoSwitch.process` does.

        If a frame is shorter than its headers say, the first pass asks only for the first half of its values, and the
        second pass drops it.
        """
        if int.from_bytes(frame[12:14], "big") != ETHERTYPE_IPV4 or not ours(frame):
            return super().process(port, frame)
        if not frame[0] & GROUP_ADDRESS:
            return self._route(frame)
        return self._pass(port, frame)

    def _pass(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        size = self.values_per_packet // 2
        packet, fold, rest = self._parsed(frame)
        if packet is None:
            self.verdicts[Verdict.MALFORMED] += 1
            return []
        found = tofino.install(self.labels).get((port, packet.label))
        if found is None:
            action = self.labels.get((port, packet.label))
            if action is None or fold is not None:
                self.verdicts[Verdict.UNKNOWN if fold is None else Verdict.REFUSED] += 1
                return []
            self._count(port, packet.label, frame)
            assert isinstance(action, Forward | Replicate)
            forwarded = isinstance(action, Forward)
            self.verdicts[Verdict.FORWARDED if forwarded else Verdict.REPLICATED] += 1
            outs = (action.port,) if isinstance(action, Forward) else self.groups.get(action.group, ())
            return [(out, frame) for out in outs]
        self._count(port, packet.label, frame)
        entry, rule = found
        index = rule.slot_base ^ (packet.sequence & rule.slot_mask)
        if isinstance(entry, Contribution):
            packet = packet.without_checksum()
        outcome = self.ingress(index, packet, fold, entry)
        if outcome.verdict is not None:
            self.verdicts[outcome.verdict] += 1
        self.overtaken += outcome.overtaken
        if outcome.packet is None:
            return []
        leaving = outcome.packet
        if outcome.fold is None:
            whole = leaving.encode()
            if fold is None:
                # The second half was never parsed: it leaves unchanged, and with its length.
                whole = whole[: VALUES_OFFSET + 4 * size] + frame[VALUES_OFFSET + 4 * size :]
            else:
                whole += rest
            return [(entry.port, whole)]
        way = encode(leaving, outcome.fold, self.values_per_packet)
        if fold is None:
            way = way[: -4 * size] + frame[VALUES_OFFSET + 4 * size :]
        else:
            way += rest
        return [(LOOPBACK, way)] if self.delayed else self._pass(LOOPBACK, way)

    def _count(self, port: int, label: int, frame: bytes) -> None:
        self.label_packets[port, label] += 1
        self.label_bytes[port, label] += len(frame)

    def _parsed(self, frame: bytes) -> tuple[Packet | None, Fold | None, bytes]:
        """Return the packet (None: malformed), its header from an earlier pass, and the bytes after its values."""
        folded = len(frame) > HEADER_OFFSET and frame[HEADER_OFFSET] == FOLDED
        fold_bytes = FOLD.size if folded else 0
        count = asked = self.values_per_packet // 2
        fold = None
        if folded:
            if len(frame) < VALUES_OFFSET + FOLD.size:
                return None, None, b""
            fold = Fold(*FOLD.unpack_from(frame, VALUES_OFFSET))
            known = self.on_the_way(fold.step)
            if known is None:
                return None, None, b""
            count, asked = known
        if len(frame) < VALUES_OFFSET + fold_bytes + 4 * asked:
            return None, None, b""
        plain = frame[:HEADER_OFFSET] + bytes([VERSION]) if folded else frame[: HEADER_OFFSET + 1]
        plain += frame[HEADER_OFFSET + 1 : VALUES_OFFSET] + frame[VALUES_OFFSET + fold_bytes :]
        whole = plain[: frame_bytes(self.values_per_packet)].ljust(frame_bytes(self.values_per_packet), b"\0")
        packet = decode(whole, self.values_per_packet)
        if packet is not None and folded:
            outer = packet.outer or whole[:HEADER_OFFSET]
            packet = packet._replace(values=packet.values[:count], outer=outer)
        return packet, fold, frame[VALUES_OFFSET + fold_bytes + 4 * count :] if folded else b""


def encode(packet: Packet, fold: Fold, values_per_packet: int) -> bytes:
    """Return a packet as it goes from one pass to the next: its lengths are still those of a whole one."""
    outer = packet.outer or Packet(0, 0, 0, 0, (0,) * values_per_packet).encode()[:HEADER_OFFSET]
    header = HEADER.pack(FOLDED, packet.flags, packet.job, packet.label, packet.epoch, packet.sequence, packet.bitmap)
    values = struct.pack(f">{len(packet.values)}I", *packet.values)
    return outer + header + FOLD.pack(*fold) + values


__all__ = ["Flag", "Fold", "Folded", "FoldedSwitch", "Outcome", "encode", "ingress", "tables"]
