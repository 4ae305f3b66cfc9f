"""Admission of jobs: what a job would get beside jobs that keep what they have, or with fair shares for all. Pure: it
only makes plans, and nothing runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controlplane.common.log_lines import Log
from controlplane.common.numbers import short
from controlplane.planner.evaluate import evaluate, unit_loads
from controlplane.planner.job import Job
from controlplane.planner.plan import Plan, PlanError
from controlplane.planner.plan.host_collectives import MORE_SERVERS, faster_than
from controlplane.planner.plan.limits import limited
from controlplane.planner.plan.replan import replan
from controlplane.planner.plan.reroute import unbroken
from controlplane.planner.routing import Unreachable
from controlplane.planner.strategies import Infeasible, get_strategy
from controlplane.planner.strategies.common import Split
from controlplane.planner.strategies.fabric.sharing import Demand, share
from controlplane.planner.terms import USUAL, Terms
from controlplane.planner.topology import Topology
from controlplane.service.network_state import NetworkState
from controlplane.service.residual import with_loads, without
from controlplane.service.running import JobsError, RunningJob

STEADY = 0.05
"""Largest distance between a job's rate and its fair share, as a part of the larger one, at which the job keeps its
plan."""
MOST = 8
"""Most jobs that migrate in one step; the rest follows in later steps."""
NEAR = 0.9
LEAST_AT_FIRST = 0.25
"""Lowest fraction of its fair share with which a new job may begin beside jobs that keep their plans until the next
step."""
LEAST_SHARE = 1e-3
"""Lowest fraction of the rate that a job would have alone. A job that would get less is not admitted."""
LEAST_OF_A_QUOTA = 0.01
"""Lowest fraction of its quota that a tenant's jobs have together, where other jobs of the tenant use all of the quota
and cannot change."""
MOST_COMPARED = 64
"""Most workers of a job for which admission computes whether hosts alone would be faster, which takes a fifth of a
second."""


@dataclass(frozen=True)
class Admission:
    """The rate that a job would get beside those that run.

    Attributes:
        others: by name of each running job, its rate before and after, Mbit/s.
        plans: the new plans of running jobs, where all are planned together.
        note: which other way is faster than this plan, for whoever adds the job; "" where none was found.
    """

    plan: Plan
    bottleneck: str
    others: dict[str, tuple[float, float]]
    plans: dict[str, Plan] = field(default_factory=dict)
    note: str = ""


class AdmissionControl:
    """Says what a job would get on one network, as the network is at the moment of the question.

    Args:
        log: gets one line for each guarantee that cannot be kept.

    The attribute `steps` counts the steps on the way to fair rates so far, while there are more to take; otherwise it
    is 0.
    """

    def __init__(self, state: NetworkState, *, log: Log) -> None:
        self.state, self._log = state, log
        self.steps = 0

    def admit(
        self, job: Job, strategy: str, seed: int = 0, terms: Terms = USUAL, job_id: int | None = None
    ) -> Admission:
        """Return the plan for a job on what the others leave. `job_id` is its number, where switches may hold entries
        of it already. Raise JobsError, Infeasible or DoesNotFit where something is short, which the message names."""
        self.state.jobs.check_name(job.name)
        self.state.check_reach(job)
        self.state.tenants.check(job, terms)
        state = self.state.left(self.state.now, job_id)
        try:
            plan = get_strategy(strategy)(limited(state, self.state.kind.limits), job, seed=seed)
        except (Infeasible, Unreachable) as error:
            others = ", ".join(one.name for one in self.state.jobs)
            if not others:
                raise
            raise Infeasible(f"{error}, beside {others} (--share plans all jobs together)") from None
        admission = self.admission(plan, job_id, terms)
        if admission.plan.rate_mbps < terms.guarantee_mbps:
            raise JobsError(
                f"job {job.name!r} would get {short(admission.plan.rate_mbps)} Mbit/s of what the others leave, and is "
                f"to have {terms.guarantee_mbps:g}: {admission.bottleneck} is short (--share takes from others)"
            )
        note = _faster_way(admission.plan, limited(state, self.state.kind.limits))
        if note:
            self._log.info(f"job {job.name}: {note}")
        return replace(admission, note=note)

    def admission(self, plan: Plan, job_id: int | None = None, terms: Terms = USUAL) -> Admission:
        """Return what a plan would get on what the other jobs leave. Raise the errors of `admit`, also where that is
        nothing."""
        self.state.jobs.check_name(plan.job.name)
        self.state.tenants.check(plan.job, terms)
        if plan.multicasts:
            raise JobsError(
                f"{plan.strategy} plans multicasts, which agents of the overlay send: inart overlay coordinator "
                "--switches FILE serves them (docs/overlay.md)"
            )
        state = self.state.left(self.state.now, job_id)
        plan.check(state)
        now = evaluate(plan, state)
        alone = evaluate(plan, self.state.now).rate_mbps
        if now.rate_mbps < LEAST_SHARE * alone or now.rate_mbps <= 0:
            worst = now.bottleneck
            raise JobsError(
                f"job {plan.job.name!r} would get {short(now.rate_mbps, 3)} Mbit/s: {worst.kind.replace('_', ' ')} "
                f"{worst.name} has nothing left beside {', '.join(job.name for job in self.state.jobs)} (--share plans "
                "all jobs together)"
            )
        most = self._most_of(terms, now.rate_mbps)
        if plan.rate_mbps > most * (1 + 1e-6):
            plan = replace(plan, rate_mbps=most)
        others = {job.name: (job.plan.rate_mbps, job.plan.rate_mbps) for job in self.state.jobs}
        bottleneck = f"{now.bottleneck.kind.replace('_', ' ')} {now.bottleneck.name}"
        if most < now.rate_mbps:
            bottleneck = f"the quota of tenant {terms.tenant}"
        return Admission(plan, bottleneck, others)

    def _most_of(self, terms: Terms, rate: float) -> float:
        """Return how much of a rate the quota of the job's tenant leaves; raise JobsError where it leaves nothing."""
        left = self.state.tenants.rate_left(terms.tenant)
        if left < LEAST_SHARE * rate:
            raise JobsError(
                f"tenant {terms.tenant}: its jobs have all of the {self.state.tenants.quota(terms.tenant).rate_mbps:g} "
                "Mbit/s that they may have (--share plans all jobs together)"
            )
        return min(rate, left)

    def shared(
        self, job: Job, strategy: str, seed: int = 0, terms: Terms = USUAL, fixed: Collection[str] = ()
    ) -> Admission:
        """Return plans for a job and all running ones together: weighted max-min fair, after what is guaranteed, and by
        priority. The jobs in `fixed` keep what they have. Raise Infeasible or JobsError where that is not possible."""
        self.state.jobs.check_name(job.name)
        self.state.check_reach(job)
        self.state.tenants.check(job, terms)
        state = self.state.now
        alone = get_strategy(strategy)(limited(state, self.state.kind.limits), job, seed=seed)
        running = [one for one in self.state.jobs.staying() if one.name not in fixed]
        plans, [plan] = self.fair_plans(running, [_demand(job, (alone,), terms)], fixed)
        rates = {one.name: (one.plan.rate_mbps, plans.get(one.name, one.plan).rate_mbps) for one in running}
        return Admission(plan, self._shared_bottleneck(plan, plans, terms), rates, plans)

    def _shared_bottleneck(self, plan: Plan, plans: Mapping[str, Plan], terms: Terms) -> str:
        """Return the resource that a plan and these other jobs fill together, and which jobs these are."""
        own = [plans.get(job.name, job.plan).rate_mbps for job in self.state.tenants.of(terms.tenant)]
        if plan.rate_mbps + sum(own) >= self.state.tenants.quota(terms.tenant).rate_mbps * (1 - 1e-6):
            return f"the quota of tenant {terms.tenant}"
        running = {job.name: job.plan for job in self.state.jobs}
        others = {name: plans.get(name) or own for name, own in running.items()}
        worst = evaluate(plan, with_loads(self.state.now, list(others.values()))).bottleneck
        sharing = [name for name, other in others.items() if worst.name in used(other, worst.kind, self.state.topology)]
        shared = f", shared with {', '.join(sharing)}" if sharing else ""
        return f"{worst.kind.replace('_', ' ')} {worst.name}{shared}"

    def fair_plans(
        self, running: Sequence[RunningJob], more: Sequence[Demand] = (), fixed: Collection[str] = ()
    ) -> tuple[dict[str, Plan], list[Plan]]:
        """Return fair plans: by name, those of the running jobs that are to change now, and those of all jobs in
        `more`.

        A job that is cut off keeps its plan and waits, since its dead switch is of no use to anybody. So does a job
        that is about to end, which cannot migrate. Raise the errors of `_share`.
        """
        cut = {job.name for job in running if self.state.cut_off(job) or job.leaving}
        running, fixed = [job for job in running if job.name not in cut], {*fixed, *cut}
        made = self._share(running, more, fixed)
        fair, fresh = dict(zip([job.name for job in running], made, strict=False)), made[len(running) :]
        rates = {job.name: job.plan.rate_mbps for job in running}
        state = self.state.now
        broken = [
            job.name
            for job in running
            if fair[job.name].job != job.plan.job
            or job.plan.rate_mbps < job.terms.guarantee_mbps
            or not unbroken(job.plan, state)
        ]
        far = unsettled(rates, {name: plan.rate_mbps for name, plan in fair.items()}, broken)
        change = far[: max(MOST, len(broken))]
        steps, self.steps = self.steps, 0
        if len(change) == len(running):
            return fair, fresh
        jobs = [job for job in running if job.name in change]
        try:
            again = self._share(jobs, more, {*fixed, *fair} - set(change))
        except Infeasible:  # jobs that keep their plans hold what is guaranteed to these
            return fair, fresh
        enough = NEAR if len(change) == len(far) else LEAST_AT_FIRST
        if any(one.rate_mbps < enough * of.rate_mbps for one, of in zip(again[len(jobs) :], fresh, strict=True)):
            return fair, fresh
        plans = dict(zip([job.name for job in jobs], again, strict=False))
        if len(change) < len(far):
            self.steps = steps + 1
            # No job gets more than its fair share now: the rest is for jobs that have less, in later steps.
            plans = {name: replace(p, rate_mbps=min(p.rate_mbps, fair[name].rate_mbps)) for name, p in plans.items()}
        return plans, again[len(jobs) :]

    def _share(
        self, jobs: Sequence[RunningJob], more: Sequence[Demand] = (), fixed: Collection[str] = ()
    ) -> list[Plan]:
        """Divide what there is among all jobs. With `more`, every guarantee holds, or Infeasible is raised; without,
        each job gets as much of its guarantee as there is."""
        with self.state.lock:
            state = self.state.now
        kept = [job.plan for job in self.state.jobs if job.name in fixed]
        state = with_loads(state, kept)
        for one in more:
            if not all(unbroken(plan, state) for plan in one.start):
                raise PlanError(f"job {one.job.name!r}: the network has changed while it was planned")
        demands = [self._demand(job, state) for job in jobs]
        if not demands and not more:
            return []
        demands += more
        tenants = self.state.tenants
        limits = {
            one.tenant: max(
                tenants.rate_left(one.tenant, fixed), LEAST_OF_A_QUOTA * tenants.quota(one.tenant).rate_mbps
            )
            for one in demands
            if tenants.quota(one.tenant).rate_mbps < math.inf
        }
        return share(state, demands, strict=bool(more), short=self._log.info, limits=limits)

    def _demand(self, job: RunningJob, state: Topology) -> Demand:
        """Return the demand of a running job as it can go on in this state of the network: with the parameter servers
        that are left, and with trees that use nothing that is gone."""
        plan = job.plan
        state = without(state, job.without)
        there = job.migrator.job.among(state)
        if there != plan.job:
            start = get_strategy(plan.strategy)(limited(state, self.state.kind.limits), there, seed=plan.seed or 0)
            return _demand(there, (start,), job.terms)
        if not unbroken(plan, state):
            plan = replan(plan, limited(state, self.state.kind.limits))
        return _demand(plan.job, (plan,), job.terms, plan.split)


