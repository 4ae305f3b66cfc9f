"""InArt as the paper has it: L-InArt (Algorithm 1) for the split, R-InArt (Algorithm 2) for points and paths.

The slips of the printed equations, and how they are read here, are listed in docs/planner.md.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import pyomo.environ as pyo

from controlplane.planner.job import Job
from controlplane.planner.plan.assignments import Assignment, Assignments
from controlplane.planner.plan.model import Plan, Relay, Tree
from controlplane.planner.routing import Network, Router, downwards
from controlplane.planner.strategies.common import Infeasible, Split, finish, prepare, split_or_equal
from controlplane.planner.strategies.fabric.paths import Path, shortest_paths
from controlplane.planner.strategies.solver import solve_model
from controlplane.planner.topology import Topology

T = TypeVar("T")


def l_inart(topology: Topology, job: Job) -> dict[str, float]:
    """Return the split x_s of phase 1, which solves the relaxed problem of Eq. (2), from its KKT conditions.

    With a_s + d_s = f x_s (aggregated and direct part) Eq. (2) is max f under W sum_s a_s <= sum_v C_v and a_s + W d_s
    <= B_s. Its multipliers are rho_v = (1 - 1/W) / W per switch and theta_s = 1/W per root: both constraints are tight,
    f = sum_v C_v (1 - 1/W) / W + sum_s B_s / W, and any x with 0 <= a_s, d_s is optimal. Of those, take x_s = B_s / sum
    B: a_s = B_s (W f / sum B - 1) / (W - 1) >= 0, d_s >= 0. Where the switches have more than W sum B together, rho =
    0, theta_s = 1, everything is aggregated (a_s = B_s), and this x is the only optimal one.
    """
    ingress = {s: topology.residual_ingress_mbps(s) for s in job.parameter_servers}
    total = sum(ingress.values())
    if total <= 0:
        raise Infeasible("inart-paper: no parameter server has ingress capacity left")
    return {s: b / total for s, b in ingress.items()}


def inart_paper(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return the plan of L-InArt's split (unless one is frozen) and R-InArt."""
    network = prepare(topology, job)
    split = split_or_equal(job, frozen_split) if frozen_split is not None else l_inart(topology, job)
    return _r_inart(network, job, split, seed, "inart-paper")


