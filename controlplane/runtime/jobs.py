"""A network that runs: its switches, and the jobs on them. What `deploy`, `serve` and the emulation have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.evaluate import unit_loads
from controlplane.plan import Plan
from controlplane.rules import NOTHING, Deployment, RuleSet, Taken, routes
from controlplane.runtime.epochs import EpochStore
from controlplane.runtime.room import place, split
from controlplane.runtime.roster import Roster
from controlplane.runtime.switches import Switches
from controlplane.runtime.update import Updater
from controlplane.targets.base import SwitchTarget
from controlplane.targets.kinds import Kind
from controlplane.topology import Topology
from p4src.protocol import VERSION


class JobsError(Exception):
    """There is no such job, or there is one already; the message names those that there are."""


@dataclass(frozen=True)
class PlanSummary:
    """What `status` says about the plan. rate: the planned sending rate of each worker, Mbit/s."""

    job: str
    strategy: str
    rate_mbps: float
    version: int = 1


class RunningJob:
    """One job: its plan and its agents. updater: changes the plan while it runs; None: it cannot be changed."""

    def __init__(self, plan: PlanSummary, roster: Roster, updater: Updater | None = None, job_id: int = 1) -> None:
        self._plan = plan
        self.roster = roster
        self.updater = updater
        self.job_id = job_id

    @property
    def name(self) -> str:
        return self._plan.job

    @property
    def plan(self) -> PlanSummary:
        """The plan that runs now."""
        if self.updater is None:
            return self._plan
        plan = self.updater.plan
        return PlanSummary(plan.job.name, plan.strategy, plan.rate_mbps, plan.version)


class Network:
    """The switches of a topology, and the jobs that run on them. Thread-safe. A context manager.

    Args:
        targets: connected; they stay the caller's.
        found: what other jobs have on them (`found`); None: nothing.
        pace: share of the planned rate at which agents send.
        log: gets one line per event.
    """

    def __init__(
        self,
        topology: Topology,
        kind: Kind,
        targets: Sequence[SwitchTarget],
        *,
        epochs: EpochStore | None = None,
        found: Mapping[int, Mapping[str, RuleSet]] | None = None,
        pace: float = 1.0,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.topology = topology
        self.kind = kind
        self.switches = Switches(targets, base_rules(topology, kind), found, log)
        self._epochs = epochs or EpochStore()
        self._pace = pace
        self._log = log
        self._jobs: dict[str, RunningJob] = {}
        self._lock = threading.RLock()

    def jobs(self) -> list[RunningJob]:
        with self._lock:
            return list(self._jobs.values())

    def install(self, plan: Plan, job_id: int) -> tuple[Deployment, int]:
        """Put a plan on the switches beside what other jobs have there; how many changes that took.

        Raises DoesNotFit, PlanError, FabricError; nothing is changed then.
        """
        taken = self.switches.taken(without=job_id)
        deployment = deployment_of(plan, self.topology, self.kind, job_id, taken=taken, pace=self._pace)
        return deployment, self.switches.install(job_id, deployment.rulesets)

    def run(self, plan: Plan, deployment: Deployment, job_id: int) -> RunningJob:
        """What agents of an installed plan join; it can be changed from now on. Raises JobsError."""
        with self._lock:
            if plan.job.name in self._jobs:
                raise JobsError(f"a job named {plan.job.name!r} runs already; give this one another name")
            roster = Roster(deployment.agents, self._epochs, VERSION, self._log)
            updater = Updater(
                plan,
                self.topology,
                deployment,
                limits=self.kind.limits,
                switches=self.switches,
                roster=roster,
                log=self._log,
                job_id=job_id,
                pace=self._pace,
                check=self.kind.check,
                left=lambda topology: self.left(topology, job_id),
            )
            summary = PlanSummary(plan.job.name, plan.strategy, plan.rate_mbps, plan.version)
            job = self._jobs[plan.job.name] = RunningJob(summary, roster, updater, job_id)
            return job

    def left(self, topology: Topology, job_id: int) -> Topology:
        """What the other jobs leave of a state of the network, of rates and of what switches hold."""
        others = [job.updater.plan for job in self.jobs() if job.updater is not None and job.job_id != job_id]
        return with_taken(with_loads(topology, others), self.switches.taken(without=job_id), self.kind)

    def close(self) -> None:
        """End the jobs' rosters and stop watching the switches. The rules stay."""
        for job in self.jobs():
            job.roster.close()
        self.switches.close()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def deployment_of(
    plan: Plan,
    topology: Topology,
    kind: Kind,
    job_id: int,
    *,
    taken: Mapping[str, Taken] | None = None,
    pace: float = 1.0,
) -> Deployment:
    """What a plan puts on the switches beside what is taken there. Raises DoesNotFit, PlanError."""
    paced = replace(plan, rate_mbps=plan.rate_mbps * pace)
    deployment = place(paced, topology, kind.limits, job_id=job_id, taken=taken)
    kind.check(plan, topology)
    return deployment


def base_rules(topology: Topology, kind: Kind) -> dict[str, RuleSet]:
    """What belongs to the network and not to a job: IPv4 routes, and ports of hardware switches."""
    found = {}
    for switch, entries in routes(topology).items():
        panel = (
            (*topology.front_panel(switch).values(), *topology.loopback_ports(switch))
            if kind.limits.front_panel
            else ()
        )
        found[switch] = RuleSet(switch, (), (), entries, tuple(sorted(panel)))
    return found


def found(targets: Sequence[SwitchTarget]) -> dict[int, dict[str, RuleSet]]:
    """What each job, by number, has on switches that run our program. Raises TargetError."""
    jobs: dict[int, dict[str, RuleSet]] = {}
    for target in targets:
        if target.runs_program():
            for job, rules in split(target.read()).items():
                jobs.setdefault(job, {})[target.name] = rules
    return jobs


def with_loads(topology: Topology, plans: Sequence[Plan]) -> Topology:
    """The topology with what these plans use at their rates as background load. What is not there cannot be used."""
    nodes: dict[str, dict[str, float]] = {}
    links: dict[tuple[str, str], float] = {}
    for plan in plans:
        on_links, on_switches, on_roots = unit_loads(plan, topology.results_on_links)
        for (u, v), load in on_links.items():
            if topology.has_link(u, v):
                links[u, v] = links.get((u, v), topology.used_bandwidth_mbps(u, v)) + load * plan.rate_mbps
        for name, found in (("used_aggregation_mbps", on_switches), ("used_ingress_mbps", on_roots)):
            for node, load in found.items():
                if node in topology:
                    own = nodes.setdefault(node, {name: topology.graph.nodes[node].get(name, 0.0)})
                    own[name] += load * plan.rate_mbps
    return topology.replace(nodes=nodes, links={link: {"used_bandwidth_mbps": load} for link, load in links.items()})


def with_taken(topology: Topology, taken: Mapping[str, Taken], kind: Kind) -> Topology:
    """The topology whose switches hold only what is not taken, where anything is."""
    limits = kind.limits
    nodes: dict[str, dict[str, int]] = {}
    for switch, by in taken.items():
        if by != NOTHING and switch in topology:
            free = {
                "slots": sum(end - first for first, end in by.gaps(limits.slots)),
                "label_entries": limits.label_table_size - by.labels,
                "multicast_groups": limits.multicast_groups - len(by.groups),
            }
            own = topology.graph.nodes[switch]
            nodes[switch] = {name: max(0, min(count, own.get(name, count))) for name, count in free.items()}
    return topology.replace(nodes=nodes)
