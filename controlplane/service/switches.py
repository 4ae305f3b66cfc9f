"""The switches of a network while a controller runs: watched, kept filled, and shared by jobs with disjoint entries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from controlplane.common.log_lines import SILENT, Log
from controlplane.planner.bridging import is_flood
from controlplane.planner.entries import RuleSet
from controlplane.planner.rules import Taken
from controlplane.service.entry_changes import EntryChange, between
from controlplane.service.keeper import Keeper
from controlplane.service.room import part, union
from controlplane.targets import fabric
from controlplane.targets.base import SwitchTarget, empty
from controlplane.targets.switch_entries import SwitchEntries


class Reserved(NamedTuple):
    """Entries that were reserved for a job (its number), by switch, and those that it had before (None: none)."""

    job: int
    entries: Mapping[str, RuleSet]
    before: Mapping[str, RuleSet] | None


class Switches:
    """Connected targets, a keeper for each, and what every job has on them. Thread-safe.

    Args:
        targets: the connected switches; making this object writes nothing to them.
        base: by switch, the network's own entries (IPv4 routes, bridging and ports); a switch that is missing has none.
        jobs: by job (its number) and switch, the entries that are there already.
    """

    def __init__(
        self,
        targets: Sequence[SwitchTarget],
        base: Mapping[str, RuleSet],
        jobs: Mapping[int, Mapping[str, RuleSet]] | None = None,
        log: Log = SILENT,
    ) -> None:
        self._base = {target.name: _own(base.get(target.name, empty(target.name))) for target in targets}
        self._jobs: dict[int, Mapping[str, RuleSet]] = {
            job: {v: part(rules) for v, rules in parts.items()} for job, parts in (jobs or {}).items()
        }
        self._log = log
        self._lock = threading.RLock()
        """Never held while a watched switch is written to: switches have a lock each, and no job waits for another
        one's switch."""
        self.placing = threading.RLock()
        """Held by whoever looks for room and then reserves it, so that what is free stays free meanwhile."""
        self.wrote: Callable[[Mapping[str, int]], None] = lambda changes: None
        """Called with how many entries were changed, by switch."""
        self._held = tuple(SwitchEntries(target, log) for target in targets)
        self.targets = tuple(targets)
        self.keepers: tuple[Keeper, ...] = ()

    def watch(self) -> None:
        """Begin to watch the switches: one that restarts is filled again."""
        with self._lock:
            if not self.keepers:
                self.keepers = tuple(Keeper(one, self._rules_of(one), self._log) for one in self._held)

    def _wanted(self, switch: str) -> RuleSet:
        return union(self._base[switch], [parts[switch] for parts in self._jobs.values() if switch in parts])

    def _rules_of(self, one: SwitchEntries) -> RuleSet:
        """Return the entries of `_wanted`; where they equal what the switch holds, return that same object, since
        keepers compare objects."""
        rules = self._wanted(one.name)
        return one.holds if one.holds == rules else rules

    def rules(self, job: int) -> dict[str, RuleSet]:
        """Return the entries that a job has on each switch."""
        with self._lock:
            parts = self._jobs.get(job, {})
            return {switch: parts.get(switch, empty(switch)) for switch in self._base}

    def jobs(self) -> list[int]:
        """Return the numbers of the jobs that have any entries."""
        with self._lock:
            return sorted(job for job, parts in self._jobs.items() if any(r.labels or r.groups for r in parts.values()))

    def taken(self, *, without: Collection[int | None] = ()) -> dict[str, Taken]:
        """Return what is taken on each switch, without the parts of the jobs in `without`."""
        with self._lock:
            found = {}
            for switch in self._base:
                counted = [p for job, p in self._jobs.items() if job not in without]
                parts = [p[switch] for p in counted if switch in p]
                found[switch] = Taken.by(union(empty(switch), parts))
            return found

    def base_changes(self, base: Mapping[str, RuleSet]) -> tuple[EntryChange, ...]:
        """Return the changes that `reload` with these entries of the network would write to the present switches."""
        with self._lock:
            return between(self._base, {name: _own(base[name]) for name in self._base if name in base})

    def rebase(self, base: Mapping[str, RuleSet]) -> None:
        """Make these the network's own entries from the next `fill` on."""
        with self._lock:
            self._base = {name: _own(base.get(name, empty(name))) for name in self._base}

    def reload(
        self, base: Mapping[str, RuleSet], arriving: Sequence[SwitchTarget] = (), names: Collection[str] | None = None
    ) -> int:
        """Make these the network's own entries. Return how many changes that took. `arriving` are more switches,
        connected. `names` are all that stay or come (None where all stay); the others are released, with what they
        hold. Raise FabricError where it fails: all is as before then."""
        fresh = {
            SwitchEntries(target, self._log): _own(base.get(target.name, empty(target.name))) for target in arriving
        }
        written = fabric.bring(fresh, self._log)
        with self._lock:
            before = self._base
            self._base = {name: _own(base.get(name, empty(name))) for name in before}
            self._base |= {one.name: rules for one, rules in fresh.items()}

        def undo() -> None:
            with self._lock:
                self._base = before
                self._want_all()

        changes = self._write(undo) + self._count(written)
        with self.placing, self._lock:
            gone = () if names is None else tuple(one for one in self.targets if one.name not in names)
            self._base = {name: rules for name, rules in self._base.items() if name not in {one.name for one in gone}}
            self._held = tuple(one for one in (*self._held, *fresh) if one.target not in gone)
            self.targets = tuple(one.target for one in self._held)
            if watched := self.keepers:
                coming = (Keeper(one, self._rules_of(one), self._log) for one in fresh)
                self.keepers = tuple(one for one in (*watched, *coming) if one.target not in gone)
            leaving = [keeper for keeper in watched if keeper.target in gone]
        for keeper in leaving:
            keeper.stop()
            keeper.cut()
        return changes

    def off(self) -> list[str]:
        """Return the switches that do not answer now."""
        return [keeper.target.name for keeper in self.keepers if not keeper.ready]

    def install(self, job: int, rulesets: Mapping[str, RuleSet]) -> int:
        """Give a job these labels and groups, and no others: `reserve` and `write` in one. Raise FabricError."""
        return self.write(self.reserve(job, rulesets))

    def reserve(self, job: int, rulesets: Mapping[str, RuleSet]) -> Reserved:
        """Make these the entries of a job from now on, so that no other job takes their room; `write` writes them.
        Raise FabricError if there is no such switch."""
        if unknown := set(rulesets) - set(self._base):
            raise fabric.FabricError(f"there is no switch {', '.join(sorted(unknown))}")
        with self._lock:
            before = self._jobs.get(job)
            self._jobs[job] = {switch: part(rules) for switch, rules in rulesets.items()}
            return Reserved(job, self._jobs[job], before)

    def write(self, reserved: Reserved, patience: float | None = None) -> int:
        """Write the reserved entries to every switch that answers, or to none; the others get them when they are back,
        as do those whose write takes longer than `patience` seconds. Other jobs' entries stay. Return the number of
        changes. Raise FabricError if one fails: the job has its entries from before then."""
        before = reserved.before or {}
        changed = {v for v in (*reserved.entries, *before) if reserved.entries.get(v) != before.get(v)}
        return self._write(lambda: self._undo(reserved), patience, changed)

    def _undo(self, reserved: Reserved) -> None:
        with self._lock:
            if self._jobs.get(reserved.job) is reserved.entries:  # otherwise others were reserved meanwhile
                if reserved.before is None:
                    del self._jobs[reserved.job]
                else:
                    self._jobs[reserved.job] = reserved.before
            self._want_all()

    def keep(self, job: int, rulesets: Mapping[str, RuleSet] | None) -> None:
        """Make these the entries of a job (None where it has none). Switches get them from their keepers."""
        with self._lock:
            if rulesets is None:
                self._jobs.pop(job, None)
            else:
                self._jobs[job] = {switch: part(rules) for switch, rules in rulesets.items()}
            self._want_all()
            for keeper in self.keepers:
                keeper.wake()

    def _want_all(self) -> None:
        """Set what every watched switch shall hold. Equal rules stay the same object, since keepers compare objects."""
        for keeper in self.keepers:
            rules = self._rules_of(keeper.entries)
            if rules != keeper.rules or rules is keeper.entries.holds:
                keeper.rules = rules

    def fill(self) -> int:
        """Bring every switch to what it shall hold; return the number of changes. Raise FabricError where one fails."""
        with self._lock:
            for one in self._held:
                one.holds = None
            return self._write(lambda: None)

    def remove(self, job: int) -> int:
        """Delete a job's entries on every switch that answers; the others lose them when they are back. Return the
        number of changes. While switches are watched, this cannot fail."""
        try:
            changes = self.install(job, {})
        except fabric.FabricError as error:
            if not self.keepers:
                raise
            self._log.warning(f"entries of job {job} are deleted as switches come back: {error}")
            changes = 0
        self.keep(job, None)
        return changes

    def _write(
        self, undo: Callable[[], None], patience: float | None = None, changed: Collection[str] | None = None
    ) -> int:
        """Write what the switches lack; return the number of changes. Raise FabricError if one fails; `undo` then
        restores what they shall hold. Switches that another order writes to are waited for if they are among `changed`,
        or it is None."""
        if self.keepers:
            return self._count(self._write_watched(undo, patience, changed))
        with self._lock:
            # A switch whose rules stay is not read.
            wanted = {one: rules for one in self._held if (rules := self._wanted(one.name)) != one.holds}
            try:
                return self._count(fabric.bring(wanted, self._log))
            except fabric.FabricError:
                undo()
                raise

    def _count(self, changes: Mapping[str, int]) -> int:
        """Report how many entries were changed on which switch; return how many in all."""
        changed = {switch: number for switch, number in changes.items() if number}
        if changed:
            self.wrote(changed)
        return sum(changed.values())

    def _write_watched(
        self, undo: Callable[[], None], patience: float | None, changed: Collection[str] | None
    ) -> dict[str, int]:
        """Write what the switches lack; one that does not answer gets it from its keeper when it is back. Return the
        changes by switch. Raise FabricError where one fails."""
        with self._lock:
            self._want_all()
            lacking = {k.entries: k for k in self.keepers if k.ready and not k.as_it_shall_be}
            if changed is not None:
                lacking = {one: k for one, k in lacking.items() if not k.orders or one.name in changed}
            for keeper in lacking.values():
                keeper.orders += 1

        def write(one: SwitchEntries) -> int:
            return one.write(lacking[one].rules)  # the latest ones: an order that came later may have written already

        def ended(one: SwitchEntries) -> None:
            if not lacking[one].as_it_shall_be:
                lacking[one].wake()

        try:
            return fabric.bring_those_that_answer(list(lacking), write, undo, ended, patience)
        finally:
            with self._lock:
                for keeper in lacking.values():
                    keeper.orders -= 1
            for one in lacking:
                ended(one)

    def cut(self) -> None:
        """Stop waiting for switches that do not answer, because the process ends."""
        for keeper in self.keepers:
            keeper.stop()
            keeper.cut()

    def close(self) -> None:
        """Stop watching; the rules stay on the switches."""
        for keeper in self.keepers:
            keeper.stop()
        for keeper in self.keepers:
            keeper.close()


def _own(rules: RuleSet) -> RuleSet:
    """Return the network's own entries."""
    return replace(rules, labels=(), groups=tuple(group for group in rules.groups if is_flood(group)))
