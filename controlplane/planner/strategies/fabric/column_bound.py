"""Upper bound of f over all trees, single- and multi-level, with the links: it shows how good column generation's
result is.

For any prices y >= 0 with sum_r capacity(r) y(r) = z, and any lower bound p_s of the price of root s's cheapest tree, f
<= z / min_s p_s (Lagrange; with the split frozen z / sum_s x_s p_s). p_s comes from two programs, relaxed or (on small
networks) as integers:

- The way up is facility location with points that feed points. On small networks one unit flows from each rack to the
  root over edges between points, so that no points feed each other in a ring; otherwise the program is relaxed, and
  allows such rings at no cost.
- The results' way is a Steiner arborescence, in which one unit flows to every access switch over the links that are
  taken.
"""

from __future__ import annotations

import numpy as np

from controlplane.planner.strategies.deadline import deadline
from controlplane.planner.strategies.fabric.master import Master, Prices
from controlplane.planner.strategies.fabric.pricing import Pricing
from controlplane.planner.strategies.solver import Program, SolverError

MOST_FLOWS = 12_000
"""Racks times points times points up to which flows are part of the program, which then takes up to 0.2 s a root."""
MOST_CHOICES = 6000
"""Links times access switches up to which the results' way is an integer program, which then takes up to 0.2 s a
root.
"""
GAP = 1e-6
DIGITS = 12
"""Decimal digits of a cost to which the costs of two racks have to agree for the racks to count as one."""
TOO_DEAR = 1e3
"""Price of resources that cannot be used, in units of a tree's price, which is about 1."""

Arc = tuple[int, int, int]
"""A directed link between switches: (its first node, its second node, its number)."""


def column_bound(master: Master, prices: Prices, *, whole: bool = False) -> float:
    """Return an upper bound of f in Mbit/s from the master program's prices; with `whole`, p_s comes from integer
    programs where these are small. Raise ValueError where servers are linked, SolverError where the deadline ends it.
    """
    network, job = master.network, master.job
    pricing = Pricing(network, job)
    if not pricing.complete:
        raise ValueError("column bound: every server must hang on switches only")
    pricing.update(prices, np.zeros(len(network.ends)), tie=0.0)
    least = {}
    for root in range(len(job.parameter_servers)):
        # No tree costs less than any worker's way to the root, wherever flows are added.
        farthest = pricing.from_rack[:, len(pricing.switches) + root].max() + pricing.root_price[root]
        least[root] = max(way_up(pricing, root, whole=whole), float(farthest))
        if network.topology.results_on_links:
            least[root] += way_back(pricing, root, whole=whole)
    return master.bound(prices.everything, least)


def _least(program: Program, *, whole: bool) -> float:
    """Return a price that no solution undercuts. Raise SolverError where the deadline ends the solve too early: an
    integer program before it has integers, a relaxed one before its optimum.
    """
    solution = program.solve(within=deadline())
    if not solution.optimal and not whole:
        raise SolverError(f"{program.what}: not solved to its optimum")
    return solution.bound


def way_up(pricing: Pricing, root: int, *, whole: bool) -> float:
    """Return a price that no way up to the root undercuts."""
    direct, final = pricing.to_root(root)
    points = np.flatnonzero(np.isfinite(final))
    costs = np.column_stack([direct, pricing.to_points(root)[:, points]])
    least = costs.min(axis=1, keepdims=True)
    # Racks whose ways exceed their cheapest way by the same costs are one, such as those behind one switch.
    alike, members = np.unique(np.round(costs - least, DIGITS), axis=0, return_counts=True)
    racks, count = len(alike), len(points)
    flows = racks * count * count <= MOST_FLOWS
    whole = whole and flows
    onwards = np.column_stack([final[points], pricing.point_cost[np.ix_(points, points)]])
    # Columns: each point's being open; by rack and then by point, the root and each point as the next point.
    cost = np.concatenate([np.zeros(count), (alike * members[:, None]).ravel(), onwards.ravel()])
    cost[~np.isfinite(cost)] = TOO_DEAR
    program = Program("column bound: a tree's way up", gap=GAP if whole else None)
    program.add_columns(cost, 0.0, 1.0, whole=np.full(len(cost), whole) if whole else None)
    for number in range(racks + count):
        options = range(count + number * (count + 1), count + (number + 1) * (count + 1))
        if number < racks:
            program.add_row(options, [1.0] * len(options), 1.0, 1.0)
        else:  # a point that is not open goes nowhere
            program.add_row([*options, number - racks], [*[1.0] * len(options), -1.0], 0.0, 0.0)
        for point, option in enumerate(options[1:]):
            program.add_row([option, point], [1.0, -1.0], upper=0.0)
    for rack in range(racks if flows else 0):
        _add_flow(program, count, count + rack * (count + 1), count + racks * (count + 1))
    return float(least.sum()) + _least(program, whole=whole)


