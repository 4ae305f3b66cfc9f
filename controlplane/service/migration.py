"""Migrates a running job to a new plan: write the new version's entries beside the old ones, switch over, drain, and
delete the old ones.

Nothing stops meanwhile: a worker holds operations back only while the controller waits to hear from all workers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from controlplane.common.log_lines import SILENT, Log
from controlplane.planner.plan import Plan
from controlplane.planner.plan.limits import DoesNotFit
from controlplane.planner.plan.replan import Difference, difference
from controlplane.planner.plan.reroute import CannotReroute, unbroken
from controlplane.planner.rules import Deployment
from controlplane.planner.topology import Topology
from controlplane.service.entry_changes import EntryChange, between, counts
from controlplane.service.next_plan import Frame, MigrationError, Wanted, next_plan, same
from controlplane.service.plan_changes import CannotMigrate
from controlplane.service.residual import present_state
from controlplane.service.room import build_beside, part
from controlplane.service.roster import Roster
from controlplane.service.switches import Reserved, Switches
from controlplane.service.versions import (
    NOT_AROUND,
    Around,
    Version,
    drains_in_vain,
    reroute_versions,
    rulesets,
)
from controlplane.targets import fabric

PREPARE_SECONDS = 15.0
REROUTE_SECONDS = 1.0
"""Maximum time that a reroute waits for the switches that it writes to, in seconds. Later ones get their entries from
their keepers: one that does not answer must not delay the next failure's reroute."""
RETIRE_SECONDS = 0.1
"""Seconds between telling agents to drop the old plan and removing its entries: the message is on its way to parameter
servers, which may be repeating results that every worker has by now, and packets wait in queues. Without this pause,
switches would count these packets as unknown, which is otherwise a sign of a mistake."""


@dataclass(frozen=True)
class Migrated:
    """Result of a migration. Rates are in Mbit/s per worker.

    Attributes:
        rate_before: the rate that the old plan would have in the new state.
        changed: false where the running plan is right for the new state.
        entries_added, entries_removed: on all switches together.
        epoch, first_operation: where the job switched over; 0 where it was not running.
        held_seconds: the longest time for which a worker may have held operations back.
        seconds: the time until the old version was gone.
        repeated: operations and bytes that a worker started again, because an agent was lost.
        changes: in a dry run, what would be written.
        later: the plan is made soon, and was not waited for.
    """

    plan: Plan
    rate_before: float
    trees: Difference
    changed: bool = False
    entries_added: int = 0
    entries_removed: int = 0
    epoch: int = 0
    first_operation: int = 0
    held_seconds: float = 0.0
    seconds: float = 0.0
    repeated: tuple[int, int] = (0, 0)
    changes: tuple[EntryChange, ...] = ()
    later: bool = False


