"""inart with few trees: where switches, the job or the packets' size limit how many there can be.

The capacity program's trees each have all workers at one switch, which makes them many and small. With T trees, groups
of workers are packed onto switches instead (worker_groups.py); the rate is nearly (sum B + sum C) / W / (1 + k / T), so
it falls slowly at first. Several T are tried, and the best plan that fits is taken: the one with the highest rate, or
where the packets' size is known, the one whose all-reduce takes the least time with padding and exponents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from controlplane.planner.evaluate import bound, evaluate
from controlplane.planner.job import Job
from controlplane.planner.plan.cost import cost_of, least_seconds, packet_seconds, windows
from controlplane.planner.plan.limits import (
    ATTRIBUTES,
    DoesNotFit,
    Resource,
    SwitchLimits,
    check_fits,
    fan_in,
    label_entries,
    switch_limits,
)
from controlplane.planner.plan.model import Plan, Tree
from controlplane.planner.routing import Network
from controlplane.planner.strategies.common import Infeasible, Split, finish
from controlplane.planner.strategies.deadline import deadline
from controlplane.planner.strategies.fabric.baselines import atp, atp_strict, equal, lbmm
from controlplane.planner.strategies.fabric.chains import chains
from controlplane.planner.strategies.fabric.master import Master, to_trees
from controlplane.planner.strategies.fabric.selection import Selection
from controlplane.planner.strategies.fabric.strict import strict_candidate
from controlplane.planner.strategies.fabric.worker_groups import ASSIGNED_WORKERS, Instance, packed_plans
from controlplane.planner.topology import Topology, TopologyError

STEP = 1.5  # factor from one number of trees to the next
BISECTIONS = 12
LOWER_TARGETS = 3  # rates tried between the one that links allowed and the one packed for
FEWEST, FEWER = 4, 8  # numbers of trees below that of roots are tried from an eighth of it on, at least 4
EACH_UP_TO = 8  # where a job limits trees, each number up to this is tried
ENOUGH = 2  # trees per parameter server up to which packing is tried in any case
WORTH = 1.01  # a plan within this factor of the least possible time, or of the best rate, is good enough
SAME = 1e-9  # values that differ by less than this fraction count as equal
ESTIMATED = 0.1  # relative error that the estimate of a time may have, where packets are few
MOST_FOLLOWED = 8  # how many of the nearly best plans have their packets followed
BALANCINGS = 4  # times that shares are fitted again to the slots that trees get
DROPPED = 0.15  # fraction of the trees that a round of trimming drops

REFUSALS = (Infeasible, DoesNotFit, TopologyError)


def unlimited(topology: Topology) -> Topology:
    """Return the topology with no limits of switches but their rates. A switch that cannot hold a sum of two flows adds
    nothing.
    """
    limits = switch_limits(topology)
    nodes: dict[str, dict[str, float | None]] = {v: dict.fromkeys(ATTRIBUTES) for v in topology.switches}
    for v in topology.switches:
        if limits.trees_at(v) < 1 or limits.fan_in.get(v, 2) < 2:
            nodes[v]["aggregation_mbps"] = 0.0
    return topology.replace(nodes=nodes)


def few_trees(network: Network, job: Job, first: Plan, seed: int, frozen_split: Split | None) -> Plan:
    """Return the best plan that the limits allow, where `first` is the plan without them. Raise DoesNotFit or
    Infeasible where there is none.
    """
    topology = network.topology
    limits = switch_limits(topology)
    plans: list[Plan] = []
    refusals: list[ValueError] = []

    def offer(make: Callable[[], list[Plan]]) -> None:
        try:
            plans.extend(make())
        except REFUSALS as error:
            refusals.append(error)

    offer(lambda: [finish(topology, job, "inart", first.trees, seed)])
    if plans:
        plans[0] = balanced(network, plans[0], frozen_split)
        lost = plans[0].rate_mbps * WORTH < first.rate_mbps  # folded trees use more of the switches
        if not lost and not _padded(plans[0], bound(topology, job), limits) and not _followed(plans[0], topology):
            return plans[0]
    strict = (strict_candidate,) if len(job.workers) <= ASSIGNED_WORKERS else ()
    for baseline in (lbmm, atp, atp_strict, equal, *strict):
        if plans and deadline().passed():
            break
        offer(lambda baseline=baseline: [baseline(topology, job, seed=seed, frozen_split=frozen_split)])  # type: ignore[misc]
    too_many = bool(limits.fan_in) and len(job.workers) > ASSIGNED_WORKERS  # packing takes minutes, trimming seconds
    numbers = _numbers(job, first, frozen_split)
    trimmed: dict[int, Plan] = {}
    left = first
    for trees in reversed(numbers):
        if plans and deadline().passed():
            break
        try:
            left = trimmed[trees] = _trimmed(network, replace(job, max_trees=trees), left, frozen_split)
        except REFUSALS as error:
            refusals.append(error)
            break
    plans += [replace(plan, job=job) for plan in trimmed.values()]
    for trees in numbers:
        if (plans or trimmed) and (too_many or deadline().passed()):
            break
        found: list[Plan] = []
        try:
            found = _packed(network, job, trees, seed, frozen_split)
        except REFUSALS as error:
            refusals.append(error)
        plans += found
        behind = trees in trimmed and found and trimmed[trees].rate_mbps >= max(p.rate_mbps for p in found)
        if behind and trees >= ENOUGH * len(job.parameter_servers):
            break  # packing does not know the bottleneck here, and falls further behind with more trees
    if not (job.sizes and limits.values_per_packet is not None):  # the rate counts, and not the number of trees
        pool = [*(tree for plan in (first, *plans) for tree in plan.trees), *chains(network, job)]
        most = len(first.trees) if job.max_trees is None else job.max_trees
        offer(lambda: [_selected(network, job, pool, most, frozen_split)])
    if not plans:
        nearest = sorted((e for e in refusals if isinstance(e, DoesNotFit)), key=lambda e: e.needed - e.available)
        raise nearest[0] if nearest else refusals[-1]
    best = balanced(network, best_of(plans, topology), frozen_split)
    return Plan(job, "inart", best.rate_mbps, best.trees, seed=seed)


def _selected(network: Network, job: Job, pool: Sequence[Tree], most: int, frozen_split: Split | None) -> Plan:
    """Return the best plan of at most so many trees that are chosen among those of the pool, and of further ones."""
    choice = Selection(network, job, frozen_split)
    choice.offer(pool)
    trees = choice.best(most)
    if not trees:
        raise Infeasible("inart: no choice of trees fits")
    return finish(network.topology, job, "inart", trees, None)


def _followed(plan: Plan, topology: Topology) -> bool:
    """Return whether the job's tensors are so small that routes and their round trips may matter more than rates."""
    found = cost_of(plan, topology, plan.rate_mbps) if plan.job.sizes else None
    return found is not None and any(found.follows(size) for size in plan.job.sizes)


