"""CREW's baselines: other ways for the initiators to all-reduce over a full mesh (CREW paper, section V-A)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from controlplane.planner.strategies.solver import Program, SolverError
from controlplane.planner.strategies.wan.crew.algorithm import mesh
from controlplane.planner.strategies.wan.errors import WanError

Edge = tuple[int, int]  # child -> parent


@dataclass(frozen=True)
class SpanningTree:
    """A spanning tree, whose edges are (child, parent), children before their parents. A reduction goes up, its result
    comes back down.
    """

    root: int
    edges: tuple[Edge, ...]


def parameter_server(
    bandwidth_mbps: ArrayLike, latency_ms: ArrayLike | None = None, candidates: Sequence[int] | None = None
) -> int:
    """Return the server of PS: the worker (of the candidates) with the largest average bandwidth to all others; of
    equals, the one with the least average latency, then the lowest number.
    """
    matrix = mesh(bandwidth_mbps)
    n = len(matrix)
    off = ~np.eye(n, dtype=bool)
    rate = np.where(off, matrix, 0.0).sum(axis=1)
    delay = np.zeros(n) if latency_ms is None else np.where(off, np.asarray(latency_ms, float), 0.0).sum(axis=1)
    return min(range(n) if candidates is None else candidates, key=lambda i: (-rate[i], delay[i], i))


def greedy_ring(bandwidth_mbps: ArrayLike, members: Sequence[int], seed: int = 0) -> list[int]:
    """Return the order of a ring: from a random member on, always the member with the largest bandwidth from the last
    one.
    """
    matrix = mesh(bandwidth_mbps)
    left = list(members)
    ring = [left.pop(random.Random(seed).randrange(len(left)))]
    while left:
        best = max(left, key=lambda j: (matrix[ring[-1], j], -j))
        left.remove(best)
        ring.append(best)
    return ring


def _symmetric(matrix: NDArray[np.float64], members: Sequence[int]) -> nx.Graph:
    graph: nx.Graph = nx.Graph()
    graph.add_nodes_from(members)
    for k, i in enumerate(members):
        for j in members[k + 1 :]:
            if min(matrix[i, j], matrix[j, i]) > 0:
                graph.add_edge(i, j, rate=float(min(matrix[i, j], matrix[j, i])))
    if not nx.is_connected(graph):
        raise WanError(f"no spanning tree of {list(members)} has bandwidth both ways on all its links")
    return graph


def _rooted(tree: nx.Graph, root: int) -> SpanningTree:
    down = list(nx.bfs_edges(tree, root))
    return SpanningTree(root, tuple((child, parent) for parent, child in reversed(down)))


def _loads(trees: Sequence[SpanningTree], matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the seconds per Mbit of each tree's share on each directed link that any of them uses. Shape (links,
    trees).
    """
    rows: dict[Edge, dict[int, float]] = {}
    for k, tree in enumerate(trees):
        for u, v in tree.edges:
            rows.setdefault((u, v), {})[k] = 1 / matrix[u, v]
            rows.setdefault((v, u), {})[k] = 1 / matrix[v, u]
    loads = np.zeros((len(rows), len(trees)))
    for r, entries in enumerate(rows.values()):
        for k, value in entries.items():
            loads[r, k] = value
    return loads


