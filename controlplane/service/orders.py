"""An operator's order to replan: what is disabled from now on, or enabled again, and what is known of the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.planner.plan import Plan
from controlplane.planner.plan.replan import difference
from controlplane.planner.topology import Topology
from controlplane.service.core.disabled import Why
from controlplane.service.core.parts import ordered
from controlplane.service.migration import Migrated
from controlplane.service.next_plan import MigrationError
from controlplane.service.residual import without
from controlplane.service.running import JobsError, RunningJob
from controlplane.service.uses import uses
from controlplane.targets.base import TargetError

if TYPE_CHECKING:
    from controlplane.service.network import Network

ORDER_SECONDS = 30.0
"""Seconds for which an operator's order waits for a migration of the job that is under way. On a busy machine
planning takes seconds, and an operator whose order is refused for that gives it again."""


@dataclass(frozen=True)
class Replan:
    """An order to replan a job for the network's present state, and to migrate it to the new plan.

    Attributes:
        name: the job; "" for the only one, or for all where something is disabled or enabled.
        given: the present state of the network; None for that of the last plan.
        changes: changes of that state (`residual.present_state`).
        off: switches, links ("V1-V2") and parameter servers that are disabled from now on, for all jobs; running jobs
            are rerouted around them first.
        restored: those that are enabled again, for all jobs.
        strategy: None for that of the running plan.
        soon: jobs are replanned soon and not now, except those that could not be rerouted around what is disabled.
    """

    name: str = ""
    given: Topology | None = None
    changes: Sequence[str] = ()
    off: Sequence[str] = ()
    restored: Sequence[str] = ()
    strategy: str | None = None
    dry_run: bool = False
    soon: bool = False

    @property
    def takes_effect(self) -> bool:
        """Whether the order disables or enables anything."""
        return not self.dry_run and bool(self.off or self.restored)

    @property
    def all_the_same(self) -> str:
        """The part of an order that holds although no plan was changed, for the end of an error's message."""
        if self.dry_run:
            return ""
        if self.off:
            return f"; {', '.join(self.off)} disabled all the same, until --with {self.off[0]}"
        return f"; {', '.join(self.restored)} can be used again all the same" if self.restored else ""


def replan(network: Network, order: Replan) -> Migrated:
    """Carry an order out. Return the first migration that was made. Raise JobsError, MigrationError, TopologyError
    and the errors of planning."""
    jobs = list(network.jobs)
    if order.name or len(jobs) == 1 or not (order.off or order.restored):
        concerned = [network.jobs.get(order.name)]
    else:
        concerned = network.replanning.worst_first(jobs)
    with network.state.lock:
        later = _disabled(network, order, jobs)
        bases = {
            job: job.migrator.state(order.given or network.state.bases.get(job, network.topology), order.changes)
            for job in concerned
        }
        if order.takes_effect:
            network.failover.take(ordered, order.off, order.restored)
            for job in jobs:
                job.use_again(order.restored)
    if order.takes_effect:
        network.changed()  # stored first, since the order holds whatever becomes of the plans
        if order.off:
            network.failover.reroute_jobs()
        routes = _route_around(network)
    if order.soon and order.takes_effect:
        now = [job for job in concerned if any(uses([job], order.off, network.state.parts.layout))]
        made = _plan(network, order, now, bases, later) or [_later(job.plan) for job in concerned[:1]]
    else:
        made = _plan(network, order, concerned, bases, later)
    network.changed()
    if (len(jobs) > 1 or order.soon) and order.takes_effect:
        # Each was planned on what the others left, and some were only rerouted.
        network.replanning.soon()
    if order.takes_effect and routes:
        raise MigrationError(f"{routes}{order.all_the_same}")
    if not made:
        raise JobsError(f"there is no job{order.all_the_same}")
    return next((migrated for migrated in made if migrated.changed), made[0])


def _later(plan: Plan) -> Migrated:
    """Return the answer about a job that is replanned soon, but not before this order is answered."""
    return Migrated(plan, plan.rate_mbps, difference(plan, plan), later=True)


def _route_around(network: Network) -> str:
    """Reroute ordinary IPv4 traffic around what is disabled, or back. Return why that failed, or "" where it did
    not."""
    off = [name for name, why in network.state.off.items() if why is Why.OPERATOR]
    try:
        network.switches.reload(network.base_rules(network.topology, off))
    except TargetError as error:
        return f"IPv4 routes stay as they were: {error}"
    return ""


def _disabled(network: Network, order: Replan, jobs: Iterable[RunningJob]) -> Mapping[str, Why]:
    """Return what is disabled with this order. Raise JobsError, JobError or TopologyError where the order cannot be
    followed, before anything is changed for any job."""
    for job in jobs:
        whole = job.migrator.job
        if not whole.may_lose_workers and (needed := {*order.off} & {*whole.workers}):
            raise JobsError(
                f"{min(needed)} is a worker of job {job.name}, which waits for each of its workers (one that may lose "
                "some has at_least= among its words)"
            )
    there = network.state.disabled
    wrong = [name for name in order.restored if name not in there]
    if wrong:
        raise JobsError(f"{wrong[0]} is not disabled; disabled: {', '.join(there) or 'nothing'}")
    kept = {name: why for name, why in network.state.off.items() if name not in order.restored}
    later = kept | dict.fromkeys(order.off, Why.OPERATOR)
    without(network.topology, later)
    for job in jobs:
        gone = {node for node in (*later, *job.without) if node not in order.restored}
        job.migrator.job.among([node for node in network.topology.servers if node not in gone])
    return later


def _plan(
    network: Network,
    order: Replan,
    jobs: Iterable[RunningJob],
    bases: Mapping[RunningJob, Topology],
    off: Mapping[str, Why],
) -> list[Migrated]:
    """Replan these jobs, one after the other. Raise the errors of `replan`."""
    passing = bool(order.off or order.restored) and not (order.changes or order.given or order.strategy)
    made = []
    for job in jobs:
        state = network.state.at(bases[job], {*off, *job.without})
        most = network.replanning.most_of(job) if passing else None
        try:
            migrated = job.migrator.migrate(state, order.strategy, dry_run=order.dry_run, wait=ORDER_SECONDS, most=most)
        except Exception as error:
            if order.takes_effect:
                network.replanning.soon()  # the order holds from now on, whatever became of the plans
            if order.off and not order.dry_run and isinstance(error, MigrationError | ValueError):
                raise MigrationError(f"{error}{order.all_the_same}") from error
            raise
        made.append(migrated)
        if not order.dry_run:
            with network.state.lock:
                network.state.bases[job] = bases[job]
    return made
