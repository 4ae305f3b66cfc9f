"""InArt as the paper has it: L-InArt (Algorithm 1) for the split, R-InArt (Algorithm 2) for points and paths.

The printed equations' slips and how they are read here are listed in docs/planner.md.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

import pyomo.environ as pyo

from controlplane.job import Job
from controlplane.plan.model import Assignment, Plan, Relay, Tree
from controlplane.routing import Network, Router, downwards
from controlplane.strategies.common import Infeasible, Split, finish, prepare, split_or_equal
from controlplane.strategies.fabric.paths import Path, shortest_paths
from controlplane.strategies.solver import solve_model
from controlplane.topology import Topology

T = TypeVar("T")


def l_inart(topology: Topology, job: Job) -> dict[str, float]:
    """Phase 1: the split x_s that solves the relaxed problem of Eq. (2), from its KKT conditions.

    With a_s + d_s = f x_s (aggregated and direct part) Eq. (2) is max f under W sum_s a_s <= sum_v C_v and
    a_s + W d_s <= B_s. Its multipliers are rho_v = (1 - 1/W) / W per switch and theta_s = 1/W per root: both
    constraints are tight, f = sum_v C_v (1 - 1/W) / W + sum_s B_s / W, and any x with 0 <= a_s, d_s is optimal. Of
    those, x_s = B_s / sum B: a_s = B_s (W f / sum B - 1) / (W - 1) >= 0, d_s >= 0. Where the switches have more than
    W sum B together, rho = 0, theta_s = 1, everything is aggregated (a_s = B_s), and this x is the only optimal one.
    """
    ingress = {s: topology.residual_ingress_mbps(s) for s in job.parameter_servers}
    total = sum(ingress.values())
    if total <= 0:
        raise Infeasible("inart-paper: no parameter server has ingress capacity left")
    return {s: b / total for s, b in ingress.items()}


def inart_paper(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """L-InArt for the split (unless frozen), then R-InArt."""
    network = prepare(topology, job)
    split = split_or_equal(job, frozen_split) if frozen_split is not None else l_inart(topology, job)
    return _r_inart(network, job, split, seed, "inart-paper")


def r_inart(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Equal split, then R-InArt (the paper's first benchmark)."""
    network = prepare(topology, job)
    return _r_inart(network, job, split_or_equal(job, frozen_split), seed, "r-inart")


