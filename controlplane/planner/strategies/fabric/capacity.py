"""The linear program of the planner without link rows: how much is aggregated where, for which parameter server.

With a_{s,v} the rate that all workers send to switch v for root s, and d_s the rate that all send to s directly (W
workers, residual capacities C_v, B_s, link of s towards the network U_s):

    maximise f = sum a + sum d
    W * sum_s a_{s,v}       <= C_v       each switch v
    sum_v a_{s,v} + W * d_s <= B_s       each root s
    sum_v a_{s,v} + d_s     <= U_s       each root s (it sends the results once)
    f <= every worker's link, in both directions
    sum_v a_{s,v} + d_s = x_s f          each root s, where the split is frozen

A second solve keeps f and minimises the hops that all flows take together. A basic solution has few trees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.planner.job import Job
from controlplane.planner.routing import Network
from controlplane.planner.strategies import solver
from controlplane.planner.strategies.common import Choice, Infeasible, Split
from controlplane.planner.strategies.deadline import OutOfTime, deadline

NEGLIGIBLE = 1e-9  # fraction of the rate; HiGHS's tolerances are absolute, so the program is scaled to a rate near 1


@dataclass(frozen=True)
class Capacities:
    """Residual capacities in Mbit/s; `nic` is the least of the workers' links in both directions."""

    aggregation: np.ndarray  # per switch of topology.switches
    ingress: np.ndarray  # per root, at most its access link
    egress: np.ndarray  # per root
    nic: float

    @classmethod
    def of(cls, network: Network, job: Job) -> Capacities:
        """Return the residual capacities that other jobs leave to this one; infinite where there is no limit."""
        topology = network.topology
        counted = topology.results_on_links
        rates = [topology.residual_rates_mbps[w] for w in job.workers]
        return cls(
            np.array([topology.residual_aggregation_mbps(v) for v in topology.switches]),
            np.array([topology.residual_ingress_mbps(s) for s in job.parameter_servers]),
            np.array([topology.residual_rates_mbps[s][0] if counted else np.inf for s in job.parameter_servers]),
            min(min(out, into) if counted else out for out, into in rates),
        )


Row = tuple[list[int], list[float], float, float]  # columns, values, lower, upper


@dataclass(frozen=True)
class Program:
    """The linear program, scaled to a rate near 1. Its columns are a for every pair (root, switch), d for every root,
    and f.
    """

    pairs: list[tuple[int, int]]
    rows: list[Row]
    cost: np.ndarray  # hops, at most 1
    nic: float
    scale: float

    @property
    def columns(self) -> int:
        return len(self.cost)

    @property
    def nonzeros(self) -> int:
        return sum(len(row[0]) for row in self.rows)


def build_program(network: Network, job: Job, frozen_split: Split | None = None) -> Program:
    """Return the program. Raise Infeasible where no rate above 0 is possible."""
    limits = Capacities.of(network, job)
    roots, workers = job.parameter_servers, len(job.workers)
    index, switches = network.index, network.topology.switches
    leaves = np.array([index[w] for w in job.workers])
    to_root = np.array([network.hops_to(index[s]) for s in roots])
    # The least distance of a worker to every switch, and the sum of all, by one backward search per switch.
    usable = [v for v, c in enumerate(limits.aggregation) if c > 0 and workers > 1]
    hops = {
        v: (int(far.min()), int(far.sum())) for v in usable for far in [network.hops_to(index[switches[v]])[leaves]]
    }
    pairs = [
        (s, v) for v in usable if hops[v][0] >= 0 for s in range(len(roots)) if to_root[s, index[switches[v]]] >= 0
    ]
    scale = _scale(limits, workers)
    if scale <= 0:
        raise Infeasible(f"inart: no rate above 0 is possible: {_first_exhausted(network, job, limits)}")

    columns = len(pairs) + len(roots) + 1  # a, d, f
    rate = columns - 1
    rows: list[Row] = []
    by_switch: dict[int, list[int]] = {}
    by_root: dict[int, list[int]] = {s: [] for s in range(len(roots))}
    for column, (s, v) in enumerate(pairs):
        by_switch.setdefault(v, []).append(column)
        by_root[s].append(column)
    for v, members in by_switch.items():
        if np.isfinite(limits.aggregation[v]):
            rows.append((members, [float(workers)] * len(members), -np.inf, limits.aggregation[v] / scale))
    for s, members in by_root.items():
        direct = len(pairs) + s
        ones = [1.0] * len(members)
        rows.append(([*members, direct], [*ones, float(workers)], -np.inf, limits.ingress[s] / scale))
        if np.isfinite(limits.egress[s]):
            rows.append(([*members, direct], [*ones, 1.0], -np.inf, limits.egress[s] / scale))
        if frozen_split is not None:
            share = frozen_split.get(roots[s], 0.0)
            rows.append(([*members, direct, rate], [*ones, 1.0, -share], 0.0, 0.0))
    rows.append(([*range(columns - 1), rate], [1.0] * (columns - 1) + [-1.0], 0.0, 0.0))

    cost = np.zeros(columns)
    for column, (s, v) in enumerate(pairs):
        cost[column] = hops[v][1] + to_root[s, index[switches[v]]]
    for s in range(len(roots)):
        cost[len(pairs) + s] = to_root[s, leaves].sum()
    return Program(pairs, rows, cost / max(1.0, cost.max()), limits.nic / scale, scale)


