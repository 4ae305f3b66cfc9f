"""The second phase: the next plan for a changed network, with every parameter server's share kept, and the difference
between two plans.

The difference is between plans: a tree whose structure stays (root, points, routes, return tree) needs no new labels,
only another share and rate. A running job migrates from one version to the next, each of which has labels of its own
(controlplane/service/migration.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from controlplane.planner.gathers import with_speed
from controlplane.planner.job import Job
from controlplane.planner.plan.limits import DoesNotFit
from controlplane.planner.plan.model import Plan, PlanError, Tree
from controlplane.planner.routing import Network
from controlplane.planner.strategies import Infeasible, get_strategy
from controlplane.planner.strategies.common import finish
from controlplane.planner.strategies.fabric.master import Master, to_trees
from controlplane.planner.topology import Topology

STEADY = 1e-3  # fraction of the rate that may be lost to keep running trees


@dataclass(frozen=True)
class Difference:
    """The difference between two plans as indices of trees.

    Attributes:
        kept: Trees that stay, as (index in the old plan, index in the new one).
        removed: Trees of the old plan that the new one lacks.
        added: Trees of the new plan that the old one lacks.
    """

    kept: tuple[tuple[int, int], ...]
    removed: tuple[int, ...]
    added: tuple[int, ...]

    def to_json(self, old: Plan, new: Plan) -> dict[str, Any]:
        """Return the difference as a JSON object, with the flows (one label each) of the removed and the added
        trees.
        """
        return {
            "kept_trees": [list(pair) for pair in self.kept],
            "removed_trees": list(self.removed),
            "added_trees": list(self.added),
            "labels_to_remove": [flow for i in self.removed for flow in flows(old.trees[i], i)],
            "labels_to_add": [flow for i in self.added for flow in flows(new.trees[i], i)],
        }


def _structure(tree: Tree) -> tuple[object, ...]:
    return tree.root, frozenset(tree.assignments), frozenset(tree.relays), frozenset(tree.return_edges)


def flows(tree: Tree, index: int) -> list[dict[str, Any]]:
    """Return the flows of a tree, each of which has one label: up, partial, return, answer."""
    result: list[dict[str, Any]] = [
        {"tree": index, "flow": "up", "from": a.worker, "to": a.point} for a in tree.assignments
    ]
    result += [{"tree": index, "flow": "partial", "from": r.node, "to": r.next} for r in tree.relays]
    result.append({"tree": index, "flow": "return", "from": tree.root, "to": "all workers"})
    result += [{"tree": index, "flow": "answer", "from": tree.root, "to": a.worker} for a in tree.assignments]
    return result


def replan(
    plan: Plan, topology: Topology, *, job: Job | None = None, strategy: str | None = None, seed: int | None = None
) -> Plan:
    """Return the next version of the plan for the network's present state. Each parameter server's share x_s stays, so
    no key range moves.

    `job` is the plan's own job with another size or number of trees; `strategy` and `seed` are the plan's own unless
    given. Trees of the plan that still work are kept where that costs at most STEADY of the rate. Raise what the
    strategy raises, and PlanError where the job has other servers.
    """
    job = job or plan.job
    if (job.workers, job.parameter_servers) != (plan.job.workers, plan.job.parameter_servers):
        raise PlanError(f"the plan to go on from is for other servers than job {job.name!r}: plan anew instead")
    name = strategy or plan.strategy
    number = seed if seed is not None else plan.seed or 0
    new = get_strategy(name)(topology, job, seed=number, frozen_split=plan.split)
    if name == plan.strategy and not new.multicasts:
        new = _steady(plan, new, topology)
    return with_speed(new, topology).with_version(plan.version + 1)


def _steady(old: Plan, new: Plan, topology: Topology) -> Plan:
    """Return the new plan with as many of the old plan's trees as cost at most STEADY of its rate."""
    candidates = [new]
    served = [tree for tree in old.trees if _still_there(tree, new, topology)]
    if len(served) == len(old.trees):
        candidates.append(replace(new, trees=old.trees))
    if new.strategy == "inart":  # trees of other strategies' plans cannot be mixed
        network = Network(topology)
        master = Master(network, new.job, max(new.rate_mbps, 1e-9), new.split)
        master.add_trees(served)
        master.add_trees(new.trees, penalty=STEADY / 2)
        rate, values, _ = master.solve()
        if rate > 0:
            candidates.append(replace(new, trees=tuple(to_trees(master, values))))
    feasible = []
    for plan in candidates:
        try:
            feasible.append(with_speed(finish(topology, new.job, new.strategy, plan.trees, new.seed), topology))
        except (Infeasible, DoesNotFit):
            continue
    enough = max(plan.rate_mbps for plan in feasible) * (1 - STEADY)
    return min(
        (plan for plan in feasible if plan.rate_mbps >= enough),
        key=lambda plan: (*_slow_gathers(plan), len(difference(old, plan).added), len(plan.trees), -plan.rate_mbps),
    )


def _slow_gathers(plan: Plan) -> tuple[bool, float]:
    """Return a sort key by which plans with faster gathers come first; it is the same for all plans of a job that does
    not gather.
    """
    return not plan.gathers_beside, -round(plan.gather_speed, 3)


def _still_there(tree: Tree, plan: Plan, topology: Topology) -> bool:
    """Return whether all switches and links of the tree exist and have bandwidth left."""
    try:
        replace(plan, trees=(replace(tree, share=1.0),)).check(topology)
    except PlanError:
        return False
    routes = [*(flow.route for flow in tree.flows), *tree.return_edges]
    return all(topology.residual_bandwidth_mbps(u, v) > 0 for route in routes for u, v in pairwise(route))


def difference(old: Plan, new: Plan) -> Difference:
    """Return the difference between two plans: the trees that are kept, removed and added."""
    left: dict[tuple[object, ...], list[int]] = {}
    for i, tree in enumerate(old.trees):
        left.setdefault(_structure(tree), []).append(i)
    kept, added = [], []
    for i, tree in enumerate(new.trees):
        same = left.get(_structure(tree))
        if same:
            kept.append((same.pop(0), i))
        else:
            added.append(i)
    gone = sorted(i for indices in left.values() for i in indices)
    return Difference(tuple(kept), tuple(gone), tuple(added))
