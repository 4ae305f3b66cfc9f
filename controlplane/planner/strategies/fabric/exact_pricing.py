"""Provably cheapest aggregation trees under given prices, by small integer programs; relaxed, the programs give a price
that no tree undercuts (column_bound.py).

The way up is facility location with points that feed points. On small networks one unit flows from each rack to the
root over edges between points, so that no points feed each other in a ring; otherwise, relaxed programs allow such
rings at no cost, and integer programs have one level of points. The results' way is a Steiner arborescence, in which
one unit flows to every access switch over the links that are taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.planner.strategies.deadline import deadline
from controlplane.planner.strategies.fabric.pricing import Design, Pricing, Results
from controlplane.planner.strategies.solver import Program, SolverError

MOST_FLOWS, FEW_FLOWS = 12_000, 6000
"""Racks times points times points up to which flows are part of the program, which then takes up to 0.2 s a root; and
up to which it takes some hundredths of a second.
"""
MOST_CHOICES = 6000
"""Links times access switches up to which the results' way is an integer program, which then takes up to 0.2 s a
root.
"""
GAP = 1e-6
DIGITS = 12
"""Decimal digits of a cost to which the costs of two racks have to agree for the racks to count as one."""
WHOLE = 1e-6
"""Distance from 0 or 1 up to which a relaxed program's values are integers."""
TOO_DEAR = 1e3
"""Price of resources that cannot be used, in units of a tree's price, which is about 1."""


@dataclass(frozen=True)
class Found:
    """A program's result: `least`, a price that no tree undercuts, and `chosen`, the columns' values (those of the best
    tree, where they are integers).
    """

    least: float
    chosen: np.ndarray


def solved(program: Program, *, whole: bool) -> Found:
    """Return the program's result. Raise SolverError where the deadline ends it too early: an integer program before it
    has integers, or if its first node alone may take more work than is left, a relaxed one before its optimum.
    """
    limit = deadline()
    if whole and limit.work_left is not None and limit.work_left < program.nonzeros * program.rows:
        raise SolverError(f"{program.what}: {program.rows} rows are too many for the work that is left")
    solution = program.solve(within=limit)
    if not solution.optimal and not whole:
        raise SolverError(f"{program.what}: not solved to its optimum")
    return Found(solution.bound, solution.values)


@dataclass(frozen=True)
class Cheapest:
    """The cheapest tree of a root: its way up, and its results' way (None where that was not searched exactly). No tree
    of the root costs less than `least`, as far as that is proven (else 0).
    """

    design: Design
    results: Results | None
    least: float


class CheapestTrees:
    """Searches for the cheapest trees on a small network. As prices change, its programs are solved again from their
    last solution.
    """

    def __init__(self, pricing: Pricing) -> None:
        self.pricing = pricing
        self.quick = _alike(pricing) * int(pricing.usable.sum()) ** 2 <= FEW_FLOWS
        """Whether the cheapest trees, of any number of levels, take little time: at first as the network tells, then as
        the last search showed.
        """
        self._ways_up: dict[int, WayUp] = {}
        self._ways_back: dict[int, WaysBack] = {}

    def of(self, root: int) -> Cheapest:
        """Return the cheapest tree of a root. Raise SolverError where the deadline ends the search."""
        pricing = self.pricing
        before = self._ways_up.get(root)
        way_up = self._ways_up[root] = WayUp(pricing, root, whole=False) if before is None else before.again()
        design, self.quick = way_up.design(), way_up.quick
        if not pricing.network.topology.results_on_links:
            return Cheapest(design, None, design.cost if way_up.flows else 0.0)
        if root not in self._ways_back:
            self._ways_back[root] = WaysBack(pricing, root, whole=False)
        back = self._ways_back[root].found()
        assert back is not None
        exact = back if back.links else results(pricing, root, whole=True)
        price = back.price if exact is None else exact.price
        return Cheapest(design, exact, design.cost + price if way_up.flows else 0.0)


def _alike(pricing: Pricing) -> int:
    """Return the number of racks, where racks whose access switches do not add and have the same only switch behind
    them count as one.
    """
    behind: dict[int, set[int]] = {}
    for u, v, _ in pricing.inner:
        if v < len(pricing.switches):
            behind.setdefault(u, set()).add(v)
    accesses = [rack.access for rack in pricing.racks]
    ends = {
        a if pricing.usable[a] or len(near := behind.get(a, {a})) > 1 else min(near) for a in accesses if a is not None
    }
    return len(ends) + accesses.count(None)


