"""Draws random topologies, jobs and plans for property-based tests, and walks packets through rule sets."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from controlplane.planner.entries import Aggregate, Forward
from controlplane.planner.generators import random_topology
from controlplane.planner.job import Job, place_job
from controlplane.planner.plan import Assignment, Plan, Relay, Tree
from controlplane.planner.routing import Network, Router, downwards
from controlplane.planner.rules import Deployment
from controlplane.planner.topology import Topology
from controlplane.planner.topology_cables import near_at


@st.composite
def instances(draw: st.DrawFn, max_switches: int = 6, max_workers: int = 6) -> tuple[Topology, Job]:
    """Draw a connected random topology and a job on it."""
    workers, roots = draw(st.integers(1, max_workers)), draw(st.integers(1, 3))
    switches = draw(st.integers(1, max_switches))
    topology = random_topology(switches, workers + roots, draw(st.integers(0, 4)), draw(st.integers(0, 10**6)))
    return topology, place_job(topology, workers, roots, seed=draw(st.integers(0, 100)))


@st.composite
def troubled_instances(draw: st.DrawFn, max_switches: int = 6, max_workers: int = 6) -> tuple[Topology, Job]:
    """Draw an instance as `instances` does, but with irregularities. There are up to twice as many parameter servers;
    links are missing (in one direction or both) or added (servers at several switches or next to each other); some
    capacities are used up, others partly used or unlimited.
    """
    workers, roots = draw(st.integers(1, max_workers)), draw(st.integers(1, 6))
    switches = draw(st.integers(1, max_switches))
    topology = random_topology(switches, workers + roots, draw(st.integers(0, 4)), draw(st.integers(0, 10**6)))
    job = place_job(topology, workers, roots, seed=draw(st.integers(0, 100)))
    links, nodes = st.sampled_from(topology.links), st.sampled_from(topology.nodes)
    gone = draw(st.lists(links, max_size=2, unique=True))
    gone += [(v, u) for u, v in gone if draw(st.booleans())]
    kept = {link: dict(topology.graph.edges[link]) for link in topology.links if link not in gone}
    for u, v in draw(st.lists(st.tuples(nodes, nodes), max_size=2)):
        if u != v:
            kept.setdefault((u, v), {"bandwidth_mbps": 12.0})
            kept.setdefault((v, u), {"bandwidth_mbps": 12.0})
    for link in draw(st.lists(st.sampled_from(list(kept)), max_size=2, unique=True)) if kept else []:
        kept[link].update(draw(st.sampled_from([{"bandwidth_mbps": 0.0}, {"used_bandwidth_mbps": 3.0}])))
    described = {node: dict(topology.graph.nodes[node]) for node in topology.nodes}
    for node in draw(st.lists(nodes, max_size=3, unique=True)):
        kind = "aggregation" if topology.kind(node) == "switch" else "ingress"
        changed = [{f"{kind}_mbps": 0.0}, {f"used_{kind}_mbps": 7.5}, {f"{kind}_mbps": None}]
        described[node].update(draw(st.sampled_from(changed)))
    edges = [(u, v, attributes) for (u, v), attributes in kept.items()]
    return Topology(described, edges, topology.name, results_on_links=draw(st.booleans())), job


@st.composite
def shared_hosts(draw: st.DrawFn, max_switches: int = 5, max_workers: int = 6) -> tuple[Topology, Job]:
    """Draw an instance in which some or all workers are parameter servers, too, and some hosts aggregate for others."""
    topology, job = draw(instances(max_switches, max_workers).filter(lambda found: len(found[1].workers) > 1))
    both = draw(st.lists(st.sampled_from(job.workers), min_size=1, unique=True))
    if draw(st.booleans()):
        both = list(job.workers)
    own = job.parameter_servers[: draw(st.integers(0, len(job.parameter_servers)))]
    adding = draw(st.lists(st.sampled_from(topology.servers), max_size=3, unique=True))
    limited = draw(st.lists(st.sampled_from(topology.servers), max_size=1))
    told: dict[str, dict[str, float]] = {s: {"aggregation_mbps": draw(st.sampled_from([5.0, 1e4]))} for s in adding}
    for server in limited:
        told.setdefault(server, {})["ingress_mbps"] = draw(st.sampled_from([4.0, 30.0]))
    return topology.replace(nodes=told), replace(job, parameter_servers=(*own, *both))


def random_plan(topology: Topology, job: Job, seed: int) -> Plan:
    """Return a structurally valid plan with random trees: direct, single-level and hierarchical."""
    generator = random.Random(seed)
    network = Network(topology)
    router = Router(network)
    index = network.index

    def route(u: str, v: str) -> tuple[str, ...]:
        return router.nodes(index[u], router.route(index[u], index[v], 1.0))

    count = generator.randint(1, 4)
    trees = []
    for _ in range(count):
        root = generator.choice(job.parameter_servers)
        able = list(topology.switches)
        points = generator.sample(able, generator.randint(0, min(4, len(able))))
        onwards = {point: generator.choice([*points[:i], root]) for i, point in enumerate(points)}
        chosen = {worker: generator.choice([*points, root]) for worker in job.workers}
        chosen |= {root: root} if root in job.workers else {}
        used: set[str] = set()
        for node in chosen.values():
            while node != root:
                used.add(node)
                node = onwards[node]
        links = router.return_tree(index[root], [index[w] for w in job.workers], 1.0)
        edges = [(network.names[u], network.names[v]) for u, v in (network.ends[e] for e in links)]
        trees.append(
            Tree(
                root,
                1 / count,
                tuple(Assignment(w, point, route(w, point)) for w, point in chosen.items()),
                tuple(Relay(p, onwards[p], route(p, onwards[p])) for p in points if p in used),
                downwards(root, edges),
            )
        )
    return Plan(job, "random", 1.0, tuple(trees), seed=seed)


class Walk:
    """Carries packets hop by hop through the rule sets, as switches do, and counts every packet on every link."""

    def __init__(self, topology: Topology, deployment: Deployment) -> None:
        self.topology, self.deployment = topology, deployment
        self.entries = {
            v: {(entry.ingress_port, entry.label): entry.action for entry in rules.labels}
            for v, rules in deployment.rulesets.items()
        }
        for v, rules in deployment.rulesets.items():
            assert len(self.entries[v]) == len(rules.labels), f"{v} has two entries for one (port, label)"
        self.groups = {v: {g.group: g.ports for g in rules.groups} for v, rules in deployment.rulesets.items()}
        self.behind = {
            v: {topology.port(v, other): other for other in topology.neighbours(v)} for v in topology.switches
        }
        self.sums: dict[tuple[str, int], int] = {}
        self.crossed: dict[tuple[str, str], int] = {}

    def send(self, server: str, label: int, bitmap: int = 0) -> list[tuple[str, int, int]]:
        """Send a packet from a server and return the (server, label, bitmap) of every packet that arrives anywhere
        because of it.
        """
        return self.hop(server, self.link(server, label), label, bitmap, 64)

    def link(self, server: str, label: int) -> str:
        """Return the node to which a server sends what has this label: over the link that its agent was told."""
        if len(near := self.topology.neighbours(server)) == 1:
            return near[0]
        config = self.deployment.agents[server]
        links = {tree.up_label: tree.link for tree in config.worker_trees}
        for tree in config.root_trees:
            links |= dict.fromkeys((tree.return_label, *tree.answer_labels, *tree.others_labels), tree.link)
        found = near_at(self.topology, server, links[label])
        assert found is not None, f"{server} sends label {label} over a link that is not there"
        return found

    def hop(self, before: str, node: str, label: int, bitmap: int, life: int = 64) -> list[tuple[str, int, int]]:
        """Do the same as `send`, from `before` over the link to `node`, for at most `life` hops."""
        assert life > 0, f"label {label} loops"
        self.crossed[before, node] = self.crossed.get((before, node), 0) + 1
        if self.topology.kind(node) == "server":
            return [(node, label, bitmap)]
        port = self.topology.port(node, before)
        action: Any = self.entries[node].get((port, label))
        assert action is not None, f"{node} drops label {label} that came from {before}"
        if isinstance(action, Forward):
            return self.hop(node, self.behind[node][action.port], label, bitmap, life - 1)
        if isinstance(action, Aggregate):
            slot = node, action.slot_base
            have = self.sums.get(slot, 0)
            assert action.flow.bit_count() == 1 and action.flow & action.everyone, f"{node}: label {label}"
            assert have & action.flow == 0, f"{node} gets flow {action.flow:b} twice"
            self.sums[slot] = have | action.flow
            if self.sums[slot] != action.everyone:
                return []
            return self.hop(node, self.behind[node][action.port], action.next_label, action.everyone, life - 1)
        arrived = []
        for out in self.groups[node][action.group]:
            arrived += self.hop(node, self.behind[node][out], label, bitmap, life - 1)
        return arrived
