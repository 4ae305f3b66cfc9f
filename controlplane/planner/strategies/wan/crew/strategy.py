"""The strategy crew: every parameter server adds the block that CREW's LP assigns to it, directly from and to all
workers.

The baselines of CREW's paper are here, too: crew-even (E-D), opr, ps, ring, blink, topo-adopt. The paper's A2A adds
nothing on the way and is the strategy all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from controlplane.planner.job import Job
from controlplane.planner.plan.model import Plan, Tree
from controlplane.planner.routing import Router
from controlplane.planner.strategies.common import Infeasible, Split, Strategy, finish
from controlplane.planner.strategies.wan.apsp.algorithm import shortest_routes, usable
from controlplane.planner.strategies.wan.crew import all_reduce as allreduce
from controlplane.planner.strategies.wan.crew.algorithm import even_split, optimal_split
from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.sites import (
    Owners,
    Sites,
    aggregation_tree,
    owners,
    shortest_return,
    sites,
    star_tree,
)
from controlplane.planner.topology import Topology

Matrix = NDArray[np.float64]
Routes = Mapping[str, Mapping[str, tuple[str, ...]]]  # target -> source -> sites


def _widest_routes(view: Sites) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the routes between all sites, by fewest hops, then by the largest bottleneck, then by the order of
    nodes.
    """
    graph = usable(view.graph)
    return {t: {t: (t,), **shortest_routes(graph, t, [t, *nx.ancestors(graph, t)])} for t in graph}


def _mesh(view: Sites, nodes: Sequence[str], routes: Routes) -> Matrix:
    """Return the network as CREW models it: a full mesh of the bottleneck rates of the routes, in Mbit/s."""
    mesh = np.zeros((len(nodes), len(nodes)))
    for a, source in enumerate(nodes):
        for b, target in enumerate(nodes):
            if a != b and source in routes[target]:
                route = routes[target][source]
                mesh[a, b] = min(view.graph.edges[e]["mbps"] for e in nx.utils.pairwise(route))
    return mesh


# --- a star per parameter server ---

# (mesh, workers, workers that may add) -> weights; may raise WanError
Weigh = Callable[[Matrix, list[int], list[int]], Matrix]


def _stars(
    name: str, weigh: Weigh, topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None
) -> Plan:
    """Return the plan of stars. Between sites without a direct link CREW sees the bottleneck of the route, and not that
    routes share links (the evaluator does).
    """
    view = sites(topology, job)
    servers, given = owners(view, frozen_split)
    routes = _widest_routes(view)
    if given is None:
        nodes = list(dict.fromkeys([*view.busy, *servers]))
        workers = [nodes.index(site) for site in view.busy]
        try:
            weights = weigh(_mesh(view, nodes, routes), workers, [nodes.index(site) for site in servers])
        except WanError as error:
            raise Infeasible(f"{name}: {error} (sites: {', '.join(nodes)})") from None
        given = {site: float(weights[nodes.index(site)]) for site in servers}
    router = Router(view.network)
    trees = [
        star_tree(view, server, share * part, routes[site], shortest_return(view, router, server, share * part))
        for site, share in given.items()
        if share > 0
        for server, part in servers[site]
    ]
    return finish(topology, job, name, trees, seed)


def _optimal(mesh: Matrix, workers: list[int], adders: list[int]) -> Matrix:
    return optimal_split(mesh, workers, adders).weights


def _even(mesh: Matrix, workers: list[int], adders: list[int]) -> Matrix:
    return even_split(len(mesh), adders)


def _initiators_only(mesh: Matrix, workers: list[int], adders: list[int]) -> Matrix:
    own = [k for k in adders if k in workers]
    if not own:
        raise WanError("no site with workers has a parameter server")
    return optimal_split(mesh, workers, own).weights


def _one_server(mesh: Matrix, workers: list[int], adders: list[int]) -> Matrix:
    return even_split(len(mesh), [allreduce.parameter_server(mesh, candidates=adders)])


crew: Strategy = partial(_stars, "crew", _optimal)
crew_even: Strategy = partial(_stars, "crew-even", _even)
opr: Strategy = partial(_stars, "opr", _initiators_only)
ps: Strategy = partial(_stars, "ps", _one_server)


# --- trees over the sites with workers, each of which adds ---

