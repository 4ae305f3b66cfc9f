"""Ours, the default: many trees per parameter server, each with a share of its sub-model (docs/planner.md)."""

from __future__ import annotations

from dataclasses import replace

from controlplane.evaluate import bound
from controlplane.job import Job
from controlplane.plan.limits import DoesNotFit, Resource, held
from controlplane.plan.model import Plan
from controlplane.routing import Network, Unreachable
from controlplane.strategies.common import Infeasible, Split, finish, plan_choices, prepare, split_or_equal
from controlplane.strategies.fabric.atp import atp, atp_strict
from controlplane.strategies.fabric.capacity import solve_capacity
from controlplane.strategies.fabric.column_generation import generate, to_trees
from controlplane.strategies.fabric.equal import equal
from controlplane.strategies.fabric.lbmm import lbmm
from controlplane.strategies.fabric.limited_trees import (
    access_switches,
    cost,
    cramped_switches,
    few_trees,
    fits,
    unlimited,
)
from controlplane.topology import Topology, TopologyError

TOLERANCE = 1e-6


def inart(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """The capacity program's trees on least-loaded single paths; column generation over trees where links bind.

    frozen_split: x_s per parameter server, kept exactly (the paper's second phase). Where switches hold only so much
    (controlplane/plan/limits.py), the job allows only so many trees (max_trees) or the packets' size is known, fewer
    trees.
    """
    network = prepare(topology, job)
    if frozen_split is not None:
        frozen_split = split_or_equal(job, frozen_split)
    limits = held(topology)
    if not limits.anything and limits.values_per_packet is None and job.max_trees is None:
        return _many_trees(network, job, seed, frozen_split)
    for v, available in limits.max_workers.items():
        if len(job.workers) > available:
            raise DoesNotFit(v, Resource.WORKERS, len(job.workers), available)
    if frozen_split is not None and job.max_trees is not None:
        needed = sum(share > 0 for share in frozen_split.values())
        if needed > job.max_trees:
            raise Infeasible(
                f"inart: the frozen split needs a tree for each of {needed} parameter servers, job {job.name!r} allows "
                f"{job.max_trees}"
            )
    first = _many_trees(Network(unlimited(topology)), replace(job, max_trees=None), seed, frozen_split)
    plans: list[Plan] = []
    refusal: DoesNotFit | None = None
    around = cramped_switches(network, job, limits)
    try:
        plans.append(few_trees(network, job, first, seed, frozen_split))
        if fits(first, topology):
            return plans[0]
    except DoesNotFit as error:
        refusal = error
        around |= {error.switch} - access_switches(network, job)
    if around:
        try:
            plan = inart(topology.replace(remove_nodes=around), job, seed=seed, frozen_split=frozen_split)
            plans.append(finish(topology, job, "inart", plan.trees, seed))
        except (Infeasible, DoesNotFit, Unreachable) as error:
            refusal = refusal or (error if isinstance(error, DoesNotFit) else None)
    if not plans:
        assert refusal is not None
        raise refusal
    return min(plans, key=lambda plan: cost(plan, limits))


def _many_trees(network: Network, job: Job, seed: int, frozen_split: Split | None) -> Plan:
    """The best plan as far as rates go."""
    optimum, choices = solve_capacity(network, job, frozen_split)
    plan = plan_choices(network.topology, job, "inart", choices, seed, network=network)
    if plan.rate_mbps >= optimum * (1 - TOLERANCE):
        return plan
    return with_columns(network, job, plan, seed, frozen_split)


def with_columns(network: Network, job: Job, plan: Plan, seed: int, frozen_split: Split | None) -> Plan:
    """Column generation that starts from this plan's trees and the baselines', so it is at least as good as each."""
    topology = network.topology
    start = first_trees(network, job, plan, seed, frozen_split)
    best = max(start, key=lambda p: p.rate_mbps)
    generated = generate(network, job, start, bound(topology, job), frozen_split=frozen_split)
    candidates = [best]
    if generated is not None:
        candidates.append(finish(topology, job, "inart", to_trees(*generated), seed))
    best = max(candidates, key=lambda p: p.rate_mbps)
    return Plan(job, "inart", best.rate_mbps, best.trees, seed=seed)


def first_trees(network: Network, job: Job, plan: Plan, seed: int, frozen_split: Split | None) -> list[Plan]:
    """What column generation starts from: the plan and the baselines that can run here."""
    start = [plan]
    for baseline in (lbmm, atp, atp_strict, equal):
        try:
            start.append(baseline(network.topology, job, seed=seed, frozen_split=frozen_split))
        except (Infeasible, TopologyError):
            continue  # a baseline that cannot run here has no trees to offer
    return start
