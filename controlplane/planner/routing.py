"""Least-loaded shortest paths and return trees over an integer-indexed view of the topology.

Servers never forward, and links without residual bandwidth are not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from controlplane.planner.job import Job
from controlplane.planner.topology import Topology

if TYPE_CHECKING:  # importing numpy takes 0.1 s: only code that routes does
    import numpy as np

    from controlplane.planner.in_trees import Neighbours

Memory = dict[int, tuple[float, float, int, int]]  # node -> highest utilisation, sum, next node, link


class Unreachable(ValueError):
    """Error: no route leads from one node to another; the message names both, and says why."""

    def __init__(self, topology: Topology, source: str, target: str, what: str = "", why: str = "") -> None:
        super().__init__(f"{what + ': ' if what else ''}{why or _no_route(topology, source, target)}")
        self.source, self.target = source, target


def _no_route(topology: Topology, source: str, target: str) -> str:
    """Return why there is no route: a link without bandwidth, a server on the only path, or no path at all."""
    forwards = set(topology.switches)
    left = {pair for pair in topology.links if topology.residual_bandwidth_mbps(*pair) > 0}
    from_to = f"from {source} to {target}"
    if target in _reached(topology.links, source, forwards):
        near = _reached(left, source, forwards)
        u, v = next((u, v) for u, v in topology.links if u in near and v not in near and u in {source, *forwards})
        return f"no route with bandwidth left {from_to}: link {u} -> {v} has none"
    between = _reached(topology.links, source, set(topology.nodes))
    if target not in between:
        ends = [node for node in (source, target) if not topology.neighbours(node)]
        return f"no route {from_to}: {f'{ends[0]} has no link' if ends else 'no path of links leads there'}"
    path, node = [], between[target]
    while node != source:
        path.append(node)
        node = between[node]
    server = next(node for node in path if node not in forwards)
    return f"no route {from_to}: the only paths lead through servers, which do not forward ({server})"


def _reached(links: Iterable[tuple[str, str]], source: str, forwards: set[str]) -> dict[str, str]:
    """Return the nodes that these links lead to from the source, over nodes of `forwards`, each with the node before
    it.
    """
    ahead: dict[str, list[str]] = {}
    for u, v in links:
        ahead.setdefault(u, []).append(v)
    before, queue = {source: source}, [source]
    for node in queue:
        for other in ahead.get(node, ()) if node == source or node in forwards else ():
            if other not in before:
                before[other] = node
                queue.append(other)
    return before


class Access(NamedTuple):
    """The switch that a server hangs on, the link to it and the link back."""

    switch: int
    up: int
    down: int


class Network:
    """A topology with nodes and directed links as integers and residual capacities as lists. It caches distances."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.names = topology.nodes
        self.index = {name: i for i, name in enumerate(self.names)}
        self.forwards = [topology.kind(name) == "switch" for name in self.names]
        self.ends = [(self.index[u], self.index[v]) for u, v in topology.links]
        self.link = {pair: e for e, pair in enumerate(self.ends)}
        self.capacity = [topology.residual_bandwidth_mbps(u, v) for u, v in topology.links]
        self.out: list[list[tuple[int, int]]] = [[] for _ in self.names]
        self.into: list[list[tuple[int, int]]] = [[] for _ in self.names]
        for e, (u, v) in enumerate(self.ends):
            if self.capacity[e] > 0:
                self.out[u].append((v, e))
                self.into[v].append((u, e))
        self._to: dict[int, list[int]] = {}
        self._from: dict[int, list[int]] = {}
        self._hops: dict[int, dict[int, list[tuple[int, int]]]] = {}
        self._closer: dict[int, dict[int, list[tuple[int, int]]]] = {}

    def access(self, server: int) -> Access | None:
        """Return the access switch of a server that hangs on one switch only, with both links; None for other
        servers.
        """
        out, into = self.out[server], self.into[server]
        if len(out) != 1 or len(into) != 1 or out[0][0] != into[0][0] or not self.forwards[out[0][0]]:
            return None
        return Access(out[0][0], out[0][1], into[0][1])

    def hangs_on_several(self, server: int) -> bool:
        """Return whether a node is a server with links to several switches, and to nothing else."""
        out = self.out[server]
        return not self.forwards[server] and len(out) > 1 and all(self.forwards[v] for v, _ in out)

    @cached_property
    def _behind(self) -> Neighbours:
        """The nodes with a link to each switch."""
        from controlplane.planner.in_trees import Neighbours

        return Neighbours.of([into if on else [] for into, on in zip(self.into, self.forwards, strict=True)])

    @cached_property
    def _ahead(self) -> Neighbours:
        """The nodes to which each switch has a link."""
        from controlplane.planner.in_trees import Neighbours

        return Neighbours.of([out if on else [] for out, on in zip(self.out, self.forwards, strict=True)])

    def hops_to(self, target: int) -> np.ndarray:
        """Return what `distances_to` returns as an array, without keeping it, for callers that look at thousands of
        targets once each.
        """
        return self._behind.distances([u for u, _ in self.into[target]], target)

    def distances_to(self, target: int) -> list[int]:
        """Return the hops from every node to `target`; -1 where there is no route."""
        if target not in self._to:
            self._to[target] = self.hops_to(target).tolist()
        return self._to[target]

    def distances_from(self, source: int) -> list[int]:
        """Return the hops from `source` to every node; -1 where there is no route."""
        if source not in self._from:
            self._from[source] = self._ahead.distances([v for v, _ in self.out[source]], source).tolist()
        return self._from[source]

    def next_hops(self, node: int, target: int) -> list[tuple[int, int]]:
        """Return the (next node, link) pairs on shortest routes from `node` to `target`; none where there is no
        route.
        """
        cache = self._hops.setdefault(target, {})
        if node not in cache:
            distance = self.distances_to(target)
            closer = distance[node] - 1
            cache[node] = (
                [(v, e) for v, e in self.out[node] if distance[v] == closer and (v == target or self.forwards[v])]
                if closer >= 0
                else []
            )
        return cache[node]

    def hops_before(self, node: int, source: int) -> list[tuple[int, int]]:
        """Return the (node before, link) pairs on shortest routes from `source` to `node`; none where there is no
        route.
        """
        cache = self._closer.setdefault(source, {})
        if node not in cache:
            distance = self.distances_from(source)
            closer = distance[node] - 1
            ways = self.into[node] if closer >= 0 else []
            cache[node] = [(u, e) for u, e in ways if distance[u] == closer and (u == source or self.forwards[u])]
        return cache[node]

    def check_reachable(self, job: Job) -> None:
        """Check that each worker reaches each parameter server and the reverse; raise Unreachable, which names both,
        otherwise.
        """
        for root in job.parameter_servers:
            self._check_root(job, root)

    def reached_roots(self, job: Job) -> tuple[str, ...]:
        """Return the parameter servers that each worker reaches, and that reach each worker over one of their links."""
        found = []
        for root in job.parameter_servers:
            try:
                self._check_root(job, root)
            except Unreachable:
                continue
            node = self.index[root]
            leaves = [self.index[worker] for worker in job.workers]
            if not self.hangs_on_several(node) or self.first_hops(node, leaves):
                found.append(root)
        return tuple(found)

    def _check_root(self, job: Job, root: str) -> None:
        s = self.index[root]
        to, back = self.distances_to(s), self.distances_from(s)
        for worker in job.workers:
            w = self.index[worker]
            if to[w] < 0:
                raise Unreachable(self.topology, worker, root, f"parameter server {root}")
            if back[w] < 0:
                raise Unreachable(self.topology, root, worker, f"parameter server {root}")

    def first_hops(self, root: int, leaves: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return the links of a server from which all leaves are reached: the hops to all, the node and the link."""
        found = []
        for v, e in self.out[root]:
            hops = [0 if leaf == v else self.distances_from(v)[leaf] for leaf in leaves if leaf != root]
            if min(hops, default=0) >= 0:
                found.append((sum(hops), v, e))
        return found


def walk(network: Network, start: int) -> Iterator[int]:
    """Yield nodes in depth-first order, servers of a switch before other switches: racks and pods stay together."""
    seen, stack = set(), [start]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        if node == start or network.forwards[node]:
            stack += sorted((v for v, _ in network.out[node] if v not in seen), key=lambda v: not network.forwards[v])


class Router:
    """Chooses single paths one after the other, each the least loaded among the shortest, and keeps the links' load.

    Loads and amounts may have any one unit that is proportional to the rate (strategies use shares of the sending rate
    f).
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.inverse = [1.0 / c if c > 0 else float("inf") for c in network.capacity]
        self.load = [0.0] * len(network.ends)

    def add(self, links: Sequence[int], amount: float) -> None:
        for e in links:
            self.load[e] += amount

    def route(self, source: int, target: int, amount: float, memory: Memory | None = None) -> list[int]:
        """Return the links of a shortest path, and add `amount` to their load. Of all shortest paths it is the one
        whose fullest link is least utilised with the amount added; of equals, the one with the least sum of
        utilisations. Raise Unreachable where there is none.

        `memory` is one dict for a run of calls with the same target, empty at the first. Later calls use what earlier
        ones found, and look again only at nodes of the paths that were chosen.
        """
        network = self.network
        best: Memory = {} if memory is None else memory
        best[target] = (0.0, 0.0, -1, -1)
        load, inverse, next_hops = self.load, self.inverse, network.next_hops

        def visit(node: int) -> tuple[float, float, int, int]:
            chosen = (float("inf"), float("inf"), -1, -1)
            for other, e in next_hops(node, target):
                utilisation = (load[e] + amount) * inverse[e]
                onwards = best.get(other) or visit(other)
                candidate = (
                    utilisation if utilisation > onwards[0] else onwards[0],
                    onwards[1] + utilisation,
                    other,
                    e,
                )
                if candidate < chosen:  # noqa: PLR1730  (min() costs a call in the hot path)
                    chosen = candidate
            best[node] = chosen
            return chosen

        if source != target and not next_hops(source, target):
            raise Unreachable(network.topology, network.names[source], network.names[target])
        links: list[int] = []
        node = source
        while node != target:
            if node not in best:
                visit(node)
            _, _, following, e = best.pop(node)
            links.append(e)
            node = following
        self.add(links, amount)
        return links

    def return_tree(self, root: int, leaves: Sequence[int], amount: float) -> list[int]:
        """Return the links of a tree of shortest paths from the root to all leaves. A path joins the tree where it can,
        else it takes the least loaded links. A server sends results over one of its links only.
        """
        network = self.network
        joined = {root}
        links: list[int] = []
        top = root
        if network.hangs_on_several(root):
            top, first = self._first_hop(root, leaves, amount)
            joined.add(top)
            links.append(first)
        distance = network.distances_from(top)
        parent: dict[int, int] = {}
        for leaf in leaves:
            if distance[leaf] < 0:
                raise Unreachable(network.topology, network.names[root], network.names[leaf])
            node = leaf
            while node not in joined:
                joined.add(node)
                options = [
                    (u not in joined, (self.load[e] + amount) * self.inverse[e], e, u)
                    for u, e in network.hops_before(node, top)
                ]
                _, _, e, u = min(options)
                parent[node] = u
                links.append(e)
                node = u
        if network.topology.results_on_links:
            self.add(links, amount)
        return links

    def _first_hop(self, root: int, leaves: Sequence[int], amount: float) -> tuple[int, int]:
        """Return the node and the link of a server over which all leaves are nearest; of equals, the least loaded
        one.
        """
        network = self.network
        ways = network.first_hops(root, leaves)
        found = [(hops, (self.load[e] + amount) * self.inverse[e], e, v) for hops, v, e in ways]
        if not found:
            names = network.names[root], network.names[leaves[0]]
            why = f"{names[0]} sends results over one of its links, and none of these leads to all workers"
            raise Unreachable(network.topology, *names, why=why)
        _, _, e, v = min(found)
        return v, e

    def nodes(self, source: int, links: Sequence[int]) -> tuple[str, ...]:
        """Return the names of the nodes along a path of links."""
        return (self.network.names[source], *(self.network.names[self.network.ends[e][1]] for e in links))


def downwards(root: str, edges: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the edges of a tree in order from the root down."""
    children: dict[str, list[tuple[str, str]]] = {}
    for edge in edges:
        children.setdefault(edge[0], []).append(edge)
    ordered: list[tuple[str, str]] = []
    queue = [root]
    for node in queue:
        for edge in children.get(node, ()):
            ordered.append(edge)
            queue.append(edge[1])
    return tuple(ordered)


def next_hops(topology: Topology) -> dict[str, dict[str, str]]:
    """Return, by server, the next node towards it of each node that has a route to it.

    Routes are shortest paths and do not depend on plans. Per destination the next hop is the one over which the fewest
    servers' traffic per Mbit/s runs so far, so that equal-cost paths share the load.
    """
    network = Network(topology)
    load = [0.0] * len(network.ends)
    result: dict[str, dict[str, str]] = {}
    for server in topology.servers:
        target = network.index[server]
        distance = network.distances_to(target)
        traffic = [0.0 if forwards else 1.0 for forwards in network.forwards]
        reaching = sorted((u for u in range(len(network.names)) if distance[u] > 0), key=lambda u: -distance[u])
        own = result[server] = {}
        for u in reaching:
            v, e = min(
                network.next_hops(u, target),
                key=lambda hop: ((load[hop[1]] + traffic[u]) / network.capacity[hop[1]], hop),
            )
            load[e] += traffic[u]
            traffic[v] += traffic[u]
            own[network.names[u]] = network.names[v]
    return result


def ways(topology: Topology) -> dict[tuple[str, str], list[str]]:
    """Return the nodes that a packet between two servers passes by `next_hops`, by (source, target); pairs without a
    route are left out.
    """
    hops = next_hops(topology)
    found = {}
    for target in topology.servers:
        for source in topology.servers:
            if source != target and source in hops[target]:
                path = found[source, target] = [source]
                while path[-1] != target:
                    path.append(hops[target][path[-1]])
    return found
