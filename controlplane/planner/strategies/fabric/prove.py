"""A bound over all trees and links, on demand, or where the cheap bounds leave a gap: it comes from column generation's
prices, which no tree can undercut.
"""

from __future__ import annotations

from time import process_time

from controlplane.planner.evaluate import bound
from controlplane.planner.job import Job
from controlplane.planner.plan.limits import switch_limits
from controlplane.planner.plan.model import Plan
from controlplane.planner.plan.separated import separated
from controlplane.planner.routing import Network
from controlplane.planner.strategies.common import prepare
from controlplane.planner.strategies.deadline import OutOfTime, limited_time
from controlplane.planner.strategies.fabric.bounds import cheap_bound
from controlplane.planner.strategies.fabric.column_bound import column_bound
from controlplane.planner.strategies.fabric.column_generation import End, generate
from controlplane.planner.strategies.fabric.equivalent import merge_equivalent
from controlplane.planner.strategies.fabric.inart import inart, searched
from controlplane.planner.strategies.fabric.parts_bound import Bound
from controlplane.planner.strategies.solver import SolverError
from controlplane.planner.topology import Topology

PATIENCE = 1e-4  # gap at which column generation ends, as better prices prove more
LOOKED_AT = 0.01  # gap to the cheap bound from which a closer bound is computed
CLOSER_S = 5.0  # seconds of processor time for the closer bound


def closer_bound(plan: Plan, topology: Topology) -> Bound | None:
    """Return a bound of plans like this one where the cheap one is notably above its rate: `proven_bound`, as far as it
    is found in a few seconds. Return None where the cheap bound is tight enough, or no better one is found.

    Where switches hold only so much, or a job may have few trees, there is none: bounds do not know these limits.
    """
    job = plan.job
    if plan.multicasts or job.max_trees is not None or switch_limits(topology).anything:
        return None
    if plan.rate_mbps >= cheap_bound(topology, job).mbps * (1 - LOOKED_AT):
        return None
    try:
        with limited_time(CLOSER_S, clock=process_time) as limit:
            try:
                return proven_bound(topology, job, plan)
            finally:
                limit.cut_short = False  # the time limit above does not cut the caller's search short
    except (ValueError, OutOfTime):
        return None


def proven_bound(topology: Topology, job: Job, plan: Plan | None = None) -> Bound:
    """Return the least of the cheap bounds and the column bound, of the network with its equivalent switches merged,
    whose plans are as good as any of the network itself. Prices begin with the trees of `plan`, where it is given, so
    that none has to be searched first. Raise ValueError where the prices prove nothing.
    """
    parts = separated(topology, job)
    if parts is not None:
        proven = proven_bound(parts.topology, parts.job, parts.apart(plan) if plan is not None else None)
        return min(cheap_bound(topology, job), Bound(proven.mbps, parts.words(proven.what)), key=lambda each: each.mbps)
    prepare(topology, job)
    cheap = cheap_bound(topology, job)
    what = "all trees over these links, by column generation's prices"
    merged = merge_equivalent(topology)
    small = topology if merged is None else merged.topology
    start = plan if merged is None else searched(small, job)
    try:
        if start is None:
            start = inart(small, job)
        if start.rate_mbps >= cheap.mbps * (1 - PATIENCE):
            return cheap
        generated = generate(Network(small), job, [start], bound(small, job), end=End(gap=PATIENCE), exact=True)
    except OutOfTime:
        return cheap
    if generated is None:
        raise ValueError("no bound over all trees: some server does not reach the others over switches")
    master, _ = generated
    most = min(cheap.mbps, master.proven)
    try:
        prices = master.solve()[2]
        for whole in (False, True):
            if start.rate_mbps < most * (1 - PATIENCE):
                most = min(most, column_bound(master, prices, whole=whole))
    except SolverError:  # the deadline has passed
        pass
    return cheap if most == cheap.mbps else Bound(most, what)
