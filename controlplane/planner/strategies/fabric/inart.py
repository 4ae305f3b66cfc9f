"""inart, our planner and the default: many trees per parameter server, each with a share of its sub-model
(docs/planner.md).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations
from math import comb, inf
from weakref import WeakKeyDictionary

import numpy as np

from controlplane.planner.evaluate import bound
from controlplane.planner.gathers import planned
from controlplane.planner.job import Job
from controlplane.planner.plan.limits import DoesNotFit, Resource, SwitchLimits, switch_limits
from controlplane.planner.plan.model import Plan, Tree
from controlplane.planner.routing import Network, Unreachable
from controlplane.planner.strategies.common import (
    Infeasible,
    Split,
    Strategy,
    finish,
    plan_choices,
    prepare,
    split_or_equal,
    with_reached_roots,
)
from controlplane.planner.strategies.deadline import (
    SECOND,
    OutOfTime,
    deadline,
    limited_work,
    part_of_time,
    without_deadline,
)
from controlplane.planner.strategies.fabric.baselines import atp, atp_strict, equal, lbmm
from controlplane.planner.strategies.fabric.bounds import cheap_bound
from controlplane.planner.strategies.fabric.capacity import solve_capacity
from controlplane.planner.strategies.fabric.column_generation import End, generate
from controlplane.planner.strategies.fabric.equivalent import Lifting, Merged, merge_equivalent
from controlplane.planner.strategies.fabric.folding import folded
from controlplane.planner.strategies.fabric.leaders import leaders
from controlplane.planner.strategies.fabric.limited_trees import (
    access_switches,
    best_of,
    cramped_switches,
    few_trees,
    fits,
    unlimited,
)
from controlplane.planner.strategies.fabric.master import Master, to_trees
from controlplane.planner.topology import Topology, TopologyError

TOLERANCE = 1e-6
NEAR = 1e-3  # fraction of the smaller network's rate that copying its trees may cost
SAME = 1e-9  # rates that differ by less than this fraction count as equal
SMALL = 100
"""Workers times servers times switches up to which the baselines are looked at even if the plan is at the bound: one of
them may be, too, with fewer trees.
"""
BASELINES: tuple[Strategy, ...] = (lbmm, atp, atp_strict, equal, leaders)
"""Strategies that no plan is slower than."""
FEW_COPIES = 0.8  # fraction of the smaller network's rate below which quick plans are tried beside copies
SEARCH_WORK = 30 * SECOND  # for column generation: networks of a thousand switches would take minutes
LIFTING_WORK = 5 * SECOND  # for computing the copies' rates
LIFTING_LATE_WORK = 0.5 * SECOND  # the same once the deadline has passed
ENOUGH_EACH = 2  # trees per parameter server from which on giving some to each server costs little
MOST_SUBSETS = 8  # most sets of parameter servers that are planned alone for a job with few trees
ALL_SUBSETS = 63  # the same on networks up to ALL_SUBSETS_WORK, where a plan takes some hundredths of a second
ALL_SUBSETS_WORK = 400  # workers times servers times switches
SUBSETS_WORK = 20 * SECOND  # for the plans of some servers alone, where there is one of all of them
EXACT_WORK = 64  # workers times servers times switches up to which `exact` is tried
EXACT_EFFORT = 4 * SECOND  # work for all of these
LARGE = 20_000  # workers times switches from which on the search leaves time for copying trees
SEARCHED = 0.5  # fraction of the remaining time for the search in a smaller network
AT_HOSTS = 0.85  # fraction of the time for trees that need no slots, where hosts can add, too
COPIED = 0.35  # fraction of the then remaining time for copying; rating and evaluating take the rest
COPIED_LATE = 40_000  # trees times workers that are copied even once the deadline has passed


def inart(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return a plan of the capacity program's trees on least-loaded single paths, or, where links are the bottleneck,
    of trees from column generation.

    `frozen_split` is x_s per parameter server, which is kept exactly (the paper's second phase). Fewer trees are used
    where switches hold only so much (planner/plan/limits.py), the job allows only so many (max_trees), or the packets'
    size is known. Parameter servers that some worker cannot reach get no trees.
    """
    reached = job if frozen_split is not None else with_reached_roots(topology, job)
    if reached != job:
        return replace(inart(topology, reached, seed=seed), job=job)
    if job.gathers:
        return planned(lambda state, plain: inart(state, plain, seed=seed, frozen_split=frozen_split), topology, job)
    if job.max_trees is None or frozen_split is not None:
        return _within_limits(topology, job, seed, frozen_split)
    plans: list[Plan] = []
    refusal: ValueError | None = None
    try:
        plans.append(_within_limits(topology, job, seed, None))
    except (Infeasible, DoesNotFit) as error:
        refusal = error
    roots = len(job.parameter_servers)
    few = job.max_trees < ENOUGH_EACH * roots or 2**roots - 1 <= _most_subsets(topology, job)
    if not plans or (few and plans[0].rate_mbps < cheap_bound(topology, job).mbps * (1 - TOLERANCE)):
        least = plans[0].rate_mbps if plans and not _by_size(topology, job) else 0.0
        with limited_work(SUBSETS_WORK) if plans else nullcontext():
            plans += _of_fewer_roots(topology, job, seed, least)
    if not plans:
        assert refusal is not None
        raise refusal
    best = best_of(plans, topology)
    return Plan(job, "inart", best.rate_mbps, best.trees, seed=seed)


