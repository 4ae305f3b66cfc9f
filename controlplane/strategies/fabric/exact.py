"""The global optimum of Eq. (1) for small instances, as a mixed-integer program: one assignment per (root, worker).

With a_s = f x_s every product of a rate and a binary b is a variable g with g <= M b, g <= a_s, g >= a_s - M (1 - b).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyomo.environ as pyo

from controlplane.evaluate import bound
from controlplane.job import Job
from controlplane.plan.model import Assignment, Plan, Relay, Tree
from controlplane.routing import Network, downwards
from controlplane.strategies.common import Infeasible, Split, finish, prepare, split_or_equal
from controlplane.strategies.deadline import deadline
from controlplane.strategies.fabric.paths import Path, shortest_paths, simple_paths
from controlplane.strategies.solver import solve_model
from controlplane.topology import Topology

MOST_PATHS = 30
MOST_CHOICES = 4000
TIME_LIMIT_S = 300.0
NEGLIGIBLE = 1e-7


def exact(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Optimal plan with one tree per parameter server over all simple paths (single-level aggregation).

    Where there are too many of these, over all shortest ones. Results are counted on the links where the topology says
    so. proven_mbps: none of this kind is faster; above the plan's rate where time was over first. Raises ValueError
    when the instance is too large.
    """
    network = prepare(topology, job)
    split = split_or_equal(job, frozen_split) if frozen_split is not None else None
    largest = bound(topology, job)
    if largest <= 0:
        raise Infeasible("exact: no rate above 0 is possible")
    roots, workers = job.parameter_servers, job.workers
    switches = [v for v in topology.switches if topology.residual_aggregation_mbps(v) > 0 and len(workers) > 1]
    onwards = {(v, s): _paths(network, v, s) for v in switches for s in roots}
    # What a worker can do for a root: add at a point, over a path.
    options: dict[tuple[str, str], list[tuple[str, Path]]] = {}
    for s in roots:
        for w in workers:
            options[s, w] = [(s, path) for path in _paths(network, w, s)]
            for v in switches:
                if onwards[v, s]:
                    options[s, w] += [(v, path) for path in _paths(network, w, v)]
    if sum(len(o) for o in options.values()) > MOST_CHOICES:
        raise ValueError(
            f"exact: more than {MOST_CHOICES} choices of point and path: the instance is too large to be exact"
        )

    model: Any = pyo.ConcreteModel()
    model.rate = pyo.Var(roots, bounds=(0, 1))  # a_s in units of the bound
    model.cost = pyo.Objective(expr=pyo.quicksum(model.rate[s] for s in roots), sense=pyo.maximize)
    model.rows = pyo.ConstraintList()
    model.binary = pyo.VarList(domain=pyo.Binary)
    model.product = pyo.VarList(bounds=(0, 1))
    loads: dict[tuple[str, str], list[Any]] = {}
    ingress: dict[str, list[Any]] = {s: [] for s in roots}
    added: dict[str, list[Any]] = {v: [] for v in switches}

    def choice(s: str) -> tuple[Any, Any]:
        """A binary and its product with a_s."""
        b, g = model.binary.add(), model.product.add()
        model.rows.add(g <= b)
        model.rows.add(g <= model.rate[s])
        model.rows.add(g >= model.rate[s] - (1 - b))
        return b, g

    def use(path: Path, g: Any) -> None:
        for u, v in pairwise(path):
            loads.setdefault((u, v), []).append(g)

    chosen: dict[tuple[str, str], list[Any]] = {}
    relayed: dict[tuple[str, str], list[Any]] = {}
    returned: dict[tuple[str, tuple[str, str]], Any] = {}
    for s in roots:
        for v in switches:
            relayed[s, v] = []
            for path in onwards[v, s]:
                b, g = choice(s)
                relayed[s, v].append(b)
                use(path, g)
                ingress[s].append(g)
        for w in workers:
            chosen[s, w] = []
            by_point: dict[str, list[Any]] = {}
            for point, path in options[s, w]:
                b, g = choice(s)
                chosen[s, w].append(b)
                by_point.setdefault(point, []).append(b)
                use(path, g)
                (ingress[s] if point == s else added[point]).append(g)
            model.rows.add(pyo.quicksum(chosen[s, w]) == 1)
            for point, binaries in by_point.items():
                if point != s:
                    model.rows.add(pyo.quicksum(binaries) <= pyo.quicksum(relayed[s, point]))
        returned.update({(s, edge): b for edge, b in _add_return(model, topology, (s, workers), choice, use).items()})
    for s in roots:
        model.rows.add(pyo.quicksum(ingress[s]) <= topology.residual_ingress_mbps(s) / largest)
        if split is not None:
            model.rows.add(model.rate[s] == split[s] * pyo.quicksum(model.rate[r] for r in roots))
    for v in switches:
        if added[v] and topology.residual_aggregation_mbps(v) < float("inf"):
            model.rows.add(pyo.quicksum(added[v]) <= topology.residual_aggregation_mbps(v) / largest)
    for (u, v), terms in loads.items():
        model.rows.add(pyo.quicksum(terms) <= topology.residual_bandwidth_mbps(u, v) / largest)
    limit = deadline()
    seconds = TIME_LIMIT_S if limit.left is None else min(TIME_LIMIT_S, limit.left)
    outcome = solve_model(model, "exact", time_limit=seconds, mip_rel_gap=1e-6, mip_feasibility_tolerance=1e-9)
    limit.cut_short |= not outcome.optimal

    rates = {s: model.rate[s].value for s in roots}
    total = sum(rates.values())
    if total <= NEGLIGIBLE:
        raise Infeasible("exact: no rate above 0 is possible, capacities are too small")
    trees = []
    for s in roots:
        if rates[s] <= NEGLIGIBLE * total:
            continue
        assignments = []
        for w in workers:
            point, path = options[s, w][max(range(len(chosen[s, w])), key=lambda i: chosen[s, w][i].value)]
            assignments.append(Assignment(w, point, path))
        relays = []
        for v in dict.fromkeys(a.point for a in assignments if a.point != s):
            best = max(range(len(relayed[s, v])), key=lambda i: relayed[s, v][i].value)
            relays.append(Relay(v, s, onwards[v, s][best]))
        edges = [edge for (root, edge), b in returned.items() if root == s and b.value > 0.5]
        trees.append(Tree(s, rates[s] / total, tuple(assignments), tuple(relays), _pruned(s, edges, workers)))
    plan = finish(topology, job, "exact", trees, seed)
    proven = largest if outcome.bound is None else min(largest, outcome.bound * largest)
    return replace(plan, proven_mbps=max(proven, plan.rate_mbps))