class WayUp:
    """The cheapest way up to a root, of integers where `whole`. `flows` says whether no points can feed each other in a
    ring, `levels` whether points may feed points at all.
    """

    def __init__(self, pricing: Pricing, root: int, *, whole: bool) -> None:
        self.pricing, self.root, self.whole = pricing, root, whole
        cost = self._costs()
        self.program = Program("column generation: a tree's way up", gap=GAP if whole else None)
        self.program.add_columns(cost, 0.0, 1.0, whole=np.full(len(cost), whole) if whole else None)
        for start, stride, many in zip(self.first, self.strides, self.many, strict=True):
            for i in range(many):
                self._one_of(range(start + i * stride, start + (i + 1) * stride), i if start == self.first[1] else None)
        if self.flows:
            self._add_flows()

    def _costs(self) -> np.ndarray:
        """Return the costs of the program's columns, without those of flows, under present prices.

        Set the places of columns, of racks and of points each: how many there are (`many`), how many options each of
        them has (`strides`), and the number of columns before theirs (`first`).
        """
        pricing = self.pricing
        direct, final = pricing.to_root(self.root)
        self.points = np.flatnonzero(np.isfinite(final))
        costs = np.column_stack([direct, pricing.to_points(self.root)[:, self.points]])
        least = costs.min(axis=1, keepdims=True)
        self.base = float(least.sum())
        # Racks whose ways exceed their cheapest way by the same costs are one, such as those behind one switch.
        dearer = np.round(costs - least, DIGITS)
        alike, group, members = np.unique(dearer, axis=0, return_inverse=True, return_counts=True)
        self.group = group.reshape(-1)
        self.many = racks, count = len(alike), len(self.points)
        self.flows = racks * count * count <= MOST_FLOWS
        self.quick = racks * count * count <= FEW_FLOWS
        self.levels = self.flows or not self.whole
        between = pricing.point_cost[np.ix_(self.points, self.points)]
        onwards = np.column_stack([final[self.points], between if self.levels else np.zeros((count, 0))])
        self.strides = count + 1, onwards.shape[1]
        self.first = count, count + racks * (count + 1)
        cost = np.concatenate([np.zeros(count), (alike * members[:, None]).ravel(), onwards.ravel()])
        cost[~np.isfinite(cost)] = TOO_DEAR
        return cost

    def again(self) -> WayUp:
        """Return this search under present prices: the same program with other costs, where its columns are still the
        same, else a new one.
        """
        points, many = self.points, self.many
        cost = self._costs()
        if many != self.many or not np.array_equal(points, self.points):
            return WayUp(self.pricing, self.root, whole=self.whole)
        self.program.set_costs(np.concatenate([cost, np.zeros(self.program.columns - len(cost))]))
        return self

    def _one_of(self, members: range, opened: int | None) -> None:
        """Add rows by which exactly one of the options is chosen (if the point `opened` is open; None: in any case),
        and only one that leads to an open point.
        """
        ones = [1.0] * len(members)
        if opened is None:
            self.program.add_row(members, ones, 1.0, 1.0)
        else:
            self.program.add_row([*members, opened], [*ones, -1.0], 0.0, 0.0)
        for f, member in enumerate(members[1:]):
            self.program.add_row([member, f], [1.0, -1.0], upper=0.0)

    def _add_flows(self) -> None:
        """Add a unit of flow from each rack to the root, which goes between two points only where the one feeds the
        other.
        """
        (racks0, points0), (_, stride), count = self.first, self.strides, self.many[1]
        feeds = count * stride  # columns of a rack: by point, to the root and to each point
        for rack in range(self.many[0]):
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
        """Return a cost that no way up undercuts, of one level, or with `levels` of any number of levels."""
        return self.base + solved(self.program, whole=self.whole).least

    def design(self) -> Design:
        """Return the cheapest way up, of integers. The relaxed program takes a third of the time, and mostly has
        integers already; where it does not, the integer program is solved.
        """
        if not self.whole:
            found = solved(self.program, whole=False)
            if not self.flows or not _integers(found.chosen[: self.first[1] + self.many[1] * self.strides[1]]):
                return WayUp(self.pricing, self.root, whole=True).design()
        else:
            found = solved(self.program, whole=True)
        of_racks, of_points = (
            found.chosen[start : start + many * stride].reshape(many, stride)
            for start, stride, many in zip(self.first, self.strides, self.many, strict=True)
        )
        ends = [-1, *self.points.tolist()]
        racks = np.array([ends[i] for i in of_racks.argmax(axis=1)])[self.group]
        after = {p: ends[int(options.argmax())] for p, options in zip(ends[1:], of_points, strict=True)}
        onwards: dict[int, int] = {}
        for point in dict.fromkeys(racks.tolist()):
            while point >= 0 and point not in onwards:
                onwards[point] = point = after[point]
        return Design(self.base + found.least, racks, onwards)


def _integers(values: np.ndarray) -> bool:
    return bool((np.minimum(values, 1 - values) < WHOLE).all())


