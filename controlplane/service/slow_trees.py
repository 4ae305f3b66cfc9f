"""Trees that carry much less than is planned on them: the log tells it to an operator, and nothing is changed.

The controller does not guess which link is congested. P4Runtime has no queue lengths, and what switches count is the
same for a full queue, for lost packets and for a rank that is late: a guess from it once throttled a job to 1 % because
of a late rank. What other traffic takes of a link is declared with `replan --set`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.log_lines import warning
from controlplane.service.network import Network
from controlplane.service.running import RunningJob

LOOK_SECONDS = 1.0
SLOW_PART = 0.5
"""Part of its planned rate below which a tree is slow."""
SLOW_LOOKS = 10
"""Looks in a row that must find a tree slow before the log tells it."""


@dataclass
class SlowTrees:
    """Looks at what agents report of their trees, at most once a second, from one thread. `log` gets one line for each
    plan whose trees are slow."""

    network: Network
    log: Callable[[str], None] = lambda line: None
    _looked: float = 0.0
    _slow: dict[str, dict[int, int]] = field(default_factory=dict)  # by job and tree: looks in a row that found it slow
    _said: dict[str, int] = field(default_factory=dict)  # by job: the version of the plan for which it was logged

    def look(self) -> None:
        """Log which trees are slow, once for each plan."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        jobs = list(self.network.jobs)
        for job in jobs:
            self._look_at(job)
        names = {job.name for job in jobs}
        self._slow = {name: counts for name, counts in self._slow.items() if name in names}
        self._said = {name: version for name, version in self._said.items() if name in names}

    def _look_at(self, job: RunningJob) -> None:
        rates, planned = job.roster.tree_rates(), planned_tree_rates(job.roster.configs)
        before = self._slow.get(job.name, {})
        slow = {tree for tree, rate in rates.items() if rate < SLOW_PART * planned.get(tree, 0.0)}
        self._slow[job.name] = {tree: before.get(tree, 0) + 1 for tree in slow}
        found = sorted(tree for tree, looks in self._slow[job.name].items() if looks >= SLOW_LOOKS)
        version = job.plan.version
        if not found or self._said.get(job.name) == version:
            return
        self._said[job.name] = version
        words = ", ".join(f"tree {tree} carries {rates[tree]:.4g} of {planned[tree]:.4g} Mbit/s" for tree in found[:4])
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        self.log(
            warning(
                f"job {job.name}: {words}{more}, though every worker sends. The plan stays: where other traffic uses a "
                "link, say how much of it (replan --set V1-V2.used_bandwidth_mbps=5); else the hosts are the limit"
            )
        )


def planned_tree_rates(configs: Mapping[str, AgentConfig]) -> dict[int, float]:
    """Return the Mbit/s at which each worker is told to send on each tree."""
    return {tree.tree: tree.rate_mbps for config in configs.values() for tree in config.worker_trees}
