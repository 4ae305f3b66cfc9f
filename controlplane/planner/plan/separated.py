"""Hosts that do several things, taken apart into nodes that do one thing each, so that every planner can plan with
them.

Strategies, their programs and their bounds know servers that are a worker or a parameter server, and switches that add.
A host that is worker and parameter server at once, or that adds for others (its `aggregation_mbps`), becomes

    a worker -----------+
                        +-- a switch inside of the host -- the host's own link -- its access switch
    a parameter server -+

The switch inside adds as much as the host may, and the links inside are never full. A plan of that network is a plan of
the real one, link by link, once the three are one again (`Separated.together`): what the worker sends to its own
parameter server then crosses no link. So no strategy has to know of such hosts, and a bound of the network taken apart
is one of the real network. Agents hand a worker's gradients to the root on its own host there (native/io.h, `enum
io_reach`), so they are never added anywhere else: where a tree of the network taken apart adds them at a switch, the
root of the real one takes them by themselves.

A host with several links (dual-homed, several NICs) that is a parameter server or adds has a switch inside, and a
parameter server, for each of its links; the one worker has links to all of these switches. So each tree has its root at
one link, over which its sums come in and its results leave as one packet, and nothing passes from link to link through
the host, which does not forward. The host's intake and what it adds are divided among its links by their bandwidth.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

from controlplane.planner.job import Job, JobError
from controlplane.planner.plan.assignments import Assignment, Assignments
from controlplane.planner.plan.model import Plan, Relay, Tree
from controlplane.planner.topology import Topology
from controlplane.planner.topology_checks import LINK_NUMBERS

INSIDE = 1000.0
"""Bandwidth of the links inside of hosts, in units of the fastest link of the network."""
SERVES = "serves"
"""Attribute of a switch inside of a host: the parameter server inside of the same host."""
KEPT = ("host_ms", "measured_ms", "role")
INTAKE = ("ingress_mbps", "used_ingress_mbps")
ADDING = ("aggregation_mbps", "used_aggregation_mbps")


@dataclass(frozen=True)
class Separated:
    """A job's network in which hosts are taken apart.

    Attributes:
        job: The job on that network.
        whole: The job on the real network.
        inside: By host that was taken apart and the node that its link leads to, the switch inside of it for that link.
        taking: In the same way, the parameter server for that link, of hosts that are one.
        parts: In the same way, that link's fraction of the bandwidth of all of the host's links.
    """

    topology: Topology
    job: Job
    whole: Job
    inside: Mapping[str, Mapping[str, str]]
    taking: Mapping[str, Mapping[str, str]]
    parts: Mapping[str, Mapping[str, float]]

    @cached_property
    def hosts(self) -> Mapping[str, str]:
        """The real host of each node that was made by taking a host apart; nodes with the longest names come first."""
        names = ((n, host) for of in (self.inside, self.taking) for host, own in of.items() for n in own.values())
        return dict(sorted(names, key=lambda pair: -len(pair[0])))

    def together(self, plan: Plan) -> Plan:
        """Return a plan of the network taken apart as a plan of the real network, at the same rate."""
        return replace(plan, job=self.whole, trees=tuple(map(self._tree, plan.trees)))

    def apart(self, plan: Plan) -> Plan | None:
        """Return a plan of the real network as a plan of the network taken apart, at the same rate; None where there is
        none, as a tree reaches its root over several of the host's links.
        """
        try:
            return replace(plan, job=self.job, trees=tuple(map(self._tree_apart, plan.trees)))
        except KeyError:
            return None

    def split(self, shares: Mapping[str, float] | None) -> dict[str, float] | None:
        """Return shares of the model by parameter server, given by their real names, by the names in the network taken
        apart.
        """
        if shares is None:
            return None
        found = {}
        for root, share in shares.items():
            for near, name in self.taking.get(root, {"": root}).items():
                found[name] = share * (self.parts[root][near] if near else 1.0)
        return found

    def words(self, text: str) -> str:
        """Return a planner's text about the network taken apart with the real nodes' names."""
        for inner, host in self.hosts.items():
            text = text.replace(f"rack {inner}", f"host {host}").replace(inner, host)
        return text

    def _node(self, node: str) -> str:
        return self.hosts.get(node, node)

    def _route(self, route: tuple[str, ...]) -> tuple[str, ...]:
        nodes = [self._node(node) for node in route]
        return (nodes[0], *(after for before, after in pairwise(nodes) if before != after))

    def _tree(self, tree: Tree) -> Tree:
        node, root = self._node, self._node(tree.root)  # sums inside of the root's host are the root's own
        edges = [(node(u), node(v)) for u, v in tree.return_edges]
        edges = [(u, v) for u, v in edges if u != v]
        if len(self.inside.get(root, ())) > 1:  # its worker has its parameter server's results
            edges = _pruned([(u, v) for u, v in edges if v != root], self.whole.workers)
        ways = [
            Assignment(root, root, (root,))
            if a.worker == root
            else Assignment(a.worker, node(a.point), self._route(a.route))
            for a in tree.assignments
        ]
        relays = [Relay(node(r.node), node(r.next), self._route(r.route)) for r in tree.relays if node(r.node) != root]
        return Tree(root, tree.share, Assignments.of(ways), _fed(relays, ways), tuple(edges))

    def _tree_apart(self, tree: Tree) -> Tree:
        """Return a tree of the real network as one of the network taken apart, the opposite of `_tree`. A host that
        adds for others does so in the switch inside of it. Raise KeyError where there is no such tree.
        """
        inside, near = self.inside, self._link_of_root(tree)
        root = self.taking[tree.root][near] if tree.root in self.taking else tree.root

        def inner(host: str, other: str) -> str:
            return inside[host][other]

        def between(first: str, route: tuple[str, ...], last: str) -> tuple[str, ...]:
            if len(route) == 1:  # within a host
                nodes = [first, inner(tree.root, near) if route[0] == tree.root else onwards[route[0]], last]
            else:
                ends = [inner(route[0], route[1])] if route[0] in inside else []
                ends_in = [inner(route[-1], route[-2])] if route[-1] in inside else []
                if ends_in and ends_in[0] != (onwards.get(route[-1]) or inner(route[-1], near)):
                    raise KeyError(route[-1])  # a flow would come in over one link and leave over another
                nodes = [first, *ends, *(node for node in route if node not in inside), *ends_in, last]
            return (first, *(after for before, after in pairwise(nodes) if before != after))

        onwards = {relay.node: inner(relay.node, relay.route[1]) for relay in tree.relays if relay.node in inside}

        def end(point: str) -> str:
            return root if point == tree.root else onwards.get(point, point)

        ways = [(a.worker, end(a.point), a.route) for a in tree.assignments]
        sums = [(end(relay.node), end(relay.next), relay.route) for relay in tree.relays]
        parent = {child: above for above, child in tree.return_edges}
        edges = [(root, inner(tree.root, near))] if tree.root in inside else []
        for u, v in tree.return_edges:
            edges.append((inner(u, v) if u in inside else u, inner(v, u) if v in inside else v))
        edges += [(inner(w, parent.get(w, near)), w) for w in self.whole.workers if w in inside]
        return Tree(
            root,
            tree.share,
            Assignments.of([Assignment(worker, point, between(worker, way, point)) for worker, point, way in ways]),
            tuple(Relay(node, after, between(node, way, after)) for node, after, way in sums),
            tuple(edges),
        )

    def _link_of_root(self, tree: Tree) -> str:
        """Return the node at the other end of the only link of the root that the tree uses; "" where the root's host is
        not taken apart. Raise KeyError where the tree uses several links.
        """
        if tree.root not in self.inside:
            return ""
        used = {v for u, v in tree.return_edges if u == tree.root}
        used |= {flow.route[-2] for flow in tree.flows if flow.end == tree.root and len(flow.route) > 1}
        if len(used) > 1:
            raise KeyError(tree.root)
        return next(iter(used), next(iter(self.inside[tree.root])))


def at_home(topology: Topology, tree: Tree) -> Tree:
    """Return a tree of a network taken apart in which the worker on the root's own host goes directly to the root, as
    it does in the real network: what is planned and rated is then what is carried out.
    """
    own = own_switch(topology, tree.root)
    if own is None:
        return tree
    ways = [
        Assignment(a.worker, tree.root, (a.worker, own, tree.root)) if topology.has_link(a.worker, own) else a
        for a in tree.assignments
    ]
    if ways == list(tree.assignments):
        return tree
    return replace(tree, assignments=Assignments.of(ways), relays=_fed(tree.relays, ways))


def _fed(relays: Sequence[Relay], ways: Sequence[Assignment]) -> tuple[Relay, ...]:
    """Return the relays of a tree without those of aggregation points to which no flow comes."""
    while True:
        used = {way.point for way in ways} | {relay.next for relay in relays}
        fed = [relay for relay in relays if relay.node in used]
        if len(fed) == len(relays):
            return tuple(fed)
        relays = fed


def _pruned(edges: list[tuple[str, str]], workers: Container[str]) -> list[tuple[str, str]]:
    """Return the edges of a return tree without branches that end at no worker."""
    while True:
        above = {u for u, _ in edges}
        kept = [(u, v) for u, v in edges if v in above or v in workers]
        if len(kept) == len(edges):
            return kept
        edges = kept


def own_switch(topology: Topology, root: str) -> str | None:
    """Return the switch inside of the host of this parameter server, where that host was taken apart; else None.

    No tree of that root adds there: once host and switch are one again, the root takes in each of the flows, and its
    intake counts them all.
    """
    near = topology.neighbours(root)
    return near[0] if len(near) == 1 and topology.graph.nodes[near[0]].get(SERVES) == root else None


def shares_hosts(topology: Topology, job: Job) -> bool:
    """Return whether a worker's host is a parameter server, too, also where hosts are taken apart."""
    nodes = topology.graph.nodes
    return bool(job.both_roles) or any(
        SERVES in nodes[near] for worker in job.workers for near in topology.neighbours(worker)
    )