def _padded(plan: Plan, most: float, limits: SwitchLimits) -> bool:
    """Return whether fewer trees might take less time: much of the plan's time is padding, or its rate is far below
    `most`.
    """
    values = limits.values_per_packet
    if values is None or not plan.job.sizes:
        return False
    seconds = sum(packet_seconds(plan, values, plan.rate_mbps, size) for size in plan.job.sizes)
    return seconds > WORTH * least_seconds(plan.job, most, values)


def balanced(network: Network, plan: Plan, frozen_split: Split | None) -> Plan:
    """Return the plan with shares for which windows limit it as little as possible: trees whose slots carry more get
    more.
    """
    topology = network.topology
    for _ in range(BALANCINGS):
        evaluation = evaluate(plan, topology, check=False)
        if evaluation.bottleneck.kind not in ("aggregation_memory", "window"):
            break
        most = windows(plan, topology, evaluation.rate_mbps, assumed_ms=0.0)
        assert most is not None
        try:
            trees = refit(network, plan.job, list(plan.trees), frozen_split, most.carries_mbps)
            found = finish(topology, plan.job, plan.strategy, trees, plan.seed)
        except REFUSALS:
            break
        if found.rate_mbps <= plan.rate_mbps * (1 + SAME):
            break
        plan = found
    return plan


