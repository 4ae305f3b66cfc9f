"""Hosts of two roles, taken apart into nodes of one role each, so that every planner can plan with them.

Strategies, their programs and their bounds know servers that are a worker or a parameter server, and switches. A host
that is worker and parameter server at once becomes

    a worker -----------+
                        +-- a switch inside of the host -- the host's own link -- its access switch
    a parameter server -+

The switch inside adds nothing, and the links inside are never full. A plan of that network is a plan of the real one,
link by link, once the three are one again (`Separated.together`): what the worker sends to its own parameter server
then crosses no link. So no strategy has to know of such hosts, and a bound of the network taken apart is one of the
real network. Agents hand a worker's gradients to the root on its own host there (native/io.h, `enum io_reach`), so they
are never added anywhere else: where a tree of the network taken apart adds them at a switch, the root of the real one
takes them by themselves.

A host with several links (dual-homed, several NICs) has a switch inside for each of them, and its worker and its
parameter server have links to all of these. So nothing passes from link to link through the host, which does not
forward, and what the parameter server takes in over all links is one quantity. A host that adds has a switch of its own
already, which forwards (topology_hosts.py): its worker and its parameter server hang on that one.
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
from controlplane.planner.topology_hosts import HOST

INSIDE = 1000.0
"""Bandwidth of the links inside of hosts, in units of the fastest link of the network."""
WORKER = "worker_here"
"""Attribute of a parameter server that was made by taking a host apart: the worker of the same host."""
KEPT = ("host_ms", "measured_ms", "role")
INTAKE = ("ingress_mbps", "used_ingress_mbps")


@dataclass(frozen=True)
class Separated:
    """A job's network in which hosts are taken apart.

    Attributes:
        job: The job on that network.
        whole: The job on the real network.
        inside: By host that was taken apart and the node that its link leads to, the switch inside of it for that link
            (that node itself, if it is the switch of a host that adds).
        taking: By host that was taken apart, its parameter server.
    """

    topology: Topology
    job: Job
    whole: Job
    inside: Mapping[str, Mapping[str, str]]
    taking: Mapping[str, str]

    @cached_property
    def hosts(self) -> Mapping[str, str]:
        """The real host of each node that was made by taking a host apart; nodes with the longest names come first."""
        names = [(inner, host) for host, own in self.inside.items() for near, inner in own.items() if inner != near]
        names += [(name, host) for host, name in self.taking.items()]
        return dict(sorted(names, key=lambda pair: -len(pair[0])))

    def together(self, plan: Plan) -> Plan:
        """Return a plan of the network taken apart as a plan of the real network, at the same rate."""
        return replace(plan, job=self.whole, trees=tuple(map(self._tree, plan.trees)))

    def apart(self, plan: Plan) -> Plan:
        """Return a plan of the real network as a plan of the network taken apart, at the same rate."""
        return replace(plan, job=self.job, trees=tuple(map(self._tree_apart, plan.trees)))

    def split(self, shares: Mapping[str, float] | None) -> dict[str, float] | None:
        """Return shares of the model by parameter server, given by their real names, by the names in the network taken
        apart.
        """
        return None if shares is None else {self.taking.get(root, root): share for root, share in shares.items()}

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
        node, root = self._node, self._node(tree.root)
        edges = [(node(u), node(v)) for u, v in tree.return_edges]
        edges = [(u, v) for u, v in edges if u != v]
        if root in self.taking:  # its worker has its parameter server's results
            edges = _pruned([(u, v) for u, v in edges if v != root], self.whole.workers)
        ways = [
            Assignment(root, root, (root,))
            if a.worker == root
            else Assignment(a.worker, node(a.point), self._route(a.route))
            for a in tree.assignments
        ]
        relays = [Relay(r.node, node(r.next), self._route(r.route)) for r in tree.relays]
        return Tree(root, tree.share, Assignments.of(ways), tuple(relays), tuple(edges))

    def _tree_apart(self, tree: Tree) -> Tree:
        """Return a tree of the real network as one of the network taken apart, the opposite of `_tree`."""
        root, inside = self.taking.get(tree.root, tree.root), self.inside
        home = next(iter(inside[tree.root].values())) if tree.root in inside else ""

        def led(route: tuple[str, ...]) -> tuple[str, ...]:
            if len(route) == 1:  # within a host
                return (route[0], home, root)
            first = [inside[route[0]][route[1]]] if route[0] in inside else []
            last = [inside[route[-1]][route[-2]]] if route[-1] in inside else []
            nodes = [route[0], *first, *route[1:-1], *last, root if route[-1] == tree.root else route[-1]]
            return (nodes[0], *(after for before, after in pairwise(nodes) if before != after))

        def end(point: str) -> str:
            return root if point == tree.root else point

        edges: dict[tuple[str, str], None] = {}
        for u, v in tree.return_edges:
            nodes = [root if u == tree.root else u, v]
            nodes[1:1] = [inside[u][v]] if u in inside else []
            nodes[-1:-1] = [inside[v][u]] if v in inside else []
            edges |= dict.fromkeys((one, after) for one, after in pairwise(nodes) if one != after)
        if home:  # the results for the worker on the root's host
            used = next((v for u, v in edges if u == root), home)
            edges |= dict.fromkeys([(root, used), (used, tree.root)])
        ways = [Assignment(a.worker, end(a.point), led(a.route)) for a in tree.assignments]
        relays = tuple(Relay(r.node, end(r.next), led(r.route)) for r in tree.relays)
        return Tree(root, tree.share, Assignments.of(ways), relays, tuple(edges))


def at_home(topology: Topology, tree: Tree) -> Tree:
    """Return a tree of a network taken apart in which the worker on the root's own host goes directly to the root, as
    it does in the real network: what is planned and rated is then what is carried out.
    """
    own = worker_at(topology, tree.root)
    if own is None:
        return tree
    ways = [a if a.worker != own else _home_way(topology, own, tree.root) for a in tree.assignments]
    if ways == list(tree.assignments):
        return tree
    return replace(tree, assignments=Assignments.of(ways), relays=_fed(tree.relays, ways))


def _home_way(topology: Topology, worker: str, root: str) -> Assignment:
    inner = next(near for near in topology.neighbours(root) if topology.has_link(worker, near))
    return Assignment(worker, root, (worker, inner, root))


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


def worker_at(topology: Topology, root: str) -> str | None:
    """Return the worker on the host of this parameter server, where that host was taken apart; else None."""
    worker: str | None = topology.graph.nodes[root].get(WORKER)
    return worker if worker in topology else None


def shares_hosts(topology: Topology, job: Job) -> bool:
    """Return whether a worker's host is a parameter server, too, also where hosts are taken apart."""
    return bool(job.both_roles) or any(worker_at(topology, root) is not None for root in job.parameter_servers)


