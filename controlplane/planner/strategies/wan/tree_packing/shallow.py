"""Packings whose trees have little delay: trees grow from the root under prices of links and of delay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controlplane.planner.strategies.wan.tree_packing.arborescence import Arc
from controlplane.planner.strategies.wan.tree_packing.master import Column, Master
from controlplane.planner.strategies.wan.tree_packing.problem import Problem

HASTES = (0.03, 0.3, 3.0)
"""Prices of a unit of delay, in parts of the links' mean price: one tree is grown for each of these."""
ROUNDS = 30
GAIN = 1e-3
"""A tree is added to the program when its delay is below the worth of its rate by at least this part of it."""


def delay(arcs: Sequence[Arc], root: int, tree: Sequence[int], hop: Sequence[float]) -> float:
    """Return the delay of the longest path from the root, where hop[k] is the delay of arc k."""
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
    """Return a tree from the root to all nodes of the arcs, grown by the arc with the least price plus `haste` times
    its delay from the root; None where some node cannot be reached.
    """
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


def shallower(problem: Problem, known: Master, rate: float, rounds: int = ROUNDS) -> tuple[Master, np.ndarray]:
    """Return a packing of this rate (in the LP's unit) with the least delay, weighted by the trees' rates: its trees
    and their rates. All trees have equally many links, but deep ones take longer to fill and drain. New trees are grown
    under the prices, `rounds` times at most, which is a heuristic; the packing is never worse than the known one.
    """
    master = Master(problem, known.limits, None, rate)
    hop = (float(np.median(problem.capacity)) / problem.capacity).tolist()

    def delay_of(column: Column) -> float:
        k, up, down = column
        root = problem.roots[k]
        return delay(problem.reversed, root, up, hop) + delay(problem.arcs, root, down, hop)

    for column in known.columns:
        master.add(column, delay_of(column))
    for _ in range(min(rounds, ROUNDS)):
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
