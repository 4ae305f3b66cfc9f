"""Cheapest trees that reach only some nodes (Steiner arborescences), exactly and by bounds.

Exact trees come from Dreyfus and Wagner's dynamic program over subsets of the terminals, one run for all roots, O(3^k n
+ 2^k n^2) for k terminals. For more terminals, a lower bound comes from Wong's dual ascent, an upper bound from Edmonds
on the terminals' distances.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from controlplane.planner.strategies.wan.tree_packing.arborescence import Arc, arborescence

MOST_TERMINALS = 12  # most terminals for the dynamic program, which then adds 3^12 n sums


class Distances:
    """Shortest paths under positive costs. `length` has their costs, (n, n), infinity where there is no path."""

    def __init__(self, n: int, arcs: Sequence[Arc], cost: Sequence[float]) -> None:
        best: dict[Arc, int] = {}
        for k, arc in enumerate(arcs):
            if arc not in best or cost[k] < cost[best[arc]]:
                best[arc] = k
        self.arc = best
        tails, heads = zip(*best, strict=True) if best else ((), ())
        values = [cost[k] for k in best.values()]
        self.length, self._before = dijkstra(csr_matrix((values, (tails, heads)), (n, n)), return_predecessors=True)

    def path(self, u: int, v: int) -> list[int]:
        """Return the indexes of the arcs of a shortest path."""
        result = []
        while v != u:
            before = int(self._before[u, v])
            result.append(self.arc[before, v])
            v = before
        return result


def cleaned(
    n: int, root: int, arcs: Sequence[Arc], chosen: Sequence[int], terminals: Sequence[int]
) -> list[int] | None:
    """Return a tree of chosen arcs without branches that lead to no terminal; None where some terminal is not
    reached.
    """
    leaving: dict[int, list[int]] = {}
    for k in chosen:
        leaving.setdefault(arcs[k][0], []).append(k)
    entry = {root: -1}
    queue = [root]
    for u in queue:
        for k in leaving.get(u, ()):
            if arcs[k][1] not in entry:
                entry[arcs[k][1]] = k
                queue.append(arcs[k][1])
    kept: dict[int, int] = {}
    for terminal in terminals:
        node = terminal
        while node != root and node not in kept:
            if node not in entry:
                return None
            kept[node] = entry[node]
            node = arcs[entry[node]][0]
    return list(kept.values())


class Exact:
    """The cheapest trees from every root to all terminals, under a positive cost for each arc (tail, head)."""

    def __init__(self, n: int, arcs: Sequence[Arc], cost: Sequence[float], terminals: Sequence[int]) -> None:
        self.n, self.arcs, self.terminals = n, arcs, list(terminals)
        self.distances = Distances(n, arcs, cost)
        length = self.distances.length
        full = 1 << len(self.terminals)
        self._best = np.full((full, n), np.inf)  # of a tree from v to the subset
        self._joined = np.full((full, n), np.inf)  # of one that branches (or ends) at v
        self._best[0] = 0.0
        for bit, terminal in enumerate(self.terminals):
            self._best[1 << bit] = length[:, terminal]
        for subset in range(1, full):
            if subset & (subset - 1):
                parts = _halves(subset)
                self._joined[subset] = (self._best[parts] + self._best[subset ^ parts]).min(axis=0)
                self._best[subset] = (length + self._joined[subset][None, :]).min(axis=1)

    def cost(self, root: int) -> float:
        """Return the cost of a cheapest tree; infinite where the root does not reach all terminals."""
        return float(self._best[-1][root])

    def tree(self, root: int) -> list[int] | None:
        """Return the arcs of a cheapest tree; None where the root does not reach all terminals."""
        if not np.isfinite(self.cost(root)):
            return None
        chosen: list[int] = []
        open_ = [(len(self._best) - 1, root)]
        while open_:
            subset, node = open_.pop()
            if subset & (subset - 1) == 0:
                if subset:
                    chosen += self.distances.path(node, self.terminals[subset.bit_length() - 1])
                continue
            branch = int(np.argmin(self.distances.length[node] + self._joined[subset]))
            chosen += self.distances.path(node, branch)
            parts = _halves(subset)
            half = int(parts[int(np.argmin((self._best[parts] + self._best[subset ^ parts])[:, branch]))])
            open_ += [(half, branch), (subset ^ half, branch)]
        return cleaned(self.n, root, self.arcs, sorted(set(chosen)), self.terminals)


_HALVES: dict[int, NDArray[np.int64]] = {}


def _halves(subset: int) -> NDArray[np.int64]:
    """Return the parts of a subset that hold its lowest member, without the subset itself: each way to split it
    once.
    """
    if subset not in _HALVES:
        low = subset & -subset
        rest = subset ^ low
        parts = []
        part = (rest - 1) & rest
        while True:
            parts.append(part | low)
            if part == 0:
                break
            part = (part - 1) & rest
        _HALVES[subset] = np.array(parts, dtype=np.int64)
    return _HALVES[subset]


def short_tree(  # noqa: PLR0917
    n: int,
    root: int,
    arcs: Sequence[Arc],
    cost: Sequence[float],
    terminals: Sequence[int],
    distances: Distances | None = None,
) -> list[int] | None:
    """Return a cheap tree to all terminals: Edmonds on their distances, then Edmonds on the nodes used, as long as it
    helps. `distances` are those of these arcs and costs, where they are known.
    """
    known = Distances(n, arcs, cost) if distances is None else distances
    ends = list(dict.fromkeys([root, *terminals]))
    pairs = [(i, j) for i in range(len(ends)) for j in range(len(ends)) if i != j]
    pairs = [(i, j) for i, j in pairs if np.isfinite(known.length[ends[i], ends[j]])]
    links = arborescence(len(ends), 0, pairs, [known.length[ends[i], ends[j]] for i, j in pairs])
    if links is None:
        return None
    chosen = {k for link in links for k in known.path(ends[pairs[link][0]], ends[pairs[link][1]])}
    best = cleaned(n, root, arcs, sorted(chosen), terminals)
    while best:
        used = sorted({root, *(v for k in best for v in arcs[k])})
        place = {v: i for i, v in enumerate(used)}
        inside = [k for k, (u, v) in enumerate(arcs) if u in place and v in place]
        found = arborescence(
            len(used), place[root], [(place[arcs[k][0]], place[arcs[k][1]]) for k in inside], [cost[k] for k in inside]
        )
        if found is None:
            break
        better = cleaned(n, root, arcs, [inside[k] for k in found], terminals)
        if better is None or sum(cost[k] for k in better) >= sum(cost[k] for k in best) * (1 - 1e-12):
            break
        best = better
    return best


def dual_ascent(n: int, root: int, arcs: Sequence[Arc], cost: Sequence[float], terminals: Sequence[int]) -> float:
    """Return a lower bound of the cheapest tree to all terminals (Wong 1984); infinite where one cannot be reached.

    Each step takes the terminal whose set of nodes that lead to it over arcs without slack is smallest, and raises the
    price of entering that set until an arc into it has none: a feasible solution of the directed cuts' dual.
    """
    slack = np.array(cost, dtype=float)
    tail = np.array([u for u, _ in arcs], dtype=np.int64)
    head = np.array([v for _, v in arcs], dtype=np.int64)
    into: list[list[int]] = [[] for _ in range(n)]
    for k, (_, v) in enumerate(arcs):
        into[v].append(k)
    free = slack <= 0
    total = 0.0

    def leads_to(terminal: int) -> NDArray[np.bool_]:
        seen = np.zeros(n, dtype=bool)
        seen[terminal] = True
        queue = [terminal]
        for v in queue:
            for k in into[v]:
                if free[k] and not seen[tail[k]]:
                    seen[tail[k]] = True
                    queue.append(int(tail[k]))
        return seen

    sets = {t: leads_to(t) for t in terminals if t != root}
    while True:
        open_ = {t: seen for t, seen in sets.items() if not seen[root]}
        if not open_:
            return total
        terminal = min(open_, key=lambda t: (int(open_[t].sum()), t))
        seen = open_[terminal]
        entering = seen[head] & ~seen[tail]
        if not entering.any():
            return float("inf")
        step = float(slack[entering].min())
        total += step
        slack[entering] -= step
        fresh = entering & (slack <= 1e-15 * step)
        free |= fresh
        heads = set(head[fresh].tolist())
        sets = {t: leads_to(t) if any(seen[v] for v in heads) else seen for t, seen in open_.items()}
