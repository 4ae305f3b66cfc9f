"""Changes of switch entries that an order would make, for dry runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.entries import RuleSet
from controlplane.targets.base import Change, Operation, difference, empty

MOST_SENT = 20_000
"""Most changes in one answer, since a gRPC message has at most 4 MiB. The counts beside them cover all changes."""


@dataclass(frozen=True)
class EntryChange:
    """A table entry that an order would write to a switch, or delete from it."""

    switch: str
    change: Change


def between(before: Mapping[str, RuleSet], after: Mapping[str, RuleSet]) -> tuple[EntryChange, ...]:
    """Return what changes on which switch. A switch that is missing in a mapping has no rules."""
    return tuple(
        EntryChange(switch, change)
        for switch in sorted({*before, *after})
        for change in difference(before.get(switch, empty(switch)), after.get(switch, empty(switch)))
    )


def counts(changes: Iterable[EntryChange]) -> tuple[int, int]:
    """Return how many entries are written (new or changed), and how many are deleted."""
    off = [one.change.operation is Operation.DELETE for one in changes]
    return off.count(False), off.count(True)


def messages(changes: Iterable[EntryChange]) -> list[pb.EntryChange]:
    """Return the changes as messages of the protocol."""
    return [
        pb.EntryChange(switch=one.switch, operation=one.change.operation.value, entry=str(one.change.item))
        for one, _ in zip(changes, range(MOST_SENT), strict=False)
    ]
