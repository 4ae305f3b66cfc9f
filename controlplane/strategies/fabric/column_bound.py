"""How good column generation's result is: an upper bound of f over all trees, single- and multi-level, with the links.

For any prices y >= 0 with sum_r capacity(r) y(r) = z, and any lower bound p_s of the price of root s's cheapest tree,
f <= z / min_s p_s (Lagrange; with the split frozen z / sum_s x_s p_s). p_s comes from two linear relaxations: facility
location for the way up (points may feed points), and a Steiner arborescence for the results.
"""

from __future__ import annotations

import highspy
import numpy as np

from controlplane.job import Job
from controlplane.routing import Network
from controlplane.strategies.fabric.column_generation import Master, Prices, Pricing


def column_bound(master: Master, prices: Prices) -> float:
    """Upper bound of f in Mbit/s from the master program's prices. Raises ValueError where servers are linked."""
    network, job = master.network, master.job
    pricing = Pricing(network, job)
    if not pricing.complete:
        raise ValueError("column bound: every server must hang on switches only")
    pricing.update(prices, np.zeros(len(network.ends)), tie=0.0)
    everything = np.concatenate([prices.link, prices.switch, prices.root])
    total = float(everything @ master.capacity)
    least = [
        _way_up(pricing, root) + (_results(pricing, network, job, root) if network.topology.results_on_links else 0.0)
        for root in range(len(job.parameter_servers))
    ]
    if master.frozen_split is not None:
        price = sum(master.frozen_split.get(s, 0.0) * p for s, p in zip(job.parameter_servers, least, strict=True))
    else:
        price = min(least)
    return total / price * master.scale


class _Program:
    """min cost x over 0 <= x <= 1 with rows given one by one."""

    def __init__(self, cost: np.ndarray) -> None:
        self.cost = cost
        self.start: list[int] = [0]
        self.index: list[int] = []
        self.value: list[float] = []
        self.lower: list[float] = []
        self.upper: list[float] = []

    def row(self, entries: list[tuple[int, float]], lower: float, upper: float) -> None:
        self.index += [i for i, _ in entries]
        self.value += [x for _, x in entries]
        self.start.append(len(self.index))
        self.lower.append(lower)
        self.upper.append(upper)

    def solve(self) -> float:
        """The optimum; the dual bound where the solver stops early."""
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.lower)
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = self.cost, np.zeros(len(self.cost)), np.ones(len(self.cost))
        lp.row_lower_, lp.row_upper_ = np.array(self.lower), np.array(self.upper)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = np.array(self.start), np.array(self.index)
        lp.a_matrix_.value_ = np.array(self.value)
        highs = highspy.Highs()
        highs.silent()
        highs.setOptionValue("threads", 1)
        highs.passModel(lp)
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise ValueError(f"column bound: solver ended with {highs.modelStatusToString(highs.getModelStatus())}")
        return float(highs.getObjectiveValue())


def _way_up(pricing: Pricing, root: int) -> float:
    """Facility location with points that feed points, relaxed. Workers of equal cost rows count together."""
    target = len(pricing.switches) + root
    direct = pricing.from_worker[:, target] + pricing.root_price[root]
    final = pricing.distance[:, target] + pricing.root_price[root]
    points = [int(f) for f in np.flatnonzero(np.isfinite(final) & pricing.usable)]
    costs = np.column_stack([direct, pricing.worker_cost[:, points]])
    least = costs.min(axis=1, keepdims=True)
    rows, counts = np.unique(np.round(costs - least, 12), axis=0, return_counts=True)
    base = float(least.sum())
    count, stride = len(points), len(points) + 1
    between = pricing.point_cost[np.ix_(points, points)]
    onwards = np.column_stack([final[points], between])  # per point: to the root, to each point
    worker0, point0 = count, count + len(rows) * stride
    cost = np.concatenate([np.zeros(count), (rows * counts[:, None]).ravel(), onwards.ravel()])
    impossible = ~np.isfinite(cost)
    cost[impossible] = 1e3
    program = _Program(cost)
    for first, opened in [
        *((worker0 + w * stride, None) for w in range(len(rows))),
        *((point0 + p * stride, p) for p in range(count)),
    ]:
        members = [(first + i, 1.0) for i in range(stride)]
        if opened is None:
            program.row(members, 1.0, 1.0)
        else:
            program.row([*members, (opened, -1.0)], 0.0, 0.0)
        for f in range(count):
            program.row([(first + 1 + f, 1.0), (f, -1.0)], -highspy.kHighsInf, 0.0)
    return base + program.solve()


def _results(pricing: Pricing, network: Network, job: Job, root: int) -> float:
    """Steiner arborescence from the root to all workers' access switches, relaxed, and the access links."""
    source = pricing.roots[root]
    price = pricing.price
    access = 0.0
    terminals: set[int] = set()
    for leaf in pricing.leaves:
        access += min(price[e] for _, e in network.into[leaf])
        if len(network.into[leaf]) == 1:
            terminals.add(network.into[leaf][0][0])
    first = min(price[e] for _, e in network.out[source])
    starts = {v for v, _ in network.out[source]}
    if len(starts) > 1:
        return access + first
    start = next(iter(starts))
    goals = sorted(terminals - {start})
    inner = [
        (u, v, e)
        for e, (u, v) in enumerate(network.ends)
        if network.forwards[u] and network.forwards[v] and network.capacity[e] > 0
    ]
    arcs = len(inner)
    cost = np.concatenate([price[[e for _, _, e in inner]], np.zeros(arcs * len(goals))]) if inner else np.zeros(0)
    program = _Program(cost)
    for k, goal in enumerate(goals):
        base = arcs * (k + 1)
        balance: dict[int, list[tuple[int, float]]] = {}
        for i, (u, v, _) in enumerate(inner):
            program.row([(base + i, 1.0), (i, -1.0)], -highspy.kHighsInf, 0.0)
            balance.setdefault(v, []).append((base + i, 1.0))
            balance.setdefault(u, []).append((base + i, -1.0))
        for node, entries in balance.items():
            amount = 1.0 if node == goal else -1.0 if node == start else 0.0
            program.row(entries, amount, amount)
    return access + first + (program.solve() if goals else 0.0)