def solve_capacity(network: Network, job: Job, frozen_split: Split | None = None) -> tuple[float, list[Choice]]:
    """Return the optimum f in Mbit/s and the trees that attain it (shares sum to 1). Raise Infeasible where f is 0,
    OutOfTime where the deadline passes.
    """
    program = build_program(network, job, frozen_split)
    roots, switches, pairs = job.parameter_servers, network.topology.switches, program.pairs
    rate = program.columns - 1
    solution = _solve_twice(program.rows, program.columns, rate, program.nic, program.cost).tolist()
    f = solution[rate]
    if f <= NEGLIGIBLE:
        limits = Capacities.of(network, job)
        raise Infeasible(f"inart: no rate above 0 is possible: {_first_exhausted(network, job, limits, frozen_split)}")
    amounts = [
        *((roots[s], switches[v], solution[column]) for column, (s, v) in enumerate(pairs)),
        *((root, root, solution[len(pairs) + s]) for s, root in enumerate(roots)),
    ]
    return f * program.scale, to_choices(job, [a for a in amounts if a[2] > NEGLIGIBLE * f], frozen_split)


def to_choices(job: Job, amounts: list[tuple[str, str, float]], frozen_split: Split | None) -> list[Choice]:
    """Return trees with all workers at one point, from (root, point, amount); shares sum to 1, or by root to the frozen
    split.
    """
    shares = normalised([(root, amount) for root, _, amount in amounts], frozen_split)
    return [
        Choice(root, share, (point,) * len(job.workers))
        for (root, point, _), share in zip(amounts, shares, strict=True)
    ]


def normalised(amounts: list[tuple[str, float]], frozen_split: Split | None) -> list[float]:
    """Return shares of the model from (root, rate) of trees."""
    if frozen_split is None:
        total = sum(amount for _, amount in amounts)
        return [amount / total for _, amount in amounts]
    totals: dict[str, float] = {}
    for root, amount in amounts:
        totals[root] = totals.get(root, 0.0) + amount
    return [frozen_split.get(root, 0.0) * amount / totals[root] for root, amount in amounts]


def _scale(limits: Capacities, workers: int) -> float:
    ingress = float(limits.ingress.sum())
    added = min(float(limits.aggregation.sum()) / workers, ingress)
    return min(limits.nic, added * (1 - 1 / workers) + ingress / workers, float(limits.egress.sum()))


def _first_exhausted(network: Network, job: Job, limits: Capacities, frozen_split: Split | None = None) -> str:
    topology = network.topology
    for worker in job.workers:
        for u, v in [*topology.graph.out_edges(worker), *topology.graph.in_edges(worker)]:
            if topology.residual_bandwidth_mbps(u, v) <= 0:
                return f"link {u} -> {v} of worker {worker} has no bandwidth left"
    for s, root in enumerate(job.parameter_servers):
        if min(limits.ingress[s], limits.egress[s]) <= 0 and (frozen_split is None or frozen_split.get(root, 0.0) > 0):
            return f"parameter server {root} has no ingress capacity left"
    return "capacities are too small"


def _solve_twice(rows: list[Row], columns: int, rate: int, nic: float, cost: np.ndarray) -> np.ndarray:
    """Maximise the column `rate` (<= nic), then, as far as there is time, minimise `cost` at that rate; return the
    values.
    """
    program = solver.Program("inart: the capacity program", tolerance=1e-10, presolve=False)
    objective, upper = np.zeros(columns), np.full(columns, solver.INFINITY)
    objective[rate], upper[rate] = -1.0, nic
    program.add_columns(objective, 0.0, upper)
    for row in rows:
        program.add_row(*row)
    limit = deadline()
    try:
        found = program.solve(within=limit)
    except solver.NotInTime:
        raise OutOfTime from None
    if not found.optimal:
        raise OutOfTime
    best = found.values
    program.set_bounds(rate, min(float(best[rate]), nic), nic)
    program.set_costs(cost)
    limit.check()
    try:
        return program.solve(within=limit).values
    except solver.SolverError:
        limit.passed()
        return best  # the same rate, over longer routes
