"""Cheapest aggregation trees under given prices, proven so, by small integer programs; relaxed, what no tree can cost
less than (column_bound.py).

The way up is facility location with points that feed points. On small networks one unit flows from each rack to the
root over what points feed, so that no points feed each other in a ring; else, relaxed, they may, at no cost, and
integer programs have one level of points. The results' way is a Steiner arborescence, in which one unit flows to every
access switch over the links that are taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.planner.strategies.deadline import deadline
from controlplane.planner.strategies.fabric.pricing import Design, Pricing, Results
from controlplane.planner.strategies.solver import Program, SolverError

MOST_FLOWS = 6000
"""Racks times points times points up to which flows are part of the program: it then takes some tenths of a second."""
MOST_CHOICES = 1000
"""Links times access switches up to which the results' way is an integer program."""
GAP = 1e-6
TOO_DEAR = 1e3
"""Price of what cannot be used, in units of a tree's price, which is about 1."""


@dataclass(frozen=True)
class Found:
    """least: no tree costs less; chosen: the columns' values (of the best tree, where they are integers)."""

    least: float
    chosen: np.ndarray


def solved(program: Program, *, whole: bool) -> Found:
    """Raises SolverError where the deadline ends it before it says anything: of integers before there are any, else
    before the optimum."""
    solution = program.solve(within=deadline())
    if not solution.optimal and not whole:
        raise SolverError(f"{program.what}: not solved to its optimum")
    return Found(solution.bound, solution.values)


class WayUp:
    """The cheapest way up to a root. whole: as integers. flows: whether no points can feed each other in a ring;
    levels: whether points may feed points at all."""

    def __init__(self, pricing: Pricing, root: int, *, whole: bool) -> None:
        self.pricing, self.whole = pricing, whole
        direct, final = pricing.to_root(root)
        self.points = [int(f) for f in np.flatnonzero(np.isfinite(final))]
        count, racks = len(self.points), len(pricing.racks)
        self.flows = racks * count * count <= MOST_FLOWS
        self.levels = self.flows or not whole
        costs = np.column_stack([direct, pricing.to_points(root)[:, self.points]])
        least = costs.min(axis=1, keepdims=True)
        self.base = float(least.sum())
        between = pricing.point_cost[np.ix_(self.points, self.points)]
        onwards = np.column_stack([final[self.points], between if self.levels else np.zeros((count, 0))])
        self.strides = count + 1, onwards.shape[1]  # options of a rack, and of a point
        self.first = count, count + racks * (count + 1)  # columns before: of the open points, of these and the racks
        cost = np.concatenate([np.zeros(count), (costs - least).ravel(), onwards.ravel()])
        cost[~np.isfinite(cost)] = TOO_DEAR
        self.program = Program("column generation: a tree's way up", gap=GAP if whole else None)
        self.program.add_columns(cost, 0.0, 1.0, whole=np.full(len(cost), whole) if whole else None)
        for start, stride, many in zip(self.first, self.strides, (racks, count), strict=True):
            for i in range(many):
                self._one_of(range(start + i * stride, start + (i + 1) * stride), i if start == self.first[1] else None)
        if self.flows:
            self._add_flows()

    def _one_of(self, members: range, opened: int | None) -> None:
        """One of the options, if the point is open, and only one that leads to open points."""
        ones = [1.0] * len(members)
        if opened is None:
            self.program.add_row(members, ones, 1.0, 1.0)
        else:
            self.program.add_row([*members, opened], [*ones, -1.0], 0.0, 0.0)
        for f, member in enumerate(members[1:]):
            self.program.add_row([member, f], [1.0, -1.0], upper=0.0)

    def _add_flows(self) -> None:
        """A unit from each rack to the root, at most as much between points as the one feeds the other."""
        (racks0, points0), (_, stride), count = self.first, self.strides, len(self.points)
        feeds = count * stride  # columns of a rack: by point, to the root and to each point
        for rack in range(len(self.pricing.racks)):
            flow0 = points0 + feeds * (rack + 1)
            self.program.add_columns(np.zeros(feeds), 0.0, 1.0)
            for i in range(feeds):
                self.program.add_row([flow0 + i, points0 + i], [1.0, -1.0], upper=0.0)
            for p in range(count):
                comes = [racks0 + rack * self.strides[0] + 1 + p, *(flow0 + q * stride + 1 + p for q in range(count))]
                goes = range(flow0 + p * stride, flow0 + (p + 1) * stride)
                same = flow0 + p * stride + 1 + p  # a point feeds others
                columns = [c for c in (*comes, *goes) if c != same]
                values = [1.0] * count + [-1.0] * count
                self.program.add_row(columns, values, 0.0, 0.0)

    def least(self) -> float:
        """Return a cost that no way up of one level is below, or of any number of levels (`levels`)."""
        return self.base + solved(self.program, whole=self.whole).least

    def design(self) -> Design:
        """The cheapest way up, of integers."""
        found = solved(self.program, whole=True)
        count = len(self.points)
        of_racks, of_points = (
            found.chosen[start : start + many * stride].reshape(many, stride)
            for start, stride, many in zip(self.first, self.strides, (len(self.pricing.racks), count), strict=True)
        )
        ends = [-1, *self.points]
        racks = np.array([ends[i] for i in of_racks.argmax(axis=1)])
        after = {p: ends[int(options.argmax())] for p, options in zip(self.points, of_points, strict=True)}
        onwards: dict[int, int] = {}
        for point in dict.fromkeys(racks.tolist()):
            while point >= 0 and point not in onwards:
                onwards[point] = point = after[point]
        return Design(self.base + found.least, racks, onwards)


