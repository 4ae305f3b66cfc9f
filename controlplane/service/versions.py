"""A plan as it is installed, and the same one rerouted around what is gone. It only makes entries and writes none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from controlplane.common.agentconfig import AgentConfig, ReroutedTree
from controlplane.planner.entries import RuleSet
from controlplane.planner.evaluate import evaluate
from controlplane.planner.job import JobError
from controlplane.planner.plan import Plan, PlanError, Tree
from controlplane.planner.plan.limits import switch_limits
from controlplane.planner.plan.reroute import Rerouted, intact, reroute, unbroken
from controlplane.planner.plan.slots import aligned
from controlplane.planner.rules import Beside, Deployment, Places, Taken, build
from controlplane.planner.topology import Topology
from controlplane.planner.topology_cables import link_of
from controlplane.service.next_plan import Frame
from controlplane.service.room import union

LEAST_PART = 0.25
"""Lowest fraction of its planned rate to which a rerouted plan is throttled, whatever its new routes carry."""

Slots = dict[str, set[tuple[int, int]]]
"""By switch, ranges of slots."""


@dataclass(frozen=True)
class Version:
    """A plan as it is installed. `planned_mbps` is the plan's rate before it was rerouted; 0 where it was not."""

    plan: Plan
    deployment: Deployment
    planned_mbps: float = 0.0


def rulesets(versions: Iterable[Version]) -> dict[str, RuleSet]:
    """Return the entries of all these versions on the switches."""
    found: dict[str, RuleSet] = {}
    for version in versions:
        for switch, rules in version.deployment.rulesets.items():
            found[switch] = union(found[switch], [rules]) if switch in found else rules
    return found


@dataclass(frozen=True)
class Around:
    """Result of rerouting versions around something.

    Attributes:
        moved: for each tree that is added elsewhere now, (tree, switch that added, switch that took over).
        told: by node, what its agent has to know of it.
    """

    versions: tuple[Version | None, ...]
    trees: int
    moved: tuple[tuple[int, str, str], ...]
    told: Mapping[str, list[ReroutedTree]]


NOT_AROUND = Around((), 0, (), {})


def drains_in_vain(draining: Version | None, present: Topology | None) -> str:
    """Return why operations under the old plan of a migration cannot end, where they can be started again; "" where
    they can end, or there is no old plan. `present` is the last known state of the network."""
    if draining is None or present is None or not all(c.repeats for c in draining.deployment.agents.values()):
        return ""
    broken = [f"tree {index}" for index, tree in enumerate(draining.plan.trees) if not intact(tree, present)]
    return f"{', '.join(broken)} of the plan before cannot be rerouted around what is gone" if broken else ""


def reroute_versions(
    frame: Frame, versions: Iterable[Version | None], topology: Topology, taken: Mapping[str, Taken], spent: Slots
) -> Around:
    """Reroute installed versions around what `topology`, the network's present state, lacks.

    `taken` is what is taken on every switch, also by these versions. `spent` are slots that are free and must not be
    used yet; those that these versions give up are added. Raise CannotReroute or DoesNotFit where a version cannot be
    rerouted.
    """
    gaps: dict[str, list[tuple[int, int]]] = {}
    declared = switch_limits(topology).slots
    for switch, by in taken.items():
        used = Taken(slots=tuple(sorted((*by.slots, *spent.get(switch, ())))))
        gaps[switch] = used.gaps(frame.limits.slots, declared.get(switch))
    after: list[Version | None] = []
    told: dict[str, list[ReroutedTree]] = {}
    trees, moved = 0, list[tuple[int, str, str]]()
    for version in versions:
        if version is None or unbroken(version.plan, topology):
            after.append(version)
            continue
        new, found = reroute_version(frame, version, topology, taken=taken, gaps=gaps, spent=spent)
        taken = _with_groups(taken, new.deployment)
        after.append(new)
        trees += len(found.trees)
        moved += found.moved
        for node, config in new.deployment.agents.items():
            told.setdefault(node, []).extend(as_told(config, new.plan, found, topology, frame.pace))
    return Around(tuple(after), trees, tuple(moved), told)


