"""Clears what a job has left in a switch's registers.

No job needs this: another epoch takes a slot over, whatever is in it. But a slot's last sums stay readable over BRI
until the slot is used again, and owners of a shared switch may want them cleared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from controlplane.planner.entries import Aggregate, RuleSet
from controlplane.targets.bri.entries import Entry
from controlplane.targets.bri.schema import Schema

REGISTER = "Register"
"""Kind of the tables that stand for registers in BRI."""
OF_SLOTS = "slot_epoch"
"""A register with one cell per slot; others may have several."""


def slots_of(rules: RuleSet) -> set[int]:
    """Return the slots of a rule set's aggregation points."""
    found: set[int] = set()
    for entry in rules.labels:
        if isinstance(entry.action, Aggregate):
            found |= set(range(entry.action.slot_base, entry.action.slot_base + entry.action.slot_mask + 1))
    return found


def cleared(program: Schema, slots: Iterable[int]) -> Iterator[list[Entry]]:
    """Yield, for each register of a program, the entries that set these slots to 0."""
    there, number = sorted(slots), program.table(OF_SLOTS).size
    for table in program.tables.values():
        if table.kind != REGISTER:
            continue
        (index,) = table.keys
        data = tuple((name, 0) for name in table.data)
        yield [
            Entry(table.name, ((index, first + slot),), None, data)
            for first in range(0, table.size, number)
            for slot in there
        ]