def blink(
    bandwidth_mbps: ArrayLike, members: Sequence[int], *, trees: int = 5, candidates: int = 24
) -> list[tuple[SpanningTree, float]]:
    """Return BLINK's trees as (tree, share), shares sum 1: candidate spanning trees come from multiplicative weights,
    and a MILP spreads the load over few of them.

    Candidates are the trees with the least sum of prices, again and again; a link's price grows with its use over its
    rate (Garg and Koenemann's packing). The MILP takes at most `trees` of them, with the least time of the fullest
    link.
    """
    matrix = mesh(bandwidth_mbps)
    members = list(members)
    if len(members) == 1:
        return [(SpanningTree(members[0], ()), 1.0)]
    graph = _symmetric(matrix, members)
    price = {frozenset((u, v)): 1 / data["rate"] for u, v, data in graph.edges(data=True)}
    found: dict[frozenset[frozenset[int]], SpanningTree] = {}
    for _ in range(candidates):
        for u, v, data in graph.edges(data=True):
            data["price"] = price[frozenset((u, v))]
        tree = nx.minimum_spanning_tree(graph, weight="price")
        worst = min(data["rate"] for _, _, data in tree.edges(data=True))
        for u, v, data in tree.edges(data=True):
            price[frozenset((u, v))] *= 1 + 0.5 * worst / data["rate"]
        root = nx.center(tree)[0]
        found.setdefault(frozenset(frozenset(e) for e in tree.edges), _rooted(tree, root))
    pool = list(found.values())
    loads = _loads(pool, matrix)
    scale = loads.max()
    k = len(pool)
    program = Program(f"BLINK's MILP for {members}")
    share, chosen, busy = np.arange(k), np.arange(k, 2 * k), 2 * k  # busy: the time of the fullest link
    program.add_columns(np.zeros(k), 0.0, 1.0)
    program.add_columns(np.zeros(k), 0.0, 1.0, whole=np.ones(k))
    program.add_columns([1.0])
    for load in loads / scale:
        used = np.flatnonzero(load)
        program.add_row([*share[used], busy], [*load[used], -1.0], upper=0.0)
    for tree in range(k):
        program.add_row([share[tree], chosen[tree]], [1.0, -1.0], upper=0.0)
    program.add_row(share, np.ones(k), 1.0, 1.0)
    program.add_row(chosen, np.ones(k), 0.0, trees)
    try:
        shares = program.solve().values[:k]
    except SolverError as error:
        raise WanError(str(error)) from None
    shares = shares / shares.sum()
    return [(tree, float(share)) for tree, share in zip(pool, shares, strict=True) if share > 1e-9]


def fullest_link(trees: Sequence[tuple[SpanningTree, float]], bandwidth_mbps: ArrayLike) -> float:
    """Return the seconds per Mbit for which the most used directed link is busy, which is the time when all trees are
    pipelined.
    """
    if not trees or not trees[0][0].edges:
        return 0.0
    loads = _loads([tree for tree, _ in trees], mesh(bandwidth_mbps))
    return float((loads @ np.array([share for _, share in trees])).max())


def topo_adopt(
    bandwidth_mbps: ArrayLike, members: Sequence[int], *, trees: int = 5, steps: int = 400, seed: int = 0
) -> list[tuple[SpanningTree, float]]:
    """Return TopoAdopt's trees as (tree, share): simulated annealing over `trees` spanning trees and their shares, by
    the fullest link's time.

    A step either swaps one edge of one tree or moves a tenth of a share; worse states are taken with probability
    exp(-increase / temperature), which falls geometrically from 30 % to 0.1 % of the first state's time.
    """
    matrix = mesh(bandwidth_mbps)
    members = list(members)
    if len(members) == 1:
        return [(SpanningTree(members[0], ()), 1.0)]
    rng = random.Random(seed)
    graph = _symmetric(matrix, members)

    def random_tree() -> nx.Graph:
        for _, _, data in graph.edges(data=True):
            data["draw"] = rng.random()
        return nx.minimum_spanning_tree(graph, weight="draw")

    def cost(forest: list[nx.Graph], shares: list[float]) -> float:
        load: dict[frozenset[int], float] = {}
        for tree, share in zip(forest, shares, strict=True):
            for u, v in tree.edges:
                load[frozenset((u, v))] = load.get(frozenset((u, v)), 0.0) + share
        return max(total / graph.edges[tuple(e)]["rate"] for e, total in load.items())

    forest, shares = [random_tree() for _ in range(trees)], [1 / trees] * trees
    now = cost(forest, shares)
    best = (now, forest, shares)
    first = now
    for step in range(steps):
        temperature = first * 0.3 * (1 / 300) ** (step / steps)
        new_forest, new_shares = list(forest), list(shares)
        if rng.random() < 0.6:
            k = rng.randrange(trees)
            tree = nx.Graph(forest[k].edges)
            u, v = rng.choice(sorted(tuple(sorted(e)) for e in tree.edges))
            tree.remove_edge(u, v)
            side = nx.node_connected_component(tree, u)
            across = sorted(tuple(sorted(e)) for e in graph.edges if (e[0] in side) != (e[1] in side))
            tree.add_edge(*rng.choice(across))
            new_forest[k] = tree
        else:
            a, b = rng.randrange(trees), rng.randrange(trees)
            part = min(0.1, new_shares[a])
            new_shares[a] -= part
            new_shares[b] += part
        then = cost(new_forest, new_shares)
        if then <= now or rng.random() < math.exp((now - then) / temperature):
            forest, shares, now = new_forest, new_shares, then
            if now < best[0]:
                best = (now, forest, shares)
    _, forest, shares = best
    return [
        (_rooted(tree, nx.center(tree)[0]), share) for tree, share in zip(forest, shares, strict=True) if share > 1e-9
    ]
