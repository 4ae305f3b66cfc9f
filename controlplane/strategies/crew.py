"""crew: every parameter server adds the block that CREW's LP gives it, straight from and to all workers."""

from __future__ import annotations

import networkx as nx
import numpy as np

from controlplane.job import Job
from controlplane.plan.model import Plan
from controlplane.routing import Router
from controlplane.strategies.common import Infeasible, Split, finish
from controlplane.strategies.wan_sites import Sites, owners, shortest_return, sites, star_tree
from controlplane.topology import Topology
from controlplane.wan.crew import optimal_split
from controlplane.wan.errors import WanError


def _widest_routes(view: Sites) -> dict[str, dict[str, tuple[str, ...]]]:
    """Between all sites: fewest hops, then the largest bottleneck, then the order of nodes."""
    graph = view.graph.copy()
    graph.remove_edges_from([(u, v) for u, v, data in view.graph.edges(data=True) if data["mbps"] <= 0])
    routes: dict[str, dict[str, tuple[str, ...]]] = {}
    for target in graph:
        distance = nx.single_source_shortest_path_length(graph.reverse(copy=False), target)
        width: dict[str, float] = {target: np.inf}
        onward: dict[str, tuple[str, ...]] = {target: (target,)}
        for node in sorted(distance, key=lambda v: distance[v]):
            if node == target:
                continue
            closer = [v for v in graph.successors(node) if distance.get(v, np.inf) == distance[node] - 1]
            best = max(closer, key=lambda v: (min(width[v], graph.edges[node, v]["mbps"]), -list(graph).index(v)))
            width[node] = min(width[best], graph.edges[node, best]["mbps"])
            onward[node] = (node, *onward[best])
        routes[target] = onward
    return routes


def crew(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """A weighted star per parameter server. CREW knows a full mesh: between sites without a direct link it sees the
    bottleneck of the route, and not that routes share links (the evaluator does)."""
    view = sites(topology, job)
    servers, given = owners(view, frozen_split)
    routes = _widest_routes(view)
    if given is None:
        nodes = list(dict.fromkeys([*view.busy, *servers]))
        mesh = np.zeros((len(nodes), len(nodes)))
        for a, source in enumerate(nodes):
            for b, target in enumerate(nodes):
                if a != b and source in routes[target]:
                    route = routes[target][source]
                    mesh[a, b] = min(view.graph.edges[e]["mbps"] for e in nx.utils.pairwise(route))
        workers = [nodes.index(site) for site in view.busy]
        try:
            split = optimal_split(mesh, workers, [nodes.index(site) for site in servers])
        except WanError as error:
            raise Infeasible(f"crew: {error}") from None
        given = {site: float(split.weights[nodes.index(site)]) for site in servers}
    router = Router(view.network)
    trees = [
        star_tree(view, server, share * part, routes[site], shortest_return(view, router, server, share * part))
        for site, share in given.items()
        if share > 0
        for server, part in servers[site]
    ]
    return finish(topology, job, "crew", trees, seed)
