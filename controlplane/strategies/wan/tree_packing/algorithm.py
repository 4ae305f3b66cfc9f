"""Ours: the best fractional packing of aggregation trees, with a proven bound.

Every part of the model climbs an in-tree to a root and comes back down an out-tree; all hops pipelined, both ways at
once, every site adding. Maximise the sum of the trees' rates under the directed links' capacities. Column generation:
the master LP over the trees known so far prices the links; the cheapest in-tree and out-tree of each root under these
prices are the new columns. Any prices y >= 0 give the bound sum(B y) / (cost of the cheapest pair), so the gap is known
at every step. No scheme of this kind (any number of trees, any roots allowed) is faster.

The cheapest trees: Edmonds' arborescences where all nodes take part; else Steiner arborescences, by dynamic programming
for up to 12 nodes that take part, and beyond that heuristics for the columns and dual ascent for the bound, which stays
proven but may not be reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from controlplane.strategies.solver import Program, SolverError
from controlplane.strategies.wan.apsp.algorithm import Node, usable
from controlplane.strategies.wan.errors import WanError
from controlplane.strategies.wan.tree_packing.arborescence import Arc, arborescence
from controlplane.strategies.wan.tree_packing.shallow import HASTES, delay, grown
from controlplane.strategies.wan.tree_packing.steiner import MOST_TERMINALS, Distances, Exact, dual_ascent, short_tree


@dataclass(frozen=True)
class PackedTree:
    """up[v]: whom v sends its sum to; down[v]: from whom v gets the result; but for the root. mbps: rate.

    Nodes that take no part are in a tree only where it passes through them.
    """

    root: Node
    up: Mapping[Node, Node]
    down: Mapping[Node, Node]
    mbps: float


@dataclass(frozen=True)
class Packing:
    """rate: Mbit/s of model per second, the trees' sum. bound: no packing is faster."""

    trees: tuple[PackedTree, ...]
    rate: float
    bound: float

    @property
    def gap(self) -> float:
        return 1 - self.rate / self.bound if self.bound > 0 else 0.0


PROGRESS = 1e-4  # of the rate, in a round
SHALLOW_ROUNDS = 30
SHALLOW_GAIN = 1e-3
"""A tree is taken up whose delay is less than what its rate is worth by this part of it."""