def _weights(network: Network, job: Job, frozen_split: Split | None) -> list[float]:
    """Return the part of the rate that each root gets: the frozen split, or one in proportion to its ingress."""
    if frozen_split is not None:
        return [frozen_split.get(s, 0.0) for s in job.parameter_servers]
    ingress = [network.topology.residual_ingress_mbps(s) for s in job.parameter_servers]
    return [1.0 if math.isinf(b) else b for b in ingress] if math.inf in ingress else ingress


def _numbers(job: Job, first: Plan, frozen_split: Split | None) -> list[int]:
    """Return the numbers of trees to try."""
    roots = len({tree.root for tree in first.trees})
    most = max(len(first.trees), 2 * roots)
    if job.max_trees is not None:
        most = min(most, job.max_trees)
    least = min(roots, most)
    if frozen_split is not None:
        least = sum(share > 0 for share in frozen_split.values())
    numbers = {most, 1} if frozen_split is None else {most}
    if job.max_trees is not None:  # all small numbers, so that plans of fewer trees are candidates for more, too
        numbers |= set(range(1, min(most, EACH_UP_TO) + 1))
    trees = float(least)
    if (
        frozen_split is None and job.max_trees is None
    ):  # few trees, as each has packets of exponents, which count for small tensors
        trees = min(trees, max(FEWEST, roots / FEWER))
    while trees < most:
        numbers.add(round(trees))
        trees *= STEP
    return sorted(n for n in numbers if n >= least or frozen_split is None)


def _owners(weights: Sequence[float], trees: int) -> list[int]:
    """Return the root of each tree: trees are dealt to the roots in proportion to their weights, at least one each as
    far as they go.
    """
    order = sorted((s for s, weight in enumerate(weights) if weight > 0), key=lambda s: (-weights[s], s))[:trees]
    counts = dict.fromkeys(order, 1)
    for _ in range(trees - len(order)):
        counts[max(order, key=lambda s: (weights[s] / counts[s], -s))] += 1
    return [s for s in sorted(counts) for _ in range(counts[s])]


def _packed(network: Network, job: Job, trees: int, seed: int, frozen_split: Split | None) -> list[Plan]:
    weights = _weights(network, job, frozen_split)
    owners = _owners(weights, trees)
    if frozen_split is not None and set(owners) != {s for s, weight in enumerate(weights) if weight > 0}:
        raise Infeasible(f"inart: the frozen split needs a tree per parameter server, job {job.name!r} allows {trees}")
    if not owners:
        raise Infeasible("inart: no parameter server has ingress capacity left")
    instance = Instance.of(network, job, owners)
    per_tree = [weight / max(1, owners.count(s)) for s, weight in enumerate(weights)]
    total = sum(per_tree[s] for s in owners)
    low, high = 0.0, bound(network.topology, job) / total
    for _ in range(BISECTIONS):
        middle = (low + high) / 2 if low else high / 2
        if instance.pack([middle * w for w in per_tree]) is None:
            high = middle
        else:
            low = middle
    if not low > 0:
        raise Infeasible(f"inart: no packing of {trees} trees was found")
    rates = [low * w for w in per_tree]
    return packed_plans(
        instance, rates, 0.0, "inart", seed=seed, frozen_split=frozen_split, lower_targets=LOWER_TARGETS
    )


def _trimmed(network: Network, job: Job, plan: Plan, frozen_split: Split | None) -> Plan:
    """Return the plan with its smallest trees dropped until the rest fits, with the best shares for the rest."""
    topology = network.topology
    limits = switch_limits(topology)
    trees = [t for t in plan.trees if all(n <= limits.fan_in.get(v, n) for v, n in fan_in(t).items())]
    needed = {s for s, share in (frozen_split or {}).items() if share > 0}
    while True:
        if not trees or not needed <= {tree.root for tree in trees}:
            raise Infeasible("inart: too few of its trees fit")
        trees = refit(network, job, trees, frozen_split)
        try:
            return finish(topology, job, "inart", trees, plan.seed)
        except DoesNotFit as error:
            if error.resource is Resource.WORKERS:
                raise
            candidates = [t for t in trees if error.switch in t.points or label_entries(t)[error.switch]]
        except Infeasible:
            candidates = trees
        least = sorted(candidates, key=lambda t: t.share)
        count = max(1, int(DROPPED * len(least)))
        if job.max_trees is not None and len(candidates) == len(trees):
            count = max(1, min(count, len(trees) - job.max_trees))
        dropped = {id(t) for t in least[:count]}
        remaining = [t for t in trees if id(t) not in dropped]
        if len(remaining) == len(trees):
            raise Infeasible("inart: too few of its trees fit")
        trees = remaining


