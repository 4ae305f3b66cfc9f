"""The global optimum of Eq. (1) for small instances, as a mixed-integer program: one assignment per (root, worker).

With a_s = f x_s every product of a rate and a binary q is a variable g with g <= q, g <= a_s, g >= a_s - (1 - q), rates
in units of the bound. The slips of the printed rows, and how they are read here, are listed in docs/planner.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import pyomo.environ as pyo

from controlplane.planner.evaluate import bound
from controlplane.planner.job import Job
from controlplane.planner.plan.assignments import Assignment, Assignments
from controlplane.planner.plan.model import Plan, Relay, Tree
from controlplane.planner.routing import Network, downwards
from controlplane.planner.strategies.common import Infeasible, Split, finish, prepare, split_or_equal
from controlplane.planner.strategies.deadline import deadline
from controlplane.planner.strategies.fabric.paths import Path, shortest_paths, simple_paths
from controlplane.planner.strategies.solver import NotInTime, solve_model
from controlplane.planner.topology import Topology

MOST_PATHS = 30
MOST_CHOICES = 4000
TIME_LIMIT_S = 300.0  # a plan that it ended is marked as cut short
NEGLIGIBLE = 1e-7


def exact(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return an optimal plan with one tree per parameter server over all simple paths (single-level aggregation), or
    over all shortest ones where there are too many of these. Results are counted on the links where the topology says
    so.

    The plan's proven_mbps is a bound of such plans, above its rate where the time was over first. Raise ValueError
    where the instance is too large.
    """
    network = prepare(topology, job)
    split = split_or_equal(job, frozen_split) if frozen_split is not None else None
    largest = bound(topology, job)
    if largest <= 0:
        raise Infeasible("exact: no rate above 0 is possible")
    roots, workers = job.parameter_servers, job.workers
    switches = [v for v in topology.switches if topology.residual_aggregation_mbps(v) > 0 and len(workers) > 1]
    too_large = f"exact: more than {MOST_CHOICES} choices of point and path: the instance is too large to be exact"
    if len(roots) * len(workers) * (1 + len(switches)) > MOST_CHOICES and network_is_connected(network, job, switches):
        raise ValueError(too_large)  # with one path for each it is too large already
    onwards = {(v, s): _paths(network, v, s) for v in switches for s in roots}
    # A worker's options for a root: (point where it is added, path there).
    options: dict[tuple[str, str], list[tuple[str, Path]]] = {}
    for s in roots:
        for w in workers:
            options[s, w] = [(s, path) for path in _paths(network, w, s)]
            for v in switches:
                if onwards[v, s]:
                    options[s, w] += [(v, path) for path in _paths(network, w, v)]
            if sum(len(o) for o in options.values()) > MOST_CHOICES:
                raise ValueError(too_large)

    m, load = _eq1(roots, workers, switches, options, onwards)
    returned = _add_return(m, network, roots, workers, load)
    _add_capacities(m, topology, load, largest)
    if split is not None:
        for s in roots:
            m.eq1["x_s is given", s] = m.a[s] == split[s] * pyo.quicksum(m.a[r] for r in roots)
    limit = deadline()
    seconds = TIME_LIMIT_S if limit.left is None else min(TIME_LIMIT_S, limit.left)
    outcome = solve_model(m, "exact", time_limit=TIME_LIMIT_S, mip_rel_gap=1e-6, mip_feasibility_tolerance=1e-9)
    limit.cut_short |= not outcome.optimal and limit.work_left is None

    rates = {s: m.a[s].value for s in roots}
    total = sum(rates.values())
    if total <= NEGLIGIBLE and not outcome.optimal:
        raise NotInTime(f"exact: no plan within {seconds:.3g} s", outcome.bound)
    if total <= NEGLIGIBLE:
        raise Infeasible("exact: no rate above 0 is possible, capacities are too small")
    model = _Solved(m, options, onwards, returned)
    trees = [_tree(model, s, rates[s] / total, workers) for s in roots if rates[s] > NEGLIGIBLE * total]
    plan = finish(topology, job, "exact", trees, seed)
    proven = largest if outcome.bound is None else min(largest, outcome.bound * largest)
    return replace(plan, proven_mbps=max(proven, plan.rate_mbps))


