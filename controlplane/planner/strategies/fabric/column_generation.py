"""Column generation over aggregation trees, for where links bind.

The master program chooses rates y_t of trees t (columns) under every capacity of switches, roots and directed links:

    maximise f = sum_t y_t   subject to   sum_t use(t, r) y_t <= capacity(r) for every resource r

(with the split frozen: sum of y_t over the trees of root s = x_s f for each s). A tree is a whole plan for a part of
the model, with single routes, aggregation points (also of partial sums) and a return tree, so a solution of the master
program is a plan as it stands: nothing is rounded. New trees come from pricing.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time

import numpy as np

from controlplane.planner.job import Job
from controlplane.planner.plan.model import Plan
from controlplane.planner.routing import Network
from controlplane.planner.strategies.common import Split
from controlplane.planner.strategies.deadline import OutOfTime, deadline
from controlplane.planner.strategies.fabric.exact_pricing import CheapestTrees
from controlplane.planner.strategies.fabric.master import Master, Prices
from controlplane.planner.strategies.fabric.pricing import Pricing
from controlplane.planner.strategies.solver import NotInTime, SolverError

TOLERANCE = 1e-6
EXACT_PRICING = 1000  # racks x switches up to which trees are also priced exactly
SMOOTHING = 0.3
SLOW = 3e-3  # gain of a round below which trees are searched for exactly where they can be
EXACT_S = 20.0  # of processor time, after which no trees are searched for exactly any more
NEAR_CENTER = 0.5  # part of the prices that proved the most so far in those that trees are then searched for under
TREES_PER_ROUND = 6  # of each root
MOST_ROOTS = (
    12  # that have trees in a round, where prices are smoothed: the cheapest ones, which change with the prices
)
TREES_OF_ALL = 72  # of all roots in a round, as far as there is one of each: prices are then looked at again
ROUNDS = 60
LEAST, STALLS = 3, 2  # a round ends where its last trees did not help; after so many of each root at least
NEARLY = 0.1  # how much too dear a further tree of a round may be


@dataclass(frozen=True)
class End:
    """Conditions on which column generation ends. gap: the rate is within this part of the bound, as estimated. enough:
    Mbit/s, a rate that is as good as can be (a bound)."""

    gap: float = 1e-3
    enough: float = math.inf


THOROUGH = End()


def generate(
    network: Network,
    job: Job,
    start: list[Plan],
    scale: float,
    *,
    frozen_split: Split | None = None,
    single_level: bool = False,
    end: End = THOROUGH,
    later: Callable[[], list[Plan]] = list,
) -> tuple[Master, np.ndarray] | None:
    """Column generation from the trees of `start`, for at most ROUNDS rounds or until its end. later: makes
    plans whose trees come in where the first round is not enough.

    single_level: partial sums go to the root only (to see what hierarchy is worth). It ends with what it has when the
    deadline passes, in OutOfTime before there is anything. Returns the master program and its columns' rates; None
    where some server hangs on no switch that all reach.
    """
    pricing = Pricing(network, job, single_level)
    if not pricing.applies:
        return None
    master = Master(network, job, scale, frozen_split)
    add_trees(master, start)
    limit = deadline()
    small = len(pricing.racks) * len(pricing.switches) <= EXACT_PRICING
    search = _Search(master, pricing, CheapestTrees(pricing) if small else None, end)
    try:
        solved = master.solve(limit)
    except NotInTime:
        raise OutOfTime from None
    for number in range(ROUNDS):
        limit.report(f"column generation, round {number + 1}", solved[0] * scale, end.enough)
        if search.enough(solved[0]) or limit.passed():
            break
        try:
            if number == 1 and add_trees(master, later()):
                solved = master.solve(limit)
            if not search.round(*solved):
                break
            solved = master.solve(limit)
        except NotInTime:
            limit.passed()
            break
    return master, solved[1]


class _Search:
    """Rounds of column generation: trees that a local search finds, under smoothed prices; where exact searches are
    possible, these instead once it does not find much any more, under prices near those that proved the least bound."""

    def __init__(self, master: Master, pricing: Pricing, exact: CheapestTrees | None, end: End) -> None:
        self.master, self.pricing, self.exact, self.end = master, pricing, exact, end
        self.smooth: Prices | None = None
        self.center: Prices | None = None
        self.rate = self.exact_s = 0.0
        self.exactly = False

    def enough(self, rate: float) -> bool:
        """Return whether this rate, in units of the master program's scale, is as good as what is looked for."""
        return rate * self.master.scale >= min(
            self.end.enough * (1 - TOLERANCE), self.master.proven * (1 - self.end.gap)
        )

    def round(self, rate: float, values: np.ndarray, prices: Prices) -> bool:
        """Add trees; whether to go on."""
        if self.exact_s > EXACT_S:
            self.exact = None
        slow = rate < self.rate * (1 + SLOW)
        self.rate = rate
        self.exactly = self.exact is not None and self.exact.quick and (self.exactly or slow)
        use = self.master.link_use(values)
        if not self.exactly:
            self.smooth = prices if self.smooth is None else self.smooth.mixed(prices, SMOOTHING)
            going, found = self._search(use, prices)
            if found or self.exact is None:
                return going
        return self._search_exactly(use, prices)

    def _search(self, use: np.ndarray, prices: Prices) -> tuple[bool, bool]:
        """Return whether to go on, and whether there were trees that gain."""
        enough = self.end.enough * (1 - TOLERANCE)
        assert self.smooth is not None
        for used in (self.smooth, prices):
            self.pricing.update(used, use)
            added, least = price_roots(self.master, self.pricing, prices, used, enough=enough)
            if added or deadline().passed():
                break
        return added and not (used is prices and least >= 1 - self.end.gap and self.exact is None), added

    def _search_exactly(self, use: np.ndarray, prices: Prices) -> bool:
        """Return whether there were trees that gain."""
        assert self.exact is not None
        added, start = False, process_time()
        for used in (prices,) if self.center is None else (self.center.mixed(prices, NEAR_CENTER), prices):
            before = self.master.proven
            self.pricing.update(used, use)
            added = price_exactly(self.master, self.pricing, prices, self.exact)
            if self.master.proven < before:
                self.center = used
            if added or deadline().passed():
                break
        self.exact_s += process_time() - start
        return added


