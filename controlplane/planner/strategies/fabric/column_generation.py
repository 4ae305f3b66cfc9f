"""Column generation over aggregation trees, for networks in which links are the bottleneck.

The master program chooses rates y_t of trees t (columns) under every capacity of switches, roots and directed links:

    maximise f = sum_t y_t   subject to   sum_t use(t, r) y_t <= capacity(r) for every resource r

(with the split frozen: sum of y_t over the trees of root s = x_s f for each s). A tree is a whole plan for a part of
the model, with single routes, aggregation points (also of partial sums) and a return tree, so a solution of the master
program is a plan as it stands: nothing is rounded. New trees come from pricing.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
LONGER = 200  # racks x switches up to which results are searched for longer before the search ends
SMOOTHING = 0.3
SLOW = 3e-3  # gain of a round below which trees are searched for exactly where they can be
NEAR_CENTER = 0.5  # weight of the prices that proved the most so far, in those for exact searches
TREES_PER_ROUND = 6  # trees of each root in a round
MOST_ROOTS = 12  # most roots with trees in a round with smoothed prices: those that are cheapest then
TREES_OF_ALL = 72  # most trees of all roots in a round, after which prices are computed again
ROUNDS = 60
LEAST, STALLS = 3, 2  # a round ends after LEAST trees of each root, once STALLS of them did not help
NEARLY = 0.1  # fraction by which a further tree of a round may be too dear


@dataclass(frozen=True)
class End:
    """Conditions that end column generation: the rate is within the fraction `gap` of the estimated bound, or it
    reaches `enough` Mbit/s, which is a bound.
    """

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
    end: End = THOROUGH,
    exact: bool = False,
) -> tuple[Master, np.ndarray] | None:
    """Generate columns, beginning with the trees of `start`, for at most ROUNDS rounds. Return the master program and
    its columns' rates; None where some server hangs on no switch that all reach.

    It ends with its present columns when the deadline passes, or raises OutOfTime where there are no rates yet.

    Args:
        network: The network to route on.
        job: The job.
        start: Plans whose trees are the first columns.
        scale: A bound of the rate in Mbit/s, near which the program's values are 1.
        frozen_split: The share of each parameter server, where it is given.
        end: When the rate is good enough.
        exact: Whether to search for the cheapest trees exactly where the network is small, which proves a bound
            (`Master.proven`) and takes longer.
    """
    pricing = Pricing(network, job)
    if not pricing.applies:
        return None
    master = Master(network, job, scale, frozen_split)
    master.add_trees(tree for plan in start for tree in plan.trees)
    limit = deadline()
    size = len(pricing.racks) * len(pricing.switches)
    search = _Search(master, pricing, CheapestTrees(pricing) if exact and size <= EXACT_PRICING else None, end)
    try:
        solved = master.solve(limit)
    except NotInTime:
        raise OutOfTime from None
    for number in range(ROUNDS):
        limit.report(f"column generation, round {number + 1}", solved[0] * scale, end.enough)
        if search.enough(solved[0]) or limit.passed():
            break
        try:
            if not search.round(*solved):
                break
            solved = master.solve(limit)
        except NotInTime:
            limit.passed()
            break
    return master, solved[1]


class _Search:
    """Rounds of column generation. Trees come from a local search under smoothed prices. With `exact`, they come from
    exact searches, under prices near those that proved the least bound, once the local search finds little more.
    """

    def __init__(self, master: Master, pricing: Pricing, exact: CheapestTrees | None, end: End) -> None:
        self.master, self.pricing, self.exact, self.end = master, pricing, exact, end
        self.small = len(pricing.racks) * len(pricing.switches) <= LONGER
        self.smooth: Prices | None = None
        self.center: Prices | None = None
        self.rate = 0.0
        self.exactly = False

    def enough(self, rate: float) -> bool:
        """Return whether this rate, in units of the master program's scale, is as good as `end` asks for."""
        return rate * self.master.scale >= min(
            self.end.enough * (1 - TOLERANCE), self.master.proven * (1 - self.end.gap)
        )

    def round(self, rate: float, values: np.ndarray, prices: Prices) -> bool:
        """Add trees, and return whether to go on."""
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
        """Add trees of the local search. Return whether to go on, and whether there were trees that gain."""
        enough = self.end.enough * (1 - TOLERANCE)
        assert self.smooth is not None
        for used in (self.smooth, prices, *[prices] * (self.small and not self.pricing.thorough)):
            self.pricing.update(used, use)
            added, least = price_roots(self.master, self.pricing, prices, used, enough=enough)
            if added or deadline().passed():
                break
            self.pricing.thorough |= used is prices and self.small
        return added and not (used is prices and least >= 1 - self.end.gap and self.exact is None), added

    def _search_exactly(self, use: np.ndarray, prices: Prices) -> bool:
        """Add the cheapest trees, and return whether some of them gain."""
        assert self.exact is not None
        added = False
        for used in (prices,) if self.center is None else (self.center.mixed(prices, NEAR_CENTER), prices):
            before = self.master.proven
            self.pricing.update(used, use)
            added = price_exactly(self.master, self.pricing, prices, self.exact)
            if self.master.proven < before:
                self.center = used
            if added or deadline().passed():
                break
        return added


def _roots(master: Master, pricing: Pricing, *, everyone: bool) -> list[int]:
    """Return the parameter servers (positions) for which trees are searched: all that may have a share, or, unless
    `everyone` is set, of many only those to which all routes together are cheapest.
    """
    if (split := master.frozen_split) is not None:
        return [i for i, name in enumerate(master.job.parameter_servers) if split.get(name, 0.0) > 0]
    roots = range(len(master.job.parameter_servers))
    if everyone or len(roots) <= MOST_ROOTS:
        return list(roots)
    ways = [float(pricing.to_root(root)[0].sum()) for root in roots]
    return [int(i) for i in np.argsort(ways, kind="stable")[:MOST_ROOTS]]


def price_exactly(master: Master, pricing: Pricing, prices: Prices, exact: CheapestTrees) -> bool:
    """Add each root's cheapest tree under the prices that `pricing` has, and note in `master` the bound of the rate
    that this proves. Return whether a tree gains under `prices`.
    """
    added, least = False, {}
    for root in _roots(master, pricing, everyone=True):
        if deadline().passed():
            return added
        try:
            found = exact.of(root)
        except SolverError:  # the deadline has passed
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
    """Add each root's cheap trees under the prices `used`. Return whether one gains under `prices`, and the least price
    of a tree. No more trees are added once the rate reaches `enough` Mbit/s.

    After every tree, the resources that it uses become dearer by the part of the rate that it would take up, so that
    the trees of one round lie beside each other instead of on top of each other.
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
            design = pricing.design(root)
            worth = used.split[root]
            if worth > 0 and not repeat:
                least = min(least, (design.cost + results.price) / worth)
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
