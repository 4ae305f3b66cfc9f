"""Carries out what is decided about failures (core/parts.py, core/mending.py): reroutes jobs around what is gone,
migrates them to plans without lost agents, and uses again what is back."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Concatenate, ParamSpec

from controlplane.common.log_lines import Log
from controlplane.common.numbers import short
from controlplane.planner.plan import Plan
from controlplane.service.core import mending, parts
from controlplane.service.core.actions import Say
from controlplane.service.core.disabled import Why
from controlplane.service.core.journal import event_of_network
from controlplane.service.core.parts import Parts
from controlplane.service.core.turns import SAME
from controlplane.service.core.ways import Need
from controlplane.service.journal import CoreJournal, Journal
from controlplane.service.migration import Migrated
from controlplane.service.network_state import NetworkState
from controlplane.service.next_plan import MigrationError
from controlplane.service.replanning import Replanning
from controlplane.service.running import RunningJob
from controlplane.targets.base import TargetError

Given = ParamSpec("Given")


class Failover:
    """Handles the failures of one network, whoever finds them. Thread-safe.

    Args:
        answers: counts what was done, by kind.
        journal: gets the events about switches and links, and every change of what is disabled.
    """

    def __init__(
        self,
        state: NetworkState,
        replanning: Replanning,
        answers: Counter[str],
        log: Log,
        journal: Journal,
    ) -> None:
        self.state, self._replanning, self._answers, self._log = state, replanning, answers, log
        self._journal, self._events = journal, CoreJournal(journal)

    # -- switches and links -----------------------------------------------------------------------------------------

    def take(
        self, event: Callable[Concatenate[Parts, float, Given], parts.Decided], *args: Given.args, **more: Given.kwargs
    ) -> bool:
        """Decide on an event about switches and links (a function of core/parts.py), and carry out the actions that
        follow. Return whether every job was rerouted around what is disabled, where that was to be done."""
        every = True
        with self.state.lock:
            before, now = self.state.parts, time.monotonic()
            self.state.parts, done = event(before, now, *args, **more)
            if done or self.state.parts != before:
                entry = event_of_network(before, event, args, more, now=now, clock=time.time())
                self._events.add(before, entry, self.state.parts)
            off = {name: why for name, why in self.state.off.items() if before.off.get(name) != why}
            used = [name for name in before.off if name not in self.state.off]
            if off or used:
                self._journal.disabled(event.__name__.title().replace("_", ""), off, used)
        for action in done:
            match action:
                case Say(line, warn):
                    (self._log.warning if warn else self._log.info)(line)
                case parts.CountLost(number):
                    self._answers["switches and links lost"] += number
                case parts.RerouteJobs(silent, again):
                    every = self.reroute_jobs()
                    if silent:
                        self.take(parts.rerouted, silent, every, self.needs(), again=again)
                case parts.PlanSoon():
                    self._replanning.soon()
        return every

    def lose(self, causes: Mapping[str, str], why: Why) -> bool:
        """Disable what has failed: running jobs are rerouted around it, and then replanned. `causes` says by name what
        was seen."""
        return self.take(parts.failed, causes, why)

    def needs(self) -> tuple[Need, ...]:
        """Return the servers of each job, which have to reach each other."""
        return tuple(Need(job.servers, frozenset(job.without)) for job in self.state.jobs)

    def look(self) -> None:
        """Tell the core that some time has passed."""
        if self.state.parts.off or self.state.parts.trust.probation:
            self.take(parts.looked, self.needs())

    def reroute_jobs(self) -> bool:
        """Reroute every job around what is disabled. Return whether that was done wherever it was needed."""
        every = True
        for job in self.state.jobs:
            began, before = time.monotonic(), job.plan.rate_mbps
            try:
                trees, moved = job.migrator.reroute(self.state.of(job))
            except (MigrationError, ValueError) as error:
                self._log.warning(f"job {job.name} {error}")
                every = False
                continue
            if trees:
                self._answers["trees rerouted"] += trees
                words = sorted({f"{after} adds instead of {point}" for _, point, after in moved})
                now = job.plan.rate_mbps
                if now < before * (1 - SAME):
                    words.append(f"at {short(now)} of {short(before)} Mbit/s, which is what these ways carry")
                took = f"{1e3 * (time.monotonic() - began):.0f} ms"
                self._log.info("; ".join([f"job {job.name}: {trees} trees rerouted around it in {took}", *words]))
        return every

    # -- agents -----------------------------------------------------------------------------------------------------

    def agent_lost(self, job: RunningJob, node: str, reason: str) -> None:
        """Handle the loss of a parameter server, or of a worker that the job can do without. Does not wait."""
        threading.Thread(target=self._mend, args=(job, node, reason), name=f"mend-{job.name}", daemon=True).start()

    def _mend(self, job: RunningJob, node: str, reason: str) -> None:
        """Take the steps that core/mending.py decides on: others take over the lost agent's part, and operations under
        way are started again; or the job stops."""
        with job.mending:
            began = time.monotonic()
            steps = mending.mend(job.name, node, reason, self._facts(job))
            step = next(steps, None)
            if step is not None:
                job.losses[node] += 1
            while step is not None:
                error = ""
                match step:
                    case mending.FindPlan(without, again, crowded):
                        job.do_without(without, Why.LOST)
                        job.use_again(again)
                        error = self._find_plan(job, crowded, began)
                    case mending.Wait(seconds, line):
                        if line:
                            self._log.info(line)
                        time.sleep(seconds)
                    case mending.Over(again, stopped, line):
                        job.use_again(again)
                        if stopped:
                            self._log.warning(line)
                        if stopped and self.state.jobs.runs(job):
                            job.roster.give_up(stopped)
                try:
                    step = steps.send((error, self._facts(job)))
                except StopIteration:
                    return

    def _facts(self, job: RunningJob) -> mending.Facts:
        # A switch or link that an operator has disabled does not come back by itself.
        missing = self.state.switches.off() or any(why != Why.OPERATOR for why in self.state.off.values())
        return mending.Facts(
            now=time.monotonic(),
            runs=not self._replanning.closed and self.state.jobs.runs(job),
            members=job.roster.members().keys(),
            lost=job.roster.state.lost(),
            waiting=tuple(job.roster.waiting()),
            servers=job.migrator.job.parameter_servers,
            without=frozenset(job.without),
            missing=bool(missing or job.roster.state.out_of_reach()),
        )

    def _find_plan(self, job: RunningJob, crowded: bool, began: float) -> str:
        """Find a plan and migrate the job to it. Return why that failed, or ""."""
        before = job.plan
        try:
            state, most = self.state.of(job), self._replanning.most_of(job)
            migrated = job.migrator.migrate(state, wait=-1, most=most, crowded=crowded)
        except (MigrationError, TargetError, ValueError, OSError) as error:
            return str(error) or type(error).__name__
        except Exception as error:  # the job must not wait for ever, whatever the error
            return f"{type(error).__name__}: {error}"
        if migrated.changed:
            self._answers["agents gone on without"] += 1
            self._answers["operations done again"] += migrated.repeated[0]
            self._answers["bytes done again"] += migrated.repeated[1]
            self._log.info(f"job {job.name}: {moved(before, migrated, time.monotonic() - began)}")
        if self._replanning.fair:
            self._replanning.soon()
        return ""

    def use(self, job: RunningJob, use: mending.Use) -> None:
        """Change the agents that plans for a job may use, and have it replanned if that may be another plan."""
        job.do_without(use.without, Why.LOST)
        job.use_again(use.again)
        if use.again:
            self._log.info(f"job {job.name}: {', '.join(use.again)} can be used again: {use.words}")
        if use.words and (use.again or use.without):
            self._replanning.soon()


def moved(before: Plan, migrated: Migrated, seconds: float) -> str:
    """Return words that say what it took to go on without lost agents."""
    after = migrated.plan
    words = []
    for root in before.job.parameter_servers:
        if root not in after.job.parameter_servers:
            others = ", ".join(after.job.parameter_servers)
            words.append(f"the {before.split.get(root, 0.0):.0%} of the model that {root} added up moved to {others}")
    workers = [worker for worker in before.job.workers if worker not in after.job.workers]
    if workers:
        words.append(f"{len(after.job.workers)} workers go on without {', '.join(workers)}")
    operations, nbytes = migrated.repeated
    words.append(f"{operations} operations of {nbytes / 1e6:.4g} MB are done again, after {1e3 * seconds:.0f} ms")
    words.append(f"{short(before.rate_mbps)} Mbit/s before, {short(after.rate_mbps)} now")
    return "; ".join(words)