def reroute_version(
    frame: Frame,
    version: Version,
    topology: Topology,
    *,
    taken: Mapping[str, Taken],
    gaps: dict[str, list[tuple[int, int]]],
    spent: Slots,
) -> tuple[Version, Rerouted]:
    """Return a version rerouted around what `topology`, the network's present state, lacks, and what was done.

    `taken` is what is taken on every switch, also by this version. The slots that the new version takes are removed
    from `gaps`, the free ones; those that it gives up are added to `spent`. Raise CannotReroute or DoesNotFit where the
    version cannot be rerouted.
    """
    old = version.deployment
    sizes, slots = old.sizes, dict(old.slots)

    def take(switch: str, tree: int) -> bool:
        place = aligned(gaps.get(switch, []), sizes[tree])
        if place is not None:
            slots[switch, tree] = place
        return place is not None

    found = reroute(version.plan, topology, take)
    for index, point, _ in found.moved:
        first = slots.pop((point, index))
        spent.setdefault(point, set()).add((first, first + sizes[index]))
    groups = {v: {group.ports: group.group for group in rules.groups} for v, rules in old.rulesets.items()}
    made = build(
        found.plan,
        topology,
        frame.limits,
        job_id=frame.job_id,
        epoch=0,
        beside=Beside(
            first_label=old.first_label, taken=_beside_its_own(old, taken), places=Places(sizes, slots, groups)
        ),
        gathers=any(tree.others_labels for agent in old.agents.values() for tree in agent.root_trees),
    )
    planned = version.planned_mbps or version.plan.rate_mbps
    slowed = _slowed(frame, replace(found.plan, rate_mbps=planned), topology)
    return Version(slowed, replace(made, agents=old.agents), planned), found


def _beside_its_own(old: Deployment, taken: Mapping[str, Taken]) -> dict[str, Taken]:
    """Return what is taken on every switch, without the labels of a deployment that is to be replaced."""
    own = {switch: len(rules.labels) for switch, rules in old.rulesets.items()}
    return {switch: replace(by, labels=max(0, by.labels - own.get(switch, 0))) for switch, by in taken.items()}


def _with_groups(taken: Mapping[str, Taken], deployment: Deployment) -> dict[str, Taken]:
    """Return what is taken on every switch, including a deployment's groups, so that the next version gets others."""
    own = {switch: {group.group for group in rules.groups} for switch, rules in deployment.rulesets.items()}
    return {switch: replace(by, groups=by.groups | own.get(switch, set())) for switch, by in taken.items()}


def _slowed(frame: Frame, plan: Plan, topology: Topology) -> Plan:
    """Return the plan at the rate that its trees can have over their new ways, since sending more only loses
    packets."""
    try:
        carried = evaluate(plan, frame.left(topology)).rate_mbps
    except (PlanError, JobError):
        return plan
    return replace(plan, rate_mbps=min(plan.rate_mbps, max(carried, LEAST_PART * plan.rate_mbps)))


def as_told(config: AgentConfig, plan: Plan, found: Rerouted, topology: Topology, pace: float) -> list[ReroutedTree]:
    """Return what an agent has to know of a rerouted plan: all rates, where packets under way may be lost, and over
    which of its node's links each tree goes now."""
    labels = {tree.tree: tree.up_label for tree in config.worker_trees}
    labels |= {tree.tree: tree.return_label for tree in config.root_trees}
    rates = {tree: plan.tree_rate_mbps(tree) * pace for tree in labels}

    def link(tree: int) -> int:
        return 1 + link_of(topology, config.node, _next(plan.trees[tree], config.node)) if config.links else 0

    return [
        ReroutedTree(label, rates[tree], tree in found.up, tree in found.down, link(tree))
        for tree, label in labels.items()
    ]


def _next(tree: Tree, node: str) -> str:
    """Return the next node on a tree from this node: from the tree's root, the first one to which it sends results, and
    from a worker, the one to which it sends gradients."""
    if tree.root == node:
        return tree.first_step
    return next((a.route[1] for a in tree.assignments if a.worker == node and len(a.route) > 1), "")