class _Solved(NamedTuple):
    """The solved model.

    Attributes:
        options: By root and worker, each (point, path to it).
        onwards: Paths by point and root.
        returned: (root, u, v) for each link that results of a root may take.
    """

    m: Any
    options: Mapping[tuple[str, str], Sequence[tuple[str, Path]]]
    onwards: Mapping[tuple[str, str], Sequence[Path]]
    returned: Iterable[tuple[str, str, str]]


def _tree(model: _Solved, s: str, share: float, workers: tuple[str, ...]) -> Tree:
    """Return a root's tree from the solved model."""
    m, options, onwards, returned = model
    assignments = []
    for w in workers:
        point, path = max(enumerate(options[s, w]), key=lambda option: m.q[s, w, option[0]].value)[1]
        assignments.append(Assignment(w, point, path))
    relays = []
    for v in dict.fromkeys(a.point for a in assignments if a.point != s):
        path = max(enumerate(onwards[v, s]), key=lambda option: m.q_sum[s, v, option[0]].value)[1]
        relays.append(Relay(v, s, path))
    edges = [(u, v) for root, u, v in returned if root == s and m.back[s, u, v].value > 0.5]
    return Tree(s, share, Assignments.of(assignments), tuple(relays), _pruned(s, edges, workers))


def network_is_connected(network: Network, job: Job, switches: list[str]) -> bool:
    """Return whether every worker reaches every switch that adds, and each of these every root."""
    ends = [network.index[v] for v in switches]
    workers = [network.index[w] for w in job.workers]
    roots = [network.distances_to(network.index[s]) for s in job.parameter_servers]
    return all(network.distances_to(end)[w] >= 0 for end in ends for w in workers) and all(
        distances[end] >= 0 for distances in roots for end in ends
    )


def _paths(network: Network, source: str, target: str) -> list[Path]:
    try:
        return simple_paths(network, source, target, MOST_PATHS)
    except ValueError:
        return shortest_paths(network, source, target)


Load = dict[tuple[str, ...], list[Any]]
"""Load of a parameter server (s,), a switch (v,) or a link (u, v), in units of the bound."""


def _eq1(
    S: tuple[str, ...],
    W: tuple[str, ...],
    V: list[str],
    options: dict[tuple[str, str], list[tuple[str, Path]]],
    onwards: dict[tuple[str, str], list[Path]],
) -> tuple[Any, Load]:
    """Return a model of Eq. (1) without its capacities, in a_s = f x_s, and the loads. Rows have the paper's numbers
    and letters.

    `q[s, w, p]` is 1 where worker w uses its option p for s: a point (y_v^{s,w}, or y^{s,w} for s itself) and a path to
    it (q_p^{s,v,w}, q_p^{s,w}), so that rows 3 and 4 hold by definition. `q_sum[s, v, p]` is q_p^{s,v}.
    """
    m: Any = pyo.ConcreteModel("InArt, Eq. (1)")
    m.a = pyo.Var(S, bounds=(0, 1))  # f x_s
    m.f = pyo.Objective(expr=pyo.quicksum(m.a[s] for s in S), sense=pyo.maximize)
    m.q_sum = pyo.Var([(s, v, p) for s in S for v in V for p in range(len(onwards[v, s]))], domain=pyo.Binary)
    m.q = pyo.Var([(s, w, p) for s in S for w in W for p in range(len(options[s, w]))], domain=pyo.Binary)
    m.eq1 = pyo.Constraint(pyo.Any)
    a_q_sum, a_q = _times_rate(m, m.q_sum), _times_rate(m, m.q)
    load: Load = {}
    for s, v, p in m.q_sum:
        _carry(load, onwards[v, s][p], a_q_sum[s, v, p])
        load.setdefault((s,), []).append(a_q_sum[s, v, p])
    for s in S:
        for w in W:
            at: dict[str, list[Any]] = {}
            for p, (point, path) in enumerate(options[s, w]):
                at.setdefault(point, []).append(m.q[s, w, p])
                _carry(load, path, a_q[s, w, p])
                load.setdefault((point,), []).append(a_q[s, w, p])
            m.eq1["row 2, assigned", s, w] = pyo.quicksum(q for parts in at.values() for q in parts) == 1
            for v in at.keys() - {s}:
                z = pyo.quicksum(m.q_sum[s, v, p] for p in range(len(onwards[v, s])))  # row 5
                m.eq1["row 8, v sends a sum", s, w, v] = pyo.quicksum(at[v]) <= z
    return m, load


