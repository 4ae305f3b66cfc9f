"""Trees that a chunk is soon through, found by growing them from the root under prices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controlplane.planner.strategies.wan.tree_packing.arborescence import Arc
from controlplane.planner.strategies.wan.tree_packing.master import Column, Master
from controlplane.planner.strategies.wan.tree_packing.problem import Problem

HASTES = (0.03, 0.3, 3.0)
"""What a unit of delay is worth beside the links' prices, in parts of the mean price: one tree is tried for each."""
ROUNDS = 30
GAIN = 1e-3
"""A tree is taken up whose delay is less than what its rate is worth by this part of it."""


def delay(arcs: Sequence[Arc], root: int, tree: Sequence[int], hop: Sequence[float]) -> float:
    """The longest of the ways from the root, hop[arc] each."""
    into = {arcs[k][1]: k for k in tree}

    def to(node: int) -> float:
        total = 0.0
        while node != root:
            total += hop[into[node]]
            node = arcs[into[node]][0]
        return total

    return max((to(node) for node in into), default=0.0)


def grown(
    root: int,
    arcs: Sequence[Arc],
    price: Sequence[float],
    hop: Sequence[float],
    haste: float,
) -> list[int] | None:
    """A tree to all ends of the arcs: each next node is the one that is cheapest to reach, its delay from the root
    times `haste` counted as a price. None: some node cannot be reached."""
    far = {root: 0.0}
    tree: list[int] = []
    nodes = {root, *(end for arc in arcs for end in arc)}
    while len(far) < len(nodes):
        best, value = -1, float("inf")
        for k, (u, v) in enumerate(arcs):
            if u in far and v not in far:
                cost = price[k] + haste * (far[u] + hop[k])
                if cost < value:
                    best, value = k, cost
        if best < 0:
            return None
        u, v = arcs[best]
        far[v] = far[u] + hop[best]
        tree.append(best)
    return tree


def shallower(problem: Problem, known: Master, rate: float) -> tuple[Master, np.ndarray]:
    """(trees, their rates): at this rate in the LP's unit, those through which a chunk is soonest, weighted by their
    rates. Every tree has as many links, but deep ones fill and drain longer. New trees come from growing some under the
    prices: a heuristic, never worse than what is known."""
    master = Master(problem, known.limits, None, rate)
    hop = (float(np.median(problem.capacity)) / problem.capacity).tolist()

    def delay_of(column: Column) -> float:
        k, up, down = column
        root = problem.roots[k]
        return delay(problem.reversed, root, up, hop) + delay(problem.arcs, root, down, hop)

    for column in known.columns:
        master.add(column, delay_of(column))
    for _ in range(ROUNDS):
        _, price, worth = master.solve()
        own = price[len(problem.capacity) :]
        cost = problem.with_back(problem.costs(price[: len(problem.capacity)])[0])
        mean, values, before = float(cost.mean()), cost.tolist(), len(master.columns)
        for k, root in enumerate(problem.roots):
            for haste in HASTES:
                up = grown(root, problem.reversed, values, hop, haste * mean)
                down = grown(root, problem.arcs, values, hop, haste * mean)
                if up is None or down is None:
                    continue
                late = delay_of((k, up, down))
                reduced = late + float(cost[up].sum() + cost[down].sum()) + float(own[k]) - worth
                if reduced < -GAIN * worth:
                    master.add((k, up, down), late)
        if len(master.columns) == before:
            break
    return master, master.solve()[0]
