"""A target that keeps its rules in memory and fails on demand. Without gRPC, whole networks of them cost nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from controlplane.planner.entries import RuleSet
from controlplane.targets.base import (
    Change,
    Counters,
    InstallError,
    Operation,
    TargetError,
    Traffic,
    UpdateFailure,
    empty,
)


class MemoryTarget:
    """A switch in memory. dies_after: it dies (and forgets everything) with the change that comes after so many.
    refuses: the changes that it refuses. down: it cannot be connected to. ports: which ports are up, if the switch
    reports them. traffic: what has passed its ports, if it counts that; labels: what it counts of labels.
    """

    def __init__(self, name: str) -> None:
        self.name, self.address, self.polite = name, f"{name}:0", False
        self.on_lost: Callable[[str], None] = lambda reason: None
        self.alive, self.demoted, self.down = True, False, False
        self.dies_after: int | None = None
        self.refuses: Callable[[Change], bool] = lambda change: False
        self.rules = empty(name)
        self.writes = 0
        self.ports: dict[int, bool] | None = None
        self.traffic: Traffic | None = None
        self.labels: dict[tuple[int, int], tuple[int, int]] = {}
        self._lock = threading.Lock()

    def die(self) -> None:
        """Forget everything, as a switch that loses power; it stays unreachable until `down` is reset."""
        self.alive, self.down, self.rules = False, True, empty(self.name)
        self.on_lost("it died")

    def hang(self) -> None:
        """Answer nothing any more, until `down` is reset; nothing is forgotten."""
        self.alive, self.down = False, True
        self.on_lost("UNAVAILABLE: ping timeout")

    def connect(self, timeout: float) -> None:
        if self.down:
            raise TargetError(f"switch {self.name} does not answer")
        self.alive = True

    def _check(self) -> None:
        if not self.alive:
            raise TargetError(f"switch {self.name}: the connection is closed")

    def runs_program(self, timeout: float = 1.0) -> bool:
        self._check()
        return True

    def load_pipeline(self) -> bool:
        self._check()
        return False

    def snapshot(self) -> tuple[set[Any], ...]:
        """Return what the switch holds, in no order."""
        return set(self.rules.labels), set(self.rules.groups), set(self.rules.routes)

    def read(self) -> RuleSet:
        self._check()
        return self.rules

    def apply(self, changes: list[Change]) -> None:
        with self._lock:
            for number, change in enumerate(changes):
                self._check()
                if self.dies_after is not None and number >= self.dies_after:
                    self.dies_after = None
                    self.die()
                    self._check()
                if self.refuses(change):
                    failure = UpdateFailure(change, "RESOURCE_EXHAUSTED", "it is full")
                    raise InstallError(self.name, [failure], len(changes))
                self._apply(change)
                self.writes += 1

    def _apply(self, change: Change) -> None:
        where = {(item.kind, item.key): item for item in self.rules.items()}
        key = change.item.kind, change.item.key
        there = key in where
        if there == (change.operation is Operation.INSERT):
            word = "ALREADY_EXISTS" if there else "NOT_FOUND"
            raise InstallError(self.name, [UpdateFailure(change, word, "")], 1)
        if change.operation is Operation.DELETE:
            del where[key]
        else:
            where[key] = change.item
        self.rules = RuleSet.of(self.name, where.values())

    def read_verdicts(self, timeout: float = 1.0) -> dict[str, int]:
        return {}

    def read_counters(self, timeout: float = 1.0) -> Counters:
        return Counters({}, dict(self.labels))

    def clear_slots(self, slots: Collection[int]) -> int:
        return 0

    def read_traffic(self) -> Traffic | None:
        self._check()
        return self.traffic

    def read_ports(self, timeout: float) -> dict[int, bool] | None:
        self._check()
        return None if self.ports is None else dict(self.ports)

    def close(self) -> None:
        self.alive = False