def _times_rate(m: Any, q: Any) -> Any:
    """Add variables g = a_s q for binaries q whose index begins with s, and return them."""
    g = pyo.Var(q.index_set(), bounds=(0, 1))
    m.add_component(f"a_{q.local_name}", g)
    for index in q:
        m.eq1[g.name, "at most q", index] = g[index] <= q[index]
        m.eq1[g.name, "at most a", index] = g[index] <= m.a[index[0]]
        m.eq1[g.name, "a where q is 1", index] = g[index] >= m.a[index[0]] - (1 - q[index])
    return g


def _carry(load: Load, path: Path, rate: Any) -> None:
    for link in pairwise(path):
        load.setdefault(link, []).append(rate)


def _add_capacities(m: Any, topology: Topology, load: Load, largest: float) -> None:
    for place, parts in load.items():
        if len(place) == 2:
            row, capacity = "row 7, link capacity", topology.residual_bandwidth_mbps(*place)
        elif topology.kind(place[0]) == "switch":
            row, capacity = "row 6, switch capacity", topology.residual_aggregation_mbps(place[0])
        else:
            row, capacity = "row 9, PS capacity", topology.residual_ingress_mbps(place[0])
        if capacity < float("inf"):
            m.eq1[row, place] = pyo.quicksum(parts) <= capacity / largest


def _add_return(
    m: Any, network: Network, S: tuple[str, ...], W: tuple[str, ...], load: Load
) -> list[tuple[str, str, str]]:
    """Add trees from the roots to all workers, which the paper does not model, and return the links that may be
    `back[s, u, v]`.

    Every worker is sent one unit over links that are in the tree; at most one link leads into each node, and out of a
    root on several switches.
    """
    topology = network.topology
    usable = {
        s: [
            (u, v)
            for u, v in topology.links
            if topology.residual_bandwidth_mbps(u, v) > 0
            and (u == s or topology.kind(u) == "switch")
            and (v in W or topology.kind(v) == "switch")
        ]
        for s in S
    }
    links = [(s, u, v) for s in S for u, v in usable[s]]
    m.back = pyo.Var(links, domain=pyo.Binary)
    m.sent = pyo.Var([(w, *link) for w in W for link in links], bounds=(0, 1))
    if topology.results_on_links:
        a_back = _times_rate(m, m.back)
        for s, u, v in links:
            _carry(load, (u, v), a_back[s, u, v])
    for s in S:
        nodes = {node for link in usable[s] for node in link}
        into = {node: [(u, v) for u, v in usable[s] if v == node] for node in nodes}
        out = {node: [(u, v) for u, v in usable[s] if u == node] for node in nodes}
        if network.hangs_on_several(network.index[s]):
            m.eq1["one link", s] = pyo.quicksum(m.back[s, u, v] for u, v in usable[s] if u == s) <= 1
        for node in nodes:
            if into[node]:
                m.eq1["one way back", s, node] = pyo.quicksum(m.back[s, u, v] for u, v in into[node]) <= 1
            for w in W:
                arrives = pyo.quicksum(m.sent[w, s, u, v] for u, v in into[node])
                leaves = pyo.quicksum(m.sent[w, s, u, v] for u, v in out[node])
                m.eq1["back to the worker", s, w, node] = arrives - leaves == (node == w) - (node == s)
    for w in W:
        for link in links:
            m.eq1["sent over the tree", w, link] = m.sent[w, *link] <= m.back[link]
    return links


def _pruned(root: str, edges: list[tuple[str, str]], workers: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return only the links on routes to workers, from the root down."""
    parent = {v: u for u, v in edges}
    needed = set()
    for worker in workers:
        node = worker
        while node != root:
            needed.add((parent[node], node))
            node = parent[node]
    return downwards(root, sorted(needed))
