"""The folded program of Tofino 1 (p4src/tofino/fold_flows.p4), whose ALUs output one word of a pair per pass.

As in :mod:`tests.model.folded`, decisions are those of the compiled program's entries, register actions are functions
on one cell, and packets between two passes are frames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from p4src.protocol import Verdict
from tests.model import folded, tofino
from tests.model.folded import FIRST, LEAVES, READ, STAYS, VALUES, Fold, Outcome
from tests.model.merge import WORD
from tests.model.packet import Packet
from tests.model.tofino import CODES, VALUE_ACTIONS, Cell, Contribution, Pair, ReadOut, StaticTable, static_tables

FETCHES = CODES["STEP_FETCHES"]
Pairs = tuple[Pair, ...]


class FoldedFlows(NamedTuple):
    """The content of all registers at one slot.

    owner (epoch, sequence) and flows: what the second half is the sum of. sums: both halves of the values, in pairs.
    """

    slot: Cell = Cell()
    owner: Pair = (0, 0)
    flows: int = 0
    sums: tuple[Pairs, Pairs] = ((), ())


# These are the register actions: (cell, operands) -> (cell, result).


def put_owner(owner: Pair, epoch: int, sequence: int) -> tuple[Pair, int]:
    """Model the register action of half_owner that stores the owner."""
    return (epoch, sequence), 1


def check_owner(owner: Pair, epoch: int, sequence: int) -> tuple[Pair, int]:
    """Model the register action of half_owner that compares the owner."""
    return owner, int(owner == (epoch, sequence))


def put_flows(flows: int, held: int, bitmap: int) -> tuple[int, int]:
    """Model the register action of half_flows that stores the flows."""
    return bitmap, 1


def follow_half(flows: int, held: int, bitmap: int) -> tuple[int, int]:
    """Model the register action of half_flows that sets new flows if it holds the expected ones."""
    return (bitmap, 1) if flows == held else (flows, 0)


def check_flows(flows: int, held: int, bitmap: int) -> tuple[int, int]:
    """Model the register action of half_flows that compares the flows."""
    return flows, int(flows == bitmap)


OWNERS: dict[str, Callable[[Pair, int, int], tuple[Pair, int]]] = {
    "do_put_owner": put_owner,
    "do_check_owner": check_owner,
}
FLOWS: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
    "do_put_flows": put_flows,
    "do_follow_half": follow_half,
    "do_check_flows": check_flows,
}


def tables() -> dict[str, StaticTable]:
    """Return the tables of the compiled program."""
    return static_tables("tna", VALUES)


def ingress(
    cell: FoldedFlows, packet: Packet, fold: Fold | None, entry: Contribution | ReadOut, table: dict[str, StaticTable]
) -> tuple[FoldedFlows, Outcome]:
    """Run one pass of one packet.

    In the first (no ``fold``) a packet has all its values; later those of the second half, after the first words of the
    sum's first half where it leaves.
    """
    step = FIRST if fold is None else fold.step
    if fold is not None and isinstance(entry, Contribution):
        return cell, Outcome(Verdict.REFUSED, None)
    resumed = 0 if fold is None else fold.operation
    bitmap = packet.bitmap & WORD
    decision = tofino.slots(cell.slot, packet, entry, table, step=step, resumed=resumed)
    slot, packet, operation, left, generation, held = decision

    # SecondHalf
    owner, flows, owned, joined = cell.owner, cell.flows, 0, 0
    kind = CODES["KIND_READ" if isinstance(entry, ReadOut) else "KIND_FLOW"]
    action, _ = table["owner_table"].apply(kind=kind, step=step, operation=resumed)
    if action != "NoAction":
        owner, owned = OWNERS[action](owner, packet.epoch, packet.sequence)
    action, _ = table["half_table"].apply(step=step, owned=owned, operation=resumed)
    if action == "join_anyway":
        joined = 1
    elif action != "NoAction":
        assert fold is not None
        flows, joined = FLOWS[action](flows, fold.ticket, bitmap)
    half = int(table["cell_table"].apply(step=step)[0] == "in_second_half")

    # Values
    quarter = len(packet.values) // {FIRST: 4, STAYS: 2}.get(step, 3)
    before = quarter if step in (LEAVES, FETCHES) else 0
    carried, first, second, rest = cut(packet.values, before, quarter, 0 if step == READ else quarter)
    sums = list(cell.sums)
    action, _ = table["sum_table"].apply(operation=operation, joined=joined)
    if action != "NoAction":
        change = VALUE_ACTIONS[action.split("_")[1]]
        there = sums[half] or ((0, 0),) * quarter
        done = [change(pair, a, b) for pair, a, b in zip(there, first, second or first, strict=True)]
        sums[half] = tuple(pair for pair, _ in done)
        given = tuple(result for _, result in done)
        if action == "do_read":
            second = given
        elif action != "do_store":
            first = given
    cell = FoldedFlows(slot, owner, flows, (sums[0], sums[1]))

    # Finish and Verdicts
    overtaken = operation == CODES["DO_FORGET"] or (isinstance(entry, ReadOut) and fold is not None and not joined)
    keys = {"operation": operation, "left": left, "flags": packet.flags, "step": step, "joined": joined}
    action, arguments = table["finish_table"].apply(**keys)
    verdict = Verdict(arguments[0]) if arguments else None
    if action == "drop":
        counted = (step == FIRST or operation == CODES["DO_REFUSE"]) and not overtaken
        return cell, Outcome(verdict if counted else None, None, overtaken=overtaken)
    if action == "leave":
        return cell, Outcome(None, packet._replace(values=first + second + rest))
    if action in ("fetch", "fetch_second"):
        assert fold is not None
        onward = fold._replace(step=READ if action == "fetch" else FETCHES, operation=CODES["DO_READ"])
        return cell, Outcome(None, packet._replace(values=carried + first + second), onward)
    if action.endswith("_complete"):
        assert isinstance(entry, Contribution)
        verdict, packet = Verdict.COMPLETED, packet._replace(label=entry.next_label)
    if action in ("send", "send_complete"):
        return cell, Outcome(verdict, packet)
    stays = action == "stay"
    packet = packet._replace(bitmap=generation << 32 | packet.bitmap & WORD, values=rest if stays else first + rest)
    onward = Fold(STAYS if stays else LEAVES, operation, held)
    return cell, Outcome(Verdict.ABSORBED if stays else verdict, packet, onward)


def cut(values: tuple[int, ...], *sizes: int) -> list[tuple[int, ...]]:
    """Return pieces of these sizes, and the rest."""
    pieces, at = [], 0
    for size in sizes:
        pieces.append(values[at : at + size])
        at += size
    return [*pieces, values[at:]]


@dataclass
class FoldedFlowsSwitch(folded.FoldedSwitch):
    """A switch with this program; packets have a multiple of four values."""

    tables: dict[str, StaticTable] = field(default_factory=tables)

    def ingress(self, index: int, packet: Packet, fold: Fold | None, entry: Contribution | ReadOut) -> Outcome:
        cell = self.halves.get(index, FoldedFlows())
        self.halves[index], outcome = ingress(cell, packet, fold, entry, self.tables)
        return outcome

    def on_the_way(self, step: int) -> tuple[int, int] | None:
        quarter = self.values_per_packet // 4
        three = 3 * quarter
        known = {STAYS: (2 * quarter,) * 2, LEAVES: (three,) * 2, FETCHES: (three,) * 2, READ: (three, quarter)}
        found = known.get(step)
        return None if found is None else (found[0], found[1])
