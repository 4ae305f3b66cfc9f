"""The master program of column generation: rates of trees under every capacity (column_generation.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from controlplane.planner.evaluate import root_mbps
from controlplane.planner.job import Job
from controlplane.planner.plan.model import Tree
from controlplane.planner.plan.separated import at_home
from controlplane.planner.routing import Network
from controlplane.planner.strategies.common import Split
from controlplane.planner.strategies.deadline import Deadline, limited_work
from controlplane.planner.strategies.fabric.capacity import normalised
from controlplane.planner.strategies.solver import INFINITY, NotInTime, Program

DEARER = 0.5


@dataclass(frozen=True)
class Column:
    """A column of the master program: a tree of a root, and what a unit of its rate uses.

    Attributes:
        root: The root's position in job.parameter_servers.
        rows: Rows of the master program that the tree uses.
        uses: What a unit of its rate uses of each of these.
        written: Makes the tree (its share is not meaningful), since few columns end up in a plan.
    """

    root: int
    rows: np.ndarray
    uses: np.ndarray
    written: Callable[[], Tree]

    @cached_property
    def tree(self) -> Tree:
        return self.written()

    @property
    def key(self) -> tuple[int, bytes, bytes]:
        """A key that is the same for trees between which the program cannot tell."""
        return self.root, self.rows.tobytes(), self.uses.tobytes()


@dataclass
class Prices:
    """Dual prices per unit of rate: by link, by switch (order of topology.switches) and by root, and `split`, by root
    the worth of a unit of a tree's rate.
    """

    link: np.ndarray
    switch: np.ndarray
    root: np.ndarray
    split: np.ndarray  # worth of a unit of a tree's rate, by root

    @property
    def everything(self) -> np.ndarray:
        """The prices of all rows of the master program."""
        return np.concatenate([self.link, self.switch, self.root])

    def mixed(self, other: Prices, weight: float) -> Prices:
        """Return a mean of these prices, with this weight, and the other ones (smoothing, as the master's prices jump
        about).
        """
        pairs = (
            (self.link, other.link),
            (self.switch, other.switch),
            (self.root, other.root),
            (self.split, other.split),
        )
        return Prices(*(weight * mine + (1 - weight) * theirs for mine, theirs in pairs))


class Master:
    """The restricted master program, re-solved from its last basis as columns come in."""

    def __init__(self, network: Network, job: Job, scale: float, frozen_split: Split | None) -> None:
        self.network, self.job, self.scale, self.frozen_split = network, job, scale, frozen_split
        topology = network.topology
        self.columns: list[Column] = []
        self.known: set[tuple[int, bytes, bytes]] = set()
        self.proven = math.inf
        """Mbit/s that no trees can exceed, as far as searches for the cheapest ones have proven it."""
        self.switch_position = {network.index[v]: i for i, v in enumerate(topology.switches)}
        self.root_position = {s: i for i, s in enumerate(job.parameter_servers)}
        self.switch_row0 = len(network.ends)
        self.root_row0 = self.switch_row0 + len(topology.switches)
        self.split_row0 = self.root_row0 + len(job.parameter_servers)
        capacity = [
            *network.capacity,
            *(topology.residual_aggregation_mbps(v) for v in topology.switches),
            *(root_mbps(topology, job, s) for s in job.parameter_servers),
        ]
        self.capacity = np.minimum(np.array(capacity) / scale, 1e6)
        self.counted, self.always = self._access_links()
        self.program = Program(
            "column generation: the master program", tolerance=1e-9, presolve=False, primal_simplex=True
        )
        for bound in self.capacity:
            self.program.add_row(upper=float(bound))
        if frozen_split is not None:
            for _ in job.parameter_servers:
                self.program.add_row(lower=0.0, upper=0.0)
            rows = np.arange(self.split_row0, self.split_row0 + len(job.parameter_servers))
            self.program.add_column(-1.0, rows, [-frozen_split.get(s, 0.0) for s in job.parameter_servers])  # f

    def _access_links(self) -> tuple[np.ndarray, list[int]]:
        """Return for each link whether it counts, and the links that every tree uses once.

        Every tree uses the one link of a worker once in each direction: of these only the narrowest can be the
        bottleneck. Links of workers that are parameter servers, too, are used otherwise, and count.
        """
        network = self.network
        counted = np.ones(len(network.ends), dtype=bool)
        plain = [w for w in self.job.workers if w not in self.job.both_roles]
        ways = [way for w in plain if (way := network.access(network.index[w])) is not None]
        always = []
        for links in ([way.up for way in ways], [way.down for way in ways]):
            if links:
                counted[links] = False
                narrowest = min(links, key=lambda e: (network.capacity[e], e))
                counted[narrowest] = True
                always.append(narrowest)
        return counted, always[: 2 if network.topology.results_on_links else 1]

    def make(self, tree: Tree) -> Column | None:
        """Return the tree's column; None where the program has it already, or where the tree uses a resource without
        capacity.
        """
        tree = at_home(self.network.topology, tree)
        network, index = self.network, self.network.index
        use = np.zeros(self.split_row0)
        root = self.root_position[tree.root]
        for (u, v), count in tree.crossed().items():
            use[network.link[index[u], index[v]]] += count
        for end, count in tree.ends().items():
            if end == tree.root:
                use[self.root_row0 + root] += count
            else:
                use[self.switch_row0 + self.switch_position[index[end]]] += count
        for u, v in tree.return_edges if network.topology.results_on_links else ():
            use[network.link[index[u], index[v]]] += 1
        use[: self.switch_row0][~self.counted] = 0
        return self.column(root, use, lambda: tree)

    def column(self, root: int, use: np.ndarray, written: Callable[[], Tree]) -> Column | None:
        """Return the column of a tree that uses `use` (by row) per unit of its rate; None as for `make`."""
        rows = np.flatnonzero(use)
        column = Column(root, rows, use[rows], written)
        return None if column.key in self.known or (self.capacity[rows] <= 0).any() else column

    def price(self, column: Column, prices: Prices) -> float:
        """Return the price of a unit of the column's rate."""
        return float(prices.everything[column.rows] @ column.uses)

    def bound(self, prices: np.ndarray, least: Mapping[int, float]) -> float:
        """Return the bound of the rate (Mbit/s) that prices of all rows prove: f is at most the price of all capacities
        over that of the cheapest tree. `least` has a lower bound of the price of any tree, by root that may have a
        share.
        """
        if (split := self.frozen_split) is None:
            price = min(least.values())
        else:
            price = sum(split.get(self.job.parameter_servers[root], 0.0) * each for root, each in least.items())
        return float(prices @ self.capacity) / price * self.scale if price > 0 else math.inf

    def add(self, column: Column, penalty: float = 0.0, most: float = INFINITY) -> None:
        """Put a column into the program, with a penalty for a unit of its rate, and at most the rate `most` (in units
        of f).
        """
        self.columns.append(column)
        self.known.add(column.key)
        rows, values, gain = column.rows, column.uses, -1.0
        if self.frozen_split is not None:
            gain = 0.0
            rows = np.append(rows, self.split_row0 + column.root)
            values = np.append(values, 1.0)
        self.program.add_column(gain + penalty, rows, values, upper=most)

    def add_trees(self, trees: Iterable[Tree], penalty: float = 0.0) -> bool:
        """Put columns of these trees into the program, as `make` and `add` do, and return whether there were new
        ones.
        """
        before = len(self.columns)
        for tree in trees:
            column = self.make(tree)
            if column is not None:
                self.add(column, penalty)
        return len(self.columns) > before

    def dearer(self, prices: Prices, load: np.ndarray) -> Prices:
        """Return the prices raised by the utilisation (`load`) that a round's trees would make."""
        loaded = np.maximum(1, np.count_nonzero(load))
        extra = DEARER * load / (self.capacity + 1e-12) / loaded
        grown = prices.everything * (1 + load) + extra
        return Prices(
            grown[: self.switch_row0], grown[self.switch_row0 : self.root_row0], grown[self.root_row0 :], prices.split
        )

    def solve(self, within: Deadline | None = None) -> tuple[float, np.ndarray, Prices]:
        """Return f and the columns' rates (both in units of scale), and the prices. Raise NotInTime also where there is
        a solution that is not optimal.
        """
        solution = self.program.solve(within=within)
        if not solution.optimal:
            raise NotInTime(f"{self.program.what}: not solved in time", None)
        values, duals = solution.values, -solution.duals
        roots = len(self.job.parameter_servers)
        worth = np.ones(roots)
        if self.frozen_split is not None:
            worth = -duals[self.split_row0 :]
            values = values[1:]
        duals = np.maximum(duals, 0.0)
        prices = Prices(
            duals[: self.switch_row0],
            duals[self.switch_row0 : self.root_row0],
            duals[self.root_row0 : self.split_row0],
            worth,
        )
        return -solution.objective, values, prices

    def rates(self, work: float) -> tuple[float, np.ndarray]:
        """Return f and the columns' rates, as good as so much work and the deadline allow."""
        with limited_work(work) as limit:
            try:
                solution = self.program.solve(within=limit)
            except NotInTime:
                return 0.0, np.zeros(len(self.columns))
        values = solution.values if self.frozen_split is None else solution.values[1:]
        return -solution.objective, values

    def utilisation(self, values: np.ndarray) -> np.ndarray:
        """Return the utilisation of every resource under the columns' rates."""
        load = np.zeros(len(self.capacity))
        for column, value in zip(self.columns, values, strict=False):  # columns since the last solve have none
            if value > 0:
                load[column.rows] += value * column.uses
        return np.divide(load, self.capacity, out=np.zeros(len(load)), where=self.capacity > 0)

    def link_use(self, values: np.ndarray) -> np.ndarray:
        """Return the utilisation of every link."""
        return self.utilisation(values)[: self.switch_row0]

    def fullest(self, values: np.ndarray) -> float:
        """Return the highest utilisation."""
        return max(float(self.utilisation(values).max()), 1e-300)


def to_trees(
    master: Master, values: np.ndarray, limit: Deadline | None = None, *, least_share: float = 1e-6
) -> list[Tree]:
    """Return the trees with a rate, with their shares normalised (per root where the split is frozen). Raise OutOfTime
    where the limit passes.
    """
    total = values.sum()
    kept = []
    for column, x in zip(master.columns, values, strict=False):
        if x > least_share * total:
            if limit is not None:
                limit.check()
            kept.append((column.tree, float(x)))
    shares = normalised([(tree.root, x) for tree, x in kept], master.frozen_split)
    return [
        Tree(tree.root, share, tree.assignments, tree.relays, tree.return_edges)
        for (tree, _), share in zip(kept, shares, strict=True)
    ]
