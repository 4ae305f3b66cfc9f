"""The Tofino program, table by table and register action by register action.

The decisions are not written a second time: they are read from the entries that the compiler made of ``p4src/tofino/``
(``inart.entries.txtpb`` of the artifact), and codes from ``headers.p4``. The register actions are functions on one cell
with the names that they have in ``slots.p4`` and ``values.p4``; tests/p4/test_salu.py compares them with the compiled
ones. The order of steps in :func:`ingress` is that of ``inart.p4``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from google.protobuf import text_format

from controlplane.targets.p4runtime.stubs import p4info_pb2, p4runtime_pb2
from p4src.artifacts import ENTRIES, find, load
from p4src.protocol import DIRECTORY, ETHERTYPE_IPV4, Flag, Verdict, frame_bytes
from tests.model.merge import WORD, signed
from tests.model.packet import Packet, decode, ours
from tests.model.switch import Aggregate, Forward, Replicate, Switch

CODES = {
    name: int(value, 0)
    for name, value in re.findall(
        r"^const [\w<>]+ (\w+) = (\w+);", (DIRECTORY / "tofino" / "headers.p4").read_text(), re.MULTILINE
    )
}
OLDER, SAME, NEWER, NONE = (CODES[f"AGE_{name}"] for name in ("OLDER", "SAME", "NEWER", "NONE"))
CLOSED = CODES["CLOSED"]
GROUP_ADDRESS = 1
"""The bit of a MAC address's first byte that is set in group and broadcast addresses."""
LOOPBACK = 68
"""The port over which sums recirculate."""

Pair = tuple[int, int]


class Row(NamedTuple):
    """An entry: the matches (field, value, mask) that are not "any", its action's name and arguments."""

    matches: tuple[tuple[str, int, int], ...]
    action: str
    arguments: tuple[int, ...]


class StaticTable:
    """A table with the entries that the program puts into it, first match first."""

    def __init__(self, rows: list[Row], default: str, default_arguments: tuple[int, ...]) -> None:
        self.rows, self.default = rows, (default, default_arguments)
        self.apply = cache(self._apply)

    def _apply(self, **fields: int) -> tuple[str, tuple[int, ...]]:
        """Return the action and its arguments for these fields; names are the last part of those in P4."""
        for row in self.rows:
            if all(fields[name] & mask == value for name, value, mask in row.matches):
                return row.action, row.arguments
        return self.default


@cache
def static_tables(target: str = "tna", values: int | None = None) -> dict[str, StaticTable]:
    """Return the compiled program's tables that have entries of their own, by the last part of their names."""
    return tables_of(find(target, values).directory)


@cache
def tables_of(directory: Path) -> dict[str, StaticTable]:
    """Return the tables of the program in a folder."""
    artifact = load(directory)
    info = text_format.Parse(artifact.p4info.read_text(), p4info_pb2.P4Info())
    written = text_format.Parse((artifact.directory / ENTRIES).read_text(), p4runtime_pb2.WriteRequest())
    actions = {action.preamble.id: action.preamble.name.rpartition(".")[2] for action in info.actions}
    rows: dict[int, list[tuple[int, Row]]] = {}
    for update in written.updates:
        entry = update.entity.table_entry
        table = next(table for table in info.tables if table.preamble.id == entry.table_id)
        fields = {field.id: (field.name.rpartition(".")[2], field.bitwidth) for field in table.match_fields}
        matches = []
        for match in entry.match:
            name, bits = fields[match.field_id]
            if match.HasField("exact"):
                matches.append((name, int.from_bytes(match.exact.value, "big"), (1 << bits) - 1))
            else:
                value, mask = (int.from_bytes(part, "big") for part in (match.ternary.value, match.ternary.mask))
                matches.append((name, value, mask))
        chosen = entry.action.action
        arguments = tuple(int.from_bytes(parameter.value, "big") for parameter in chosen.params)
        row = Row(tuple(matches), actions[chosen.action_id], arguments)
        rows.setdefault(entry.table_id, []).append((entry.priority, row))
    tables = {}
    for table in info.tables:
        if table.preamble.id in rows:
            ordered = sorted(rows[table.preamble.id], key=lambda pair: -pair[0])
            default = table.initial_default_action
            arguments = tuple(int.from_bytes(argument.value, "big") for argument in default.arguments)
            tables[table.preamble.name.rpartition(".")[2]] = StaticTable(
                [row for _, row in ordered], actions[default.action_id], arguments
            )
    return tables


# These are the register actions: (cell, operands) -> (cell, result). The result is 0 if the action gives none.


def follow_epoch(slot: Pair, epoch: int, generation: int) -> tuple[Pair, int]:
    """Model the register action of slot_epoch, whose cell is (epoch, generation), that takes a new epoch over."""
    if epoch == slot[0]:
        return slot, slot[1]
    return (epoch, slot[1] + 1 & WORD), 0


def check_epoch(slot: Pair, epoch: int, generation: int) -> tuple[Pair, int]:
    """Model the register action of slot_epoch, whose cell is (epoch, generation), that compares both."""
    return slot, slot[1] if slot == (epoch, generation) else 0


