"""The switches of a network while a controller runs: watched, kept filled, and shared by jobs that do not meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from controlplane.planner.bridging import is_flood
from controlplane.planner.entries import RuleSet
from controlplane.planner.rules import Taken
from controlplane.service.keeper import Keeper
from controlplane.service.room import part, union
from controlplane.targets import fabric
from controlplane.targets.base import InstallError, SwitchTarget, TargetError, empty
from controlplane.targets.fabric import everywhere


class Switches:
    """Connected targets, a keeper for each, and what every job has on them. Thread-safe.

    Args:
        targets: connected; nothing is written to them by this.
        base: per switch what belongs to the network: its IPv4 routes, bridging and ports count. What it lacks has none.
        jobs: what is there already: of each job (by number), per switch.
        log: gets one line per event.
    """

    def __init__(
        self,
        targets: Sequence[SwitchTarget],
        base: Mapping[str, RuleSet],
        jobs: Mapping[int, Mapping[str, RuleSet]] | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._base = {
            target.name: _own(base.get(target.name, empty(target.name))) for target in targets
        }
        self._jobs = {job: {v: part(rules) for v, rules in parts.items()} for job, parts in (jobs or {}).items()}
        self._log = log
        self._lock = threading.RLock()
        self.placing = threading.RLock()
        """Of whoever looks for room and then takes it: what is free stays free meanwhile."""
        self._written: dict[str, RuleSet] = {}
        self.targets = tuple(targets)
        self.keepers: tuple[Keeper, ...] = ()

    def watch(self) -> None:
        """From now on a switch that restarts is filled again."""
        with self._lock:
            self.keepers = tuple(
                Keeper(target, self._wanted(target.name), self._log, self._written.get(target.name))
                for target in self.targets
            )

    def _wanted(self, switch: str) -> RuleSet:
        return union(self._base[switch], [parts[switch] for parts in self._jobs.values() if switch in parts])

    def rules(self, job: int) -> dict[str, RuleSet]:
        """What a job has on each switch."""
        with self._lock:
            parts = self._jobs.get(job, {})
            return {switch: parts.get(switch, empty(switch)) for switch in self._base}

    def jobs(self) -> list[int]:
        """The numbers of the jobs that have anything here."""
        with self._lock:
            return sorted(job for job, parts in self._jobs.items() if any(r.labels or r.groups for r in parts.values()))

    def taken(self, *, without: int | None = None) -> dict[str, Taken]:
        """What is not free, per switch. without: one job's does not count."""
        with self._lock:
            found = {}
            for switch in self._base:
                parts = [p[switch] for job, p in self._jobs.items() if job != without and switch in p]
                found[switch] = Taken.by(union(empty(switch), parts))
            return found

    def off(self) -> list[str]:
        """Switches that do not answer now."""
        return [keeper.target.name for keeper in self.keepers if not keeper.ready]

    def install(self, job: int, rulesets: Mapping[str, RuleSet]) -> int:
        """Give a job these labels and groups on every switch that answers, or nowhere; the others get them when they
        are back. Other jobs' stay as they are. How many changes it took. Raises FabricError."""
        with self._lock:
            before = self._jobs.get(job)
            self._jobs[job] = {switch: part(rules) for switch, rules in rulesets.items()}
            unknown = set(rulesets) - set(self._base)
            try:
                if unknown:
                    raise fabric.FabricError(f"there is no switch {', '.join(sorted(unknown))}")
                return self._write()
            except fabric.FabricError:
                self.keep(job, before)
                raise

    def keep(self, job: int, rulesets: Mapping[str, RuleSet] | None) -> None:
        """From now on these are a job's entries (None: it has none); switches get them from their keepers."""
        with self._lock:
            if rulesets is None:
                self._jobs.pop(job, None)
            else:
                self._jobs[job] = {switch: part(rules) for switch, rules in rulesets.items()}
            for keeper in self.keepers:
                self._want(keeper)
                keeper.wake()

    def _want(self, keeper: Keeper) -> None:
        rules = self._wanted(keeper.target.name)
        if rules != keeper.rules:  # what is the same stays the same object: keepers look at that
            keeper.rules = rules

    def fill(self) -> int:
        """Bring every switch to what it shall hold; how many changes that took. Raises FabricError."""
        with self._lock:
            self._written.clear()
            return self._write()

    def remove(self, job: int) -> int:
        """Take a job's entries off every switch that answers; the others lose them when they are back. While switches
        are watched, that cannot fail."""
        with self._lock:
            try:
                changes = self.install(job, {})
            except fabric.FabricError as error:
                if not self.keepers:
                    raise
                self._log(f"entries of job {job} are taken off by and by: {error}")
                changes = 0
            self.keep(job, None)
            return changes

    def _write(self) -> int:
        if self.keepers:
            return self._write_kept()
        wanted = {target.name: self._wanted(target.name) for target in self.targets}
        # A switch whose rules stay is not read for that.
        wanted = {switch: rules for switch, rules in wanted.items() if self._written.get(switch) != rules}
        for switch in wanted:
            self._written.pop(switch, None)
        targets = [target for target in self.targets if target.name in wanted]
        changes = sum(one.changes for one in fabric.install(targets, wanted, self._log))
        self._written.update(wanted)
        return changes

    def _write_kept(self) -> int:
        """By the keepers, which know what their switches hold. One that dies meanwhile gets it when it is back."""
        for keeper in self.keepers:
            keeper.ordered = True
        try:
            return self._write_ordered()
        finally:
            for keeper in self.keepers:
                keeper.ordered = False
                if keeper.holds is not keeper.rules:
                    keeper.wake()

    def _write_ordered(self) -> int:
        for keeper in self.keepers:
            self._want(keeper)
        before = {keeper: keeper.holds for keeper in self.keepers}
        concerned = [keeper for keeper in self.keepers if keeper.holds is not keeper.rules]
        done = everywhere(concerned, _write_one)
        failures = {keeper: result for keeper, result in done.items() if isinstance(result, TargetError)}
        if not failures:
            return sum(result for result in done.values() if isinstance(result, int))

        def restore(keeper: Keeper) -> int | TargetError:
            held = before[keeper]
            if held is not None:
                keeper.rules = held
            return _write_one(keeper)

        left = [k for k, result in everywhere(concerned, restore).items() if isinstance(result, TargetError)]
        words = "\n".join(str(error) for error in failures.values())
        end = "all switches are as they were before"
        if left:
            end = f"NOT RESTORED, and tried again: {', '.join(keeper.target.name for keeper in left)}"
        raise fabric.FabricError(f"{words}\n{end}")

    def cut(self) -> None:
        """End what waits for switches that do not answer: for the end of the process."""
        for keeper in self.keepers:
            keeper.stop()
            keeper.cut()

    def close(self) -> None:
        """Stop watching. The rules stay on the switches."""
        for keeper in self.keepers:
            keeper.stop()
        for keeper in self.keepers:
            keeper.close()


def _own(rules: RuleSet) -> RuleSet:
    """What belongs to the network."""
    return replace(rules, labels=(), groups=tuple(group for group in rules.groups if is_flood(group)))


def _write_one(keeper: Keeper) -> int | TargetError:
    """How many changes it took, or why the switch refuses them. One that does not answer, or is being filled, gets
    them from its keeper and counts as none."""
    if not keeper.ready or not keeper.lock.acquire(blocking=False):
        keeper.wake()
        return 0
    try:
        return keeper.write(keeper.rules)
    except InstallError as error:
        if keeper.target.alive:
            return error
        keeper.wake()
        return 0
    except TargetError:  # it has died, or does not answer
        keeper.wake()
        return 0
    finally:
        keeper.lock.release()
