"""Hosts that do several things, taken apart into nodes that do one thing each, so that every planner can plan with
them.

Strategies, their programs and their bounds know servers that work or are a parameter server, and switches that add. A
host that is worker and parameter server at once, or that adds for others (its `aggregation_mbps`), becomes

    a worker -----------+
                        +-- a switch inside of the host -- the host's own link -- its access switch
    a parameter server -+

The switch inside adds as much as the host may, and the links inside are never full. A plan of that network is a plan of
the real one, link by link, once the three are one again (`Separated.together`): what the worker sends to its own
parameter server then crosses no link. So no strategy has to know of such hosts, and a bound of the network taken apart
is one of the real network.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
    """topology, job: taken apart. whole: the job as it was. inside: by host that was taken apart, the switch inside of
    it; taking: the parameter server, of hosts that are worker and parameter server."""

    topology: Topology
    job: Job
    whole: Job
    inside: Mapping[str, str]
    taking: Mapping[str, str]

    @cached_property
    def hosts(self) -> Mapping[str, str]:
        """The real node of each node that is none itself."""
        return {name: host for names in (self.inside, self.taking) for host, name in names.items()}

    def together(self, plan: Plan) -> Plan:
        """A plan of the network taken apart as one of the real network, at the same rate."""
        return replace(plan, job=self.whole, trees=tuple(map(self._tree, plan.trees)))

    def apart(self, plan: Plan) -> Plan:
        """A plan of the real network as one of the network taken apart, at the same rate."""
        return replace(plan, job=self.job, trees=tuple(map(self._tree_apart, plan.trees)))

    def split(self, shares: Mapping[str, float] | None) -> dict[str, float] | None:
        """Shares of the model by parameter server, by the names that these have here."""
        if shares is None:
            return None
        return {self.taking.get(root, root): share for root, share in shares.items()}

    def words(self, text: str) -> str:
        """A text of the planner about the network taken apart, in the real nodes' names."""
        for inner, host in self.hosts.items():
            text = text.replace(f"rack {inner}", f"host {host}").replace(inner, host)
        return text

    def _node(self, node: str) -> str:
        return self.hosts.get(node, node)

    def _route(self, route: tuple[str, ...]) -> tuple[str, ...]:
        nodes = [self._node(node) for node in route]
        return (nodes[0], *(after for before, after in pairwise(nodes) if before != after))

    def _tree(self, tree: Tree) -> Tree:
        node, root = self._node, self._node(tree.root)  # what was added inside of the root's host is added by the root
        edges = ((node(u), node(v)) for u, v in tree.return_edges)
        return Tree(
            root,
            tree.share,
            Assignments.of([Assignment(a.worker, node(a.point), self._route(a.route)) for a in tree.assignments]),
            tuple(Relay(node(r.node), node(r.next), self._route(r.route)) for r in tree.relays if node(r.node) != root),
            tuple((u, v) for u, v in edges if u != v),
        )

    def _tree_apart(self, tree: Tree) -> Tree:
        """The opposite of `_tree`. A host that adds for others does that in the switch inside of it."""
        inside, root = self.inside, self.taking.get(tree.root, tree.root)

        def end(point: str) -> str:
            return root if point == tree.root else inside.get(point, point)

        def between(first: str, route: tuple[str, ...], last: str) -> tuple[str, ...]:
            nodes = [first, *(inside.get(node, node) for node in route), last]
            return (first, *(after for before, after in pairwise(nodes) if before != after))

        ways = [(a.worker, end(a.point), a.route) for a in tree.assignments]
        sums = [(end(relay.node), end(relay.next), relay.route) for relay in tree.relays]
        edges = [(root, inside[tree.root])] if tree.root in inside else []
        edges += [(inside.get(u, u), inside.get(v, v)) for u, v in tree.return_edges]
        edges += [(inside[worker], worker) for worker in self.whole.workers if worker in inside]
        return Tree(
            root,
            tree.share,
            Assignments.of([Assignment(worker, point, between(worker, way, point)) for worker, point, way in ways]),
            tuple(Relay(node, after, between(node, way, after)) for node, after, way in sums),
            tuple(edges),
        )


