"""inart-strict: our planner under the paper's rule, one tree per parameter server (one assignment per worker and root).

Rates worth trying are those at which a switch or a root is just full: a in {C_v / n, B_s / m}. The groups are packed
greedily (worker_groups.py), the rates improved one root at a time. Where links then are the bottleneck, groups and
workers are moved off them, and rates between the one that was reached and the one that was packed for are tried.
"""

from __future__ import annotations

import math

from controlplane.planner.job import Job
from controlplane.planner.plan.limits import DoesNotFit
from controlplane.planner.plan.model import Plan
from controlplane.planner.strategies.common import Infeasible, Split, prepare, split_or_equal
from controlplane.planner.strategies.deadline import SECOND, deadline, limited_work
from controlplane.planner.strategies.fabric.baselines import atp, atp_strict, equal, lbmm
from controlplane.planner.strategies.fabric.worker_groups import SLACK, Instance, packed_plans
from controlplane.planner.topology import Topology, TopologyError

CANDIDATE_WORK = 2 * SECOND


def inart_strict(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return a plan with one tree per parameter server, at least as good as those of the baselines, which are of the
    same kind.
    """
    network = prepare(topology, job)
    instance = Instance.of(network, job, range(len(job.parameter_servers)))
    candidates: list[Plan] = []
    refusals: list[ValueError] = []
    for baseline in (lbmm, atp, atp_strict, equal):
        try:
            candidates.append(baseline(topology, job, seed=seed, frozen_split=frozen_split))
        except (Infeasible, DoesNotFit, TopologyError) as error:
            refusals.append(error)
    if frozen_split is not None:
        frozen_split = split_or_equal(job, frozen_split)
        vectors = _frozen_rates(instance, list(frozen_split.values()))
    else:
        vectors = _free_rates(instance)
    for rates in vectors:
        if candidates and deadline().passed():
            break
        if sum(rates) > 0:
            best = max((p.rate_mbps for p in candidates), default=0.0)
            try:
                candidates += packed_plans(instance, rates, best, "inart-strict", seed=seed, frozen_split=frozen_split)
            except (Infeasible, DoesNotFit) as error:
                refusals.append(error)
    if not candidates:
        raise next((e for e in refusals if isinstance(e, DoesNotFit)), None) or Infeasible(
            f"inart-strict: no plan has a rate above 0; {'; '.join(str(e) for e in refusals)}"
        )
    plan = max(candidates, key=lambda plan: plan.rate_mbps)
    return Plan(job, "inart-strict", plan.rate_mbps, plan.trees, seed=seed)


def strict_candidate(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return the plan that `inart_strict` finds with CANDIDATE_WORK: it is seldom the best of several plans, and packs
    for minutes with many parameter servers.
    """
    with limited_work(CANDIDATE_WORK):
        return inart_strict(topology, job, seed=seed, frozen_split=frozen_split)


def _free_rates(instance: Instance) -> list[list[float]]:
    """Return the rate vectors to try: equal ones, ones in proportion to capacity and to its root, and each of them
    improved; best first. When the deadline passes, return those found so far.
    """
    levels, limit = instance.levels(), deadline()
    roots = instance.roots
    results: dict[tuple[float, ...], float] = {}
    for weigh in (lambda b: 1.0, lambda b: math.sqrt(b), lambda b: b):
        weights = [weigh(b) / weigh(max(roots)) if max(roots) > 0 else 0.0 for b in roots]
        for level in levels:
            if limit.passed():
                break
            rates = [level * weight for weight in weights]
            if instance.pack(rates) is not None:
                results[tuple(_improved(instance, rates, levels))] = 0.0
                results[tuple(rates)] = 0.0
                break
    return [list(rates) for rates in sorted(results, key=lambda r: -sum(r))]


def _improved(instance: Instance, rates: list[float], levels: list[float]) -> list[float]:
    """Raise one root's rate after the other as long as the packing holds and there is time, and return the rates."""
    rates, limit = list(rates), deadline()
    changed = True
    while changed:
        changed = False
        for s in range(len(rates)):
            for level in levels:
                if level <= rates[s] * SLACK or limit.passed():
                    break
                trial = [*rates[:s], level, *rates[s + 1 :]]
                if instance.pack(trial) is not None:
                    rates, changed = trial, True
                    break
    return rates


def _frozen_rates(instance: Instance, split: list[float]) -> list[list[float]]:
    rates = {level / share for level in instance.levels() for share in split if share > 0}
    for f in sorted(rates, reverse=True):
        vector = [f * share for share in split]
        if instance.pack(vector) is not None:
            return [vector]
    return []
