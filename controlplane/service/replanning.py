"""New plans for running jobs: all with fair shares, or one after the other on what the others leave. Several jobs
migrate at once, so that a job that is late delays no other."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import copy_context

from controlplane.common.log_lines import Log
from controlplane.common.numbers import short
from controlplane.planner.evaluate import evaluate
from controlplane.planner.job import JobError
from controlplane.planner.plan import Plan, PlanError
from controlplane.planner.plan.limits import limited
from controlplane.service.admission import AdmissionControl
from controlplane.service.core.turns import SAME, Rate, Turns, goes_on, in_two_steps, worst_first
from controlplane.service.migration import PREPARE_SECONDS, Migrated
from controlplane.service.network_state import NetworkState
from controlplane.service.next_plan import MigrationError
from controlplane.service.residual import with_loads
from controlplane.service.running import RunningJob
from controlplane.service.threads import InTurn
from controlplane.targets.base import TargetError

LATE_SECONDS = PREPARE_SECONDS + 15.0
"""Seconds after which a job that has neither migrated nor failed counts as failed."""
DRAIN_SECONDS = 5.0
"""Longest wait, in seconds, until nothing of the old versions is left. What is left then takes up room on switches and
does no other harm."""
TURN_SECONDS = 2.0
"""Seconds for which a migration of a job waits for the previous one."""
CLOSE_SECONDS = 20.0
"""Seconds for which `wait` waits for a plan that is being made."""

Work = Callable[[Callable[[], None]], Migrated]
"""A function that migrates a job. It calls its argument as soon as the job has migrated."""


class Late(MigrationError):
    """Some jobs did not migrate, and keep what they have; `why` says by name why."""

    def __init__(self, why: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"job {name}: {words}" for name, words in why.items()))
        self.why = dict(why)


class Replanning:
    """Makes new plans for the jobs of one network. Thread-safe; its thread runs from the first `soon` to `end`.

    Attributes:
        changing: a lock that whoever changes running jobs holds: one order at a time, which may wait for operations to
            end.
        fair: whether a job was added with fair shares; all jobs are planned together from then on.
    """

    def __init__(
        self,
        state: NetworkState,
        admissions: AdmissionControl,
        answers: Counter[str],
        log: Log,
    ) -> None:
        self.state, self._admissions, self._answers, self._log = state, admissions, answers, log
        self.changing = InTurn()
        self.fair = False
        self.closed = False
        self._wanted = threading.Event()
        self._lock = threading.Lock()  # protects `_thread`
        self._thread: threading.Thread | None = None

    def soon(self) -> None:
        """Replan all jobs, from a thread of its own, since a migration waits for operations to end."""
        self._wanted.set()
        with self._lock:
            if self._thread is None and not self.closed:
                self._thread = threading.Thread(target=self._run, name="replan", daemon=True)
                self._thread.start()

    def rebalance(self, plans: Mapping[str, Plan] | None = None) -> dict[str, tuple[float, float]]:
        """Migrate all running jobs to fair rates (or to these plans), those that get less first. Return the rates
        before and after, by job.

        A job that cannot migrate keeps what it has, and the others share the rest. Raise Late at the end with the names
        of such jobs, where plans were given; MigrationError or Infeasible where planning fails: jobs that have migrated
        already stay so.
        """
        with self.changing:
            rates: dict[str, tuple[float, float]] = {}
            late: dict[str, str] = {}
            while True:
                jobs = {job.name: job for job in self.state.jobs.staying() if job.name not in late}
                wanted = plans
                if wanted is None:
                    wanted, _ = self._admissions.fair_plans(list(jobs.values()), fixed=late)
                jobs = {name: job for name, job in jobs.items() if name in wanted}
                before = {name: job.plan.rate_mbps for name, job in jobs.items()}
                steps = in_two_steps(before, {name: wanted[name].rate_mbps for name in jobs})
                failures: dict[str, str] = {}
                done: dict[str, Migrated | None] = {}
                for names in steps:
                    if not failures:
                        made_way, failures = migrate_together(
                            {name: self._work(jobs[name], wanted[name]) for name in names}
                        )
                        done |= made_way
                        # A job that was removed meanwhile leaves more than was planned for the others.
                        failures = {name: words for name, words in failures.items() if self.state.jobs.runs(jobs[name])}
                self._answers["plans changed"] += sum(one is None or one.changed for one in done.values())
                for name, job in jobs.items():
                    rates[name] = rates.get(name, (before[name], 0.0))[0], job.plan.rate_mbps
                if done:
                    self._log.info(f"{len(done)} of {len(self.state.jobs)} jobs migrate: {entries(done.values())}")
                late |= failures
                if failures and plans is None:
                    continue
                if late:
                    raise Late(late)
                return rates

    def check(self, plans: Mapping[str, Plan]) -> None:
        """Check that the jobs of these plans can migrate to them, as far as that is known before any of them does.
        Raise Late with those that cannot."""
        late = {}
        for job in self.state.jobs.staying():
            if job.name in plans:
                if job.roster.running and (missing := job.roster.state.missing()):
                    late[job.name] = f"waiting for {', '.join(missing)}"
                    continue
                try:
                    job.migrator.migrate(self.state.of(job), plan=plans[job.name], dry_run=True, wait=TURN_SECONDS)
                except (MigrationError, ValueError) as error:
                    late[job.name] = str(error)
        if late:
            raise Late(late)

    def restore(self, before: Mapping[RunningJob, Plan]) -> None:
        """Return jobs that have made room for a job that was not added to the plans that they had."""
        wanted = {job.name: plan for job, plan in before.items() if self.state.jobs.runs(job) and not _same(job, plan)}
        if wanted:
            try:
                self.rebalance(wanted)
            except (MigrationError, TargetError, ValueError) as error:
                self._log.warning(f"jobs have not all again what they had: {error}")
                self.soon()

    def most_of(self, job: RunningJob) -> float:
        """Return the most Mbit/s that a job may have when it is replanned by itself: no more than its tenant's quota
        leaves and, beside other jobs, no more than it was given. Otherwise the first job to be replanned would take
        what the others had."""
        given = job.migrator.home.rate_mbps if len(self.state.jobs) > 1 else math.inf
        return min(given, self.state.tenants.most_of(job))

    def worst_first(self, jobs: Iterable[RunningJob], late: Collection[str] = ()) -> list[RunningJob]:
        """Return the jobs in the order in which they are planned (core/turns.py)."""
        found = {job.name: job for job in jobs}
        return [found[name] for name in worst_first({name: rate(job) for name, job in found.items()}, late)]

    def end(self) -> None:
        """Begin no plan any more; one that is being made goes on."""
        self.closed = True
        self._wanted.set()

    def wait(self) -> None:
        """Wait until no plan is being made, since a solver's threads must not run when the process ends."""
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        turns = Turns()
        while True:
            if self._wanted.wait(turns.pause):
                turns = turns.asked()
            if self.closed:
                return
            self._wanted.clear()
            try:
                failures = self._plan_all(turns.said)
            except Exception as error:  # logged: the thread must not end, whatever the error
                failures = {"all": f"{type(error).__name__}: {error}"}
            turns, lines = turns.over(failures)
            for line in lines:
                self._log.warning(line)

    def _plan_all(self, late: Collection[str] = ()) -> dict[str, str]:
        """Replan all jobs. Return, by name, why jobs could not be. Those in `late`, which could not be before, come
        last."""
        failures: dict[str, str] = {}
        if self.fair and len(self.state.jobs) > 1:
            try:
                rates = self.rebalance()
                changed = [f"{name} {now:.4g}" for name, (was, now) in rates.items() if abs(now - was) > 1e-3 * was]
                if changed:
                    self._log.info(f"all jobs replanned, together; Mbit/s: {', '.join(changed)}")
                if 0 < self._admissions.steps <= 2 * len(self.state.jobs):
                    self._wanted.set()  # for the next steps
                return {}
            except Late as error:
                return error.why
            except (MigrationError, TargetError, ValueError) as error:
                failures["all"] = str(error)
        if self._all_home():
            return {}
        # Jobs are planned one after the other, each on what the others leave.
        moved_on = False
        for job in self.worst_first(self.state.jobs.staying(), late):
            if self.closed or not self.state.jobs.runs(job):
                continue
            done, failed = migrate_together({job.name: self._work(job)}, drain=0.0)
            migrated = done.get(job.name)
            if job.name in done and (migrated is None or migrated.changed):
                moved_on = True
                self._answers["plans changed"] += 1
                self._log.info(f"job {job.name}: version {job.plan.version} at {short(job.plan.rate_mbps)} Mbit/s")
            failures |= failed if self.state.jobs.runs(job) else {}
        if goes_on(moved_on, map(rate, self.state.jobs.staying())):
            self._wanted.set()
        return failures

    def _all_home(self) -> bool:
        """Give all jobs the plans that they were given at first, where some have less and all can have theirs again.
        Jobs that are replanned one after the other may not find these plans, since one job's way around a failure is
        another's way."""
        jobs = self.state.jobs.staying()
        homes = {job.name: job.migrator.home for job in jobs}
        if len(jobs) < 2 or not any(rate(job).less for job in jobs):
            return False
        for job in jobs:
            home, state = homes[job.name], self.state.of(job)
            if home.job != job.migrator.job.among(state):
                return False
            try:
                beside = with_loads(state, [other for name, other in homes.items() if name != job.name])
                if evaluate(home, limited(beside, self.state.kind.limits)).rate_mbps < home.rate_mbps * (1 - SAME):
                    return False
            except (PlanError, JobError):
                return False
        try:
            self.rebalance({job.name: homes[job.name] for job in jobs if not _same(job, homes[job.name])})
        except (MigrationError, TargetError, ValueError):
            return False
        self._log.info("all jobs have again what they were given")
        return True

    def _work(self, job: RunningJob, plan: Plan | None = None) -> Work:
        migrator = job.migrator
        most = self.most_of(job) if plan is None else None
        return lambda moved: migrator.migrate(self.state.of(job), plan=plan, wait=TURN_SECONDS, moved=moved, most=most)


