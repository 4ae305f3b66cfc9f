"""The strategy netstorm (one fastest aggregation path tree per root, chunks by quality scores: NetStorm, Algorithms 1
and 2), and its baselines with one root: star (MXNET), balanced-tree (MLNET), tsengine.
"""

from __future__ import annotations

from dataclasses import replace

import networkx as nx

from controlplane.planner.job import Job
from controlplane.planner.plan.model import Plan
from controlplane.planner.routing import Router
from controlplane.planner.strategies.common import Infeasible, Split, finish
from controlplane.planner.strategies.wan.apsp.algorithm import shortest_routes, usable
from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.netstorm import algorithm as algorithms
from controlplane.planner.strategies.wan.sites import (
    Sites,
    aggregation_tree,
    needed,
    owners,
    shortest_return,
    sites,
    star_tree,
)
from controlplane.planner.topology import Topology


def netstorm(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return the plan in which all sites with a parameter server are roots (the paper's best number); a frozen split
    replaces the scores.

    The plan's detours are the auxiliary paths between all neighbours that exchange sums.
    """
    view = sites(topology, job)
    servers, split = owners(view, frozen_split)
    network = needed(view, list(servers))
    try:
        found = algorithms.multi_root(network, list(servers))
    except WanError as error:
        raise Infeasible(f"netstorm: {error}") from None
    trees = []
    for tree in found:
        share = tree.share if split is None else split[tree.root]
        for server, part in servers[tree.root]:
            trees.append(aggregation_tree(view, server, share * part, tree.parent, tree.parent))
    talking = [pair for tree in trees for relay in tree.relays for pair in (relay.route, relay.route[::-1])]
    detours = [
        path
        for u, v in dict.fromkeys(pair for pair in talking if all(site in network for site in pair))
        for path in algorithms.auxiliary_paths(network, u, v)
    ]
    return replace(finish(topology, job, "netstorm", trees, seed), detours=tuple(detours))


# --- baselines: a tree from the first site with a server; with a frozen split, one for each of its servers ---


def _roots(view: Sites, frozen_split: Split | None) -> list[tuple[str, str, float]]:
    """Return (site, server, share) of each tree."""
    servers, shares = owners(view, frozen_split)
    if shares is None:
        shares = {next(iter(servers)): 1.0}
    return [(root, server, share * part) for root, share in shares.items() for server, part in servers[root]]


def tsengine(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return the plan of the spanning tree of the widest links."""
    view = sites(topology, job)
    trees = []
    for root, server, share in _roots(view, frozen_split):
        try:
            tree = algorithms.widest_tree(needed(view, [root]), root)
        except WanError as error:
            raise Infeasible(f"tsengine: {error}") from None
        trees.append(aggregation_tree(view, server, share, tree.parent, tree.parent))
    return finish(topology, job, "tsengine", trees, seed)


def star(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return the plan in which every worker sends straight to the server, over the fewest hops; no site adds on the
    way.
    """
    view = sites(topology, job)
    router = Router(view.network)
    trees = []
    for root, server, share in _roots(view, frozen_split):
        try:
            routes = shortest_routes(usable(view.graph), root, view.busy)
        except WanError as error:
            raise Infeasible(f"star: {error}") from None
        trees.append(star_tree(view, server, share, routes, shortest_return(view, router, server, share)))
    return finish(topology, job, "star", trees, seed)


def balanced_tree(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return the plan of a balanced binary tree over the sites in their order, which does not depend on links; its hops
    take the shortest routes.
    """
    view = sites(topology, job)
    router, graph = Router(view.network), usable(view.graph)
    trees = []
    for root, server, share in _roots(view, frozen_split):
        members: nx.DiGraph = nx.DiGraph()
        members.add_nodes_from([root, *view.busy])
        parent = algorithms.balanced_tree(members, root).parent
        try:
            routes = {(v, above): shortest_routes(graph, above, [v])[v] for v, above in parent.items()}
        except WanError as error:
            raise Infeasible(f"balanced-tree: {error}") from None
        down = shortest_return(view, router, server, share)
        trees.append(aggregation_tree(view, server, share, parent, down, routes=routes))
    return finish(topology, job, "balanced-tree", trees, seed)