class _Problem:
    """The links as arcs between numbers, and the cheapest trees of a root under prices."""

    def __init__(
        self,
        graph: nx.DiGraph,
        roots: Sequence[Node],
        terminals: Sequence[Node] | None,
        results: bool,
        back: float = 0.0,
    ) -> None:
        network = usable(graph)
        self.nodes = list(network.nodes)
        self.index = {node: k for k, node in enumerate(self.nodes)}
        self.arcs: list[Arc] = [(self.index[u], self.index[v]) for u, v in network.edges]
        self.reversed: list[Arc] = [(v, u) for u, v in self.arcs]
        self.capacity = np.array([data["mbps"] for _, _, data in network.edges(data=True)])
        at = {arc: k for k, arc in enumerate(self.arcs)}
        self.back = back
        # The link the other way of each, where there is one.
        self.opposite = np.array([at.get((v, u), -1) for u, v in self.arcs])
        self.roots = [self.index[root] for root in roots]
        self.terminals = [self.index[v] for v in (self.nodes if terminals is None else dict.fromkeys(terminals))]
        spanned = len(self.terminals) >= len(self.nodes) - 1 and all(
            {root, *self.terminals} == set(range(len(self.nodes))) for root in self.roots
        )
        self.exact = "edmonds" if spanned else "subsets" if len(self.terminals) <= MOST_TERMINALS else ""
        for root in self.roots:
            self._connected(root)
        # Where results count on no link, any trees will do for them.
        self.falls = None if results else self._one_way(self.arcs, self.costs(1 / self.capacity)[0], exact=False)[0]

    def _connected(self, root: int) -> None:
        network = nx.DiGraph(self.arcs)
        network.add_node(root)
        below, above = nx.descendants(network, root), nx.ancestors(network, root)
        for there in self.terminals:
            if there != root and not (there in below and there in above):
                raise WanError(
                    f"root {self.nodes[root]} cannot reach all nodes and be reached by them "
                    f"(not both ways: {self.nodes[there]})"
                )

    def with_back(self, cost: np.ndarray) -> np.ndarray:
        """What a tree pays for each link, that part of the link the other way included which it takes there."""
        if not self.back:
            return cost
        return cost + self.back * np.where(self.opposite >= 0, cost[self.opposite], 0.0)

    def costs(self, price: np.ndarray) -> tuple[np.ndarray, float]:
        """(the links' prices with a little of their scarcity, so that free links are not taken at random and all are
        positive; by how much a tree can cost more than under prices that a bound may use). A bound may use these costs
        themselves as prices but for links without a limit, whose price is 0."""
        grain = 1e-8 * max(float(price.max(initial=0.0)), 1e-6)
        extra = grain * (self.capacity.min(initial=1.0) / self.capacity + 1e-3)
        unlimited = extra[~np.isfinite(self.capacity)]
        slack = 2 * len(self.nodes) * (1 + self.back) * float(unlimited.max(initial=0.0))
        return price + extra, slack

    def _one_way(self, arcs: Sequence[Arc], cost: np.ndarray, exact: bool) -> tuple[list[list[int]], np.ndarray | None]:
        """(a tree of each root, what the cheapest costs at least or None: not known)."""
        values = cost.tolist()
        n = len(self.nodes)
        best = self.exact == "edmonds" or (bool(self.exact) and exact)
        found: list[list[int] | None]
        if self.exact == "edmonds":
            found = [arborescence(n, root, arcs, values) for root in self.roots]
        elif best:
            cheapest = Exact(n, arcs, values, self.terminals)
            found = [cheapest.tree(root) for root in self.roots]
        else:
            distances = Distances(n, arcs, values)
            found = [short_tree(n, root, arcs, values, self.terminals, distances) for root in self.roots]
        trees = [tree for tree in found if tree is not None]
        assert len(trees) == len(self.roots)  # _connected
        if best:
            return trees, np.array([cost[tree].sum() for tree in trees])
        if exact:
            return trees, np.array([dual_ascent(n, root, arcs, values, self.terminals) for root in self.roots])
        return trees, None

    def trees(self, cost: np.ndarray, exact: bool) -> tuple[list[tuple[list[int], list[int]]], np.ndarray | None]:
        """((up, down) of each root, what the cheapest cost together at least or None: not known)."""
        ups, least = self._one_way(self.reversed, cost, exact)
        if self.falls is not None:
            return list(zip(ups, self.falls, strict=True)), least
        downs, also = self._one_way(self.arcs, cost, exact)
        return list(zip(ups, downs, strict=True)), None if least is None or also is None else least + also


class _Master:
    """The LP over the trees known so far, solved anew from its last basis whenever some are added.

    limits: of the links, then of the roots, in the LP's unit. part: the share that each root has to carry, or None.
    least: None: the most rate is looked for; else, at this rate, the trees of least cost.
    """

    def __init__(self, limits: np.ndarray, links: int, part: np.ndarray | None, least: float | None = None) -> None:
        self.limits, self.links, self.part = limits, links, part
        self._row = np.cumsum(np.isfinite(limits)) - 1
        self._finite = np.isfinite(limits)
        self._shares = int(self._finite.sum())  # the first row of the shares
        self._program = Program("the packing LP", presolve=False, primal_simplex=True)
        for limit in limits[self._finite].tolist():
            self._program.add_row(upper=limit)
        for _ in range(0 if part is None else len(part) - 1):
            self._program.add_row(lower=0.0, upper=0.0)
        self._rate = None if least is None else self._program.rows
        if least is not None:
            self._program.add_row(lower=least)

    def add(self, root: int, links: Sequence[int], back: float, opposite: np.ndarray, *, cost: float = -1.0) -> None:
        """back: the part of what a tree sends over a link that also goes over the opposite one (-1: none)."""
        entries: dict[int, float] = {}
        loads = [(item, 1.0) for item in (*links, self.links + root)]
        loads += [(int(opposite[link]), back) for link in links if back and opposite[link] >= 0]
        for item, load in loads:
            if self._finite[item]:
                row = int(self._row[item])
                entries[row] = entries.get(row, 0.0) + load
        if self.part is not None:
            for k, share in enumerate(self.part[:-1].tolist()):
                if (value := float(k == root) - share) != 0:
                    entries[self._shares + k] = value
        if self._rate is not None:
            entries[self._rate] = 1.0
        self._program.add_column(cost, list(entries), list(entries.values()))

    def solve(self) -> tuple[np.ndarray, np.ndarray, float]:
        """(rates of the trees in the order in which they came, prices of links and roots, what a unit of rate is worth
        where the rate is given)."""
        try:
            solution = self._program.solve()
        except SolverError as error:
            raise WanError(str(error)) from None
        price = np.zeros(len(self.limits))
        price[self._finite] = np.maximum(-solution.duals[: self._shares], 0.0)
        worth = 0.0 if self._rate is None else float(solution.duals[self._rate])
        return np.maximum(solution.values, 0.0), price, worth