def _paths(network: Network, source: str, target: str) -> list[Path]:
    try:
        return simple_paths(network, source, target, MOST_PATHS)
    except ValueError:
        return shortest_paths(network, source, target)


def _add_return(
    model: Any, topology: Topology, ends: tuple[str, tuple[str, ...]], choice: Any, use: Any
) -> dict[tuple[str, str], Any]:
    """A tree from the root to all workers (`ends`): the binaries of its links.

    Every worker is sent one unit over links that are in it; one link leads into each node.
    """
    s, workers = ends
    returned: dict[tuple[str, str], Any] = {}
    usable = [
        (u, v)
        for u, v in topology.links
        if topology.residual_bandwidth_mbps(u, v) > 0
        and (u == s or topology.kind(u) == "switch")
        and (v in workers or topology.kind(v) == "switch")
    ]
    into: dict[str, list[Any]] = {}
    for edge in usable:
        if topology.results_on_links:
            b, g = choice(s)
            use(edge, g)
        else:
            b = model.binary.add()
        returned[edge] = b
        into.setdefault(edge[1], []).append(b)
    for binaries in into.values():
        model.rows.add(pyo.quicksum(binaries) <= 1)
    for w in workers:
        flow = {edge: model.product.add() for edge in usable}
        for edge in usable:
            model.rows.add(flow[edge] <= returned[edge])
        for node in {n for edge in usable for n in edge}:
            balance = pyo.quicksum(flow[e] for e in usable if e[1] == node) - pyo.quicksum(
                flow[e] for e in usable if e[0] == node
            )
            model.rows.add(balance == (1 if node == w else -1 if node == s else 0))
    return returned


def _pruned(root: str, edges: list[tuple[str, str]], workers: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Only the links on ways to workers, from the root down."""
    parent = {v: u for u, v in edges}
    needed = set()
    for worker in workers:
        node = worker
        while node != root:
            needed.add((parent[node], node))
            node = parent[node]
    return downwards(root, sorted(needed))