Packing = list[tuple[list[tuple[int, int]], float]]  # undirected edges and share of each tree
Pack = Callable[[Matrix, int], Packing]  # (mesh, seed); may raise WanError


def _blink(mesh: Matrix, seed: int) -> Packing:
    return [(list(tree.edges), share) for tree, share in allreduce.blink(mesh, range(len(mesh)))]


def _topo_adopt(mesh: Matrix, seed: int) -> Packing:
    return [(list(tree.edges), share) for tree, share in allreduce.topo_adopt(mesh, range(len(mesh)), seed=seed)]


def _roots(
    servers: Owners, given: Mapping[str, float] | None, members: Sequence[str], edges: list[tuple[int, int]]
) -> dict[str, float]:
    """Return the sites that root a packing's tree, with their parts of it: as given, else its centre, or the server
    nearest to it.
    """
    if given is not None:
        return {site: share for site, share in given.items() if share > 0}
    tree: nx.Graph = nx.Graph(edges)
    tree.add_nodes_from(range(len(members)))
    centre = min(nx.center(tree))
    distance = nx.single_source_shortest_path_length(tree, centre)
    return {min((site for site in members if site in servers), key=lambda v: (distance[members.index(v)], v)): 1.0}


def _members(view: Sites, servers: Owners, given: Mapping[str, float] | None) -> list[str]:
    """Return the sites that are in every tree: those with workers, and those that root a share; at least one has a
    server.
    """
    members = list(dict.fromkeys([*view.busy, *(site for site, share in (given or {}).items() if share > 0)]))
    if not any(site in servers for site in members):
        members.append(next(iter(servers)))
    return members


def _trees(
    name: str, pack: Pack, topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None
) -> Plan:
    view = sites(topology, job)
    servers, given = owners(view, frozen_split)
    members = _members(view, servers, given)
    routes = _widest_routes(view)
    router = Router(view.network)
    try:
        packing = pack(_mesh(view, members, routes), seed)
    except WanError as error:
        raise Infeasible(f"{name}: {error} (sites: {', '.join(members)})") from None
    trees = []
    for edges, share in packing:
        for root, part in _roots(servers, given, members, edges).items():
            graph: nx.Graph = nx.Graph([(members[a], members[b]) for a, b in edges])
            graph.add_node(root)
            up = {child: parent for parent, child in nx.bfs_edges(graph, root)}
            for server, piece in servers[root]:
                trees.append(_tree(view, server, share * part * piece, up=up, down=up, routes=routes, router=router))
    return finish(topology, job, name, trees, seed)


def _tree(
    view: Sites, server: str, share: float, *, up: Mapping[str, str], down: Mapping[str, str], routes: Routes,
    router: Router,
) -> Tree:  # fmt: skip
    """Return a tree whose result goes down the tree where its links exist, else over the fewest hops."""
    direct = all(view.graph.has_edge(a, b) and view.graph.edges[a, b]["mbps"] > 0 for b, a in down.items())
    below = down if direct else shortest_return(view, router, server, share)
    ways = {(v, above): routes[above][v] for v, above in up.items()}
    return aggregation_tree(view, server, share, up, below, routes=ways)


blink: Strategy = partial(_trees, "blink", _blink)
topo_adopt: Strategy = partial(_trees, "topo-adopt", _topo_adopt)


def ring(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return the plan of the greedy ring, block by block: each block goes once around and is complete at its root, and
    around again as result.

    The roots are the ring's sites with a server, with equal blocks; with a frozen split, its sites with its shares.
    """
    view = sites(topology, job)
    servers, given = owners(view, frozen_split)
    members = _members(view, servers, given)
    routes = _widest_routes(view)
    router = Router(view.network)
    around = [members[k] for k in allreduce.greedy_ring(_mesh(view, members, routes), range(len(members)), seed)]
    roots = [site for site in around if site in servers]
    shares = {site: 1 / len(roots) for site in roots} if given is None else given
    trees = []
    for k, root in enumerate(around):
        if shares.get(root, 0.0) > 0:
            others = [*around[k + 1 :], *around[:k]]  # from the site after the root to the one before it
            up = dict(nx.utils.pairwise([*others, root]))
            down = {after: before for before, after in nx.utils.pairwise([root, *others])}
            for server, part in servers[root]:
                share = shares[root] * part
                trees.append(_tree(view, server, share, up=up, down=down, routes=routes, router=router))
    return finish(topology, job, "ring", trees, seed)