Arc = tuple[int, int, int]
"""A directed link between switches: (its first node, its second node, its number)."""


class WayBack:
    """The cheapest way of the results from a root over one of its links, of integers where `whole`. A worker with
    several links is a node of its own, behind the positions of `Pricing`.
    """

    def __init__(self, pricing: Pricing, start: tuple[int, int], *, whole: bool) -> None:
        self.pricing, self.whole = pricing, whole
        node, self.first = start
        self.start = pricing.position[node]
        inner = [(u, w, e) for u, w, e in pricing.inner if w < len(pricing.switches)]
        goals = {rack.access for rack in pricing.racks if rack.access is not None} - {self.start}
        self.beside: list[tuple[tuple[int, int], ...]] = []  # links to workers that hang on a server, too
        for number, rack in enumerate(pricing.racks, start=len(pricing.position)):
            ends = [pricing.position[v] for v, _ in rack.down]
            if rack.access is None and max(ends) < len(pricing.switches):
                goals.add(number)
                inner += [(end, number, e) for end, (_, e) in zip(ends, rack.down, strict=True)]
            elif rack.access is None:
                self.beside.append(rack.down)
        self.forced, self.goals = _forced(inner, self.start, sorted(goals))
        self.arcs = _without_ends(inner, {self.start, *self.goals})
        self.choices = len(self.arcs) * len(self.goals)
        self._program: Program | None = None

    def found(self) -> Results | None:
        """Return the cheapest way under present prices with its price. A relaxed program gives a price that no way
        undercuts, with the links where its values are integers all the same. Return None for an integer program that
        would not be small, or where a worker hangs on a server, too.
        """
        price, arcs = self.pricing.price, self.arcs
        if self.whole and (self.beside or self.choices > MOST_CHOICES):
            return None
        base = float(self.pricing.down_price.sum()) + float(price[[self.first, *self.forced]].sum())
        more = price.copy()
        more[self.forced] = 0.0  # every way has these links, which may lead to further goals
        base += sum(min(price[e] for _, e in links) for links in self.beside)
        first = [self.first, *self.forced]
        if not self.goals:
            return Results(base, [] if self.beside else first)
        if self._program is None:
            self._program = self._made()
        self._program.set_costs(np.concatenate([more[[e for _, _, e in arcs]], np.zeros(self.choices)]))
        found = solved(self._program, whole=self.whole)
        taken = found.chosen[: len(arcs)]
        if not self.whole and (self.beside or not _integers(taken)):
            return Results(base + found.least, [])
        free = set(self.forced)
        there = [arc for i, arc in enumerate(arcs) if taken[i] > 0.5 or arc[2] in free]
        links = _tree(there, self.start, self.goals)
        return Results(base + found.least, list(dict.fromkeys(first + links)))

    def _made(self) -> Program:
        """Return the program without costs: a unit flows to each goal over arcs that are taken."""
        program, many = Program("column generation: the results' way", gap=GAP if self.whole else None), len(self.arcs)
        zero = np.zeros(many + self.choices)
        program.add_columns(zero, 0.0, 1.0, whole=np.arange(len(zero)) < many if self.whole else None)
        for k, goal in enumerate(self.goals, start=1):
            balance: dict[int, tuple[list[int], list[float]]] = {}
            for i, (u, w, _) in enumerate(self.arcs):
                program.add_row([many * k + i, i], [1.0, -1.0], upper=0.0)
                for node, sign in ((w, 1.0), (u, -1.0)):
                    columns, values = balance.setdefault(node, ([], []))
                    columns.append(many * k + i)
                    values.append(sign)
            for node, entries in balance.items():
                amount = 1.0 if node == goal else -1.0 if node == self.start else 0.0
                program.add_row(*entries, amount, amount)
        return program


class WaysBack:
    """The cheapest way of the results from a root over any one of its links, as `WayBack` finds it over each."""

    def __init__(self, pricing: Pricing, root: int, *, whole: bool) -> None:
        self._ways = [WayBack(pricing, start, whole=whole) for start in pricing.starts[root]]

    def found(self) -> Results | None:
        """Return the cheapest of what is found over each link; None where nothing is over one of them."""
        found = [way.found() for way in self._ways]
        known = [each for each in found if each is not None]
        return min(known, key=lambda each: each.price) if len(known) == len(found) else None


def results(pricing: Pricing, root: int, *, whole: bool) -> Results | None:
    """Return what `WaysBack.found` returns."""
    return WaysBack(pricing, root, whole=whole).found()


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


def _tree(arcs: list[Arc], start: int, goals: list[int]) -> list[int]:
    """Return the links of these (from, to, link) that lead from the start to the goals, with one way to each."""
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
