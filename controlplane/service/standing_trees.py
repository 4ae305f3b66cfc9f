"""Carries out what core/standing.py decides about trees that have had no result since their epoch began."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from controlplane.common.log_lines import warning
from controlplane.service.core.standing import Do, Stand, decide
from controlplane.service.members import lacking
from controlplane.service.network import Network
from controlplane.service.running import JobsError, RunningJob
from controlplane.targets.base import TargetError
from p4src.protocol import frame_bytes

LOOK_SECONDS = 1.0


@dataclass
class StandingTrees:
    """Looks at what agents report of their trees, at most once a second, from one thread. `log` gets one line for each
    step that is taken."""

    network: Network
    log: Callable[[str], None] = lambda line: None
    _looked: float = 0.0
    _stands: dict[str, Stand] = field(default_factory=dict)  # by job

    def look(self) -> None:
        """Look at the trees of all jobs, unless that was done within the last second, and take the steps that are
        due."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        jobs = [job for job in self.network.jobs if not job.ending]
        for job in jobs:
            # During a change of plan agents report on the new plan only, whose operations may wait for the old plan's.
            if job.roster.running and job.roster.state.handover is None:
                self._look_at(job)
        names = {job.name for job in jobs}
        self._stands = {name: stand for name, stand in self._stands.items() if name in names}

    def _look_at(self, job: RunningJob) -> None:
        standing, moving = job.roster.standing()
        slowest = {
            tree.tree: 8e-6 * frame_bytes(config.values_per_packet) / tree.rate_mbps
            for config in job.roster.configs.values()
            for tree in config.worker_trees
            if tree.rate_mbps > 0
        }
        before = self._stands.get(job.name, Stand())
        self._stands[job.name], do, tree = decide(before, job.roster.epoch, standing, moving, slowest)
        if do == Do.NOTHING:
            return
        root, lacks = lacking(job.roster.configs, job.roster.members(), tree)
        missing = f", of whose parts the root lacks those of {', '.join(lacks)}" if lacks else ""
        reason = (
            f"tree {tree} (root {root}) has had no result for {standing[tree]:.0f} s, though all workers wait for "
            f"one{missing}"
        )
        if do == Do.READ_SWITCHES:
            self.log(warning(f"job {job.name}: {reason}: its switches are read again"))
            self._read_again(job, tree)
        elif do == Do.BEGIN_ANEW:
            job.roster.plan.restart(job.roster.configs, f"{reason}: the job begins anew")
        else:
            self.log(warning(f"job {job.name}: {reason}, in another epoch, too: it is taken off the network"))
            threading.Thread(target=self._refuse, args=(job, reason), name=f"refuse-{job.name}", daemon=True).start()

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