def refit(
    network: Network,
    job: Job,
    trees: list[Tree],
    frozen_split: Split | None,
    carries_mbps: Sequence[float] | None = None,
) -> list[Tree]:
    """Return the trees with the shares that give the highest rate; `carries_mbps` has the Mbit/s that each tree's
    window carries. Raise Infeasible where no rate above 0 is possible.
    """
    master = Master(network, job, bound(network.topology, job), frozen_split)
    for tree, mbps in zip(trees, carries_mbps or [math.inf] * len(trees), strict=True):
        column = master.make(tree)
        if column is not None:
            master.add(column, most=mbps / master.scale)
    rate, values, _ = master.solve()
    if not rate > 0:
        raise Infeasible("inart: too few of its trees fit")
    return to_trees(master, values)


def access_switches(network: Network, job: Job) -> set[str]:
    """Return the switches next to the job's servers, which no plan can do without."""
    return {v for node in (*job.workers, *job.parameter_servers) for v in network.topology.neighbours(node)}


def cramped_switches(network: Network, job: Job, limits: SwitchLimits) -> set[str]:
    """Return the switches that cannot even forward one tree's gradients, or copy no results, and that a plan may do
    without.
    """
    narrow = {v for v, entries in limits.label_entries.items() if entries < len(job.workers)}
    narrow |= {v for v, groups in limits.multicast_groups.items() if groups == 0}
    return narrow - access_switches(network, job)


def fits(plan: Plan, topology: Topology) -> bool:
    """Return whether the switches can hold the plan."""
    try:
        check_fits(plan, topology)
    except DoesNotFit:
        return False
    return True


def best_of(plans: Sequence[Plan], topology: Topology) -> Plan:
    """Return the best plan; of several that differ only by rounding, the one with the fewest trees."""
    if len(plans) > 1 and plans[0].job.sizes:
        plans = _nearly_best(plans, topology)
    costs = [cost(plan, topology, estimated=False) for plan in plans]
    seconds = min(second for second, _, _ in costs) * (1 + SAME)
    rate = max(-negative for second, negative, _ in costs if second <= seconds) / (1 + SAME)
    same = [p for p, (second, negative, _) in zip(plans, costs, strict=True) if second <= seconds and -negative >= rate]
    return min(same, key=lambda plan: (len(plan.trees), -plan.rate_mbps))


def _nearly_best(plans: Sequence[Plan], topology: Topology) -> list[Plan]:
    """Return the plans that the estimate cannot tell from the best one, as it may be off by ESTIMATED where packets are
    few.
    """
    guessed = [cost(plan, topology)[0] for plan in plans]
    if not min(guessed) > 0:
        return list(plans)  # the packets' size is not known
    near = [(guess, i) for i, guess in enumerate(guessed) if guess <= min(guessed) * (1 + ESTIMATED)]
    return [plans[i] for _, i in sorted(near)[:MOST_FOLLOWED]]


def cost(plan: Plan, topology: Topology, estimated: bool = True) -> tuple[float, float, int]:
    """Return the cost by which plans are compared: the time of the job's tensors, where packets' and tensors' sizes are
    known (else 0); then the negative rate; then the number of trees. Without `estimated`, packets are followed where
    they are few.
    """
    found = cost_of(plan, topology, plan.rate_mbps) if plan.job.sizes else None
    return 0.0 if found is None else round(found.job_seconds(estimated), 12), -plan.rate_mbps, len(plan.trees)
