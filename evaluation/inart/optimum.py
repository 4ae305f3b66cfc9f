"""Computes the best rate that any trees reach on a small network, with code of its own: only the JSON of the topology
and of the job are used, as docs/planner.md describes them, and none of the planner's code.

The rates of trees are a linear program with a row per capacity. Further trees come from its prices: the cheapest tree
of a root is found exactly, by dynamic programming over sets of workers (Dreyfus and Wagner, 1971), once for the
gradients and once for the results. No tree costs less than the cheapest one, so each round proves a bound, too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csc_array

Json = Mapping[str, Any]
Row = tuple[str, ...]
Use = Counter[Row]
Reals = NDArray[np.float64]

MOST_WORKERS = 7  # most workers, as the time grows with 3 to the power of them
ROUNDS = 300
EXACT = 1e-6  # relative difference of rate and bound at which the search ends
WEIGHT = 0.5  # of the prices that proved the best bound so far, in those of a round


@dataclass(frozen=True)
class Optimum:
    """The best rate of any trees in Mbit/s: some trees reach `reached_mbps`, and none exceed `proven_mbps`."""

    reached_mbps: float
    proven_mbps: float


def optimum(topology: Json, job: Json) -> Optimum | None:
    """Return the best rate of any trees, whatever switches hold; None if the network is not small, or a server hangs on
    a server.

    As in the deployment, a root sends the results of a tree over one of its links, and the gradients of a worker on the
    host of the root cross no link.
    """
    if len(job["workers"]) > MOST_WORKERS:
        return None
    network = _Network(topology, job)
    if not all(u in network.at or v in network.at for u, v in network.links):
        return None
    found: list[tuple[dict[Row, float], float]] = []
    used = {row: 1 / rate for row, rate in network.capacity.items()}
    center, proven, reached = used, math.inf, 0.0
    prices = used
    for _ in range(ROUNDS):
        added, least = False, math.inf
        for root in network.roots:
            tree = network.cheapest(root, used)
            if tree is None:
                continue
            use, cost = tree
            least = min(least, cost)
            if not found or sum(prices.get(row, 0.0) * amount for row, amount in use.items()) < 1 - EXACT / 10:
                found.append(({row: float(amount) for row, amount in use.items()}, cost))
                added = True
        if math.isinf(least):
            return Optimum(0.0, 0.0)
        bound = sum(used[row] * rate for row, rate in network.capacity.items()) / least if least > 0 else math.inf
        if bound < proven:
            proven, center = bound, {row: price / least for row, price in used.items()}
        if not added and used is prices:
            break
        if added:
            reached, prices = _rates(network, [use for use, _ in found])
            if reached >= proven * (1 - EXACT):
                break
            used = {row: WEIGHT * center[row] + (1 - WEIGHT) * prices[row] for row in prices}
        else:
            used = prices
    return Optimum(reached, proven)


def _rates(network: _Network, uses: list[dict[Row, float]]) -> tuple[float, dict[Row, float]]:
    """Return the highest sum of rates of trees with these uses in Mbit/s, and the prices of the rows."""
    rows = list(network.capacity)
    number = {row: i for i, row in enumerate(rows)}
    scale = max(network.capacity.values())
    entries = [(number[row], t, amount) for t, use in enumerate(uses) for row, amount in use.items() if row in number]
    at, column, value = zip(*entries, strict=True)
    matrix = csc_array((value, (at, column)), shape=(len(rows), len(uses)))
    limits = np.array([network.capacity[row] for row in rows]) / scale
    solved = linprog(-np.ones(len(uses)), A_ub=matrix, b_ub=limits, method="highs")
    if solved.status != 0:
        raise RuntimeError(f"optimum: the program of rates has no solution ({solved.message})")
    prices = np.maximum(0.0, -solved.ineqlin.marginals)
    return -solved.fun * scale, dict(zip(rows, prices.tolist(), strict=True))


class _Network:
    """A network with what is left of each capacity in Mbit/s, by row: a link, a switch that adds, a root that takes
    in.
    """

    def __init__(self, topology: Json, job: Json) -> None:
        nodes = {str(node["id"]): node for node in topology["nodes"]}
        self.switches = [name for name, node in nodes.items() if node["kind"] == "switch"]
        self.at = {name: i for i, name in enumerate(self.switches)}
        self.workers, self.roots = list(job["workers"]), list(job["parameter_servers"])
        self.counted = topology.get("graph", {}).get("results_on_links", True)
        self.capacity: dict[Row, float] = {}
        self.links: set[tuple[str, str]] = set()
        for edge in topology.get("edges", topology.get("links", ())):
            left = edge["bandwidth_mbps"] - edge.get("used_bandwidth_mbps", 0.0)
            ends = str(edge["source"]), str(edge["target"])
            for pair in (ends,) if topology.get("directed", False) else (ends, ends[::-1]):
                if left > 0:
                    self.links.add(pair)
                    self.capacity["link", *pair] = left
        self.points = []
        for name in self.switches:
            left = nodes[name].get("aggregation_mbps", math.inf) - nodes[name].get("used_aggregation_mbps", 0.0)
            if left > 0:
                self.points.append(name)
            if 0 < left < math.inf:
                self.capacity["point", name] = left
        for name in self.roots:
            left = nodes[name].get("ingress_mbps", math.inf) - nodes[name].get("used_ingress_mbps", 0.0)
            if left < math.inf:
                self.capacity["root", name] = max(left, 1e-12)

    def cheapest(self, root: str, prices: Mapping[Row, float]) -> tuple[Use, float] | None:
        """Return how often the cheapest tree of a root uses each row, and its cost; None if there is no tree."""
        ways = _Ways(self, prices)
        gradients, results = _Gradients(self, ways, root, prices), _Results(self, ways, root, prices)
        if math.isinf(gradients.cost + results.cost):
            return None
        use = gradients.use()
        use.update(results.use() if self.counted else ())
        return use, gradients.cost + (results.cost if self.counted else 0.0)


class _Ways:
    """Cheapest routes between switches, over switches alone (Floyd and Warshall)."""

    def __init__(self, network: _Network, prices: Mapping[Row, float]) -> None:
        count = len(network.switches)
        self.network, self.prices = network, prices
        self.cost = np.full((count, count), np.inf)
        self.next = np.full((count, count), -1)
        np.fill_diagonal(self.cost, 0.0)
        for u, v in network.links:
            if u in network.at and v in network.at:
                self.cost[network.at[u], network.at[v]] = prices["link", u, v]
                self.next[network.at[u], network.at[v]] = network.at[v]
        for k in range(count):
            over = self.cost[:, k, None] + self.cost[None, k, :]
            better = over < self.cost
            self.cost = np.where(better, over, self.cost)
            self.next = np.where(better, self.next[:, k, None], self.next)

    def out(self, server: str) -> tuple[Reals, NDArray[np.intp]]:
        """Return the cost from a server to each switch, and the switch at which that route begins."""
        return self._ended(server, [v for u, v in self.network.links if u == server], out=True)

    def into(self, server: str) -> tuple[Reals, NDArray[np.intp]]:
        """Return the cost from each switch to a server, and the switch at which that route ends."""
        return self._ended(server, [u for u, v in self.network.links if v == server], out=False)

    def _ended(self, server: str, near: list[str], *, out: bool) -> tuple[Reals, NDArray[np.intp]]:
        best, ends = np.full(len(self.network.switches), np.inf), np.full(len(self.network.switches), -1)
        for v in near:
            if v not in self.network.at:
                continue
            own = self.network.at[v]
            price = self.prices["link", server, v] if out else self.prices["link", v, server]
            cost = price + (self.cost[own] if out else self.cost[:, own])
            ends = np.where(cost < best, own, ends)
            best = np.minimum(cost, best)
        return best, ends

    def links(self, u: int, v: int) -> list[Row]:
        """Return the rows of the links from one switch to another."""
        names = self.network.switches
        rows: list[Row] = []
        while u != v:
            after = int(self.next[u, v])
            rows.append(("link", names[u], names[after]))
            u = after
        return rows


def _parts(members: int) -> NDArray[np.intp]:
    """Return the parts of a set with its first member, without the set itself (sets are bit masks)."""
    first, found, part = members & -members, [], members
    while part := (part - 1) & members:
        if part & first:
            found.append(part)
    return np.array(found, dtype=np.intp)


class _Gradients:
    """The cheapest way for all gradients to the root, over any points.

    joined[S] has, by switch, the cost of S's gradients as inputs of a sum there; sent[S] the same where they may have
    been added elsewhere before.
    """

    def __init__(self, network: _Network, ways: _Ways, root: str, prices: Mapping[Row, float]) -> None:
        self.network, self.ways, self.root = network, ways, root
        self.own = root in network.workers
        self.names = [worker for worker in network.workers if worker != root]
        count, many = len(self.names), len(network.switches)
        adding = np.array([v in network.points for v in network.switches], dtype=bool)
        price = np.array([prices.get(("point", v), 0.0) if v in network.points else np.inf for v in network.switches])
        self.starts = [ways.out(worker) for worker in self.names]
        self.to_root, self.ends = ways.into(root)
        input_price = prices.get(("root", root), 0.0)
        self.joined = np.full((1 << count, many), np.inf)
        self.sent = np.full((1 << count, many), np.inf)
        self.split = np.zeros((1 << count, many), dtype=np.intp)
        self.at_root = np.full(1 << count, np.inf)
        self.last: dict[int, tuple[str, int]] = {}
        self.before = np.full((1 << count, many), -1)
        between = np.where(np.eye(many, dtype=bool), np.inf, ways.cost) + price[None, :]
        for members in range(1, 1 << count):
            parts = _parts(members)
            if members & (members - 1) == 0:
                cost, _ = self.starts[members.bit_length() - 1]
                self.sent[members] = np.where(adding, cost + price, np.inf)
                direct = cost + self.to_root
                self.at_root[members] = direct.min() + input_price
                self.last[members] = ("worker", int(direct.argmin()))
                continue
            costs = self.sent[parts] + self.sent[members ^ parts]
            self.split[members] = parts[costs.argmin(axis=0)]
            self.joined[members] = costs.min(axis=0)
            passed = self.joined[members][:, None] + between
            self.before[members] = np.where(passed.min(axis=0) < self.joined[members], passed.argmin(axis=0), -1)
            self.sent[members] = np.minimum(self.joined[members], passed.min(axis=0))
            onwards = self.joined[members] + self.to_root
            self.at_root[members], self.last[members] = onwards.min() + input_price, ("point", int(onwards.argmin()))
            apart = self.at_root[parts] + self.at_root[members ^ parts]
            if apart.min() < self.at_root[members]:
                self.at_root[members], self.last[members] = apart.min(), ("parts", int(parts[apart.argmin()]))
        self.everyone = (1 << count) - 1
        self.cost = float(self.at_root[self.everyone]) if count else 0.0
        self.cost += input_price if self.own else 0.0

    def use(self) -> Use:
        """Return how often the gradients of the cheapest tree use each row."""
        found: Use = Counter()
        if self.own:
            found["root", self.root] += 1
        if self.everyone:
            self._to_root(self.everyone, found)
        return found

    def _to_root(self, members: int, found: Use) -> None:
        kind, where = self.last[members]
        if kind == "parts":
            self._to_root(where, found)
            self._to_root(members ^ where, found)
            return
        if kind == "worker":
            self._from_worker(members, where, found)
        else:
            self._joined(members, where, found)
        end = int(self.ends[where])
        found.update([*self.ways.links(where, end), ("link", self.network.switches[end], self.root)])
        found["root", self.root] += 1

    def _from_worker(self, members: int, to: int, found: Use) -> None:
        number = members.bit_length() - 1
        first = int(self.starts[number][1][to])
        found.update([("link", self.names[number], self.network.switches[first]), *self.ways.links(first, to)])

    def _joined(self, members: int, at: int, found: Use) -> None:
        part = int(self.split[members, at])
        self._sent(part, at, found)
        self._sent(members ^ part, at, found)

    def _sent(self, members: int, at: int, found: Use) -> None:
        before = int(self.before[members, at])
        if members & (members - 1) == 0:
            self._from_worker(members, at, found)
        elif before < 0:  # all of its inputs are inputs of the sum here
            self._joined(members, at, found)
            return
        else:
            self._joined(members, before, found)
            found.update(self.ways.links(before, at))
        found["point", self.network.switches[at]] += 1


class _Results:
    """The cheapest way for the results from the root to all workers."""

    def __init__(self, network: _Network, ways: _Ways, root: str, prices: Mapping[Row, float]) -> None:
        self.network, self.ways, self.root = network, ways, root
        self.names = [worker for worker in network.workers if worker != root]
        count, many = len(self.names), len(network.switches)
        self.last = [ways.into(worker) for worker in self.names]
        self.cost_from = np.full((1 << count, many), np.inf)
        self.split = np.zeros((1 << count, many), dtype=np.intp)
        self.copied_at = np.zeros((1 << count, many), dtype=np.intp)
        for members in range(1, 1 << count):
            if members & (members - 1) == 0:
                self.cost_from[members] = self.last[members.bit_length() - 1][0]
                continue
            parts = _parts(members)
            costs = self.cost_from[parts] + self.cost_from[members ^ parts]
            self.split[members] = parts[costs.argmin(axis=0)]
            ahead = ways.cost + costs.min(axis=0)[None, :]
            self.copied_at[members] = ahead.argmin(axis=1)
            self.cost_from[members] = ahead.min(axis=1)
        self.everyone = (1 << count) - 1
        first = {v: prices["link", root, v] for u, v in network.links if u == root and v in network.at}
        costs_by = {v: price + float(self.cost_from[self.everyone, network.at[v]]) for v, price in first.items()}
        self.first = min(costs_by, key=costs_by.__getitem__, default="")
        self.cost = costs_by.get(self.first, math.inf) if count else 0.0

    def use(self) -> set[Row]:
        """Return the links that the results of the cheapest tree use."""
        if not self.everyone:
            return set()
        found: set[Row] = {("link", self.root, self.first)}
        self._from(self.everyone, self.network.at[self.first], found)
        return found

    def _from(self, members: int, at: int, found: set[Row]) -> None:
        if members & (members - 1) == 0:
            number = members.bit_length() - 1
            end = int(self.last[number][1][at])
            found.update([*self.ways.links(at, end), ("link", self.network.switches[end], self.names[number])])
            return
        copied = int(self.copied_at[members, at])
        found.update(self.ways.links(at, copied))
        part = int(self.split[members, copied])
        self._from(part, copied, found)
        self._from(members ^ part, copied, found)
