"""The switches of a network while a controller runs: watched, kept filled, and shared by jobs that do not meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from controlplane.rules import RuleSet, Taken
from controlplane.runtime.keeper import Keeper
from controlplane.runtime.room import part, union
from controlplane.targets import fabric
from controlplane.targets.base import SwitchTarget, empty


class Switches:
    """Connected targets, a keeper for each, and what every job has on them. Thread-safe.

    Args:
        targets: connected; nothing is written to them by this.
        base: per switch what belongs to the network: its IPv4 routes and ports count. What it lacks has none.
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
            target.name: replace(base.get(target.name, empty(target.name)), labels=(), groups=()) for target in targets
        }
        self._jobs = {job: {v: part(rules) for v, rules in parts.items()} for job, parts in (jobs or {}).items()}
        self._log = log
        self._lock = threading.RLock()
        self._written: dict[str, RuleSet] = {}
        self.targets = tuple(targets)
        self.keepers: tuple[Keeper, ...] = ()

    def watch(self) -> None:
        """From now on a switch that restarts is filled again."""
        self.keepers = tuple(Keeper(target, self._wanted(target.name), self._log) for target in self.targets)

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
        return [keeper.target.name for keeper in self.keepers if keeper.state != "connected"]

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
        """From now on these are a job's entries (None: it has none), written where a switch is filled again."""
        with self._lock:
            if rulesets is None:
                self._jobs.pop(job, None)
            else:
                self._jobs[job] = {switch: part(rules) for switch, rules in rulesets.items()}
            for keeper in self.keepers:
                keeper.rules = self._wanted(keeper.target.name)

    def fill(self) -> int:
        """Bring every switch to what it shall hold; how many changes that took. Raises FabricError."""
        with self._lock:
            self._written.clear()
            return self._write()

    def remove(self, job: int) -> int:
        """Take a job's entries off every switch that answers; the others lose them when they are back."""
        with self._lock:
            changes = self.install(job, {})
            del self._jobs[job]
            return changes

    def _write(self) -> int:
        for keeper in self.keepers:
            keeper.rules = self._wanted(keeper.target.name)
        off = self.off()
        wanted = {target.name: self._wanted(target.name) for target in self.targets if target.name not in off}
        # A switch whose rules stay is not read for that; its keeper sees to it that it has them.
        wanted = {switch: rules for switch, rules in wanted.items() if self._written.get(switch) != rules}
        for switch in wanted:
            self._written.pop(switch, None)
        targets = [target for target in self.targets if target.name in wanted]
        changes = sum(one.changes for one in fabric.install(targets, wanted, self._log))
        self._written.update(wanted)
        return changes

    def close(self) -> None:
        """Stop watching. The rules stay on the switches."""
        for keeper in self.keepers:
            keeper.stop()
        for keeper in self.keepers:
            keeper.close()
