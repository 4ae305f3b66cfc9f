"""Ours: the best fractional packing of aggregation trees, with a proven bound.

Every part of the model climbs an in-tree to a root and comes back down an out-tree; all hops pipelined, both ways at
once, every site adding. Maximise the sum of the trees' rates under the directed links' capacities. Column generation:
the master LP over the trees known so far prices the links; the cheapest in-tree and out-tree of each root under these
prices (Edmonds' arborescences) are the new columns. Any prices y >= 0 give the bound sum(B y) / (cost of the cheapest
pair), so the gap is known at every step. No scheme of this kind (any number of trees, any roots allowed) is faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csc_matrix

from controlplane.wan.apsp import Node, usable
from controlplane.wan.errors import WanError

Arc = tuple[int, int]


@dataclass(frozen=True)
class PackedTree:
    """up[v]: whom v sends its sum to; down[v]: from whom v gets the result; for all nodes but the root. mbps: rate."""

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


def arborescence(n: int, root: int, arcs: Sequence[Arc], cost: Sequence[float]) -> list[int] | None:
    """Edmonds: the indexes of the cheapest arcs (tail, head) that reach every node from the root; None: impossible.

    Ties go to the first arc.
    """
    best = [-1] * n
    for k, (u, v) in enumerate(arcs):
        if v not in (root, u) and (best[v] < 0 or cost[k] < cost[best[v]]):
            best[v] = k
    if any(best[v] < 0 for v in range(n) if v != root):
        return None
    component, colour = [-1] * n, [-1] * n
    cycles = 0
    for start in range(n):
        node = start
        while node != root and colour[node] < 0 and component[node] < 0:
            colour[node] = start
            node = arcs[best[node]][0]
        if node != root and component[node] < 0 and colour[node] == start:
            while component[node] < 0:
                component[node] = cycles
                node = arcs[best[node]][0]
            cycles += 1
    if cycles == 0:
        return [best[v] for v in range(n) if v != root]
    inside = list(component)
    count = cycles
    for v in range(n):
        if component[v] < 0:
            component[v] = count
            count += 1
    small: list[Arc] = []
    origin: list[int] = []
    small_cost: list[float] = []
    for k, (u, v) in enumerate(arcs):
        if component[u] != component[v]:
            small.append((component[u], component[v]))
            origin.append(k)
            small_cost.append(cost[k] - (cost[best[v]] if inside[v] >= 0 else 0.0))
    found = arborescence(count, component[root], small, small_cost)
    if found is None:
        return None
    chosen = [origin[k] for k in found]
    entered = {arcs[k][1] for k in chosen}
    return chosen + [best[v] for v in range(n) if inside[v] >= 0 and v not in entered]


class _Problem:
    def __init__(self, graph: nx.DiGraph, roots: Sequence[Node]) -> None:
        network = usable(graph)
        self.nodes = list(network.nodes)
        self.index = {node: k for k, node in enumerate(self.nodes)}
        self.arcs: list[Arc] = [(self.index[u], self.index[v]) for u, v in network.edges]
        self.reversed: list[Arc] = [(v, u) for u, v in self.arcs]
        self.capacity = np.array([data["mbps"] for _, _, data in network.edges(data=True)])
        self.roots = [self.index[root] for root in roots]
        # A little of the links' scarcity, so that free links (price 0) are not taken at random.
        self.bias = 1e-6 / self.capacity if len(self.capacity) else self.capacity

    def pair(self, root: int, price: np.ndarray) -> tuple[list[int], list[int]]:
        cost = (price + self.bias * (price.max(initial=0.0) * self.capacity.min(initial=1.0) + 1e-12)).tolist()
        n = len(self.nodes)
        up, down = arborescence(n, root, self.reversed, cost), arborescence(n, root, self.arcs, cost)
        if up is None or down is None:
            raise WanError(f"root {self.nodes[root]} cannot reach all nodes and be reached by them")
        return up, down


def pack(
    graph: nx.DiGraph,
    roots: Sequence[Node] | None = None,
    *,
    shares: Mapping[Node, float] | None = None,
    root_mbps: Mapping[Node, float] | None = None,
    gap: float = 1e-3,
    rounds: int = 500,
) -> Packing:
    """graph: directed, "mbps" on its links; every node adds and receives. roots: who may be one (all).

    shares: the part of the model that each root has to carry (None: whatever is best). root_mbps: what a root takes in
    at most. Stops when the rate is within `gap` of the bound. Raises WanError for unreachable nodes and wrong input.
    """
    candidates = list(graph.nodes) if roots is None else list(dict.fromkeys(roots))
    if shares is not None:
        if any(share < 0 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-6:
            raise WanError(f"shares must be >= 0 with sum 1, got {dict(shares)}")
        candidates = [root for root in candidates if shares.get(root, 0.0) > 0]
    unknown = [root for root in candidates if root not in graph]
    if unknown or not candidates:
        raise WanError(f"roots {unknown} are no nodes of the network" if unknown else "no node may be a root")
    problem = _Problem(graph, candidates)
    intake = np.array([np.inf if root_mbps is None else root_mbps.get(root, np.inf) for root in candidates])
    if len(problem.nodes) == 1:
        rate = float(intake[0])
        return Packing((PackedTree(candidates[0], {}, {}, rate),), rate, rate)
    if (intake <= 0).any():
        dead = [root for root, mbps in zip(candidates, intake, strict=True) if mbps <= 0]
        raise WanError(f"roots {dead} take nothing in: leave them out")
    part = None if shares is None else np.array([shares[root] for root in candidates])
    scale = float(np.median(problem.capacity))  # the solver's tolerances are absolute
    columns: list[tuple[int, list[int], list[int]]] = []
    known: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()

    def add(k: int, up: list[int], down: list[int]) -> bool:
        key = (k, tuple(sorted(up)), tuple(sorted(down)))
        if key in known:
            return False
        known.add(key)
        columns.append((k, up, down))
        return True

    for k, root in enumerate(problem.roots):
        add(k, *problem.pair(root, 1 / problem.capacity))
    bound = np.inf
    rates = np.zeros(0)
    limits = np.concatenate([problem.capacity, intake]) / scale
    finite = np.isfinite(limits)
    for _ in range(rounds):
        rates, price = _master(problem, columns, limits, finite, part)
        links, own = price[: len(problem.capacity)], price[len(problem.capacity) :]
        costs, fresh = np.zeros(len(candidates)), False
        for k, root in enumerate(problem.roots):
            up, down = problem.pair(root, links)
            costs[k] = links[up].sum() + links[down].sum() + own[k]
            fresh |= add(k, up, down)
        worth = float(price[finite] @ limits[finite]) * scale
        cheapest = float(costs.min() if part is None else part @ costs)
        if cheapest > 0:
            bound = min(bound, worth / cheapest)
        rate = float(rates.sum()) * scale
        if not fresh or rate >= bound * (1 - gap):
            break
    rate = float(rates.sum()) * scale
    trees = []
    for (k, up, down), value in zip(columns, rates, strict=False):
        if value * scale > 1e-7 * rate:
            climb = {problem.nodes[problem.arcs[a][0]]: problem.nodes[problem.arcs[a][1]] for a in up}
            fall = {problem.nodes[problem.arcs[a][1]]: problem.nodes[problem.arcs[a][0]] for a in down}
            trees.append(PackedTree(candidates[k], climb, fall, float(value) * scale))
    return Packing(tuple(trees), rate, max(bound, rate))


def _master(
    problem: _Problem,
    columns: Sequence[tuple[int, list[int], list[int]]],
    limits: np.ndarray,
    finite: np.ndarray,
    part: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """(rates of the columns, prices of links and roots), in units of the scale that `limits` has."""
    links = len(problem.capacity)
    count = len(columns)
    rows, cols = [], []
    for c, (k, up, down) in enumerate(columns):
        rows += [*up, *down, links + k]
        cols += [c] * (len(up) + len(down) + 1)
    matrix = csc_matrix((np.ones(len(rows)), (rows, cols)), shape=(len(limits), count))
    equal = None
    if part is not None:  # each root's rate is its share of the sum
        share = np.zeros((len(part), count))
        for c, (k, _, _) in enumerate(columns):
            share[k, c] += 1
            share[:, c] -= part
        equal = share[:-1] if len(part) > 1 else None
    result = linprog(
        -np.ones(count),
        A_ub=matrix[finite],
        b_ub=limits[finite],
        A_eq=equal,
        b_eq=None if equal is None else np.zeros(len(equal)),
        method="highs",
    )
    if not result.success:
        raise WanError(f"the packing LP has no solution: {result.message}")
    price = np.zeros(len(limits))
    price[finite] = np.maximum(-result.ineqlin.marginals, 0.0)
    return result.x, price
