"""Computes the writes that turn a switch's entries into the wanted ones, in an order that is safe at every step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from controlplane.targets.base import Operation
from controlplane.targets.bri.entries import Entry, KeyValue, Step
from controlplane.targets.bri.program import PORTS, READ_OUT, Program
from controlplane.targets.bri.schema import local

Key = tuple[str, tuple[tuple[str, KeyValue], ...]]


def steps(program: Program, now: Iterable[Entry], wanted: Iterable[Entry]) -> list[Step]:
    """Return the writes: inserts, then modifications, then deletions.

    Ports are inserted before nodes, nodes before groups, groups before the labels that use them, and they are deleted
    in the opposite order. Entries that read out a sum's second half are there before a sum can complete. A port whose
    settings change is removed and made again.
    """
    tables = program.tables()

    def rank(entry: Entry) -> tuple[int, bool]:
        return tables.index(entry.table), entry.action is None or local(entry.action) != READ_OUT

    present, future = _by_key(program, now), _by_key(program, wanted)
    inserts: list[Step] = []
    modifications: list[Step] = []
    for key, entry in sorted(future.items(), key=lambda item: rank(item[1])):
        if key not in present:
            inserts.append(Step(Operation.INSERT, entry))
        elif present[key] != entry and entry.table == PORTS:
            inserts = [Step(Operation.DELETE, present[key]), *inserts, Step(Operation.INSERT, entry)]
        elif present[key] != entry:
            modifications.append(Step(Operation.MODIFY, entry))
    leaving = [entry for key, entry in present.items() if key not in future]
    deletions = [Step(Operation.DELETE, entry) for entry in sorted(leaving, key=rank, reverse=True)]
    return inserts + modifications + deletions


def batches(todo: Sequence[Step], size: int) -> Iterator[list[Step]]:
    """Yield runs of the same operation on the same table, of at most `size` steps each, as one call of the SDE's client
    takes them."""
    for _, run in groupby(todo, key=lambda step: (step.operation, step.entry.table)):
        same = list(run)
        for start in range(0, len(same), size):
            yield same[start : start + size]


def _by_key(program: Program, entries: Iterable[Entry]) -> dict[Key, Entry]:
    return {(entry.table, entry.key): program.only_ours(entry) for entry in entries}