def hosts_in_parts(topology: Topology, job: Job) -> tuple[str, ...]:
    """Return the servers that have to be taken apart: those with both roles, those that add for others, and parameter
    servers with links to several switches.
    """
    return _in_parts(topology, job.both_roles, job.parameter_servers)


def _in_parts(topology: Topology, both_roles: Container[str], roots: Container[str]) -> tuple[str, ...]:
    adding = topology.adding_servers
    return tuple(
        s for s in topology.servers if s in both_roles or s in adding or (s in roots and _hangs_on_several(topology, s))
    )


def _hangs_on_several(topology: Topology, server: str) -> bool:
    near = topology.neighbours(server)
    return len(near) > 1 and all(topology.kind(other) == "switch" for other in near)


@lru_cache(maxsize=4)  # strategy, bounds and reports ask for the same network
def separated(topology: Topology, job: Job) -> Separated | None:
    """Return the job's network with hosts taken apart; None where every server has one role and none adds for others.
    Raise JobError where such a host hangs on a server, or on nothing.
    """
    found = separated_for(topology, [job])
    return found[0] if found else None


def separated_for(topology: Topology, jobs: Sequence[Job]) -> list[Separated]:
    """Return the jobs of one network, in their order, each with the network in which hosts are taken apart: a host for
    which one job needs it is taken apart for all of them. The list is empty where no host has to be. Raise JobError
    where a host that has to be taken apart hangs on a server, or on nothing.
    """
    both_roles = frozenset[str]().union(*(job.both_roles for job in jobs))
    roots = frozenset[str]().union(*(job.parameter_servers for job in jobs))
    apart = _in_parts(topology, both_roles, roots)
    if not apart:
        return []
    for job in jobs:
        job.check(topology)
    inside: dict[str, dict[str, str]] = {}
    taking: dict[str, dict[str, str]] = {}
    parts: dict[str, dict[str, float]] = {}
    for host in apart:
        _check_host(topology, host)
        near = topology.neighbours(host)
        where = {other: f" at {other}" if len(near) > 1 else "" for other in near}
        inside[host] = {other: f"inside {host}{at}" for other, at in where.items()}
        parts[host] = _parts_of_links(topology, host)
        if host in both_roles or (host in roots and len(near) > 1):
            taking[host] = {other: f"parameter server {host}{at}" for other, at in where.items()}
    network = _network_apart(topology, Separated(topology, jobs[0], jobs[0], inside, taking, parts), both_roles)
    found = []
    for job in jobs:
        names = tuple(name for root in job.parameter_servers for name in taking.get(root, {"": root}).values())
        found.append(Separated(network, replace(job, parameter_servers=names), job, inside, taking, parts))
    return found


