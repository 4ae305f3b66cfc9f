"""Room on the switches: what the jobs of a network have there, and where the next version of a plan fits.

The upper half of a label's number is the number of its job (less one, so that job 1's labels begin at 1). So any
controller that has the secret from which the labels were made (secret_labels.py) can read from the switch itself which
job an entry belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from controlplane.planner.bridging import is_flood
from controlplane.planner.entries import LabelEntry, MulticastGroup, Replicate, RuleSet
from controlplane.planner.job import Job
from controlplane.planner.plan import Plan
from controlplane.planner.plan.host_collectives import gloo_ring_hops, gloo_ring_mbps
from controlplane.planner.plan.limits import DoesNotFit, Limits, Resource
from controlplane.planner.rules import Beside, Deployment, Taken, build, routes
from controlplane.planner.topology import Topology
from controlplane.targets.base import SwitchTarget, difference, empty
from controlplane.targets.kind import Kind

JOB_IDS = 1 << 16
JOB_LABELS = 1 << 16
"""Number of labels of one job, for all versions of its plan together."""


def first_label(job_id: int) -> int:
    """Return the first of a job's labels (0 is no label)."""
    return max(1, (job_id - 1) % JOB_IDS * JOB_LABELS)


def last_label(job_id: int) -> int:
    """Return the last of a job's labels."""
    return (job_id - 1) % JOB_IDS * JOB_LABELS + JOB_LABELS - 1


