"""The cheapest arborescence (a directed spanning tree from a root), by Edmonds' algorithm."""

from __future__ import annotations

from collections.abc import Sequence

Arc = tuple[int, int]


def arborescence(n: int, root: int, arcs: Sequence[Arc], cost: Sequence[float]) -> list[int] | None:
    """Return the indexes of the cheapest arcs (tail, head) over which every node is reached from the root, by Edmonds'
    algorithm; None where some node cannot be reached. Of equally cheap arcs the first one is taken.
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