def _by_size(topology: Topology, job: Job) -> bool:
    """Return whether plans are compared by the seconds of the job's tensors, and not by rates alone."""
    return bool(job.sizes) and switch_limits(topology).values_per_packet is not None


def _of_fewer_roots(topology: Topology, job: Job, seed: int, least_mbps: float) -> list[Plan]:
    """Return plans in which only some of the parameter servers have trees, for a job that may have few trees: these
    then need not be one of each. On small networks, the optimum of one tree each is among them. Sets of servers whose
    bound is not above `least_mbps`, or above the rate of a plan so far, are left out (0 leaves none out).
    """
    found: list[Plan] = []
    assert job.max_trees is not None
    parts = [replace(job, parameter_servers=roots) for roots in _subsets(topology, job)]
    bounds = [cheap_bound(topology, part).mbps if least_mbps > 0 else inf for part in parts]

    def offer(bound_mbps: float, make: Callable[[], Plan]) -> None:
        if bound_mbps <= max([least_mbps, *(plan.rate_mbps for plan in found if least_mbps > 0)]) * (1 + TOLERANCE):
            return
        try:
            found.append(replace(make(), job=job))
        except (ValueError, OutOfTime):  # no plan with these servers alone, or no time
            pass

    for part, most in zip(parts, bounds, strict=True):
        if found and deadline().passed():
            return found
        if part != job:
            offer(most, lambda part=part: _within_limits(topology, part, seed, None))  # type: ignore[misc]
    with limited_work(EXACT_EFFORT):
        for part, most in zip(parts, bounds, strict=True):
            if _work(topology, part) <= EXACT_WORK:  # no part has more servers than there may be trees
                offer(most, lambda part=part: _optimum(topology, part))  # type: ignore[misc]
    return found


def _most_subsets(topology: Topology, job: Job) -> int:
    return ALL_SUBSETS if _work(topology, job) <= ALL_SUBSETS_WORK else MOST_SUBSETS


