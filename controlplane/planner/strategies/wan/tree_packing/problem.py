"""The packing problem: a network's links as numbered arcs, and the cheapest trees under given prices."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np

from controlplane.planner.strategies.wan.apsp.algorithm import Node, usable
from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.tree_packing.arborescence import Arc, arborescence
from controlplane.planner.strategies.wan.tree_packing.steiner import (
    MOST_TERMINALS,
    Distances,
    Exact,
    dual_ascent,
    short_tree,
)


class Problem:
    """A network's links as arcs between numbered nodes, and each root's cheapest trees under prices.

    The arguments are those of algorithm.pack. Raises WanError where nodes cannot be reached.
    """

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
        self.back, self.results = back, results
        # Of each link the opposite one; -1 where there is none.
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
        """Return the cost of each link to a tree, with the cost of the part of the opposite link that the tree loads,
        too.
        """
        if not self.back:
            return cost
        return cost + self.back * np.where(self.opposite >= 0, cost[self.opposite], 0.0)

    def costs(self, price: np.ndarray) -> tuple[np.ndarray, float]:
        """Return costs and slack. The costs are the prices plus a little of each link's scarcity, so that all are
        positive and ties between free links are not decided at random. A bound may use them as prices, except for links
        without a limit, whose price is 0: a tree can cost `slack` more than under such prices.
        """
        grain = 1e-8 * max(float(price.max(initial=0.0)), 1e-6)
        extra = grain * (self.capacity.min(initial=1.0) / self.capacity + 1e-3)
        unlimited = extra[~np.isfinite(self.capacity)]
        slack = 2 * len(self.nodes) * (1 + self.back) * float(unlimited.max(initial=0.0))
        return price + extra, slack

    def _one_way(self, arcs: Sequence[Arc], cost: np.ndarray, exact: bool) -> tuple[list[list[int]], np.ndarray | None]:
        """Return a cheap tree of each root, and a lower bound of the cheapest tree's cost for each root (None where it
        is not known).
        """
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
        """Return (up, down) of each root, and a lower bound of the cost of each root's cheapest pair (None where it is
        not known).
        """
        ups, least = self._one_way(self.reversed, cost, exact)
        if self.falls is not None:
            return list(zip(ups, self.falls, strict=True)), least
        downs, also = self._one_way(self.arcs, cost, exact)
        return list(zip(ups, downs, strict=True)), None if least is None or also is None else least + also