Column = tuple[int, list[int], list[int]]  # root, up, down


def _shallower(
    problem: _Problem, limits: np.ndarray, columns: Sequence[Column], rate: float
) -> tuple[list[Column], np.ndarray]:
    """(trees, their rates): at this rate in the LP's unit, those through which a chunk is soonest, weighted by their
    rates. Every tree has as many links, but deep ones fill and drain longer. New trees come from growing some under the
    prices: a heuristic, never worse than what is given."""
    master = _Master(limits, len(problem.capacity), None, rate)
    found: list[Column] = []
    known: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    hop = (float(np.median(problem.capacity)) / problem.capacity).tolist()

    def delay_of(column: Column) -> float:
        k, up, down = column
        root = problem.roots[k]
        return delay(problem.reversed, root, up, hop) + delay(problem.arcs, root, down, hop)

    def add(column: Column) -> None:
        k, up, down = column
        key = (k, tuple(sorted(up)), tuple(sorted(down)))
        if key not in known:
            known.add(key)
            found.append(column)
            master.add(k, [*up, *down], problem.back, problem.opposite, cost=delay_of(column))

    for column in columns:
        add(column)
    for _ in range(SHALLOW_ROUNDS):
        _, price, worth = master.solve()
        own = price[len(problem.capacity) :]
        cost = problem.with_back(problem.costs(price[: len(problem.capacity)])[0])
        mean, values, before = float(cost.mean()), cost.tolist(), len(found)
        for k, root in enumerate(problem.roots):
            for haste in HASTES:
                up = grown(root, problem.reversed, values, hop, haste * mean)
                down = grown(root, problem.arcs, values, hop, haste * mean)
                if up is None or down is None:
                    continue
                reduced = delay_of((k, up, down)) + float(cost[up].sum() + cost[down].sum()) + float(own[k]) - worth
                if reduced < -SHALLOW_GAIN * worth:
                    add((k, up, down))
        if len(found) == before:
            break
    return found, master.solve()[0]