def unsettled(rates: Mapping[str, float], fair: Mapping[str, float], broken: Collection[str]) -> list[str]:
    """Return the jobs whose plans are to change.

    Those in `broken` come first, in any case. Then come those that have more than their fair share, and last those that
    have less and need room, each time the farthest from it first. `rates` and `fair` are Mbit/s, of the same jobs.
    """

    def distance(name: str) -> float:
        larger, less = max(rates[name], fair[name]), min(rates[name], fair[name])
        return (larger - less) / larger if larger > 0 else 0.0

    far = [name for name in rates if name not in broken and distance(name) > STEADY]
    far.sort(key=lambda name: (rates[name] > fair[name], distance(name)), reverse=True)
    return [*(name for name in rates if name in broken), *far]


def _faster_way(plan: Plan, state: Topology) -> str:
    """Return a sentence that says which way of the hosts alone, over switches that only forward, would be faster than
    the plan, at the sizes of the job's tensors where it names them; "" where none is."""
    for row in faster_than(plan, state, plan.rate_mbps, MOST_COMPARED)[:1]:
        return (
            f"{row.strategy}, without switches that add, would be faster: {short(row.rate_mbps)} instead of "
            f"{short(plan.rate_mbps)} Mbit/s; {MORE_SERVERS}"
        )
    return ""


def used(plan: Plan, kind: str, topology: Topology) -> set[str]:
    """Return the resources of this kind that a plan uses, by the names that `evaluate` gives them."""
    links, switches, roots = unit_loads(plan, topology.results_on_links)
    return {f"{u}->{v}" for u, v in links} if kind in ("link", "nic") else {*switches, *roots}


def _demand(job: Job, start: tuple[Plan, ...], terms: Terms, split: Split | None = None) -> Demand:
    return Demand(job, start, terms.weight, split, terms.guarantee_mbps, terms.priority, terms.tenant)