class Migrator:
    """Migrates one job from plan to plan, one migration at a time, and reroutes what is installed.

    Args:
        running, topology: what is installed now, and for which state of the network.
        changed: called when a new plan runs.
    """

    def __init__(
        self,
        running: Version,
        topology: Topology,
        frame: Frame,
        *,
        switches: Switches,
        roster: Roster,
        log: Log = SILENT,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.job = frame.job
        self.topology = topology
        self._whole = topology
        self.home = running.plan  # the plan that the job was given, to which it returns after a failure
        self._current = running
        self._next: Version | None = None  # installed, but not switched over to
        self._draining: Version | None = None  # switched over from, but not retired
        self._present: Topology | None = None  # the state of the network that a reroute has seen last
        self._spent: dict[str, set[tuple[int, int]]] = {}  # by switch, slots that the running epoch has given up
        self._frame = frame
        self._switches = switches
        self._roster = roster
        self._log = log
        self._changed = changed
        self._ended = False
        self._lock = threading.Lock()  # one migration at a time
        # Guards the versions. A migration does not hold it while it writes entries: a reroute waits for no migration.
        self._versions = threading.RLock()

    @property
    def running(self) -> Version:
        """The version that runs now: the plan, and its entries."""
        return self._current

    @property
    def plan(self) -> Plan:
        """The plan that runs now."""
        return self._current.plan

    @property
    def deployment(self) -> Deployment:
        """The entries and configurations of the running plan."""
        return self._current.deployment

    @property
    def versions(self) -> tuple[Version, ...]:
        """The installed versions: that of the running plan, and during a migration the one before or after it."""
        with self._versions:
            return tuple(v for v in (self._draining, self._current, self._next) if v is not None)

    def state(self, topology: Topology | None = None, changes: Iterable[str] = ()) -> Topology:
        """Return the network's present state: `topology` (by default the last one), with `changes`. Raise
        TopologyError."""
        return present_state(self._whole, topology or self.topology, changes)

    def migrate(
        self,
        topology: Topology,
        strategy: str | None = None,
        *,
        plan: Plan | None = None,
        dry_run: bool = False,
        wait: float = 0.0,
        moved: Callable[[], None] = lambda: None,
        most: float | None = None,
        crowded: bool = False,
    ) -> Migrated:
        """Plan for `topology`, with every parameter server's share kept, and migrate the job to that plan.

        `strategy`, `plan`, `most` and `crowded` are those of `Wanted`. A change that is under way is waited for `wait`
        seconds (where negative, without limit). `moved` is called as soon as the job has switched over. Return when
        nothing of the old version is left. Raise MigrationError, or an error of planning (Infeasible, PlanError,
        JobError), where the job runs on as before.
        """
        with self._alone(wait):
            began = time.monotonic()
            wanted = Wanted(strategy, plan, most, crowded)
            new, before, trees = next_plan(self._frame, self.plan, self.home, topology, wanted)
            result = Migrated(new, before, trees)
            alike = same(self.plan, new, trees)
            if dry_run:
                return result if alike else self._foreseen(result, topology)
            if alike:
                self.topology = topology
                return result
            done = replace(self._migrate(result, topology, moved), changed=True, seconds=time.monotonic() - began)
            if most is None:
                self.home = done.plan
            return done

    def renew(self) -> Migrated:
        """Migrate the job to the plan that it has, in a new epoch, whose sequence numbers begin again. Raise
        MigrationError where the job runs on as before.
        """
        with self._alone(0.0):
            began = time.monotonic()
            plan = self.plan.with_version(self.plan.version + 1)
            result = Migrated(plan, plan.rate_mbps, difference(self.plan, plan))
            done = self._migrate(result, self.topology, lambda: None)
            return replace(done, changed=True, seconds=time.monotonic() - began)

    @contextmanager
    def _alone(self, wait: float) -> Iterator[None]:
        """Let no other migration run in the `with` block; one that is under way is waited for `wait` seconds (where
        negative, without limit). Raise MigrationError where it does not end, or the job has ended.
        """
        if not self._lock.acquire(timeout=wait if wait >= 0 else -1):
            raise MigrationError("another migration is under way")
        try:
            if self._ended:
                raise MigrationError("the job has ended")
            yield
        finally:
            self._lock.release()

    def reroute(self, topology: Topology) -> tuple[int, tuple[tuple[int, str, str], ...]]:
        """Reroute the installed plans around what `topology`, the network's present state, lacks: in place, without
        telling agents, also during a migration. Return how many trees were rerouted, and (tree, switch that added,
        switch that took over). Where the plan before a migration cannot be rerouted, its operations are started again
        with the new one.

        Raise MigrationError where a plan cannot be rerouted; nothing is changed then.
        """
        found, hopeless = NOT_AROUND, ""
        problem: MigrationError | None = None
        with self._versions:
            self._present = topology
            if self._ended:
                return 0, ()
            epoch = self._roster.epoch
            try:
                try:
                    found = self._reroute(topology)
                except MigrationError:
                    hopeless = drains_in_vain(self._draining, topology)
                    if not hopeless:
                        raise
                    found = self._reroute(topology, drained=True)
            except MigrationError as error:
                problem = error
        if hopeless:
            self._roster.plan.start_again(epoch, hopeless)
        if problem is not None:
            raise problem
        if found.trees:
            self._roster.plan.rerouted(found.told)
            # From another thread: this one looks for the next failure, and the store may answer late.
            threading.Thread(target=self._changed, name="store-rerouted", daemon=True).start()
        return found.trees, found.moved

    def _reroute(self, topology: Topology, *, drained: bool = False) -> Around:
        """Reroute all versions around what is gone, as `reroute` does, with _versions held. With `drained`, the plan
        before a migration is left as it is, since its operations do not go on."""
        spent = {switch: set(ranges) for switch, ranges in self._spent.items()}
        before = self._draining, self._current, self._next
        versions = None if drained else self._draining, self._current, self._next
        try:
            with self._switches.placing:
                found = reroute_versions(self._frame, versions, topology, self._switches.taken(), self._spent)
                if not found.trees:
                    return found
                draining, current, self._next = found.versions
                self._draining = self._draining if drained else draining
                self._current = current or self._current
                reserved = self._reserve()
            self._write(reserved, REROUTE_SECONDS)
        except (CannotReroute, DoesNotFit, MigrationError) as error:
            self._draining, self._current, self._next = before
            self._spent = spent
            raise MigrationError(f"cannot be rerouted around what is gone: {error}") from None
        return found

    @contextmanager
    def still(self, seconds: float) -> Iterator[bool]:
        """Let no migration begin in the `with` block. Yield False where one is under way, and does not end within
        so many seconds."""
        got = self._lock.acquire(timeout=seconds)
        try:
            yield got
        finally:
            if got:
                self._lock.release()

    def relaid(self, topology: Topology) -> None:
        """Take this as the network from now on, while it is `still`. The running plan goes on in it."""
        with self._versions:
            self.topology = self._whole = topology
            self._present = None

    def end(self) -> None:
        """Let no further change begin; one under way ends first. To be called when the roster is closed."""
        self._ended = True
        with self._lock, self._versions:
            pass

    # -- with the lock held -----------------------------------------------------------------------------------------

    def _migrate(self, result: Migrated, topology: Topology, moved: Callable[[], None]) -> Migrated:
        """Install the new plan beside the old one, switch the agents over, and delete the old one's entries."""
        old, new, added = self._put_beside(result.plan, topology)
        try:
            epoch, first, held = self._switch_agents(old, new, topology)
        except CannotMigrate as error:
            with self._versions:
                self._next = None
                reserved = self._reserve()
            self._write(reserved)
            raise MigrationError(f"the plan stays as it is: {error}") from None
        with self._versions:
            assert self._next is not None
            self._draining, self._current, self._next = self._current, self._next, None
            self.topology = topology
            hopeless = drains_in_vain(self._draining, self._present)
        self._changed()
        moved()
        repeated = 0, 0
        if epoch and hopeless:  # something failed while agents made ready
            self._roster.plan.start_again(epoch, hopeless)
        if epoch:
            try:
                repeated = self._roster.plan.retire(epoch, PREPARE_SECONDS)
                time.sleep(RETIRE_SECONDS)
            except CannotMigrate as error:
                words = f"the job stopped during the migration; it begins anew with the new one: {error}"
                self._log.warning(words)
        removed = self._take_old_off()
        return replace(
            result,
            entries_added=added,
            entries_removed=removed,
            epoch=epoch,
            first_operation=first,
            held_seconds=held,
            repeated=repeated,
        )

    def _beside(self, plan: Plan, topology: Topology) -> Deployment:
        """Place a plan beside the running one, with _versions and `placing` held. Raise MigrationError where there is
        no room."""
        frame = self._frame
        paced = replace(plan, rate_mbps=plan.rate_mbps * frame.pace)
        taken = self._switches.taken()
        try:
            return build_beside(paced, topology, frame.limits, self.deployment, job_id=frame.job_id, taken=taken)
        except DoesNotFit as error:
            raise MigrationError(f"there is no room for the new version beside the running one: {error}") from None

    def _foreseen(self, result: Migrated, topology: Topology) -> Migrated:
        """Return what a migration would write: the new plan's entries, and then the deletion of the old one's."""
        with self._versions, self._switches.placing:
            old = {name: part(rules) for name, rules in self.deployment.rulesets.items()}
            new = self._beside(result.plan, topology)
        changes = between(old, {name: part(rules) for name, rules in new.rulesets.items()})
        added, removed = counts(changes)
        return replace(result, changes=changes, entries_added=added, entries_removed=removed)

    def _put_beside(self, plan: Plan, topology: Topology) -> tuple[Deployment, Deployment, int]:
        """Write the new version's entries beside the running one's. Return the old and the new deployment, and how many
        entries were added. Raise MigrationError where that fails; nothing is changed then."""
        with self._versions, self._switches.placing:
            old, new = self.deployment, self._beside(plan, topology)
            for name in self._switches.off():
                if name in new.rulesets and new.rulesets[name].labels:
                    raise MigrationError(
                        f"the new plan needs switch {name}, which does not answer: plan with --without {name}"
                    )
            self._next = Version(plan, new)
            reserved = self._reserve()
        try:
            return old, new, self._write(reserved)
        except MigrationError:
            with self._versions:
                self._next = None
                self._switches.keep(self._frame.job_id, rulesets(self.versions))
            raise

    def _switch_agents(self, old: Deployment, new: Deployment, topology: Topology) -> tuple[int, int, float]:
        """Switch the agents over. Return the epoch and the operation from which they work with the new plan (0 where
        the job was not running, or begins anew), and for how many seconds workers may have held operations back. Raise
        CannotMigrate."""
        # Operations on trees that could not be rerouted never end, and are started again.
        broken = not all(unbroken(self.plan, state) for state in (topology, self._present or topology))
        back = [node for node, config in new.agents.items() if config.role == "worker" and node not in old.agents]
        if back:
            self._roster.plan.restart(new.agents, f"the job begins anew, with {', '.join(back)}")
        elif not self._roster.plan.exchange(new.agents):
            asked = time.monotonic()
            epoch = self._roster.plan.prepare(new.agents, PREPARE_SECONDS, again=broken)
            first = self._roster.plan.switch_over(epoch)
            return epoch, first, time.monotonic() - asked
        return 0, 0, 0.0

    def _take_old_off(self) -> int:
        """Delete the entries of the old version. Return how many there were."""
        with self._versions:
            self._draining, self._spent = None, {}
            reserved = self._reserve()
        try:
            return self._write(reserved)
        except MigrationError as error:
            words = f"the new plan runs; entries of the old one are left until the next migration: {error}"
            self._log.warning(words)
            with self._versions:
                self._switches.keep(self._frame.job_id, rulesets(self.versions))
            return 0

    def _reserve(self) -> Reserved:
        """Reserve the entries of all versions, with _versions held."""
        return self._switches.reserve(self._frame.job_id, rulesets(self.versions))

    def _write(self, reserved: Reserved, patience: float | None = None) -> int:
        """Write reserved entries, as `Switches.write` does; raise MigrationError instead of FabricError."""
        try:
            return self._switches.write(reserved, patience)
        except fabric.FabricError as error:
            raise MigrationError(f"the plan stays as it is: {error}") from None