@lru_cache(maxsize=4)  # strategy, bounds and reports ask for the same network
def separated(topology: Topology, job: Job) -> Separated | None:
    """Return the job's network with hosts taken apart; None where every server has one role. Raise JobError where a
    host of both roles hangs on a server, or on nothing.
    """
    found = separated_for(topology, [job])
    return found[0] if found else None


def separated_for(topology: Topology, jobs: Sequence[Job]) -> list[Separated]:
    """Return the jobs of one network, in their order, each with the network in which hosts are taken apart: a host for
    which one job needs it is taken apart for all of them. The list is empty where no host has to be. Raise JobError
    where a host that has to be taken apart hangs on a server, or on nothing.
    """
    both_roles = frozenset[str]().union(*(job.both_roles for job in jobs))
    apart = [server for server in topology.servers if server in both_roles]
    if not apart:
        return []
    for job in jobs:
        job.check(topology)
    inside: dict[str, dict[str, str]] = {}
    for host in apart:
        _check_host(topology, host)
        near = topology.neighbours(host)
        own = topology.switch_on.get(host)
        inside[host] = {
            other: other if other == own else f"inside {host}{f' at {other}' if len(near) > 1 else ''}"
            for other in near
        }
    taking = {host: f"parameter server {host}" for host in apart}
    network = _network_apart(topology, inside, taking)
    found = []
    for job in jobs:
        names = tuple(taking.get(root, root) for root in job.parameter_servers)
        found.append(Separated(network, replace(job, parameter_servers=names), job, inside, taking))
    return found


def _network_apart(topology: Topology, inside: Mapping[str, Mapping[str, str]], taking: Mapping[str, str]) -> Topology:
    """Return the network with hosts taken apart, under these names of their parts."""
    nodes = {node: dict(topology.graph.nodes[node]) for node in topology.nodes}
    fastest = max((topology.bandwidth_mbps(u, v) for u, v in topology.links), default=0.0)
    links = []
    for host, switches in inside.items():
        own = nodes.pop(host)
        plain = {name: own[name] for name in KEPT if name in own}
        intake = {name: own[name] for name in INTAKE if name in own}
        nodes[host] = {"kind": "server", **plain}
        nodes[taking[host]] = {"kind": "server", **plain, **intake, WORKER: host}
        for near, switch in switches.items():
            if switch != near:
                nodes[switch] = {"kind": "switch", "aggregation_mbps": 0.0, HOST: host}
            for node in (host, taking[host]):
                links += [(*pair, {"bandwidth_mbps": INSIDE * fastest}) for pair in ((node, switch), (switch, node))]
    for u, v in topology.links:
        numbers = {name: topology.graph.edges[u, v].get(name, 0.0) for name in LINK_NUMBERS}
        ends = inside[u][v] if u in inside else u, inside[v][u] if v in inside else v
        if ends[0] != ends[1]:
            links.append((*ends, numbers))
    return Topology(nodes, links, topology.name, results_on_links=topology.results_on_links)


def _check_host(topology: Topology, host: str) -> None:
    near = topology.neighbours(host)
    if not near or any(topology.kind(other) != "switch" for other in near):
        raise JobError(
            f"server {host} is to be worker and parameter server at once: it must hang on switches, it is linked with: "
            f"{', '.join(near) or 'nothing'}"
        )