def results(pricing: Pricing, root: int, *, whole: bool) -> Results | None:
    """Return the cheapest way of the results with its price, or relaxed a price that no way costs less than (and no
    links). None for an integer program that would not be small, or where a worker hangs on several switches."""
    network, price = pricing.network, pricing.price
    base = float(pricing.down_price.sum())
    base += sum(min(price[e] for _, e in rack.down) for rack in pricing.racks if rack.access is None)
    ways_out = network.out[pricing.roots[root]]
    base += float(min(price[e] for _, e in ways_out))
    simple = len(ways_out) == 1 and all(rack.access is not None for rack in pricing.racks)
    if len({v for v, _ in ways_out}) > 1:
        return None if whole else Results(base, [])
    start = pricing.position[ways_out[0][0]]
    goals = sorted({rack.access for rack in pricing.racks if rack.access is not None} - {start})
    inner = [(u, w, e) for u, w, e in pricing.inner if w < len(pricing.switches)]
    if whole and (not simple or len(inner) * max(1, len(goals)) > MOST_CHOICES):
        return None
    first = [ways_out[0][1]]
    if not goals:
        return Results(base, first)
    arcs = len(inner)
    program = Program("column generation: the results' way", gap=GAP if whole else None)
    cost = np.concatenate([price[[e for _, _, e in inner]], np.zeros(arcs * len(goals))])
    program.add_columns(cost, 0.0, 1.0, whole=np.arange(len(cost)) < arcs if whole else None)
    for k, goal in enumerate(goals, start=1):
        balance: dict[int, tuple[list[int], list[float]]] = {}
        for i, (u, w, _) in enumerate(inner):
            program.add_row([arcs * k + i, i], [1.0, -1.0], upper=0.0)
            for node, sign in ((w, 1.0), (u, -1.0)):
                columns, values = balance.setdefault(node, ([], []))
                columns.append(arcs * k + i)
                values.append(sign)
        for node, entries in balance.items():
            amount = 1.0 if node == goal else -1.0 if node == start else 0.0
            program.add_row(*entries, amount, amount)
    found = solved(program, whole=whole)
    if not whole:
        return Results(base + found.least, [])
    taken = [inner[i] for i in np.flatnonzero(found.chosen[:arcs] > 0.5)]
    return Results(base + found.least, first + _tree(taken, start, goals))


def _tree(arcs: list[tuple[int, int, int]], start: int, goals: list[int]) -> list[int]:
    """The links of these (from, to, link) that lead from the start to the goals: one way to each, and no other."""
    into: dict[int, tuple[int, int]] = {}
    queue = [start]
    for node in queue:
        for u, w, e in arcs:
            if u == node and w != start and w not in into:
                into[w] = u, e
                queue.append(w)
    links: dict[int, int] = {}
    for goal in goals:
        node = goal
        while node != start and node not in links:
            before, links[node] = into[node]
            node = before
    return list(links.values())