def add_trees(master: Master, plans: list[Plan]) -> bool:
    """Columns for the plans' trees; whether there were new ones."""
    before = len(master.columns)
    for plan in plans:
        for tree in plan.trees:
            column = master.make(tree)
            if column is not None:
                master.add(column)
    return len(master.columns) > before


def _roots(master: Master, pricing: Pricing, *, everyone: bool) -> list[int]:
    """The parameter servers (positions) for which trees are looked for; unless everyone, of many that may have any
    share those to which all ways together are cheapest."""
    if (split := master.frozen_split) is not None:
        return [i for i, name in enumerate(master.job.parameter_servers) if split.get(name, 0.0) > 0]
    roots = range(len(master.job.parameter_servers))
    if everyone or len(roots) <= MOST_ROOTS:
        return list(roots)
    ways = [float(pricing.to_root(root)[0].sum()) for root in roots]
    return [int(i) for i in np.argsort(ways, kind="stable")[:MOST_ROOTS]]


def price_exactly(master: Master, pricing: Pricing, prices: Prices, exact: CheapestTrees) -> bool:
    """Add each root's cheapest tree under the prices that `pricing` has, and note in `master` the bound of the rate
    that this proves. Return whether a tree gains under `prices`."""
    added, least = False, {}
    for root in _roots(master, pricing, everyone=True):
        if deadline().passed():
            return added
        try:
            found = exact.of(root)
        except SolverError:  # time is over
            return added
        least[root] = found.least
        links = (found.results or pricing.results(root)).links
        column = pricing.column(master, pricing.sketch(root, found.design, links))
        if column is not None and master.price(column, prices) < prices.split[root] * (1 - TOLERANCE):
            master.add(column)
            added = True
    if pricing.complete:
        present = np.concatenate([pricing.price, pricing.switch_price, pricing.root_price])
        master.proven = min(master.proven, master.bound(present, least))
    return added


def price_roots(
    master: Master, pricing: Pricing, prices: Prices, used: Prices, *, enough: float = math.inf
) -> tuple[bool, float]:
    """Adds each root's cheap trees under the prices `used`; whether one gains under `prices`, and the least price.
    enough: Mbit/s, a rate at which no more are needed.

    After every tree, what it uses becomes dearer by what its part of the rate would take up, so that the trees of one
    round lie beside each other instead of on top of each other.
    """
    added, least = False, 1.0
    roots = _roots(master, pricing, everyone=used is prices)
    repeats = max(1, min(TREES_PER_ROUND, TREES_OF_ALL // len(roots)))
    part = 1.0 / (TREES_PER_ROUND * len(roots))
    load = np.zeros(len(master.capacity))
    reached, stalls, limit = 0.0, 0, deadline()
    for repeat in range(repeats):
        for root in roots:
            if limit.passed():
                return added, least
            if repeat:
                pricing.update(master.dearer(used, load), load[: master.switch_row0])
            results = pricing.results(root)
            designs = [pricing.design(root), *(pricing.stars(root, 4) if not repeat else [])]
            worth = used.split[root]
            if worth > 0 and not repeat:
                least = min(least, (min(design.cost for design in designs) + results.price) / worth)
            for design in designs:
                column = pricing.column(master, pricing.sketch(root, design, results.links))
                if column is None:
                    continue
                cost = master.price(column, prices) / prices.split[root] if prices.split[root] > 0 else np.inf
                if cost < (1 - TOLERANCE if not repeat else 1 + NEARLY):
                    master.add(column)
                    added |= cost < 1 - TOLERANCE
                    load[column.rows] += part * column.uses / master.capacity[column.rows]
        if added and enough < math.inf:
            try:
                before, reached = reached, master.solve(limit)[0] * master.scale
            except NotInTime:
                break
            stalls = 0 if reached > before * (1 + TOLERANCE) else stalls + 1
            if reached >= enough or (stalls >= STALLS and repeat + 1 >= LEAST):
                break
    return added, least
