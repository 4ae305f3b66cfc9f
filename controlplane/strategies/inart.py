"""Ours, the default: many trees per parameter server, each with a share of its sub-model (docs/planner.md)."""

from __future__ import annotations

from controlplane.evaluate import bound
from controlplane.job import Job
from controlplane.plan.model import Plan
from controlplane.routing import Network
from controlplane.strategies.atp import atp, atp_strict
from controlplane.strategies.capacity import solve_capacity
from controlplane.strategies.columns import generate, to_trees
from controlplane.strategies.common import Infeasible, Split, finish, plan_choices, prepare, split_or_equal
from controlplane.strategies.equal import equal
from controlplane.strategies.lbmm import lbmm
from controlplane.topology import Topology, TopologyError

TOLERANCE = 1e-6


def inart(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """The capacity program's trees on least-loaded single paths; column generation over trees where links bind.

    frozen_split: x_s per parameter server, kept exactly (the paper's second phase).
    """
    network = prepare(topology, job)
    if frozen_split is not None:
        frozen_split = split_or_equal(job, frozen_split)
    optimum, choices = solve_capacity(network, job, frozen_split)
    plan = plan_choices(topology, job, "inart", choices, seed, network=network)
    if plan.rate_mbps >= optimum * (1 - TOLERANCE):
        return plan
    return with_columns(network, job, plan, seed, frozen_split)


def with_columns(network: Network, job: Job, plan: Plan, seed: int, frozen_split: Split | None) -> Plan:
    """Column generation that starts from this plan's trees and the baselines', so it is at least as good as each."""
    topology = network.topology
    start = [plan]
    for baseline in (lbmm, atp, atp_strict, equal):
        try:
            start.append(baseline(topology, job, seed=seed, frozen_split=frozen_split))
        except (Infeasible, TopologyError):
            continue  # a baseline that cannot run here has no trees to offer
    best = max(start, key=lambda p: p.rate_mbps)
    generated = generate(network, job, start, bound(topology, job), frozen_split=frozen_split)
    candidates = [best]
    if generated is not None:
        candidates.append(finish(topology, job, "inart", to_trees(*generated), seed))
    best = max(candidates, key=lambda p: p.rate_mbps)
    return Plan(job, "inart", best.rate_mbps, best.trees, seed=seed)
