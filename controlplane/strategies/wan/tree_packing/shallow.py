"""Trees that a chunk is soon through, found by growing them from the root under prices."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.strategies.wan.tree_packing.arborescence import Arc

HASTES = (0.03, 0.3, 3.0)
"""What a unit of delay is worth beside the links' prices, in parts of the mean price: one tree is tried for each."""


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
