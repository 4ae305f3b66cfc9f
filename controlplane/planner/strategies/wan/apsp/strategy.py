"""The strategies apsp (one parameter server, placed and reached as APSP decides), and the paper's baselines, which
place the server (apsp-random, apsp-connected) or the flows (apsp-shortest, apsp-balanced) in other ways.
"""

from __future__ import annotations

from collections.abc import Callable

import networkx as nx
import numpy as np

from controlplane.planner.job import Job
from controlplane.planner.plan.model import Plan
from controlplane.planner.strategies.common import Infeasible, Split, finish
from controlplane.planner.strategies.wan.apsp import algorithm as algorithms
from controlplane.planner.strategies.wan.apsp.algorithm import Path
from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.sites import needed, owners, sites, star_tree, widest_return
from controlplane.planner.topology import Topology

MOST_PATHS = 60  # per flow; longer paths gain less than their hops cost
# (network, sites that may have the server, sites with workers, seed) -> (the server's site, a route of each to it)
Decide = Callable[[nx.DiGraph, list[str], list[str], int], tuple[str, dict[str, Path]]]


def _plan(  # noqa: PLR0917
    name: str, decide: Decide, topology: Topology, job: Job, seed: int, frozen_split: Split | None
) -> Plan:
    """Return the plan of these decisions. A frozen split fixes the servers; only their routes are chosen."""
    view = sites(topology, job)
    servers, shares = owners(view, frozen_split)

    def placed(roots: list[str]) -> tuple[str, dict[str, Path]]:
        try:
            return decide(needed(view, roots), roots, view.busy, seed)
        except WanError as error:
            raise Infeasible(f"{name}: {error}") from None

    if shares is None:
        found = [(*placed(list(servers)), 1.0)]
    else:
        found = [(*placed([root]), share) for root, share in shares.items()]
    trees = [
        star_tree(view, server, share * part, routes, widest_return(view, server, routes))
        for root, routes, share in found
        for server, part in servers[root]
    ]
    return finish(topology, job, name, trees, seed)


def _rounded(graph: nx.DiGraph, roots: list[str], busy: list[str], seed: int) -> tuple[str, dict[str, Path]]:
    found = algorithms.place(graph, 1.0, seed=seed, roots=roots, sources=busy, most_paths=MOST_PATHS)
    return found.root, found.paths


def _anywhere(graph: nx.DiGraph, roots: list[str], busy: list[str], seed: int) -> tuple[str, dict[str, Path]]:
    return _rounded(graph, [roots[int(np.random.default_rng(seed).integers(len(roots)))]], busy, seed)


def _connected(graph: nx.DiGraph, roots: list[str], busy: list[str], seed: int) -> tuple[str, dict[str, Path]]:
    return _rounded(graph, algorithms.most_connected(graph, roots)[:1], busy, seed)


def _shortest(graph: nx.DiGraph, roots: list[str], busy: list[str], seed: int) -> tuple[str, dict[str, Path]]:
    root, _ = _rounded(graph, roots, busy, seed)
    return root, algorithms.shortest_routes(algorithms.usable(graph), root, busy)


def _balanced(graph: nx.DiGraph, roots: list[str], busy: list[str], seed: int) -> tuple[str, dict[str, Path]]:
    root, _ = _rounded(graph, roots, busy, seed)
    return root, algorithms.balanced_routes(algorithms.usable(graph), root, MOST_PATHS, busy)


def _strategy(name: str, decide: Decide, text: str) -> Callable[..., Plan]:
    def run(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
        return _plan(name, decide, topology, job, seed, frozen_split)

    run.__name__, run.__doc__ = name.replace("-", "_"), text
    return run


apsp = _strategy("apsp", _rounded, "Return the plan of Algorithm 2 with the paper's delay (|p| counts).")
apsp_random = _strategy(
    "apsp-random", _anywhere, "Return the plan of a server that the seed draws, with APSP's routes."
)
apsp_connected = _strategy(
    "apsp-connected",
    _connected,
    "Return the plan of a server at the first site with the most links, with APSP's routes.",
)
apsp_shortest = _strategy(
    "apsp-shortest", _shortest, "Return the plan of APSP's server, with every flow on a path of fewest hops."
)
apsp_balanced = _strategy(
    "apsp-balanced", _balanced, "Return the plan of APSP's server, with every flow where it loads links least."
)
