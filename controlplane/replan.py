"""The second phase: the next plan for a changed network with every parameter server's share kept, and what changes.

A tree whose structure stays (root, points, routes, return tree) keeps its labels: only its share and rate change, which
the agents are told. The others' labels are added beside the old ones, and the old ones removed once drained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.plan.model import Plan, Tree
from controlplane.rules import LabelEntry, RuleSet
from controlplane.strategies import get_strategy
from controlplane.topology import Topology


@dataclass(frozen=True)
class Difference:
    """Tree indices: kept as (old, new), removed in the old plan, added in the new one."""

    kept: tuple[tuple[int, int], ...]
    removed: tuple[int, ...]
    added: tuple[int, ...]

    def to_json(self, old: Plan, new: Plan) -> dict[str, Any]:
        """With the flows (one label each) that the removed and added trees have."""
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
    """The flows of a tree, one label each: up, partial, return, answer."""
    result: list[dict[str, Any]] = [
        {"tree": index, "flow": "up", "from": a.worker, "to": a.point} for a in tree.assignments
    ]
    result += [{"tree": index, "flow": "partial", "from": r.node, "to": r.next} for r in tree.relays]
    result.append({"tree": index, "flow": "return", "from": tree.root, "to": "all workers"})
    result += [{"tree": index, "flow": "answer", "from": tree.root, "to": a.worker} for a in tree.assignments]
    return result


def replan(plan: Plan, topology: Topology, *, strategy: str | None = None, seed: int | None = None) -> Plan:
    """The next version of the plan for the network's present state; x_s stays, so no key range moves.

    strategy, seed: the plan's own unless given. Raises what the strategy raises.
    """
    chosen = get_strategy(strategy or plan.strategy)
    number = seed if seed is not None else plan.seed or 0
    return chosen(topology, plan.job, seed=number, frozen_split=plan.split).with_version(plan.version + 1)


def difference(old: Plan, new: Plan) -> Difference:
    """Which trees stay, go and come."""
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


def entries_difference(
    old: Mapping[str, RuleSet], new: Mapping[str, RuleSet]
) -> dict[str, tuple[tuple[LabelEntry, ...], tuple[LabelEntry, ...]]]:
    """Per switch, label entries to add and to remove between two deployments; only switches that change."""
    result = {}
    for switch in sorted({*old, *new}):
        before = set(old[switch].labels) if switch in old else set()
        after = set(new[switch].labels) if switch in new else set()
        order = {entry: i for i, entry in enumerate((*_labels(new, switch), *_labels(old, switch)))}
        add = tuple(sorted(after - before, key=order.__getitem__))
        remove = tuple(sorted(before - after, key=order.__getitem__))
        if add or remove:
            result[switch] = (add, remove)
    return result


def _labels(rulesets: Mapping[str, RuleSet], switch: str) -> tuple[LabelEntry, ...]:
    return rulesets[switch].labels if switch in rulesets else ()
