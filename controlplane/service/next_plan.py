"""The plan that a job gets next: the better one of a new plan and the running one. Pure: nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from controlplane.planner.evaluate import evaluate
from controlplane.planner.gathers import with_speed
from controlplane.planner.job import Job, JobError
from controlplane.planner.plan import Plan, PlanError
from controlplane.planner.plan.limits import DoesNotFit, Limits, limited
from controlplane.planner.plan.replan import Difference, difference, replan
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology
from controlplane.service.core.turns import SAME
from controlplane.service.residual import with_room

ROOM = 0.05
"""Fraction of every capacity that a job gets which must go on where others have taken all, until these make room for
it."""
LEAST_MBPS = 1e-6
"""Rate at and below which a plan is useless."""
SERVER_BACK_PART = 0.5
"""Lowest part of its rate that a job must keep for a returned parameter server to be used again. A lower rate is
accepted because without that server the job would stop when it loses the others."""


class MigrationError(Exception):
    """The plan was not changed, and the job runs as before; the message says why."""


@dataclass(frozen=True)
class Frame:
    """Settings that hold for every plan of a job.

    Attributes:
        job: all of the job; a plan may be for a part of it.
        check: raises DoesNotFit where the switches cannot hold or carry a plan (`Kind.check`).
        left: returns what other jobs leave of a state of the network.
    """

    job: Job
    limits: Limits
    job_id: int = 1
    pace: float = 1.0
    check: Callable[[Plan, Topology], None] = lambda plan, topology: None
    left: Callable[[Topology], Topology] = lambda topology: topology


@dataclass(frozen=True)
class Wanted:
    """Wishes for a migration.

    Attributes:
        strategy: the strategy to plan with; None for that of the running plan.
        plan: take this plan, whose shares are those of the running one.
        most: set where something failed or is back: the plan has at most this rate (Mbit/s), and is the one that the
            job was given (`home`) where that does as well.
        crowded: where others have taken everything, plan with a little of it for now (ROOM).
    """

    strategy: str | None = None
    plan: Plan | None = None
    most: float | None = None
    crowded: bool = False


def next_plan(
    frame: Frame, running: Plan, home: Plan, topology: Topology, wanted: Wanted
) -> tuple[Plan, float, Difference]:
    """Return the better one of a new plan for `topology` and the running plan at the rate that it can still have, that
    rate, and what is different. `home` is the plan that the job was given. Raise MigrationError, and the errors of
    planning."""
    version = running.version + 1
    if wanted.plan is not None:
        new = wanted.plan.with_version(version)
        _check(frame, new, limited(topology, frame.limits))
        return new, running.rate_mbps, difference(running, new)
    topology = with_room(frame.left(topology), ROOM) if wanted.crowded else frame.left(topology)
    held = limited(topology, frame.limits)
    job = frame.job.among(topology)
    try:
        before = evaluate(running, held).rate_mbps
    except (PlanError, JobError):
        before = 0.0  # the running plan needs something that is gone
    if job == running.job:
        new = replan(running, held, strategy=wanted.strategy)
    else:
        planner = get_strategy(wanted.strategy or running.strategy)
        new = planner(held, job, seed=running.seed or 0).with_version(version)
    back = set(job.parameter_servers).difference(running.job.parameter_servers)
    worse = before * (SERVER_BACK_PART if back else 1.0) > new.rate_mbps * (1 - SAME)
    if wanted.strategy is None and job.workers == running.job.workers and worse:
        new = replace(running, rate_mbps=before, version=version)
    if wanted.most is not None:
        new = _at_home(replace(new, rate_mbps=min(new.rate_mbps, wanted.most)), home, held, wanted.most)
    new = with_speed(new, topology)
    if not new.rate_mbps > LEAST_MBPS:
        raise MigrationError(f"nothing is left for it: {evaluate(new, topology).bottleneck.name} is full")
    _check(frame, new, topology)
    return new, before, difference(running, new)


def same(running: Plan, new: Plan, trees: Difference) -> bool:
    """Return whether a plan equals the running one, apart from its version."""
    return (
        not trees.added
        and not trees.removed
        and abs(new.rate_mbps - running.rate_mbps) <= SAME
        and new.job == running.job  # the jobs may differ by a parameter server that has no tree
        and abs(new.gather_speed - running.gather_speed) <= SAME
        and new.gathers_beside == running.gathers_beside
        and all(abs(running.trees[i].share - new.trees[j].share) <= SAME for i, j in trees.kept)
    )


def _at_home(new: Plan, home: Plan, held: Topology, most: float) -> Plan:
    """Return the plan that the job was given, where it does as well as a new one."""
    if home.job != new.job:
        return new
    try:
        rate = min(evaluate(home, held).rate_mbps, most)
    except (PlanError, JobError):
        return new
    if rate < new.rate_mbps * (1 - SAME):
        return new
    return replace(home, rate_mbps=rate, version=new.version)


def _check(frame: Frame, plan: Plan, topology: Topology) -> None:
    try:
        frame.check(plan, topology)
    except DoesNotFit as error:
        raise MigrationError(f"the new plan does not fit: {error}") from None