def _parts_of_links(topology: Topology, host: str) -> dict[str, float]:
    """Return, by the node that each of the host's links leads to, that link's fraction of the bandwidth towards the
    host.
    """
    rates = {
        near: topology.residual_bandwidth_mbps(near, host) if topology.has_link(near, host) else 0.0
        for near in topology.neighbours(host)
    }
    total = sum(rates.values())
    return {near: rate / total if total > 0 else 1 / len(rates) for near, rate in rates.items()}


def _network_apart(topology: Topology, made: Separated, both_roles: Container[str]) -> Topology:
    """Return the network with hosts taken apart, under the names that `made` has for their parts."""
    nodes = {node: dict(topology.graph.nodes[node]) for node in topology.nodes}
    fastest = max((topology.bandwidth_mbps(u, v) for u, v in topology.links), default=0.0)
    links = []
    for host, switches in made.inside.items():
        own, roots = nodes.pop(host), made.taking.get(host, {})
        plain = {name: own[name] for name in KEPT if name in own}
        intake = {name: own[name] for name in INTAKE if name in own}
        works = host in both_roles or not roots
        if works:
            nodes[host] = {"kind": "server", **plain, **({} if roots else intake)}
        for near, switch in switches.items():
            part = made.parts[host][near]
            adds = {name: own[name] * part for name in ADDING if name in own}
            mark = {SERVES: roots[near]} if roots else {}
            nodes[switch] = {"kind": "switch", **(adds or {"aggregation_mbps": 0.0}), **mark}
            if roots:
                nodes[roots[near]] = {"kind": "server", **plain, **{name: own[name] * part for name in intake}}
            for node in (*([host] if works else []), *([roots[near]] if roots else [])):
                links += [(*pair, {"bandwidth_mbps": INSIDE * fastest}) for pair in ((node, switch), (switch, node))]
    for u, v in topology.links:
        numbers = {name: topology.graph.edges[u, v].get(name, 0.0) for name in LINK_NUMBERS}
        links.append(
            (made.inside[u][v] if u in made.inside else u, made.inside[v][u] if v in made.inside else v, numbers)
        )
    return Topology(nodes, links, topology.name, results_on_links=topology.results_on_links)


def _check_host(topology: Topology, host: str) -> None:
    near = topology.neighbours(host)
    if not near or any(topology.kind(other) != "switch" for other in near):
        raise JobError(
            f"server {host} is to be worker and parameter server at once, to add for others, or to be a parameter "
            f"server with several links: it must hang on switches, it is linked with: {', '.join(near) or 'nothing'}"
        )