def r_inart(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return the plan of an equal split and R-InArt (the paper's first benchmark)."""
    network = prepare(topology, job)
    return _r_inart(network, job, split_or_equal(job, frozen_split), seed, "r-inart")


@dataclass(frozen=True)
class _Sets:
    """The sets of Eq. (5). P holds all shortest paths, towards the parameter server.

    W holds racks with their workers: workers of one rack have the same paths, so their y and q can be the same (the
    mean of a solution over them is a solution, too).
    """

    S: tuple[str, ...]
    W: dict[str, list[str]]
    V: tuple[str, ...]
    P: dict[tuple[str, str], list[Path]]  # (w, s): P_{s,w}; (w, v): P_{v,w}
    P_sum: dict[tuple[str, str], list[Path]]  # (v, s): P_{s,v}

    @classmethod
    def of(cls, network: Network, job: Job, x: dict[str, float]) -> _Sets:
        topology = network.topology
        roots = tuple(s for s in job.parameter_servers if x[s] > 0)
        racks: dict[str, list[str]] = {}
        for w in job.workers:
            out = network.out[network.index[w]]
            single = len(out) == 1 and network.forwards[out[0][0]]
            racks.setdefault(network.names[out[0][0]] if single else w, []).append(w)
        usable = [v for v in topology.switches if topology.residual_aggregation_mbps(v) > 0]
        up = {(w, v): shortest_paths(network, w, v) for w in racks for v in [*usable, *roots]}
        down = {(v, s): shortest_paths(network, v, s) for v in usable for s in roots}
        switches = [v for v in usable if all(up[w, v] for w in racks) and all(down[v, s] for s in roots)]
        up = {(w, end): paths for (w, end), paths in up.items() if end in switches or end in roots}
        down = {(v, s): paths for (v, s), paths in down.items() if v in switches}
        return cls(roots, racks, tuple(switches), up, down)


def _lp_inart(topology: Topology, sets: _Sets, x: dict[str, float]) -> Any:
    """Return LP-InArt, Eq. (5), each row divided by f: minimise g = 1/f. Rows have the paper's numbers and letters.

    The links see only sum_s x_s q, so q's distribution over paths need not depend on s: `q` is a path's traffic for all
    parameter servers together, as a fraction of f (of one worker of W; `q_sum` is that of sums of switches). Capacities
    are residual ones.
    """
    S, W, V, P, P_sum = sets.S, sets.W, sets.V, sets.P, sets.P_sum
    n = {w: len(workers) for w, workers in W.items()}
    m: Any = pyo.ConcreteModel("LP-InArt")
    m.g = pyo.Var(domain=pyo.NonNegativeReals)  # 1/f
    m.y = pyo.Var([(s, w, v) for s in S for w in W for v in [*V, s]], bounds=(0, 1))  # y_v^{s,w}; y^{s,w}: v is s
    m.z = pyo.Var([(s, v) for s in S for v in V], bounds=(0, 1))  # z_v^s
    m.q = pyo.Var([(w, end, p) for (w, end), paths in P.items() for p in range(len(paths))], bounds=(0, 1))
    m.q_sum = pyo.Var([(v, s, p) for (v, s), paths in P_sum.items() for p in range(len(paths))], bounds=(0, 1))
    m.max_f = pyo.Objective(expr=m.g, sense=pyo.minimize)
    eq5 = m.eq5 = pyo.Constraint(pyo.Any)
    for s in S:
        for w in W:
            eq5["row 1, assigned", s, w] = pyo.quicksum(m.y[s, w, v] for v in [*V, s]) == 1
            for v in V:
                eq5["row 7, v sends a sum", s, w, v] = m.y[s, w, v] <= m.z[s, v]
        sent = pyo.quicksum(n[w] * m.y[s, w, s] for w in W) + pyo.quicksum(m.z[s, v] for v in V)
        eq5["row 8, PS capacity", s] = x[s] * sent <= topology.residual_ingress_mbps(s) * m.g
    for v in V:
        if topology.residual_aggregation_mbps(v) < float("inf"):
            added = pyo.quicksum(x[s] * n[w] * m.y[s, w, v] for s in S for w in W)
            eq5["row 5, switch capacity", v] = added <= topology.residual_aggregation_mbps(v) * m.g
    load: dict[tuple[str, str], list[Any]] = {}  # by link, the traffic of the paths that cross it
    for (w, end), paths in P.items():
        wanted = pyo.quicksum(x[s] * m.y[s, w, end] for s in S if end in V or end == s)
        eq5["rows 2 and 3, paths of a worker", w, end] = _over(paths, m.q, w, end) == wanted
        for p, path in enumerate(paths):
            for e in pairwise(path):
                load.setdefault(e, []).append(n[w] * m.q[w, end, p])
    for (v, s), paths in P_sum.items():
        eq5["row 4, paths of a sum", v, s] = _over(paths, m.q_sum, v, s) == x[s] * m.z[s, v]
        for p, path in enumerate(paths):
            for e in pairwise(path):
                load.setdefault(e, []).append(m.q_sum[v, s, p])
    for e, parts in load.items():
        eq5["row 6, link capacity", e] = pyo.quicksum(parts) <= topology.residual_bandwidth_mbps(*e) * m.g
    for w, workers in W.items():
        for worker in workers:
            if worker != w:
                eq5["row 6, link capacity", worker, w] = topology.residual_bandwidth_mbps(worker, w) * m.g >= 1
    return m


def _over(paths: list[Path], q: Any, a: str, b: str) -> Any:
    """Return the sum over the paths from a to b."""
    return pyo.quicksum(q[a, b, p] for p in range(len(paths)))


def _draw(generator: random.Random, values: Sequence[T], weights: Sequence[float]) -> T:
    """Return one of the values, drawn with the weights as probabilities (randomized rounding)."""
    positive = [max(0.0, weight) for weight in weights]
    return generator.choices(values, positive if sum(positive) > 0 else None)[0]


def _r_inart(network: Network, job: Job, split: dict[str, float], seed: int, strategy: str) -> Plan:
    """Run Algorithm 2: solve LP-InArt, draw an aggregation point for every (root, worker), then a path for every
    flow.
    """
    for s, share in split.items():
        if share > 0 and network.topology.residual_ingress_mbps(s) <= 0:
            raise Infeasible(
                f"{strategy}: no rate above 0 is possible, parameter server {s} has no ingress capacity left"
            )
    sets = _Sets.of(network, job, split)
    m = _lp_inart(network.topology, sets, split)
    solve_model(m, "R-InArt's relaxation")
    rack_of = {worker: w for w, workers in sets.W.items() for worker in workers}
    generator = random.Random(seed)

    def draw_path(paths: dict[tuple[str, str], list[Path]], q: Any, a: str, b: str) -> Path:
        return _draw(generator, paths[a, b], [q[a, b, p].value for p in range(len(paths[a, b]))])

    # The paper does not model the results' way back; it takes least-loaded trees, as in every other strategy.
    router = Router(network)
    leaves = [network.index[w] for w in job.workers]
    trees = []
    for s in sets.S:
        back = router.return_tree(network.index[s], leaves, split[s])
        assignments = []
        for worker in job.workers:
            w = rack_of[worker]
            point = _draw(generator, [s, *sets.V], [m.y[s, w, v].value for v in [s, *sets.V]])
            path = draw_path(sets.P, m.q, w, point)
            assignments.append(Assignment(worker, point, path if w == worker else (worker, *path)))
        points = dict.fromkeys(a.point for a in assignments if a.point != s)
        relays = [Relay(v, s, draw_path(sets.P_sum, m.q_sum, v, s)) for v in points]
        edges = [(network.names[u], network.names[v]) for u, v in (network.ends[e] for e in back)]
        trees.append(Tree(s, split[s], Assignments.of(assignments), tuple(relays), downwards(s, edges)))
    return finish(network.topology, job, strategy, trees, seed)
