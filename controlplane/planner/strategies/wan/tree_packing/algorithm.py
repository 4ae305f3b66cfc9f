"""The best fractional packing of aggregation trees, with a proven bound (our own strategy `wan`).

Each part of the model climbs an in-tree to a root and descends an out-tree. All hops are pipelined, both directions run
at once, and every site adds. The sum of the trees' rates is maximised under the capacities of the directed links, by
column generation: the master LP over the known trees prices the links, and the cheapest in-tree and out-tree of each
root under these prices are the new columns. Any prices y >= 0 give the bound sum(B y) / (cost of the cheapest pair), so
the gap is known at every step. No scheme of this kind, with any number of trees and any of the roots, is faster.

The cheapest trees are Edmonds' arborescences where all nodes take part. Else they are Steiner arborescences, by dynamic
programming for up to 12 nodes that take part, and beyond that by heuristics for the columns and dual ascent for the
bound, which stays proven but may not be reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from controlplane.planner.strategies.wan.apsp.algorithm import Node
from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.tree_packing.master import Master
from controlplane.planner.strategies.wan.tree_packing.problem import Problem
from controlplane.planner.strategies.wan.tree_packing.shallow import shallower
from controlplane.planner.strategies.wan.tree_packing.spread import spread


@dataclass(frozen=True)
class PackedTree:
    """A tree of a packing.

    Attributes:
        root: The root, which is in neither of the following.
        up: By node v, the node to which v sends its sum.
        down: By node v, the node from which v gets the result. Nodes that contribute nothing are in a tree only where
            it passes through them.
        mbps: The tree's rate.
    """

    root: Node
    up: Mapping[Node, Node]
    down: Mapping[Node, Node]
    mbps: float


@dataclass(frozen=True)
class Packing:
    """A packing of trees; `rate` is the sum of the trees' rates, in Mbit/s of the model, and no packing has a rate
    above `bound`.
    """

    trees: tuple[PackedTree, ...]
    rate: float
    bound: float

    @property
    def gap(self) -> float:
        return 1 - self.rate / self.bound if self.bound > 0 else 0.0


ROUNDS = 500
PROGRESS = 1e-4  # least gain of a round, as a fraction of the rate


@dataclass(frozen=True)
class GivenUp:
    """Parts of the best rate that a packing may lack.

    Attributes:
        gap: A packing is good enough when its rate is within this part of the bound.
        shallow: The part that may be given up for trees with less delay (where all nodes are terminals, results count
            and no shares are given).
        rounds: Most rounds of new trees; with few, a packing of many nodes is found quickly, and it is not known how
            far it is from the best.
    """

    gap: float = 1e-3
    shallow: float = 0.0
    rounds: int = ROUNDS


LITTLE = GivenUp()


def pack(
    graph: nx.DiGraph,
    roots: Sequence[Node] | None = None,
    *,
    terminals: Sequence[Node] | None = None,
    shares: Mapping[Node, float] | None = None,
    root_mbps: Mapping[Node, float] | None = None,
    results: bool = True,
    back: float = 0.0,
    given_up: GivenUp = LITTLE,
) -> Packing:
    """Return the best packing of trees in a directed graph whose links have "mbps". Raise WanError for unreachable
    nodes and wrong input.

    Args:
        graph: The network.
        roots: The nodes that may be roots; None for all.
        terminals: The nodes that contribute and want the result; None for all. Trees may pass through all other nodes,
            which add sums that meet there.
        shares: The part of the model that each root has to carry; None to choose the best ones.
        root_mbps: The most that a root takes in.
        results: Whether results count on links.
        back: The part of a link's load that also loads the link in the other direction (acknowledgements).
        given_up: What the packing may lack.
    """
    candidates = _candidates(graph, roots, terminals, shares)
    problem = Problem(graph, candidates, terminals, results, back)
    intake = np.array([np.inf if root_mbps is None else root_mbps.get(root, np.inf) for root in candidates])
    alone = [k for k, root in enumerate(problem.roots) if set(problem.terminals) == {root}]
    free = [k for k in alone if len(candidates) == 1 or (shares is None and np.isinf(intake[k]))]
    if free:  # the only node that takes part is the root
        rate = float(intake[free[0]])
        return Packing((PackedTree(candidates[free[0]], {}, {}, rate),), rate, rate)
    if (intake <= 0).any():
        dead = [root for root, mbps in zip(candidates, intake, strict=True) if mbps <= 0]
        raise WanError(f"roots {dead} take nothing in: leave them out")
    part = None if shares is None else np.array([shares[root] for root in candidates])
    scale = float(np.median(problem.capacity))  # the solver's tolerances are absolute
    master = Master(problem, np.concatenate([problem.capacity, intake]) / scale, part)
    rates, bound = _generated(problem, master, scale, given_up)
    if given_up.shallow > 0 and problem.exact == "edmonds" and part is None and results:
        master, rates = shallower(problem, master, float(rates.sum()) * (1 - given_up.shallow), given_up.rounds)
    rate = float(rates.sum()) * scale
    trees = []
    for (k, up, down), value in zip(master.columns, rates, strict=False):
        if value * scale > 1e-7 * rate:
            climb = {problem.nodes[problem.arcs[a][0]]: problem.nodes[problem.arcs[a][1]] for a in up}
            fall = {problem.nodes[problem.arcs[a][1]]: problem.nodes[problem.arcs[a][0]] for a in down}
            trees.append(PackedTree(candidates[k], climb, fall, float(value) * scale))
    return Packing(tuple(trees), rate, max(bound, rate))


def _candidates(
    graph: nx.DiGraph,
    roots: Sequence[Node] | None,
    terminals: Sequence[Node] | None,
    shares: Mapping[Node, float] | None,
) -> list[Node]:
    """Return the nodes that may be roots, each once. Raise WanError for wrong arguments of `pack`."""
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
    return candidates


def _generated(problem: Problem, master: Master, scale: float, given_up: GivenUp) -> tuple[np.ndarray, float]:
    """Add trees to the master until its rate is within the gap of the bound, or no tree improves it. Return the rates
    of the master's trees in units of `scale` Mbit/s, and the bound in Mbit/s.
    """
    for k, (up, down) in enumerate(problem.trees(problem.costs(1 / problem.capacity)[0], exact=False)[0]):
        master.add((k, up, down))
    for column in spread(problem):
        master.add(column)
    bound = np.inf
    rates = np.zeros(0)
    exact, before = problem.exact == "edmonds", 0.0
    for _ in range(given_up.rounds):
        rates, price, _ = master.solve()
        cost, slack = problem.costs(price[: len(problem.capacity)])
        pairs, least = problem.trees(problem.with_back(cost), exact)
        fresh = False
        for k, (up, down) in enumerate(pairs):
            fresh |= master.add((k, up, down))
        rate = float(rates.sum()) * scale
        if least is not None:
            own = price[len(problem.capacity) :]
            least = least - slack + own
            cheapest = float(least.min() if master.part is None else master.part @ least)
            if cheapest > 0:
                bound = min(bound, scale * master.worth(cost, own) / cheapest)
            if not fresh or rate >= bound * (1 - given_up.gap):
                break
        if not exact:  # cheap columns as long as they help, then the exact ones (or, where there are none, the bound)
            exact = not fresh or rate < before * (1 + PROGRESS)
            before = rate
        elif not problem.exact:
            exact = False
    return rates, bound
