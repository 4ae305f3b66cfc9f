"""What is done about failures: jobs are led around what is gone, go on without agents that are lost, and take back."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from controlplane.planner.plan import Plan
from controlplane.service.core.disabled import Why
from controlplane.service.network_state import NetworkState
from controlplane.service.replanning import Replanning
from controlplane.service.running import RunningJob
from controlplane.service.update import SAME, Update, UpdateError
from controlplane.targets.base import TargetError

PATIENCE_SECONDS = 30.0
AGAIN_SECONDS = 0.3
"""A job that lost an agent while a switch does not answer tries again to go on, so often and for so long."""
ATTEMPTS = 3
"""How often a job is planned again when more agents are lost meanwhile."""


class Failover:
    """Of one network. Thread-safe. What is found wrong, by whomever, comes here.

    Args:
        answers: counts what was done, by what it was.
        log: gets one line per event.
    """

    def __init__(
        self, state: NetworkState, replanning: Replanning, answers: Counter[str], log: Callable[[str], None]
    ) -> None:
        self.state, self._replanning, self._answers, self._log = state, replanning, answers, log

    def lose(self, causes: Mapping[str, str], reason: Why) -> bool:
        """Something has failed: what runs is led around it, and then planned again. Whether every job was led around.
        causes: what was seen, by name."""
        with self.state.lock:
            self.state.off = self.state.off | dict.fromkeys(causes, reason)
        for cause in causes.values():
            self._answers["switches and links lost"] += 1
            self._log(f"lost: {cause}")
        every = self.lead_around()
        self._replanning.soon()
        return every

    def restore(self, names: Sequence[str], why: str) -> bool:
        """Something is back and is used again: also by a job that had found no way around what else is gone. Whether
        every job has a way now."""
        with self.state.lock:
            self.state.off = {one: reason for one, reason in self.state.off.items() if one not in names}
        self._log(f"{', '.join(names)} can be used again: {why}")
        every = self.lead_around()
        self._replanning.soon()
        return every

    def lead_around(self) -> bool:
        """Lead every job around what is kept off; whether that was done wherever it was needed."""
        every = True
        for job in self.state.jobs:
            began, before = time.monotonic(), job.plan.rate_mbps
            try:
                if self._replanning.reshared(job):
                    continue
                trees, moved = job.updater.repair(self.state.of(job))
            except (UpdateError, ValueError) as error:
                self._log(f"job {job.name} {error}")
                every = False
                continue
            if trees:
                self._answers["trees led around"] += trees
                words = sorted({f"{after} adds instead of {point}" for _, point, after in moved})
                now = job.plan.rate_mbps
                if now < before * (1 - SAME):
                    words.append(f"at {now:.4g} of {before:.4g} Mbit/s, which is what these ways carry")
                took = f"{1e3 * (time.monotonic() - began):.0f} ms"
                self._log("; ".join([f"job {job.name}: {trees} trees led around it in {took}", *words]))
        return every

    def agent_lost(self, job: RunningJob, node: str, reason: str) -> None:
        """A parameter server, or a worker that the job can do without. Does not wait."""
        threading.Thread(target=self._go_on_without, args=(job, node, reason), name="lost", daemon=True).start()

    def _go_on_without(self, job: RunningJob, node: str, reason: str) -> None:
        """Give the lost agent's part to the others, and do again what was under way; or stop the job."""
        began = time.monotonic()
        with job.mending:
            if node in job.roster.members():
                return
            if self._replanning.closed or not self.state.jobs.runs(job):
                return
            job.do_without([node], Why.LOST)
            job.losses[node] += 1
            before = job.plan
            attempt = 0
            while True:
                attempt += 1
                gone = job.roster.state.lost()
                job.do_without(gone, Why.LOST)
                waiting = job.roster.waiting()
                if all(root in job.without for root in job.updater.job.parameter_servers):
                    # None is left but those that are back and not steady yet.
                    job.use_again(waiting)
                try:
                    state = self.state.of(job)
                    update = job.updater.update(state, wait=-1, most=self._replanning.most_of(job), crowded=attempt > 1)
                    break
                except (UpdateError, TargetError, ValueError) as error:
                    if not self.state.jobs.runs(job) or node in job.roster.members():
                        # All stopped meanwhile, and it is back.
                        job.use_again([node])
                        return
                    more = job.roster.state.lost().keys() - gone.keys()
                    # A switch that does not answer now is led around soon, or is back, and so may what else is off be;
                    # until then all wait anyway. What others have is better than nothing.
                    missing = self.state.switches.off() or any(why != Why.OPERATOR for why in self.state.off.values())
                    waits = (missing or attempt == 1) and time.monotonic() - began < PATIENCE_SECONDS
                    if waits and not more:
                        if attempt == 1:
                            self._log(f"job {job.name} waits, to go on without {node}: {error}")
                        time.sleep(AGAIN_SECONDS)
                    elif not more or attempt >= ATTEMPTS:
                        job.use_again(gone)
                        if self.state.jobs.runs(job):
                            self._log(f"job {job.name} cannot go on without {node}: {error}")
                            job.roster.give_up(f"{reason}; the job cannot go on without it: {error}")
                        return
        if update.changed:
            self._answers["agents gone on without"] += 1
            self._answers["operations done again"] += update.repeated[0]
            self._answers["bytes done again"] += update.repeated[1]
            self._log(f"job {job.name}: {moved(before, update, time.monotonic() - began)}")
        if self._replanning.fair:
            self._replanning.soon()

    def take_back(self, job: RunningJob, nodes: Sequence[str], why: str, instead_of: Sequence[str] = ()) -> None:
        """Parameter servers that were lost are used again, instead of these."""
        job.use_again(nodes)
        job.do_without(instead_of, Why.LOST)
        self._log(f"job {job.name}: {', '.join(nodes)} can be used again: {why}")
        self._replanning.soon()


def moved(before: Plan, update: Update, seconds: float) -> str:
    """What it took to go on without agents that were lost."""
    after = update.plan
    words = []
    for root in before.job.parameter_servers:
        if root not in after.job.parameter_servers:
            others = ", ".join(after.job.parameter_servers)
            words.append(f"the {before.split.get(root, 0.0):.0%} of the model that {root} added up moved to {others}")
    workers = [worker for worker in before.job.workers if worker not in after.job.workers]
    if workers:
        words.append(f"{len(after.job.workers)} workers go on without {', '.join(workers)}")
    operations, nbytes = update.repeated
    words.append(f"{operations} operations of {nbytes / 1e6:.4g} MB are done again, after {1e3 * seconds:.0f} ms")
    words.append(f"{before.rate_mbps:.4g} Mbit/s before, {after.rate_mbps:.4g} now")
    return "; ".join(words)
