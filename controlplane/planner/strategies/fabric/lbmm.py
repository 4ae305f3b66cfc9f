"""LBMM: load-balancing min-min routing without in-network aggregation (InArt paper, section 5.1.2)."""

from __future__ import annotations

from controlplane.planner.job import Job
from controlplane.planner.plan.model import Plan
from controlplane.planner.strategies.common import Choice, Split, plan_choices, prepare, split_or_equal
from controlplane.planner.topology import Topology


def lbmm(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return the plan with one star per parameter server, equal split, in which each flow takes the path on which it
    raises the link load least.
    """
    network = prepare(topology, job)
    split = split_or_equal(job, frozen_split)
    choices = [Choice(root, split[root], (root,) * len(job.workers)) for root in job.parameter_servers]
    return plan_choices(topology, job, "lbmm", choices, seed, network=network)
