"""Translates between the WAN algorithms, which know sites and links, and plans, which know switches and servers.

A site is a switch with its workers and parameter servers. A site that adds is an aggregation point of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

from controlplane.planner.job import Job
from controlplane.planner.plan.assignments import Assignment, Assignments
from controlplane.planner.plan.model import Relay, Tree
from controlplane.planner.routing import Network, Router, downwards
from controlplane.planner.strategies.common import Infeasible, Split, prepare, split_or_equal
from controlplane.planner.topology import Topology


@dataclass(frozen=True)
class Sites:
    """A job's sites.

    Attributes:
        topology: The network.
        job: The job.
        network: The same network, to route on.
        graph: The switches; "mbps" of its directed links is their residual bandwidth.
        worker: The site of each of the job's workers.
        server: The site of each of its parameter servers.
    """

    topology: Topology
    job: Job
    network: Network
    graph: nx.DiGraph
    worker: Mapping[str, str]
    server: Mapping[str, str]

    @property
    def busy(self) -> list[str]:
        """The sites with workers, in the order of the job."""
        return list(dict.fromkeys(self.worker.values()))


def sites(topology: Topology, job: Job) -> Sites:
    """Return the sites of a job. Raise JobError, Unreachable, or TopologyError where a server has several links."""
    network = prepare(topology, job)
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(topology.switches)
    for u, v in topology.links:
        if topology.kind(u) == topology.kind(v) == "switch":
            graph.add_edge(u, v, mbps=topology.residual_bandwidth_mbps(u, v))
    worker = {w: topology.access_switch(w) for w in job.workers}
    server = {s: topology.access_switch(s) for s in job.parameter_servers}
    return Sites(topology, job, network, graph, worker, server)


Owners = dict[str, list[tuple[str, float]]]


def owners(view: Sites, frozen_split: Split | None) -> tuple[Owners, dict[str, float] | None]:
    """Return, for each site that may be a root, its servers with the part of the site's trees that each has, and the
    shares of the sites.

    Without a frozen split there are no shares (None), and each site has only the server with the most ingress
    bandwidth.
    """
    if frozen_split is None:
        best: dict[str, str] = {}
        for server, site in view.server.items():
            mine = view.topology.residual_ingress_mbps(server)
            if mine > 0 and (site not in best or mine > view.topology.residual_ingress_mbps(best[site])):
                best[site] = server
        if not best:
            raise Infeasible("no parameter server of the job has ingress bandwidth left")
        return {site: [(server, 1.0)] for site, server in best.items()}, None
    shares: dict[str, float] = {}
    members: dict[str, list[tuple[str, float]]] = {}
    for server, share in split_or_equal(view.job, frozen_split).items():
        if share > 0:
            site = view.server[server]
            shares[site] = shares.get(site, 0.0) + share
            members.setdefault(site, []).append((server, share))
    return {site: [(s, x / shares[site]) for s, x in own] for site, own in members.items()}, shares


def needed(view: Sites, roots: Sequence[str]) -> nx.DiGraph:
    """Return the graph of the sites that trees may use: without leaves that have neither workers nor a root.

    Such a leaf lies on no path between other sites. The remaining sites without workers may be passed through.
    """
    graph = view.graph.copy()
    keep = {*view.busy, *roots}
    while True:
        leaves = [v for v in graph if v not in keep and len({*graph.successors(v), *graph.predecessors(v)}) <= 1]
        if not leaves:
            return graph
        graph.remove_nodes_from(leaves)


def _pruned(view: Sites, root: str, parent: Mapping[str, str]) -> dict[str, str]:
    """Return the tree `parent` without branches that have no workers."""
    keep: set[str] = set()
    for site in view.busy:
        node = site
        while node != root and node not in keep:
            keep.add(node)
            node = parent[node]
    return {node: above for node, above in parent.items() if node in keep}


def aggregation_tree(
    view: Sites,
    server: str,
    share: float,
    up: Mapping[str, str],
    down: Mapping[str, str],
    *,
    routes: Mapping[tuple[str, str], Sequence[str]] | None = None,
) -> Tree:
    """Return a tree in which every site of `up` adds.

    Args:
        view: The job's sites.
        server: The parameter server that is the root.
        share: The part of the model that the tree carries.
        up: By site v, the site to which v sends.
        down: By site v, the site from which v gets the result, over the direct link.
        routes: The route of each pair (v, up[v]); None for the direct links.
    """
    root = view.server[server]
    climb = _pruned(view, root, up)
    assignments = Assignments.of([Assignment(w, site, (w, site)) for w, site in view.worker.items()])
    relays = tuple(
        Relay(v, above, (v, above) if routes is None else tuple(routes[v, above])) for v, above in climb.items()
    )
    relays += (Relay(root, server, (root, server)),)
    return Tree(server, share, assignments, relays, _return_edges(view, server, down))


def shortest_return(view: Sites, router: Router, server: str, share: float) -> dict[str, str]:
    """Return a tree of fewest hops, and among those of least load, from the server's site to all sites with workers, as
    the site above each site.
    """
    index, names, ends = view.network.index, view.network.names, view.network.ends
    back = router.return_tree(index[server], [index[w] for w in view.job.workers], share)
    edges = [(names[ends[e][0]], names[ends[e][1]]) for e in back]
    return {v: u for u, v in edges if u in view.graph and v in view.graph}


def widest_return(view: Sites, server: str, routes: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the return tree whose least bandwidth per load is largest, beside the flows towards the server along
    `routes`, as the site above each site.
    """
    load: dict[tuple[str, str], float] = {}
    for site in view.worker.values():
        if site != view.server[server]:
            for link in pairwise(routes[site]):
                load[link] = load.get(link, 0.0) + 1
    down: dict[str, str] = {}
    root = view.server[server]
    reached = [root]
    while True:
        edges = [
            (view.graph.edges[u, v]["mbps"] / (1 + load.get((u, v), 0.0)), u, v)
            for u in reached
            for v in view.graph.successors(u)
            if v not in down and v != root and view.graph.edges[u, v]["mbps"] > 0
        ]
        if not edges:
            return down
        _, u, v = max(edges)
        down[v] = u
        reached.append(v)


def star_tree(
    view: Sites, server: str, share: float, routes: Mapping[str, Sequence[str]], down: Mapping[str, str]
) -> Tree:
    """Return a tree in which no site adds: each worker's flow takes its site's route to the server's site, and the
    result is multicast along `down`.
    """
    root = view.server[server]
    assignments = []
    for worker, site in view.worker.items():
        route = (site,) if site == root else tuple(routes[site])
        assignments.append(Assignment(worker, server, (worker, *route, server)))
    return Tree(server, share, Assignments.of(assignments), (), _return_edges(view, server, down))


def _return_edges(view: Sites, server: str, down: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    root = view.server[server]
    edges = [(server, root), *((above, v) for v, above in _pruned(view, root, down).items())]
    return downwards(server, [*edges, *((site, w) for w, site in view.worker.items())])
