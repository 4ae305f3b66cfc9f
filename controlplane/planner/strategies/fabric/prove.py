"""A bound over all trees and links, on demand, or where the cheap bounds leave a gap: it comes from column generation's
prices, which no tree can undercut.
"""

from __future__ import annotations

from dataclasses import replace

from controlplane.planner.evaluate import bound
from controlplane.planner.job import Job
from controlplane.planner.plan.limits import switch_limits
from controlplane.planner.plan.model import Plan
from controlplane.planner.plan.separated import separated
from controlplane.planner.routing import Network
from controlplane.planner.strategies.common import prepare, with_reached_roots
from controlplane.planner.strategies.deadline import SECOND, OutOfTime, deadline, limited_work
from controlplane.planner.strategies.fabric.bounds import cheap_bound
from controlplane.planner.strategies.fabric.column_bound import column_bound
from controlplane.planner.strategies.fabric.column_generation import End, generate
from controlplane.planner.strategies.fabric.equivalent import merge_equivalent
from controlplane.planner.strategies.fabric.inart import inart, searched
from controlplane.planner.strategies.fabric.master import to_trees
from controlplane.planner.strategies.fabric.parts_bound import Bound
from controlplane.planner.strategies.solver import SolverError
from controlplane.planner.topology import Topology

PATIENCE = 1e-4  # gap at which column generation ends, as better prices prove more
LOOKED_AT = 0.01  # gap to the cheap bound from which a closer bound is computed
CLOSER_WORK = 3 * SECOND  # for the closer bound
PROOF_WORK = 30 * SECOND  # for a proof that was asked for
SEARCHED = 0.6  # fraction of the work for prices; the rest is for the bound that they prove
WHAT = "all trees over these links, by column generation's prices"
ENDED = "; the search for a closer bound used up its budget"


def closer_bound(plan: Plan, topology: Topology) -> Bound | None:
    """Return a bound of plans like this one where the cheap one is notably above its rate: `proven_bound`, as far as it
    is found with little work. Return None where the cheap bound is tight enough, or nothing can be proven.

    Where switches hold only so much, or a job may have few trees, there is none: bounds do not know these limits.
    """
    job = plan.job
    if plan.multicasts or job.max_trees is not None or switch_limits(topology).anything:
        return None
    if plan.rate_mbps >= cheap_bound(topology, job).mbps * (1 - LOOKED_AT):
        return None
    try:
        return proven_bound(topology, job, plan, work=CLOSER_WORK)
    except ValueError:
        return None


def proven_bound(topology: Topology, job: Job, plan: Plan | None = None, *, work: float = PROOF_WORK) -> Bound:
    """Return the least of the cheap bounds and the column bound, of the network with its equivalent switches merged,
    whose plans are as good as any of the network itself. Prices begin with the trees of `plan`, where it is given, so
    that none has to be searched first. The bound says so if it would be closer with more work. Raise ValueError where
    the prices prove nothing.
    """
    parts = separated(topology, job)
    if parts is not None:
        start = parts.apart(plan) if plan is not None else None
        proven = proven_bound(parts.topology, parts.job, start, work=work)
        cheap = cheap_bound(topology, job)
        if proven.mbps < cheap.mbps:
            return Bound(proven.mbps, parts.words(proven.what))
        return Bound(cheap.mbps, cheap.what + ENDED * proven.what.endswith(ENDED))
    job = with_reached_roots(topology, job)
    prepare(topology, job)
    with limited_work(work) as limit:
        found = _proven(topology, job, plan, work)
        return Bound(found.mbps, found.what + ENDED) if limit.work_left == 0.0 else found


def _proven(topology: Topology, job: Job, plan: Plan | None, work: float) -> Bound:
    """Return what `proven_bound` does, as far as the deadline allows."""
    cheap = cheap_bound(topology, job)
    merged = merge_equivalent(topology)
    small = topology if merged is None else merged.topology
    start = plan if merged is None else searched(small, job)
    most = cheap.mbps
    try:
        if start is None:
            start = inart(small, job)
        if start.rate_mbps >= cheap.mbps * (1 - PATIENCE):
            return cheap
        plans = [start]
        for exact in (False, True):  # relaxed programs alone are often enough, and take a hundredth of the work
            with limited_work(work * SEARCHED):
                end = End(PATIENCE, most)
                generated = generate(Network(small), job, plans, bound(small, job), end=end, exact=exact)
            if generated is None:
                raise ValueError("no bound over all trees: some server does not reach the others over switches")
            master, values = generated
            plans = [*plans, replace(start, trees=tuple(to_trees(master, values)))]
            most = min(most, master.proven)
            most = min(most, column_bound(master, master.solve(deadline())[2], whole=exact))
            if start.rate_mbps >= most * (1 - PATIENCE):
                break
    except (OutOfTime, SolverError):  # the deadline has passed
        pass
    return cheap if most == cheap.mbps else Bound(most, WHAT)