def _add_flow(program: Program, count: int, rack0: int, points0: int) -> None:
    """Add a unit of flow from a rack to the root, which goes between two of `count` points only where the one feeds the
    other. `rack0` is the first column of the rack's options, `points0` that of the points'.
    """
    flow0, stride = program.columns, count + 1
    program.add_columns(np.zeros(count * stride), 0.0, 1.0)
    for i in range(count * stride):
        program.add_row([flow0 + i, points0 + i], [1.0, -1.0], upper=0.0)
    for p in range(count):
        comes = [rack0 + 1 + p, *(flow0 + q * stride + 1 + p for q in range(count))]
        goes = range(flow0 + p * stride, flow0 + (p + 1) * stride)
        same = flow0 + p * stride + 1 + p  # a point feeds others
        program.add_row([c for c in (*comes, *goes) if c != same], [1.0] * count + [-1.0] * count, 0.0, 0.0)


def way_back(pricing: Pricing, root: int, *, whole: bool) -> float:
    """Return a price that no way of the results from the root undercuts."""
    price, ways_out = pricing.price, pricing.network.out[pricing.roots[root]]
    start = pricing.position[ways_out[0][0]]
    goals = sorted({rack.access for rack in pricing.racks if rack.access is not None} - {start})
    several = len({v for v, _ in ways_out}) > 1
    if several:  # the links between switches are then left out
        goals = []
    inner = [(u, w, e) for u, w, e in pricing.inner if w < len(pricing.switches)]
    forced, goals = _forced(inner, start, goals)
    base = float(pricing.down_price.sum()) + float(price[forced].sum()) + float(min(price[e] for _, e in ways_out))
    base += sum(min(price[e] for _, e in rack.down) for rack in pricing.racks if rack.access is None)
    if not goals:
        return base
    arcs = _without_ends(inner, {start, *goals})
    many, choices = len(arcs), len(arcs) * len(goals)
    whole = whole and choices <= MOST_CHOICES
    program = Program("column bound: the results' way", gap=GAP if whole else None)
    cost = np.concatenate([price[[e for _, _, e in arcs]], np.zeros(choices)])
    program.add_columns(cost, 0.0, 1.0, whole=np.arange(len(cost)) < many if whole else None)
    for k, goal in enumerate(goals, start=1):
        balance: dict[int, tuple[list[int], list[float]]] = {}
        for i, (u, w, _) in enumerate(arcs):
            program.add_row([many * k + i, i], [1.0, -1.0], upper=0.0)
            for node, sign in ((w, 1.0), (u, -1.0)):
                columns, values = balance.setdefault(node, ([], []))
                columns.append(many * k + i)
                values.append(sign)
        for node, entries in balance.items():
            amount = 1.0 if node == goal else -1.0 if node == start else 0.0
            program.add_row(*entries, amount, amount)
    return base + _least(program, whole=whole)


def _forced(arcs: list[Arc], start: int, goals: list[int]) -> tuple[list[int], list[int]]:
    """Return the links to goals that have no alternative, and the nodes that then are goals instead."""
    into: dict[int, list[Arc]] = {}
    for arc in arcs:
        into.setdefault(arc[1], []).append(arc)
    links: list[int] = []
    left: set[int] = set()
    seen = {start}
    for goal in goals:
        node = goal
        while node not in seen and len(ways := into.get(node, [])) == 1:
            seen.add(node)
            node, _, link = ways[0]
            links.append(link)
        if node not in seen:
            left.add(node)
    return links, sorted(left)


def _without_ends(arcs: list[Arc], kept: set[int]) -> list[Arc]:
    """Return the arcs without those to nodes that need not be kept and that lead back only to the node from which they
    are reached.
    """
    while True:
        near: dict[int, set[int]] = {}
        for u, w, _ in arcs:
            near.setdefault(u, set()).add(w)
            near.setdefault(w, set()).add(u)
        ends = {node for node, others in near.items() if len(others) == 1 and node not in kept}
        left = [arc for arc in arcs if not {arc[0], arc[1]} & ends]
        if len(left) == len(arcs):
            return arcs
        arcs = left