class _Migrating(threading.Thread):
    def __init__(self, name: str, work: Work) -> None:
        super().__init__(name=f"migrate-{name}", daemon=True)
        self.moved, self.ended = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.result: Migrated | None = None
        self._work = work
        self._context = copy_context()  # with the name of whoever has ordered it

    def run(self) -> None:
        try:
            self.result = self._context.run(self._work, self.moved.set)
        except (MigrationError, TargetError, ValueError) as error:
            self.error = error
        finally:
            self.ended.set()
            self.moved.set()


def migrate_together(
    works: Mapping[str, Work], drain: float = DRAIN_SECONDS
) -> tuple[dict[str, Migrated | None], dict[str, str]]:
    """Do all of these at once. Return, by name, what the jobs that have migrated got (None where something of the
    old version is left after `drain` seconds), and why the others have not."""
    changes = {name: _Migrating(name, work) for name, work in works.items()}
    for change in changes.values():
        change.start()
    late = time.monotonic() + LATE_SECONDS
    done: dict[str, Migrated | None] = {}
    failures = {}
    for name, change in changes.items():
        if not change.moved.wait(max(0.0, late - time.monotonic())):
            failures[name] = f"it has not migrated within {LATE_SECONDS:g} s"
        elif change.error is not None:
            failures[name] = str(change.error)
    drained = time.monotonic() + drain
    for name, change in changes.items():
        if name not in failures:
            change.ended.wait(max(0.0, drained - time.monotonic()))
            done[name] = change.result
    return done, failures


def rate(job: RunningJob) -> Rate:
    """Return the rate that a job has, with the one that it was given."""
    return Rate(job.plan.rate_mbps, job.migrator.home.rate_mbps)


def entries(migrations: Iterable[Migrated | None]) -> str:
    """Return, in words, how many entries migrations took. Those whose old version is not all gone are not
    counted, since their number is not known yet."""
    known = [migrated for migrated in migrations if migrated is not None]
    added, removed = sum(one.entries_added for one in known), sum(one.entries_removed for one in known)
    return f"{added} entries added, {removed} removed"


def _same(job: RunningJob, plan: Plan) -> bool:
    """Return whether a job runs this plan, whatever its version."""
    return (job.plan.trees, job.plan.rate_mbps) == (plan.trees, plan.rate_mbps)