def own_switch(topology: Topology, root: str) -> str | None:
    """The switch inside of the host of this parameter server, where that host was taken apart.

    No tree of the root is added up there: once host and switch are one again, the root takes in each of the flows, and
    its intake counts them all.
    """
    near = topology.neighbours(root)
    return near[0] if len(near) == 1 and topology.graph.nodes[near[0]].get(SERVES) == root else None


def hosts_in_parts(topology: Topology, job: Job) -> tuple[str, ...]:
    """The servers that have to be taken apart: those with both roles, and those that add for others."""
    return _in_parts(topology, job.both_roles)


def _in_parts(topology: Topology, both_roles: Container[str]) -> tuple[str, ...]:
    adding = topology.adding_servers
    return tuple(s for s in topology.servers if s in both_roles or s in adding)


def separated(topology: Topology, job: Job) -> Separated | None:
    """None where every server has one role and none adds for others. Raises JobError: such a host has several links."""
    found = separated_for(topology, [job])
    return found[0] if found else None


def separated_for(topology: Topology, jobs: Sequence[Job]) -> list[Separated]:
    """Return the jobs of one network, in their order, each with the network in which hosts are taken apart: a host that
    has to be for one job is taken apart for all of them. The list is empty where no host has to be. Raises JobError: a
    host that has to be taken apart has several links."""
    both_roles = frozenset[str]().union(*(job.both_roles for job in jobs))
    apart = _in_parts(topology, both_roles)
    if not apart:
        return []
    for job in jobs:
        job.check(topology)
    inside = {host: f"inside {host}" for host in apart}
    taking = {host: f"parameter server {host}" for host in apart if host in both_roles}
    network = _network_apart(topology, inside, taking)
    found = []
    for job in jobs:
        roots = tuple(taking.get(root, root) for root in job.parameter_servers)
        found.append(Separated(network, replace(job, parameter_servers=roots), job, inside, taking))
    return found


def _network_apart(topology: Topology, inside: Mapping[str, str], taking: Mapping[str, str]) -> Topology:
    """The network with these hosts taken apart. Raises JobError."""
    nodes = {node: dict(topology.graph.nodes[node]) for node in topology.nodes}
    fastest = max((topology.bandwidth_mbps(u, v) for u, v in topology.links), default=0.0)
    links = []
    for host in inside:
        _check_host(topology, host)
        own = nodes[host]
        adds = {name: own[name] for name in ADDING if name in own}
        mark = {SERVES: taking[host]} if host in taking else {}
        nodes[inside[host]] = {"kind": "switch", **(adds or {"aggregation_mbps": 0.0}), **mark}
        plain = {name: own[name] for name in KEPT if name in own}
        intake = {name: own[name] for name in INTAKE if name in own}
        nodes[host] = {"kind": "server", **plain, **({} if host in taking else intake)}
        if host in taking:
            nodes[taking[host]] = {"kind": "server", **plain, **intake}
        for node in (host, *([taking[host]] if host in taking else [])):
            for pair in ((node, inside[host]), (inside[host], node)):
                links.append((*pair, {"bandwidth_mbps": INSIDE * fastest}))
    for u, v in topology.links:
        numbers = {name: topology.graph.edges[u, v].get(name, 0.0) for name in LINK_NUMBERS}
        links.append((inside.get(u, u), inside.get(v, v), numbers))
    return Topology(nodes, links, topology.name, results_on_links=topology.results_on_links)


def _check_host(topology: Topology, host: str) -> None:
    near = topology.neighbours(host)
    if len(near) != 1 or topology.kind(near[0]) != "switch":
        raise JobError(
            f"server {host} is to be worker and parameter server at once, or to add for others: it must hang on "
            f"exactly one switch, it is linked with: {', '.join(near) or 'nothing'}"
        )