def job_of(label: int) -> int:
    """Return the number of the job that a label belongs to."""
    return (label // JOB_LABELS + 1) % JOB_IDS


def split(rules: RuleSet) -> dict[int, RuleSet]:
    """Return the labels and groups of each job on a switch. A group belongs to the job of the labels that use it, or
    else to job 1."""
    labels: dict[int, list[LabelEntry]] = {}
    owner: dict[int, int] = {}
    for entry in rules.labels:
        labels.setdefault(job_of(entry.label), []).append(entry)
        if isinstance(entry.action, Replicate):
            owner[entry.action.group] = job_of(entry.label)
    groups: dict[int, list[MulticastGroup]] = {}
    for group in part(rules).groups:
        groups.setdefault(owner.get(group.group, 1), []).append(group)
    return {
        job: RuleSet(rules.switch, tuple(labels.get(job, ())), tuple(groups.get(job, ())), ())
        for job in sorted({*labels, *groups})
    }


def part(rules: RuleSet) -> RuleSet:
    """Return a job's part of a rule set: without the network's own entries (IPv4 routes, ports, bridging)."""
    groups = tuple(group for group in rules.groups if not is_flood(group))
    return replace(rules, groups=groups, routes=(), ports=(), bridge=())


def union(base: RuleSet, parts: Iterable[RuleSet]) -> RuleSet:
    """Return the network's own entries together with those of all jobs, whose numbers are disjoint."""
    labels, groups = list(base.labels), list(base.groups)
    for rules in parts:
        labels += rules.labels
        groups += rules.groups
    return replace(base, labels=tuple(labels), groups=tuple(groups))


def _knowing_hosts(deployment: Deployment, job: Job, topology: Topology) -> Deployment:
    """Return a deployment in which agents also know the rate that a ring among the job's workers would reach, how many
    links its messages cross, and whether a switch on their own host adds."""
    mbps, hops = gloo_ring_mbps(topology, job.workers), gloo_ring_hops(topology, job.workers)
    agents = {
        node: replace(config, ring_mbps=mbps, ring_hops=hops, adds=node in topology.switch_on)
        for node, config in deployment.agents.items()
    }
    return replace(deployment, agents=agents)


def place(
    plan: Plan,
    topology: Topology,
    limits: Limits,
    *,
    job_id: int,
    taken: Mapping[str, Taken] | None = None,
    installed: Mapping[str, RuleSet] | None = None,
    fresh: bool = False,
) -> Deployment:
    """Return rules and configurations of `plan` with labels, groups and slots that are free.

    Args:
        taken: what the plan must not use.
        installed: what the job has on the switches already. The new labels differ from these, unless all entries are
            equal, so that an agent that runs with a label never meets another meaning of it.
        fresh: labels differ also where all entries are equal.

    Raise DoesNotFit where there is no room.
    """
    low, high = first_label(job_id), last_label(job_id)
    own = _labels(installed or {})

    def attempt(label: int) -> Deployment:
        made = build(plan, topology, limits, job_id=job_id, epoch=0, beside=Beside(first_label=label, taken=taken))
        return _knowing_hosts(made, plan.job, topology)

    if installed and own and not fresh:
        first = attempt(low)
        offset = min(_labels(first.rulesets)) - low  # the first label need not have an entry
        same = first if min(own) == low + offset else attempt(min(own) - offset)
        if all(_same(part(rules), installed.get(switch)) for switch, rules in same.rulesets.items()):
            return same
    begin = max((label for label in own if low <= label <= high), default=low - 1) + 1
    made = attempt(begin)
    if made.next_label > high + 1 and begin > low:
        made = attempt(low)
    if made.next_label > high + 1 or own & _labels(made.rulesets):
        raise DoesNotFit(topology.switches[0], Resource.NUMBERS, len(own | _labels(made.rulesets)), JOB_LABELS)
    return made


def build_beside(
    plan: Plan,
    topology: Topology,
    limits: Limits,
    old: Deployment,
    *,
    job_id: int,
    taken: Mapping[str, Taken] | None = None,
) -> Deployment:
    """Place a plan, as `place` does, while `old` is installed. `taken` covers everything on the switches; without it,
    `old` is there alone."""
    if taken is None:
        taken = {v: Taken.by(rules) for v, rules in old.rulesets.items()}
    return place(plan, topology, limits, job_id=job_id, taken=taken, installed=old.rulesets, fresh=True)


def deployment_of(
    plan: Plan,
    topology: Topology,
    kind: Kind,
    job_id: int,
    *,
    taken: Mapping[str, Taken] | None = None,
    installed: Mapping[str, RuleSet] | None = None,
    pace: float = 1.0,
) -> Deployment:
    """Return the deployment of a plan beside what is taken on the switches. Raise DoesNotFit or PlanError where there
    is no room, or the switches cannot carry it."""
    paced = replace(plan, rate_mbps=plan.rate_mbps * pace)
    deployment = place(paced, topology, kind.limits, job_id=job_id, taken=taken, installed=installed)
    kind.check(plan, topology)
    return deployment


def base_rules(topology: Topology, kind: Kind, around: Topology | None = None) -> dict[str, RuleSet]:
    """Return the entries that belong to the network and not to a job: IPv4 routes, bridging if wanted, and ports of
    hardware switches. Routes lead over `around`, the topology without what is disabled, where they can."""
    found = {}
    better = {} if around is None else {v: {route.key: route for route in r} for v, r in routes(around).items()}
    for switch, usual in routes(topology).items():
        entries = tuple(better.get(switch, {}).get(route.key, route) for route in usual)
        panel = (
            (*topology.front_panel(switch).values(), *topology.loopback_ports(switch))
            if kind.limits.front_panel
            else ()
        )
        found[switch] = RuleSet(switch, (), (), entries, tuple(sorted(panel)))
    return kind.bridged(found, topology)


def found(targets: Sequence[SwitchTarget]) -> dict[int, dict[str, RuleSet]]:
    """Return the entries that each job, by number, has on switches that run our program. Raise TargetError where one
    cannot be read."""
    jobs: dict[int, dict[str, RuleSet]] = {}
    for target in targets:
        if target.runs_program():
            for job, rules in split(target.read()).items():
                jobs.setdefault(job, {})[target.name] = rules
    return jobs


def _labels(rulesets: Mapping[str, RuleSet]) -> set[int]:
    return {entry.label for rules in rulesets.values() for entry in rules.labels}


def _same(one: RuleSet, other: RuleSet | None) -> bool:
    return not difference(other or empty(one.switch), one)