class _Relaxation:
    """LP-InArt, Eq. (5), with g = 1/f: minimise g. P holds all shortest paths.

    Two reductions keep its optimum: workers of one rack have the same paths, so their y and q can be the same (the mean
    of a solution over them is one too); and the links see only sum_s x_s q, so q's distribution over paths need not
    depend on s.
    """

    def __init__(self, network: Network, job: Job, split: dict[str, float]) -> None:
        topology = network.topology
        self.roots = [s for s in job.parameter_servers if split[s] > 0]
        self.members: dict[str, list[str]] = {}
        for w in job.workers:
            out = network.out[network.index[w]]
            single = len(out) == 1 and network.forwards[out[0][0]]
            self.members.setdefault(network.names[out[0][0]] if single else w, []).append(w)
        racks = list(self.members)
        usable = [v for v in topology.switches if topology.residual_aggregation_mbps(v) > 0]
        up = {(r, v): shortest_paths(network, r, v) for r in racks for v in [*usable, *self.roots]}
        down = {(v, s): shortest_paths(network, v, s) for v in usable for s in self.roots}
        self.switches = [v for v in usable if all(up[r, v] for r in racks) and all(down[v, s] for s in self.roots)]
        self.ends = [*self.switches, *self.roots]
        self.up = {key: paths for key, paths in up.items() if key[1] in self.ends}
        self.down = {key: paths for key, paths in down.items() if key[0] in self.switches}

        model: Any = pyo.ConcreteModel()
        self.model = model
        model.g = pyo.Var(domain=pyo.NonNegativeReals)
        model.cost = pyo.Objective(expr=model.g)
        choices = [(s, r, v) for s in self.roots for r in racks for v in [*self.switches, s]]
        model.y = pyo.Var(choices, bounds=(0, 1))  # v == s: y^{s,w}, direct
        model.z = pyo.Var([(s, v) for s in self.roots for v in self.switches], bounds=(0, 1))
        model.up = pyo.Var([(*key, p) for key, paths in self.up.items() for p in range(len(paths))], bounds=(0, 1))
        model.down = pyo.Var([(*key, p) for key, paths in self.down.items() for p in range(len(paths))], bounds=(0, 1))
        model.rows = pyo.ConstraintList()
        size = {r: len(members) for r, members in self.members.items()}
        for s in self.roots:
            for r in racks:
                model.rows.add(pyo.quicksum(model.y[s, r, v] for v in [*self.switches, s]) == 1)
                for v in self.switches:
                    model.rows.add(model.y[s, r, v] <= model.z[s, v])
            streams = pyo.quicksum(size[r] * model.y[s, r, s] for r in racks)
            streams += pyo.quicksum(model.z[s, v] for v in self.switches)
            model.rows.add(split[s] * streams <= topology.residual_ingress_mbps(s) * model.g)
        for v in self.switches:
            if topology.residual_aggregation_mbps(v) < float("inf"):
                load = pyo.quicksum(split[s] * size[r] * model.y[s, r, v] for s in self.roots for r in racks)
                model.rows.add(load <= topology.residual_aggregation_mbps(v) * model.g)
        loads: dict[tuple[str, str], list[Any]] = {}
        for (r, v), paths in self.up.items():
            amount = pyo.quicksum(split[s] * model.y[s, r, v] for s in self.roots if (s, r, v) in model.y)
            model.rows.add(pyo.quicksum(model.up[r, v, p] for p in range(len(paths))) == amount)
            for p, path in enumerate(paths):
                for link in pairwise(path):
                    loads.setdefault(link, []).append(size[r] * model.up[r, v, p])
        for (v, s), paths in self.down.items():
            model.rows.add(pyo.quicksum(model.down[v, s, p] for p in range(len(paths))) == split[s] * model.z[s, v])
            for p, path in enumerate(paths):
                for link in pairwise(path):
                    loads.setdefault(link, []).append(model.down[v, s, p])
        for (u, v), terms in loads.items():
            model.rows.add(pyo.quicksum(terms) <= topology.residual_bandwidth_mbps(u, v) * model.g)
        for r, members in self.members.items():
            for w in members:
                if w != r:
                    model.rows.add(topology.residual_bandwidth_mbps(w, r) * model.g >= 1)

    def solve(self) -> None:
        solve_model(self.model, "R-InArt's relaxation")

    def point_weights(self, s: str, rack: str) -> tuple[list[str], list[float]]:
        """Aggregation points (the root: direct) of a worker of the rack for root s, with y."""
        points = [s, *self.switches]
        return points, [self.model.y[s, rack, v].value for v in points]

    def up_weights(self, rack: str, point: str) -> tuple[list[Path], list[float]]:
        """Paths from the rack to a point, with q."""
        paths = self.up[rack, point]
        return paths, [self.model.up[rack, point, p].value for p in range(len(paths))]

    def down_weights(self, point: str, s: str) -> tuple[list[Path], list[float]]:
        """Paths from an aggregation point to root s, with q."""
        paths = self.down[point, s]
        return paths, [self.model.down[point, s, p].value for p in range(len(paths))]


def _draw(generator: random.Random, values: Sequence[T], weights: Sequence[float]) -> T:
    """One of the values, with the weights as probabilities (randomized rounding)."""
    positive = [max(0.0, weight) for weight in weights]
    return generator.choices(values, positive if sum(positive) > 0 else None)[0]


def _r_inart(network: Network, job: Job, split: dict[str, float], seed: int, strategy: str) -> Plan:
    """Algorithm 2: solve LP-InArt, draw an aggregation point for every (root, worker), then a path for every flow."""
    for s, share in split.items():
        if share > 0 and network.topology.residual_ingress_mbps(s) <= 0:
            raise Infeasible(
                f"{strategy}: no rate above 0 is possible, parameter server {s} has no ingress capacity left"
            )
    relaxation = _Relaxation(network, job, split)
    relaxation.solve()
    rack_of = {w: rack for rack, members in relaxation.members.items() for w in members}
    generator = random.Random(seed)
    # The paper does not model the results' way back: least-loaded trees, as for every other strategy.
    router = Router(network)
    leaves = [network.index[w] for w in job.workers]
    trees = []
    for s in relaxation.roots:
        back = router.return_tree(network.index[s], leaves, split[s])
        assignments = []
        for w in job.workers:
            rack = rack_of[w]
            point = _draw(generator, *relaxation.point_weights(s, rack))
            path = _draw(generator, *relaxation.up_weights(rack, point))
            assignments.append(Assignment(w, point, path if rack == w else (w, *path)))
        points = dict.fromkeys(a.point for a in assignments if a.point != s)
        relays = [Relay(v, s, _draw(generator, *relaxation.down_weights(v, s))) for v in points]
        edges = [(network.names[u], network.names[v]) for u, v in (network.ends[e] for e in back)]
        trees.append(Tree(s, split[s], tuple(assignments), tuple(relays), downwards(s, edges)))
    return finish(network.topology, job, strategy, trees, seed)
