"""A running network: its switches, and the jobs on them. `deploy`, `serve` and the emulation all use it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from controlplane.common.log_lines import SILENT, Log, of_job
from controlplane.common.numbers import short
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.entries import RuleSet
from controlplane.planner.job import Job
from controlplane.planner.plan import Plan, PlanError
from controlplane.planner.plan.limits import DoesNotFit
from controlplane.planner.rules import Deployment
from controlplane.planner.strategies import Infeasible
from controlplane.planner.terms import USUAL, Quota, Terms
from controlplane.planner.topology import Topology
from controlplane.service.admission import Admission, AdmissionControl
from controlplane.service.core.disabled import Why
from controlplane.service.core.parts import ordered
from controlplane.service.core.state import Known
from controlplane.service.entry_changes import EntryChange, between
from controlplane.service.epochs import EpochStore
from controlplane.service.failover import Failover
from controlplane.service.journal import CoreJournal, Journal
from controlplane.service.migration import Migrated, Migrator
from controlplane.service.network_state import NetworkState
from controlplane.service.next_plan import Frame, MigrationError
from controlplane.service.orders import Replan, replan
from controlplane.service.reload import Reloaded
from controlplane.service.replanning import Late, Replanning
from controlplane.service.residual import without
from controlplane.service.room import JOB_IDS, base_rules, deployment_of, part
from controlplane.service.roster import GRACE_SECONDS, PATIENCE_SECONDS, Roster, Rules
from controlplane.service.running import Jobs, JobsError, RunningJob
from controlplane.service.state import Keeps
from controlplane.service.switches import Switches
from controlplane.service.tenants import Tenants, unlimited
from controlplane.service.uses import uses
from controlplane.service.versions import Version
from controlplane.targets.base import SwitchTarget
from controlplane.targets.kind import Kind
from controlplane.targets.secret_labels import SecretLabels
from p4src.protocol import ENCODING

ATTEMPTS = 3
"""Most attempts to plan a job, where links and switches fail meanwhile or other jobs cannot make room for it."""
LATE_PAUSE_SECONDS = 2.0
"""Seconds after which jobs that could not make room are asked again."""


@dataclass(frozen=True)
class Settings:
    """Settings that the operator of a network chooses.

    Attributes:
        pace: share of the planned rate at which agents send.
        grace, patience: those of `Rules` of a job's roster.
        journal: the journal of who did what; by default one in memory.
        quotas: returns what a tenant may have, by name.
        beside: where set, other traffic on the links is measured, and jobs are planned for what it leaves, but at least
            for this part of each link.
    """

    pace: float = 1.0
    grace: float = GRACE_SECONDS
    patience: float = PATIENCE_SECONDS
    journal: Journal | None = None
    quotas: Callable[[str], Quota] = unlimited
    beside: float | None = None


USUALLY = Settings()


class _NoRoomYet(Exception):
    """Jobs that would make room for a job cannot migrate now; their agents may only be starting."""


class Network:
    """The switches of a topology, and the jobs that run on them. Thread-safe. A context manager.

    Args:
        targets: the connected switches, which the caller closes.
        labels: what agents are told in the place of label numbers; None where they get the numbers.
        found: what jobs, by number, have on the switches already (`room.found`).

    `changed` is called after every change of the jobs. `read_again` reads the topology's and the switches' files again
    and reloads them (in a dry run, only says what would change); it is None where there are none.
    """

    def __init__(
        self,
        topology: Topology,
        kind: Kind,
        targets: Sequence[SwitchTarget],
        *,
        epochs: EpochStore,
        labels: SecretLabels | None = None,
        found: Mapping[int, Mapping[str, RuleSet]] | None = None,
        log: Log = SILENT,
        settings: Settings = USUALLY,
    ) -> None:
        self.topology = topology
        self.kind = kind
        self.switches = Switches(targets, base_rules(topology, kind), found, log)
        self.jobs = Jobs()
        self.tenants = Tenants(self.jobs, settings.quotas, self.switches.rules)
        self.state = NetworkState(topology, kind, self.switches, self.jobs, self.tenants)
        self.log = log
        self.changed: Callable[[], None] = lambda: None
        self.unkept: Callable[[], str] = lambda: ""
        self.read_again: Callable[[bool], Reloaded] | None = None
        self.settings = settings
        self.admissions = AdmissionControl(self.state, log=log)
        self._epochs = epochs
        self._labels = labels
        self.journal = settings.journal or Journal()
        self.answers: Counter[str] = Counter()  # what was done about failures, and how often
        self.replanning = Replanning(self.state, self.admissions, self.answers, log)
        self.failover = Failover(self.state, self.replanning, self.answers, log, self.journal)
        self.switches.wrote = self.journal.changed

    def install(self, plan: Plan, job_id: int, terms: Terms = USUAL) -> tuple[Deployment, int]:
        """Put a plan on the switches beside what other jobs have there. Return its deployment, and the number of
        changes. Raise DoesNotFit, PlanError, FabricError, or JobsError of a quota; nothing has been changed then."""
        with self.switches.placing:
            deployment = deployment_of(
                plan,
                self.topology,
                self.kind,
                job_id,
                taken=self.switches.taken(without=[job_id]),
                installed=self.switches.rules(job_id),
                pace=self.settings.pace,
            )
            self.tenants.check_rules(terms, deployment.rulesets, job_id)
            reserved = self.switches.reserve(job_id, deployment.rulesets)
        return deployment, self.switches.write(reserved)

    def run(
        self, plan: Plan, deployment: Deployment, job_id: int, whole: Job | None = None, terms: Terms = USUAL
    ) -> RunningJob:
        """Make an installed plan a job that its agents can join and whose plan can be changed. `whole` is the job,
        where the plan is for a part of it. Raise JobsError where a job of that name runs."""
        whole = whole or plan.job
        log = of_job(self.log, whole.name)
        roster = Roster(
            deployment.agents,
            self._epochs,
            Rules(
                ENCODING,
                grace=self.settings.grace,
                patience=self.settings.patience,
                known=_known(whole, self.topology),
                least_workers=len(whole.workers) if whole.at_least is None else whole.at_least,
            ),
            log,
            labels=self._labels,
            journal=CoreJournal(self.journal, whole.name),
            on_lost=lambda node, reason: self.failover.agent_lost(job, node, reason),
        )
        frame = Frame(
            whole,
            self.kind.limits,
            job_id,
            self.settings.pace,
            self.kind.check,
            left=lambda topology: self.state.left(topology, job_id),
        )
        migrator = Migrator(
            Version(plan, deployment),
            self.topology,
            frame,
            switches=self.switches,
            roster=roster,
            log=log,
            changed=lambda: self.changed(),
        )
        job = RunningJob(roster, migrator, job_id, terms)
        needed = {*plan.job.workers, *plan.job.parameter_servers}
        expected = needed.union(self.state.off)  # a node that an operator disabled was not lost
        job.do_without([node for node in (*whole.workers, *whole.parameter_servers) if node not in expected], Why.LOST)
        self.jobs.add(job)
        self.changed()
        return job

    def start(self, kept: Keeps) -> None:
        """Run the jobs of a controller that ended, as they were, so that their agents carry on. What an operator had
        disabled stays disabled. Entries of jobs that were being added are deleted. Raise FabricError where a switch
        cannot be written."""
        layout = self.state.parts.layout
        gone = [
            name for name in kept.disabled if not layout.has(name)
        ]  # not in this topology, which may differ from the last one
        self.failover.take(ordered, [name for name in kept.disabled if name not in gone], ())
        if self.state.off:
            self.log.info(f"disabled as before, until replan --with: {', '.join(self.state.off)}")
        if gone:
            self.log.warning(f"was disabled and is not in the topology any more: {', '.join(gone)}")
        for number in kept.begun:
            self.switches.keep(number, None)
        for stored in kept.jobs:
            self.switches.keep(stored.job_id, stored.deployment.rulesets)
        self.switches.rebase(self.base_rules(self.topology, self.state.off))
        changes = self.switches.fill()
        if changes:
            self.log.info(f"{changes} changes brought the switches to what they shall hold")
        for stored in kept.jobs:
            self.run(stored.plan, stored.deployment, stored.job_id, stored.job, stored.terms)
        self.replanning.fair = not all(stored.terms.usual for stored in kept.jobs)

    def keeps(self) -> Keeps:
        """Return everything that a controller which starts again must know. The jobs that are being added are read
        first: a job whose addition ends meanwhile is then in both lists, and not missing in both."""
        begun = list(self.jobs.begun)
        # Only an operator enables these again.
        off = [name for name, why in self.state.off.items() if why in (Why.OPERATOR, Why.CORRUPTS)]
        jobs = [job.stored() for job in self.jobs]
        return Keeps(jobs, off, begun, self._epochs.last, self._epochs.fingerprint())

    def launch(
        self,
        job: Job,
        strategy: str,
        seed: int = 0,
        *,
        together: bool = False,
        terms: Terms = USUAL,
        job_id: int | None = None,
    ) -> tuple[Admission, RunningJob, int]:
        """Admit a job (`AdmissionControl.admit`, or, with `together`, `shared`) and `add` it, as one order. It is
        replanned when something fails meanwhile. Raise the errors of these calls; other jobs have their plans then."""
        attempts = 0
        while True:
            try:
                with self.replanning.changing:
                    return self._launch(job, strategy, seed, together=together, terms=terms, job_id=job_id)
            except _NoRoomYet as error:
                attempts += 1
                if attempts == ATTEMPTS:
                    raise Infeasible(f"{error}; add it again") from None
            time.sleep(LATE_PAUSE_SECONDS)  # without the lock, so that other orders go on

    def _launch(
        self, job: Job, strategy: str, seed: int, *, together: bool, terms: Terms, job_id: int | None
    ) -> tuple[Admission, RunningJob, int]:
        """Launch a job, as `launch` does, with the lock of orders held. Raise _NoRoomYet if it may be possible soon."""
        attempts, late = 0, dict[str, str]()
        before = {other: other.plan for other in self.jobs}
        while True:
            off = dict(self.state.off)
            try:
                if together:
                    admission = self.admissions.shared(job, strategy, seed, terms, late)
                else:
                    admission = self.admissions.admit(job, strategy, seed, terms, job_id)
                running, changes = self.add(admission.plan, terms=terms, others=admission.plans, job_id=job_id)
                break
            except Late as error:
                self.log.info(f"job {job.name} is planned without taking from those that do not migrate: {error}")
                late |= error.why
            except Infeasible as error:
                self.replanning.restore(before)
                if not late:
                    raise
                words = "; ".join(f"job {name}: {why}" for name, why in late.items())
                raise _NoRoomYet(
                    f"{error}: nothing is left for job {job.name!r} as others cannot migrate now ({words})"
                ) from None
            except (PlanError, MigrationError):
                attempts += 1
                if off == self.state.off or attempts == ATTEMPTS:
                    self.replanning.restore(before)
                    raise
            except BaseException:
                self.replanning.restore(before)
                raise
        if together and admission.others:
            self.replanning.fair = True
        if late or self.admissions.steps:
            self.replanning.soon()
        return admission, running, changes

    def base_rules(self, topology: Topology, off: Iterable[str]) -> dict[str, RuleSet]:
        """Return the entries that belong to the network and to no job, in this topology: IPv4 routes, around what is
        disabled as far as there is another way."""
        kept = tuple(off)
        return base_rules(topology, self.kind, without(topology, kept) if kept else None)

    def add(
        self,
        plan: Plan,
        *,
        terms: Terms = USUAL,
        others: Mapping[str, Plan] | None = None,
        job_id: int | None = None,
    ) -> tuple[RunningJob, int]:
        """Install and run a plan as a new job, after running jobs have migrated to the plans in `others`, to make room.
        Return the job, and the number of changes. `job_id` is its number, by default a free one. Raise the errors of
        `admissions.admission`, `install` and `replanning.rebalance`."""
        with self.replanning.changing:
            self.jobs.check_name(plan.job.name)
            job_id = self.free_id() if job_id is None else job_id
            try:
                self.jobs.begun.append(job_id)
                _keep(self, plan.job.name)  # a controller that takes over meanwhile must know whose entries it finds
                if others:
                    self._check_quota(plan, terms, job_id)
                    self.replanning.check(others)
                    self.replanning.fair = True
                    self.replanning.rebalance(others)
                deployment, changes = self.install(plan, job_id, terms)
            except BaseException:
                self.jobs.begun.clear()
                if others:
                    self.replanning.soon()  # others have made room in vain
                raise
            job = self.run(plan, deployment, job_id, terms=terms)
            try:
                _keep(self, job.name)  # a controller that starts again would not know it
            except JobsError:
                self.remove(job.name)
                if others:
                    self.replanning.soon()
                raise
            self.log.info(
                f"job {job.name} ({job_id}) added: {short(plan.rate_mbps)} Mbit/s, {changes} changes on the switches"
            )
        self.failover.reroute_jobs()  # something may have failed while it was installed
        return job, changes

    def _check_quota(self, plan: Plan, terms: Terms, job_id: int) -> None:
        """Check that the entries of a plan are within its tenant's quota, before other jobs make room for it; raise
        JobsError otherwise. Do nothing if the plan fits only when they have."""
        with suppress(DoesNotFit):
            made = deployment_of(
                plan, self.topology, self.kind, job_id, taken=self.switches.taken(), pace=self.settings.pace
            )
            self.tenants.check_rules(terms, made.rulesets, job_id)

    def foreseen(self, admission: Admission, terms: Terms) -> tuple[EntryChange, ...]:
        """Return the entries that adding a job as admitted would write, also those for the jobs that make room for it.
        Raise DoesNotFit, PlanError, MigrationError or JobsError where the job cannot be added."""
        made: list[EntryChange] = []
        for job in self.jobs:
            if (plan := admission.plans.get(job.name)) is not None:
                made += job.migrator.migrate(self.state.of(job), plan=plan, dry_run=True).changes
        taken, pace, number = self.switches.taken(), self.settings.pace, self.free_id()
        new = deployment_of(admission.plan, self.topology, self.kind, number, taken=taken, pace=pace)
        self.tenants.check_rules(terms, new.rulesets, number)
        return (*made, *between({}, {name: part(rules) for name, rules in new.rulesets.items()}))

    def remove(self, name: str, why: str = "") -> tuple[int, list[str]]:
        """End a job and delete its entries; return how many, and which switches lose theirs later. Agents are told
        `why`. Raise JobsError where no such job runs, FabricError where a switch fails before switches are watched."""
        job = self.jobs.get(name)
        # This comes first, so that an order that waits for this job goes on.
        job.ending = True
        job.roster.close(f"job {job.name} was removed" + (f": {why}" if why else ""))
        with self.replanning.changing:
            if all(one is not job for one in self.jobs):
                raise JobsError(f"job {name!r} was removed by another order")
            job.migrator.end()
            self.jobs.discard(job)
            changes = self.switches.remove(job.job_id)
            self.log.info(f"job {job.name} ({job.job_id}) removed: {changes} entries")
            self.changed()
            return changes, self.switches.off()

    def empty(self, names: Sequence[str]) -> bool:
        """Return whether no job uses any of these switches, links and parameter servers."""
        return not any(self.uses(names))

    def uses(self, parts: Sequence[str]) -> Iterator[pb.Use]:
        """Return who uses these switches, links and parameter servers (uses.py)."""
        return uses(self.jobs, parts, self.state.parts.layout)

    def has_server(self, node: str, addresses: Sequence[str]) -> bool:
        """Return whether a server has this name or, where no name is given, one of these addresses."""
        return node in self.topology.servers if node else bool(self.server_at(addresses))

    def server_at(self, addresses: Sequence[str]) -> str:
        """Return the server that has one of these addresses; "" where none has."""
        servers = self.topology.servers
        return next((server for server in servers if self.topology.address(server) in addresses), "")

    def free_id(self) -> int:
        """Return the lowest number that no job has, running or on a switch."""
        used = {*self.switches.jobs(), *(job.job_id for job in self.jobs)}
        return next(number for number in range(1, JOB_IDS) if number not in used)

    def replan(self, name: str = "", **order: Any) -> Migrated:
        """Change a job's plan as an operator orders it; `order` has the other fields of `orders.Replan`. Raise the
        errors of `orders.replan`."""
        return replan(self, Replan(name, **order))

    def close(self) -> None:
        """End the jobs' rosters and stop watching the switches, whose rules stay. Wait for a plan being made."""
        self.replanning.end()
        for job in self.jobs:
            job.roster.close()
        self.switches.close()
        self.replanning.wait()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _known(job: Job, topology: Topology) -> dict[str, Known]:
    """Return the agents of a job by their nodes. A node of both roles has one agent, that of a worker."""
    roles = {**dict.fromkeys(job.parameter_servers, "parameter_server"), **dict.fromkeys(job.workers, "worker")}
    return {node: Known(role, topology.address(node), node in job.both_roles) for node, role in roles.items()}


def _keep(network: Network, name: str) -> None:
    """Have the jobs stored as they are while one is added; raise JobsError where that is impossible."""
    network.changed()
    if words := network.unkept():
        raise JobsError(f"job {name} was not added: {words}")