def follow_sequence(sequence: int, packet_sequence: int) -> Pair:
    """Model the register action of slot_sequence that follows newer sequence numbers."""
    if packet_sequence > sequence:
        return packet_sequence, NEWER
    return sequence, SAME if packet_sequence == sequence else OLDER


def take_sequence(sequence: int, packet_sequence: int) -> Pair:
    """Model the register action of slot_sequence that takes any sequence number."""
    return packet_sequence, NEWER


def follow_flows(slot: Pair, sequence: int, claim: int) -> tuple[Pair, int]:
    """Model the register action of slot_flows, whose cell is (sequence, flows), that adds a flow."""
    held = slot[1] if sequence == slot[0] else 0
    if sequence > slot[0]:
        slot = sequence, claim
    elif sequence == slot[0]:
        slot = slot[0], slot[1] | claim
    return slot, held


def take_flows(slot: Pair, sequence: int, claim: int) -> tuple[Pair, int]:
    """Model the register action of slot_flows, whose cell is (sequence, flows), that takes the slot over."""
    return (sequence, claim), 0


def store(cell: Pair, first: int, second: int) -> tuple[Pair, int]:
    """Model the register actions store_NN."""
    return (first, second), 0


def add(cell: Pair, first: int, second: int) -> tuple[Pair, int]:
    """Model the register actions add_NN."""
    cell = (cell[0] + first) & WORD, (cell[1] + second) & WORD
    return cell, cell[0]


def maximum(cell: Pair, first: int, second: int) -> tuple[Pair, int]:
    """Model the register actions maximum_NN."""
    cell = max(cell[0], first, key=signed), max(cell[1], second, key=signed)
    return cell, cell[0]


def read(cell: Pair, first: int, second: int) -> tuple[Pair, int]:
    """Model the register actions read_NN."""
    return cell, cell[1]


VALUE_ACTIONS: dict[str, Callable[[Pair, int, int], tuple[Pair, int]]] = {
    "store": store,
    "add": add,
    "maximum": maximum,
    "read": read,
}


class Cell(NamedTuple):
    """The content of all registers at one index; the defaults are those after a reboot.

    ``sums`` grows with its packets.
    """

    epoch: Pair = (0, 0)
    sequence: int = 0
    flows: Pair = (0, 0)
    sums: tuple[Pair, ...] = ()


@dataclass(frozen=True)
class Contribution:
    """An entry with the action aggregate."""

    flow: int
    everyone: int
    next_label: int
    partial_label: int
    port: int


@dataclass(frozen=True)
class ReadOut:
    """An entry with the action read_out."""

    port: int


class Outcome(NamedTuple):
    """The outcome of a packet: the packet and the port by which it leaves, if it does. verdict None: not counted."""

    verdict: Verdict | None
    packet: Packet | None
    port: int = 0


