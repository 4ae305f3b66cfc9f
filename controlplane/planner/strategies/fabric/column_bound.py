"""How good column generation's result is: an upper bound of f over all trees, single- and multi-level, with the links.

For any prices y >= 0 with sum_r capacity(r) y(r) = z, and any lower bound p_s of the price of root s's cheapest tree,
f <= z / min_s p_s (Lagrange; with the split frozen z / sum_s x_s p_s). p_s comes from two linear relaxations: facility
location for the way up (points may feed points), and a Steiner arborescence for the results.
"""

from __future__ import annotations

import math

import numpy as np

from controlplane.planner.job import Job
from controlplane.planner.routing import Network
from controlplane.planner.strategies.deadline import deadline
from controlplane.planner.strategies.fabric.master import Master, Prices
from controlplane.planner.strategies.fabric.pricing import Pricing
from controlplane.planner.strategies.solver import Program, SolverError


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
    return total / price * master.scale if price > 0 else math.inf


def _optimum(program: Program) -> float:
    """Of a whole solve: a bound needs it. Raises SolverError where the deadline ends it before."""
    solution = program.solve(within=deadline())
    if not solution.optimal:
        raise SolverError(f"{program.what}: not solved to its optimum")
    return solution.objective


def _way_up(pricing: Pricing, root: int) -> float:
    """Facility location with points that feed points, relaxed. There, points may feed each other in a ring at no cost,
    so it is at least what any worker's way to the root costs."""
    direct, final = pricing.to_root(root)
    points = [int(f) for f in np.flatnonzero(np.isfinite(final))]
    costs = np.column_stack([direct, pricing.rack_cost[:, points]])
    least = costs.min(axis=1, keepdims=True)
    rows = costs - least
    base = float(least.sum())
    count, stride = len(points), len(points) + 1
    between = pricing.point_cost[np.ix_(points, points)]
    onwards = np.column_stack([final[points], between])  # per point: to the root, to each point
    worker0, point0 = count, count + len(rows) * stride
    cost = np.concatenate([np.zeros(count), rows.ravel(), onwards.ravel()])
    impossible = ~np.isfinite(cost)
    cost[impossible] = 1e3
    program = Program("column bound")
    program.add_columns(cost, 0.0, 1.0)
    for first, opened in [
        *((worker0 + w * stride, None) for w in range(len(rows))),
        *((point0 + p * stride, p) for p in range(count)),
    ]:
        members, ones = range(first, first + stride), [1.0] * stride
        if opened is None:
            program.add_row(members, ones, 1.0, 1.0)
        else:
            program.add_row([*members, opened], [*ones, -1.0], 0.0, 0.0)
        for f in range(count):
            program.add_row([first + 1 + f, f], [1.0, -1.0], upper=0.0)
    farthest = pricing.from_rack[:, len(pricing.switches) + root].max() + pricing.root_price[root]
    return max(base + _optimum(program), float(farthest))


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
    program = Program("column bound")
    program.add_columns(cost, 0.0, 1.0)
    for k, goal in enumerate(goals):
        base = arcs * (k + 1)
        balance: dict[int, tuple[list[int], list[float]]] = {}
        for i, (u, v, _) in enumerate(inner):
            program.add_row([base + i, i], [1.0, -1.0], upper=0.0)
            for node, sign in ((v, 1.0), (u, -1.0)):
                columns, values = balance.setdefault(node, ([], []))
                columns.append(base + i)
                values.append(sign)
        for node, entries in balance.items():
            amount = 1.0 if node == goal else -1.0 if node == start else 0.0
            program.add_row(*entries, amount, amount)
    return access + first + (_optimum(program) if goals else 0.0)