def pack(
    graph: nx.DiGraph,
    roots: Sequence[Node] | None = None,
    *,
    terminals: Sequence[Node] | None = None,
    shares: Mapping[Node, float] | None = None,
    root_mbps: Mapping[Node, float] | None = None,
    results: bool = True,
    back: float = 0.0,
    gap: float = 1e-3,
    rounds: int = 500,
    shallow: float = 0.0,
) -> Packing:
    """graph: directed, "mbps" on its links. roots: who may be one (all). terminals: who has something to add and wants
    the result (all); every other node may be passed through, and adds what meets there.

    shares: the part of the model that each root has to carry (None: whatever is best). root_mbps: what a root takes in
    at most. results: whether their way down counts on the links. back: the part of what a link carries that also goes
    over the link the other way (acknowledgements). Stops when the rate is within `gap` of the bound.
    shallow: the part of the rate that may be given up for trees that a chunk is soon through (where all nodes take
    part, results count and no shares are given).
    Raises WanError for unreachable nodes and wrong input.
    """
    candidates = list(graph.nodes) if roots is None else list(dict.fromkeys(roots))
    if shares is not None:
        if any(share < 0 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-6:
            raise WanError(f"shares must be >= 0 with sum 1, got {dict(shares)}")
        candidates = [root for root in candidates if shares.get(root, 0.0) > 0]
    unknown = [root for root in candidates if root not in graph]
    if unknown or not candidates:
        raise WanError(f"roots {unknown} are no nodes of the network" if unknown else "no node may be a root")
    unknown = [] if terminals is None else [v for v in terminals if v not in graph]
    if unknown or (terminals is not None and not terminals):
        raise WanError(f"{unknown} are no nodes of the network" if unknown else "no node takes part")
    problem = _Problem(graph, candidates, terminals, results, back)
    intake = np.array([np.inf if root_mbps is None else root_mbps.get(root, np.inf) for root in candidates])
    alone = [k for k, root in enumerate(problem.roots) if set(problem.terminals) == {root}]
    free = [k for k in alone if len(candidates) == 1 or (shares is None and np.isinf(intake[k]))]
    if free:  # nothing has to move
        rate = float(intake[free[0]])
        return Packing((PackedTree(candidates[free[0]], {}, {}, rate),), rate, rate)
    if (intake <= 0).any():
        dead = [root for root, mbps in zip(candidates, intake, strict=True) if mbps <= 0]
        raise WanError(f"roots {dead} take nothing in: leave them out")
    part = None if shares is None else np.array([shares[root] for root in candidates])
    scale = float(np.median(problem.capacity))  # the solver's tolerances are absolute
    columns: list[Column] = []
    known: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()

    def add(k: int, up: list[int], down: list[int]) -> bool:
        key = (k, tuple(sorted(up)), tuple(sorted(down)))
        if key in known:
            return False
        known.add(key)
        columns.append((k, up, down))
        master.add(k, [*up, *down] if results else up, problem.back, problem.opposite)
        return True

    limits = np.concatenate([problem.capacity, intake]) / scale
    finite = np.isfinite(limits)
    master = _Master(limits, len(problem.capacity), part)
    for k, (up, down) in enumerate(problem.trees(problem.costs(1 / problem.capacity)[0], exact=False)[0]):
        add(k, up, down)
    bound = np.inf
    rates = np.zeros(0)
    exact, before = problem.exact == "edmonds", 0.0
    for _ in range(rounds):
        rates, price, _ = master.solve()
        cost, slack = problem.costs(price[: len(problem.capacity)])
        pairs, least = problem.trees(problem.with_back(cost), exact)
        fresh = False
        for k, (up, down) in enumerate(pairs):
            fresh |= add(k, up, down)
        rate = float(rates.sum()) * scale
        if least is not None:
            own = price[len(problem.capacity) :]
            worth = float(cost[finite[: len(cost)]] @ limits[: len(cost)][finite[: len(cost)]])
            worth = scale * (worth + float(own[finite[len(cost) :]] @ limits[len(cost) :][finite[len(cost) :]]))
            least = least - slack + own
            cheapest = float(least.min() if part is None else part @ least)
            if cheapest > 0:
                bound = min(bound, worth / cheapest)
            if not fresh or rate >= bound * (1 - gap):
                break
        if not exact:  # cheap columns as long as they help, then the exact ones (or, where there are none, the bound)
            exact = not fresh or rate < before * (1 + PROGRESS)
            before = rate
        elif not problem.exact:
            exact = False
    if shallow > 0 and problem.exact == "edmonds" and part is None and results:
        columns, rates = _shallower(problem, limits, columns, float(rates.sum()) * (1 - shallow))
    rate = float(rates.sum()) * scale
    trees = []
    for (k, up, down), value in zip(columns, rates, strict=False):
        if value * scale > 1e-7 * rate:
            climb = {problem.nodes[problem.arcs[a][0]]: problem.nodes[problem.arcs[a][1]] for a in up}
            fall = {problem.nodes[problem.arcs[a][1]]: problem.nodes[problem.arcs[a][0]] for a in down}
            trees.append(PackedTree(candidates[k], climb, fall, float(value) * scale))
    return Packing(tuple(trees), rate, max(bound, rate))
