"""Folding: trees with more flows at a point than its switch can tell apart become trees of more levels.

Flows that reach a point over the same switch are added there first and go on as one. Routes stay the same, so links
carry less, and only aggregation capacity is used in more places; the evaluator, or the master program, says what that
costs.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from controlplane.planner.plan.assignments import Assignment, Assignments
from controlplane.planner.plan.limits import fan_in
from controlplane.planner.plan.model import Relay, Tree


def folded(tree: Tree, most: Mapping[str, int], able: Container[str]) -> Tree:
    """Return the tree with at most `most` flows (by switch; a missing switch has no limit) at each point, as far as its
    routes allow. The largest groups are folded first, and no more of them than it takes. `able` has the switches that
    can add.
    """
    tried: set[str] = set()
    while True:
        flows = fan_in(tree)
        full = [point for point in flows if flows[point] > most.get(point, flows[point]) and point not in tried]
        if not full:
            return tree
        point = full[0]
        tried.add(point)
        tree = _folded_at(tree, point, most, able)


def _folded_at(tree: Tree, point: str, most: Mapping[str, int], able: Container[str]) -> Tree:
    """Return the tree with groups of the flows into `point` added one switch before it."""
    before: dict[str, list[str]] = {}
    for flow in tree.flows:
        if flow.end == point and len(flow.route) > 2:
            before.setdefault(flow.route[-2], []).append(flow.source)
    there = set(tree.points)
    left = fan_in(tree)[point]
    chosen: dict[str, set[str]] = {}
    for switch in sorted(before, key=lambda v: (-len(before[v]), v)):
        if left <= most[point] or len(before[switch]) < 2:
            break
        if switch in able and switch not in there:
            chosen[switch] = set(before[switch])
            left -= len(before[switch]) - 1
    if not chosen:
        return tree

    def end(source: str, at: str, route: tuple[str, ...]) -> str:
        return route[-2] if at == point and len(route) > 2 and source in chosen.get(route[-2], ()) else at

    assignments, relays = [], []
    for a in tree.assignments:
        to = end(a.worker, a.point, a.route)
        assignments.append(a if to == a.point else Assignment(a.worker, to, a.route[:-1]))
    for r in tree.relays:
        to = end(r.node, r.next, r.route)
        relays.append(r if to == r.next else Relay(r.node, to, r.route[:-1]))
    relays += [Relay(switch, point, (switch, point)) for switch in chosen]
    return replace(tree, assignments=Assignments.of(assignments), relays=tuple(relays))
