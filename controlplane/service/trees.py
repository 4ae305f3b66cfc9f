"""The watch over jobs' trees: those that carry much less than planned, those that have no result at all, and those
whose sequence numbers come to an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from weakref import WeakKeyDictionary

from controlplane.common.agentconfig import NUMBERS_USED, AgentConfig
from controlplane.common.log_lines import SILENT, Log
from controlplane.common.numbers import short
from controlplane.service.core.standing import Do, Stand, decide
from controlplane.service.members import lacking
from controlplane.service.network import Network
from controlplane.service.next_plan import MigrationError
from controlplane.service.running import JobsError, RunningJob
from controlplane.targets.base import TargetError
from p4src.protocol import frame_bytes

LOOK_SECONDS = 1.0
SLOW_PART = 0.5
"""Part of its planned rate below which a tree is slow."""
SLOW_LOOKS = 10
"""Looks in a row that must find a tree slow before the log tells it."""
RENEW_AT = 0.5
"""Fraction of the sequence numbers of an epoch at which a job gets another epoch. What is left must last until that has
happened: at 100 Gbit/s for three minutes."""


class TreeWatch:
    """Looks at the trees of all jobs, at most once a second, from one thread. `log` gets one line for each plan whose
    trees are slow, and for each step that is taken about a tree without a result (core/standing.py decides which).

    About slow trees nothing is changed, since the controller does not guess which link is congested. P4Runtime has no
    queue lengths, and what switches count is the same for a full queue, for lost packets and for a rank that is late: a
    guess from it once throttled a job to 1 % because of a late rank. What other traffic takes of a link is declared
    with `replan --set`.
    """

    def __init__(self, network: Network, log: Log = SILENT) -> None:
        self.network, self.log = network, log
        self._looked = 0.0
        # By job and tree: looks in a row that found it slow.
        self._slow: WeakKeyDictionary[RunningJob, dict[int, int]] = WeakKeyDictionary()
        # By job: the version of the plan for which it was logged.
        self._said: WeakKeyDictionary[RunningJob, int] = WeakKeyDictionary()
        self._stands: WeakKeyDictionary[RunningJob, Stand] = WeakKeyDictionary()
        # By job: the thread that gives it another epoch, and why it could not be given one, as the log says.
        self._renewing: WeakKeyDictionary[RunningJob, threading.Thread] = WeakKeyDictionary()
        self._kept: WeakKeyDictionary[RunningJob, str] = WeakKeyDictionary()

    def look(self) -> None:
        """Log which trees are slow, and take the steps that are due about those without a result."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        for job in self.network.jobs.staying():
            self._look_at_rates(job)
            # During a migration agents report on the new plan only, whose operations may wait for the old plan's.
            if job.roster.running and job.roster.state.migration is None:
                self._look_for_results(job)
                self._look_at_numbers(job)

    def _look_at_rates(self, job: RunningJob) -> None:
        rates, planned = job.roster.tree_rates(), planned_tree_rates(job.roster.configs)
        before = self._slow.get(job, {})
        slow = {tree for tree, rate in rates.items() if rate < SLOW_PART * planned.get(tree, 0.0)}
        self._slow[job] = {tree: before.get(tree, 0) + 1 for tree in slow}
        found = sorted(tree for tree, looks in self._slow[job].items() if looks >= SLOW_LOOKS)
        version = job.plan.version
        if not found or self._said.get(job) == version:
            return
        self._said[job] = version
        words = ", ".join(
            f"tree {tree} carries {short(rates[tree])} of {short(planned[tree])} Mbit/s" for tree in found[:4]
        )
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        self.log.warning(
            f"job {job.name}: {words}{more}, though every worker sends. The plan stays: where other traffic uses a "
            "link, say how much of it (replan --set V1-V2.used_bandwidth_mbps=5); else the hosts are the limit"
        )

    def _look_for_results(self, job: RunningJob) -> None:
        standing, moving = job.roster.standing()
        slowest = {
            tree.tree: 8e-6 * frame_bytes(config.values_per_packet) / tree.rate_mbps
            for config in job.roster.configs.values()
            for tree in config.worker_trees
            if tree.rate_mbps > 0
        }
        before = self._stands.get(job, Stand())
        self._stands[job], do, tree = decide(before, job.roster.epoch, standing, moving, slowest)
        if do == Do.NOTHING:
            return
        root, lacks = lacking(job.roster.configs, job.roster.members(), tree)
        missing = f", of whose parts the root lacks those of {', '.join(lacks)}" if lacks else ""
        reason = (
            f"tree {tree} (root {root}) has had no result for {standing[tree]:.0f} s, though all workers wait for "
            f"one{missing}"
        )
        if do == Do.READ_SWITCHES:
            self.log.warning(f"job {job.name}: {reason}: its switches are read again")
            self._read_again(job, tree)
        elif do == Do.BEGIN_ANEW:
            job.roster.plan.restart(job.roster.configs, f"{reason}: the job begins anew")
        else:
            self.log.warning(f"job {job.name}: {reason}, in another epoch, too: it is taken off the network")
            threading.Thread(target=self._refuse, args=(job, reason), name=f"refuse-{job.name}", daemon=True).start()

    def _look_at_numbers(self, job: RunningJob) -> None:
        """Give the job another epoch if its sequence numbers come to an end. From a thread of its own, which waits for
        operations to end."""
        used = max((member.statistics.get(NUMBERS_USED, 0.0) for member in job.roster.members().values()), default=0.0)
        running = self._renewing.get(job)
        if used < RENEW_AT or (running is not None and running.is_alive()):
            return
        thread = threading.Thread(target=self._renew, args=(job, used), name=f"renew-{job.name}", daemon=True)
        self._renewing[job] = thread
        thread.start()

    def _renew(self, job: RunningJob, used: float) -> None:
        try:
            done = job.migrator.renew()
        except (MigrationError, TargetError, OSError) as error:
            said = self._kept.get(job)
            self._kept[job] = str(error)
            if said != str(error):
                words = f"{used:.0%} of its sequence numbers are used, and it could not be given another epoch: {error}"
                self.log.warning(f"job {job.name}: {words}")
            return
        self._kept.pop(job, None)
        self.log.info(
            f"job {job.name}: {used:.0%} of its sequence numbers were used; epoch {done.epoch} begins at operation "
            f"{done.first_operation}"
        )

    def _read_again(self, job: RunningJob, number: int) -> None:
        """Read the switches of a tree of the running plan again."""
        tree = job.plan.trees[number]
        nodes = {node for flow in tree.flows for node in flow.route}
        nodes.update(node for edge in tree.return_edges for node in edge)
        for keeper in self.network.switches.keepers:
            if keeper.target.name in nodes:
                keeper.read_again()

    def _refuse(self, job: RunningJob, reason: str) -> None:
        """Remove the job from the network, which may wait for other orders."""
        with suppress(JobsError, TargetError):
            self.network.remove(job.name, reason)


def planned_tree_rates(configs: Mapping[str, AgentConfig]) -> dict[int, float]:
    """Return the Mbit/s at which each worker is told to send on each tree."""
    return {tree.tree: tree.rate_mbps for config in configs.values() for tree in config.worker_trees}