def halves(values: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the headers first and second; with an odd number of values (small models only) second has an
    additional 0.
    """
    half = (len(values) + 1) // 2
    return values[:half], (*values[half:], *([0] * (2 * half - len(values))))


class Decision(NamedTuple):
    """The decision of Slots about a packet.

    It has the slot's registers, the packet with its new bitmap and label, what to do with its values, and which flows
    are missing. generation: 0 means another epoch than the slot's.
    """

    cell: Cell
    packet: Packet
    operation: int
    left: int
    generation: int


def slots(
    cell: Cell,
    packet: Packet,
    entry: Contribution | ReadOut,
    tables: dict[str, StaticTable],
) -> Decision:
    """Run Label and Slots on a packet whose label_table entry is known, in its first pass."""
    flow = everyone = 0
    if isinstance(entry, ReadOut):
        kind = CODES["KIND_READ"]
    else:
        kind, flow, everyone = CODES["KIND_FLOW"], entry.flow, entry.everyone
        packet = packet._replace(bitmap=flow, label=entry.partial_label)
    action, _ = tables["epoch_table"].apply(kind=kind, flags=packet.flags, step=CODES["STEP_FIRST"])
    generation, sequence_age, held = 0, NONE, 0
    if action == "refuse":
        kind = CODES["KIND_REFUSED"]
    elif action != "NoAction":
        touch = {"touch_epoch": follow_epoch, "look_at_epoch": check_epoch}[action]
        epoch, generation = touch(cell.epoch, packet.epoch, packet.bitmap >> 32)
        cell = cell._replace(epoch=epoch)
    claim = flow | (CLOSED if packet.flags & Flag.RESEND else 0)
    action, _ = tables["sequence_table"].apply(kind=kind, generation=generation)
    if action != "NoAction":
        follow = {"do_follow_sequence": follow_sequence, "do_take_sequence": take_sequence}[action]
        sequence, sequence_age = follow(cell.sequence, packet.sequence)
        cell = cell._replace(sequence=sequence)
    action, _ = tables["flows_table"].apply(kind=kind, generation=generation)
    if action != "NoAction":
        take = {"do_follow_flows": follow_flows, "do_take_flows": take_flows}[action]
        flows, held = take(cell.flows, packet.sequence, claim)
        cell = cell._replace(flows=flows)
    action, arguments = tables["decide_table"].apply(
        kind=kind, sequence_age=sequence_age, flags=packet.flags, flow=flow, held=held
    )
    operation = arguments[0] if arguments else CODES["DO_READ"]
    if action == "read":
        packet = packet._replace(bitmap=packet.bitmap & WORD)
    if action == "merge":
        packet = packet._replace(bitmap=packet.bitmap | held)
    return Decision(cell, packet, operation, (held | flow) ^ everyone, generation)


def ingress(cell: Cell, packet: Packet, entry: Contribution | ReadOut) -> tuple[Cell, Outcome]:
    """Run one pass of a packet that label_table has sent to a slot: Slots, Values, Finish, in this order."""
    tables = static_tables()
    cell, packet, operation, left, generation = slots(cell, packet, entry, tables)

    # Values: the tables of all pairs have the same entries.
    action, _ = tables["sum_table"].apply(operation=operation)
    if action != "NoAction":
        name = action.split("_")[1]
        first, second = (list(half) for half in halves(packet.values))
        sums = list(cell.sums or [(0, 0)] * len(first))
        for i, pair in enumerate(sums):
            sums[i], result = VALUE_ACTIONS[name](pair, first[i], second[i])
            if name in ("add", "maximum"):
                first[i] = result
            elif name == "read":
                second[i] = result
        cell = cell._replace(sums=tuple(sums))
        packet = packet._replace(values=tuple((first + second)[: len(packet.values)]))

    # Finish and Verdicts
    action, arguments = tables["finish_table"].apply(operation=operation, left=left, flags=packet.flags)
    complete = action.endswith("_complete")
    counted = operation not in (CODES["DO_READ"], CODES["DO_FORGET"])
    verdict = Verdict.COMPLETED if complete else Verdict(arguments[0]) if counted else None
    if complete:
        assert isinstance(entry, Contribution)
        packet = packet._replace(label=entry.next_label)
    if action.startswith("go_round"):
        packet = packet._replace(bitmap=generation << 32 | packet.bitmap & WORD)
    if action == "drop":
        return cell, Outcome(verdict, None)
    return cell, Outcome(verdict, packet, LOOPBACK if action.startswith("go_round") else entry.port)


def install(
    labels: dict[tuple[int, int], Forward | Replicate | Aggregate],
) -> dict[tuple[int, int], tuple[Contribution | ReadOut, Aggregate]]:
    """Return the entries for slots, as the control plane makes them of a RuleSet, each with the rule from which it
    comes.
    """
    entries: dict[tuple[int, int], tuple[Contribution | ReadOut, Aggregate]] = {}
    for key, rule in labels.items():
        if isinstance(rule, Aggregate):
            entry = Contribution(rule.flow, rule.everyone, rule.next_label, rule.partial_label, rule.port)
            entries[key] = entry, rule
            for label in (rule.next_label, rule.partial_label):
                entries[LOOPBACK, label] = ReadOut(rule.port), rule
    return entries


@dataclass
class TofinoSwitch(Switch):
    """A switch with this program and the tables of a :class:`Switch`.

    Recirculating packets leave by port LOOPBACK if ``delayed``, and come back when the caller brings them; otherwise
    they come back at once. ``overtaken`` counts the sums that were dropped on their second pass.
    """

    delayed: bool = False
    overtaken: int = 0
    cells: dict[int, Cell] = field(default_factory=dict)

    def reboot(self) -> None:
        self.cells.clear()

    def entries(self) -> dict[tuple[int, int], tuple[Contribution | ReadOut, Aggregate]]:
        """Return the label table's entries for slots, each with the rule from which it comes."""
        return install(self.labels)

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Process a frame as :meth:`Switch.process` does, with two differences.

        Only frames to a group's MAC address are ours, and a frame that is longer than IPv4 and UDP say counts for its
        first values and leaves with its rest.
        """
        if int.from_bytes(frame[12:14], "big") != ETHERTYPE_IPV4 or not ours(frame):
            return super().process(port, frame)
        if not frame[0] & GROUP_ADDRESS:
            return self._route(frame)
        length = frame_bytes(self.values_per_packet)
        packet, rest = decode(frame[:length], self.values_per_packet), frame[length:]
        if packet is None:
            self.verdicts[Verdict.MALFORMED] += 1
            return []
        found = self.entries().get((port, packet.label))
        if found is None:
            return [(out, leaving + rest) for out, leaving in super().process(port, packet.encode())]
        entry, rule = found
        if isinstance(entry, Contribution):
            packet = packet.without_checksum()
        index = rule.slot_base ^ (packet.sequence & rule.slot_mask)
        self.cells[index], outcome = ingress(self.cells.get(index, Cell()), packet, entry)
        self.label_packets[port, packet.label] += 1
        self.label_bytes[port, packet.label] += len(frame)
        if outcome.verdict is not None:
            self.verdicts[outcome.verdict] += 1
        elif outcome.packet is None:
            self.overtaken += 1
        if outcome.packet is None:
            return []
        leaving = outcome.packet.encode() + rest
        if outcome.port == LOOPBACK and not self.delayed:
            return self.process(LOOPBACK, leaving)
        return [(outcome.port, leaving)]