def _subsets(topology: Topology, job: Job) -> list[tuple[str, ...]]:
    """Return sets of parameter servers that may have the trees: all sets that are no larger than the number of trees,
    or of many servers those that are best alone, and one more at a time.
    """
    roots, most = job.parameter_servers, min(job.max_trees or 1, len(job.parameter_servers))
    if sum(comb(len(roots), size) for size in range(1, most + 1)) <= _most_subsets(topology, job):
        return [part for size in range(1, most + 1) for part in combinations(roots, size)]
    alone = {root: cheap_bound(topology, replace(job, parameter_servers=(root,))).mbps for root in roots}
    order = sorted(roots, key=lambda root: -alone[root])
    sizes = sorted({1, 2, most, *(most * part // 4 for part in (1, 2, 3))} & set(range(1, most + 1)))
    return [tuple(root for root in roots if root in order[:size]) for size in sizes]


def _work(topology: Topology, job: Job) -> int:
    """Return the number of choices for the optimum: workers times servers times switches."""
    return len(job.workers) * len(job.parameter_servers) * len(topology.switches)


def _optimum(topology: Topology, job: Job) -> Plan:
    """Return the best plan of one tree per parameter server that is found before the deadline passes."""
    from controlplane.planner.strategies.fabric.exact import exact  # imported here, as it imports Pyomo

    deadline().check()
    return exact(topology, job)


def _within_limits(topology: Topology, job: Job, seed: int, frozen_split: Split | None) -> Plan:
    """Return a plan as `inart` does, with trees for all parameter servers, in as many trees as the limits allow."""
    network = prepare(topology, job)
    if frozen_split is not None:
        frozen_split = split_or_equal(job, frozen_split)
    limits = switch_limits(topology)
    if not limits.anything and limits.values_per_packet is None and job.max_trees is None:
        return _in_time(network, job, seed, frozen_split)
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
    plans = _at_hosts(topology, job, seed, frozen_split, limits)
    if plans and plans[0].rate_mbps >= cheap_bound(topology, job).mbps * (1 - NEAR):
        return plans[0]
    first = _in_time(Network(unlimited(topology)), replace(job, max_trees=None), seed, frozen_split)
    able = {
        v
        for v in topology.switches
        if topology.residual_aggregation_mbps(v) > 0 and limits.trees_at(v) >= 1 and limits.fan_in.get(v, 2) >= 2
    }
    first = replace(first, trees=tuple(folded(tree, limits.fan_in, able) for tree in first.trees))
    refusal: DoesNotFit | None = None
    around = cramped_switches(network, job, limits)
    try:
        plans.append(few_trees(network, job, first, seed, frozen_split))
        if fits(first, topology):
            return best_of(plans, topology)
    except DoesNotFit as error:
        refusal = error
        around |= {error.switch} - access_switches(network, job)
    if around:
        try:
            plan = _within_limits(topology.replace(remove_nodes=around), job, seed, frozen_split)
            plans.append(finish(topology, job, "inart", plan.trees, seed))
        except (Infeasible, DoesNotFit, Unreachable) as error:
            refusal = refusal or (error if isinstance(error, DoesNotFit) else None)
    if not plans:
        assert refusal is not None
        raise refusal
    return best_of(plans, topology)


def _at_hosts(topology: Topology, job: Job, seed: int, frozen_split: Split | None, limits: SwitchLimits) -> list[Plan]:
    """Return the plan in which nothing is added where memory is short, if other places (hosts that add) can add: such
    trees need no slots, and there may be as many as the rate needs. Return none where that is not so.
    """
    short = {v: {"aggregation_mbps": 0.0} for v in limits.slots}
    others = [v for v in topology.switches if v not in short and topology.residual_aggregation_mbps(v) > 0]
    if not short or not others or job.max_trees is not None:
        return []
    try:
        with part_of_time(AT_HOSTS):
            plan = _in_time(Network(unlimited(topology.replace(nodes=short))), job, seed, frozen_split)
        return [finish(topology, job, "inart", plan.trees, seed)]
    except (Infeasible, DoesNotFit, Unreachable):
        return []


def _in_time(network: Network, job: Job, seed: int, frozen_split: Split | None) -> Plan:
    """Return the plan with the best rate, at least as good as each baseline; if the time is over, the best one so
    far.
    """
    found: list[Plan] = []
    time = deadline()
    try:
        plan = _many_trees(network, job, seed, frozen_split, found)
    except OutOfTime:
        time.passed()
        with without_deadline():
            plan = _best(job, [*found, *_quick(network, job, seed, frozen_split, found)], seed)
        time.report("what there is", plan.rate_mbps, bound(network.topology, job))
        return plan
    best = plan.rate_mbps >= cheap_bound(network.topology, job).mbps * (1 - SAME)
    if (best and _flows(network, job) > SMALL) or time.passed():
        return plan
    return _best(job, [plan, *_possible(BASELINES, network, job, seed, frozen_split)], seed)


def _quick(network: Network, job: Job, seed: int, frozen_split: Split | None, found: list[Plan]) -> list[Plan]:
    """Return plans that take little time even on a large network, where no plan was found yet."""
    if found and _flows(network, job) > SMALL:
        return []
    quick = _possible((leaders,), network, job, seed, frozen_split)  # quickly near the rate that hosts alone reach
    for strategy in (atp_strict, lbmm, equal):
        quick += _possible((strategy,), network, job, seed, frozen_split)
        if quick and _flows(network, job) > SMALL:
            break
    if not quick and not found:
        _, choices = solve_capacity(network, job, frozen_split)
        quick.append(plan_choices(network.topology, job, "inart", choices, seed, network=network))
    return quick


def _flows(network: Network, job: Job) -> int:
    """Return the size of an instance: workers times servers times switches."""
    return len(job.workers) * len(job.parameter_servers) * len(network.topology.switches)


def _many_trees(network: Network, job: Job, seed: int, frozen_split: Split | None, found: list[Plan]) -> Plan:
    """Return the plan with the best rate: the capacity program's, or where links are the bottleneck one of column
    generation.

    Plans on the way are put into `found`, for the caller's use where this ends in OutOfTime.
    """
    topology, time = network.topology, deadline()
    time.check()
    optimum, choices = solve_capacity(network, job, frozen_split)
    limit = min(optimum, cheap_bound(topology, job).mbps)

    def direct() -> Plan:
        plan = plan_choices(topology, job, "inart", choices, seed, network=network, limit=time)
        found.append(plan)
        time.report("the capacity program", plan.rate_mbps, limit)
        return plan

    merged = merge_equivalent(topology)
    bind = limit < optimum * (1 - TOLERANCE)
    if merged is None or not bind:
        plan = direct()
        if plan.rate_mbps >= limit * (1 - TOLERANCE) or time.passed():
            return plan
    if merged is not None:
        lifted, reached = _lifted(network, job, merged, seed, frozen_split)
        found += lifted
        if found:
            best = max(found, key=lambda p: p.rate_mbps)
            time.report("the trees of equivalent switches", best.rate_mbps, limit)
            if best.rate_mbps >= limit * (1 - TOLERANCE):
                return best
            if time.passed():
                if best.rate_mbps < reached * FEW_COPIES:
                    with without_deadline():
                        return _best(job, [best, *_quick(network, job, seed, frozen_split, [])], seed)
                return best
            if best.rate_mbps >= reached * (1 - NEAR):  # column generation would find the same again
                return best
    if not found:
        direct()
    end = End(enough=cheap_bound(topology, job).mbps)
    with limited_work(SEARCH_WORK):
        generated = generate(network, job, found, bound(topology, job), frozen_split=frozen_split, end=end)
    if generated is not None:
        found.append(finish(topology, job, "inart", to_trees(*generated), seed))
    return _best(job, found, seed)


def _best(job: Job, plans: list[Plan], seed: int) -> Plan:
    """Return the fastest plan; of those that differ only by rounding, the one with the fewest trees, and of these the
    one that loads the links least. A program whose optimum does not fill the links may send flows directly that a
    switch could add.
    """
    rate = max(plan.rate_mbps for plan in plans) * (1 - SAME)
    best = min((p for p in plans if p.rate_mbps >= rate), key=lambda p: (len(p.trees), _crossed(p)))
    return Plan(job, "inart", best.rate_mbps, best.trees, seed=seed)


def _crossed(plan: Plan) -> float:
    """Return the link crossings per unit of gradient, to nine digits."""
    return round(sum(tree.share * sum(tree.crossed().values()) for tree in plan.trees), 9)


_searched: WeakKeyDictionary[Topology, Plan] = WeakKeyDictionary()


def searched(topology: Topology, job: Job) -> Plan | None:
    """Return the last search's plan for these servers in a network whose equivalent switches are merged; None where
    there was none. The computation of a bound over all trees begins with it.
    """
    found = _searched.get(topology)
    if found is None:
        return None
    same = (found.job.workers, found.job.parameter_servers) == (job.workers, job.parameter_servers)
    return found if same else None


def _lifted(
    network: Network, job: Job, merged: Merged, seed: int, frozen_split: Split | None
) -> tuple[list[Plan], float]:
    """Return a plan of the smaller network's trees (in a list, empty where there is none), and the smaller network's
    rate.
    """
    found: list[Plan] = []
    try:
        large = len(job.workers) * len(network.topology.switches) > LARGE
        with part_of_time(SEARCHED) if large else nullcontext():
            small = _many_trees(Network(merged.topology), job, seed, frozen_split, found)
    except (Infeasible, Unreachable):
        return [], 0.0
    except OutOfTime:
        if not found:
            raise
        small = _best(job, found, seed)
    _searched[merged.topology] = small
    return _copied(network, job, merged, small, seed=seed, frozen_split=frozen_split)


def _copied(
    network: Network, job: Job, merged: Merged, small: Plan, *, seed: int, frozen_split: Split | None
) -> tuple[list[Plan], float]:
    """Copy a plan of the smaller network, and return as `_lifted` does. The largest trees are copied first: where time
    ends meanwhile, the plan is of those that were copied.
    """
    master = Master(network, job, bound(network.topology, job), frozen_split)
    lifting = Lifting(master, merged)
    late = max(len(job.parameter_servers), COPIED_LATE // len(job.workers))
    rate, values = 0.0, np.zeros(0)
    for most in (False, True):  # few copies of each tree, for few trees; more where these do not carry as much
        parts = [0.0] * len(master.columns)
        with part_of_time(COPIED) as limit:
            for number, tree in enumerate(_largest_first(small)):
                if (number >= late or most) and limit.passed():
                    break
                for column, part in lifting.columns(tree, most=most):
                    master.add(column)
                    parts.append(part)
        alike = np.array(parts)
        late_now = limit.passed()
        with without_deadline() if late_now else nullcontext():
            solved = master.rates(LIFTING_LATE_WORK if late_now else LIFTING_WORK)
        if solved[0] > rate:
            rate, values = solved
        if (same := alike.sum() / master.fullest(alike)) > rate:  # solving for the rates may have run out of time
            rate, values = same, alike
        if rate * master.scale >= small.rate_mbps * (1 - NEAR) or late_now:
            break
    if not rate > 0:
        return [], small.rate_mbps
    with without_deadline():
        trees = to_trees(master, values)
        return [finish(network.topology, job, "inart", trees, seed)], small.rate_mbps


def _largest_first(plan: Plan) -> list[Tree]:
    """Return the trees by falling share, after one of each parameter server (a frozen split needs them all)."""
    order = sorted(plan.trees, key=lambda tree: -tree.share)
    first: dict[str, Tree] = {}
    for tree in order:
        first.setdefault(tree.root, tree)
    return [*first.values(), *(tree for tree in order if first[tree.root] is not tree)]


def _possible(
    strategies: tuple[Strategy, ...], network: Network, job: Job, seed: int, frozen_split: Split | None
) -> list[Plan]:
    plans = []
    for strategy in strategies:
        try:
            plans.append(strategy(network.topology, job, seed=seed, frozen_split=frozen_split))
        except (Infeasible, TopologyError, DoesNotFit):
            continue  # this strategy has no plan here
    return plans
