"""Draws small networks of 24 kinds and jobs on them from a seed: up to 12 workers and 16 switches (the last kind: up to
40 hosts), with capacities of their own for every switch, link and server.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import networkx as nx

from controlplane.planner.job import Job
from controlplane.planner.topology import Topology
from evaluation.inart.varied import Instance

MOST_WORKERS, MOST_ROOTS = 12, 4
BIG = 40  # most hosts of the last kind

Network = tuple[dict[str, dict[str, Any]], list[tuple[str, str, dict[str, Any]]]]


class Draft:
    """A network that is being drawn: nodes and directed links with capacities from a generator."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator
        self.nodes: dict[str, dict[str, Any]] = {}
        self.links: list[tuple[str, str, dict[str, Any]]] = []
        self.base = generator.choice((10.0, 20.0, 40.0))

    def number(self, low: float, high: float) -> float:
        """Return a number from a range, with three decimals."""
        return round(self.generator.uniform(low, high), 3)

    def switches(self, names: Iterable[str]) -> list[str]:
        """Add switches. Each adds some of its input, a few add nothing or have no limit."""
        made = list(names)
        for name in made:
            adds = self.generator.choice((0.0, None, *[self.number(0.3, 2.0) * self.base] * 6))
            self.nodes[name] = {"kind": "switch", **({} if adds is None else {"aggregation_mbps": adds})}
        return made

    def hosts(self, at: Sequence[Sequence[str]], mbps: float | None = None) -> list[str]:
        """Add a server for each entry, with a link to each of the switches in it."""
        made = []
        for near in at:
            name = f"h{sum(node['kind'] == 'server' for node in self.nodes.values())}"
            self.nodes[name] = {"kind": "server"}
            made.append(name)
            for switch in near:
                self.link(name, switch, mbps)
        return made

    def link(self, u: str, v: str, mbps: float | None = None, back: float | None = None) -> None:
        """Add a link of so many Mbit/s in each direction (`back`: in the opposite one)."""
        rate = self.base if mbps is None else mbps
        self.links += [(u, v, {"bandwidth_mbps": rate}), (v, u, {"bandwidth_mbps": rate if back is None else back})]

    def spread(self, switches: Sequence[str], most: int = 3) -> list[list[str]]:
        """Return for 5 to 16 hosts the switch that each hangs on, at most so many on one."""
        places = [v for v in switches for _ in range(most)]
        count = self.generator.randint(min(5, len(places)), min(16, len(places)))
        return [[v] for v in self.generator.sample(places, count)]


def draw(seed: int) -> Instance:
    """Return the instance of a seed, of the kind `seed` modulo 24; the same seed gives the same instance."""
    name = list(KINDS)[seed % len(KINDS)]
    generator = random.Random(f"kinds {seed}")
    draft = Draft(generator)
    job = KINDS[name](draft) or _job(draft)
    topology = Topology(draft.nodes, draft.links, name)
    what = f"{len(topology.devices)} switches, {len(topology.servers)} hosts"
    roles = f"{len(job.workers)} workers, {len(job.parameter_servers)} parameter servers"
    return Instance(seed, (name, what, roles), topology, job)


def _job(draft: Draft, most: int = MOST_WORKERS) -> Job:
    hosts = [name for name, node in draft.nodes.items() if node["kind"] == "server"]
    draft.generator.shuffle(hosts)
    roots = draft.generator.randint(1, min(MOST_ROOTS, len(hosts) // 3))
    workers = max(draft.generator.randint(2, min(most, len(hosts) - roots)) for _ in range(2))
    return Job("drawn", tuple(hosts[roots : roots + workers]), tuple(hosts[:roots]), 1_000_000, buckets=())


def _fat_tree(draft: Draft) -> None:
    cores, above, below = draft.switches(["c0", "c1"]), [], []
    for pod in range(draft.generator.randint(2, 3)):
        above.append(draft.switches(f"a{pod}.{i}" for i in range(2)))
        below.append(draft.switches(f"e{pod}.{i}" for i in range(2)))
        for (i, up), down in product(enumerate(above[-1]), below[-1]):
            draft.link(up, down)
            if down == below[-1][0]:
                draft.link(cores[i], up)
    draft.hosts(draft.spread([v for pod in below for v in pod], 2))


def _leaf_spine(draft: Draft, uplink: float = 1.0) -> None:
    leaves = draft.switches(f"e{i}" for i in range(draft.generator.randint(2, 6)))
    spines = draft.switches(f"s{i}" for i in range(draft.generator.randint(1, 4)))
    for leaf, spine in product(leaves, spines):
        draft.link(leaf, spine, round(draft.base * uplink, 3))
    draft.hosts(draft.spread(leaves))


def _oversubscribed(draft: Draft) -> None:
    _leaf_spine(draft, draft.generator.choice((0.5, 0.25, 0.1)))


def _dragonfly(draft: Draft) -> None:
    groups = [draft.switches(f"r{g}.{i}" for i in range(3)) for g in range(draft.generator.randint(3, 4))]
    for group in groups:
        for pair in combinations(group, 2):
            draft.link(*pair)
    for one, other in combinations(range(len(groups)), 2):
        draft.link(groups[one][other % 3], groups[other][one % 3], draft.number(0.2, 1.0) * draft.base)
    draft.hosts(draft.spread([v for group in groups for v in group], 2))


def _torus(draft: Draft, sides: tuple[int, ...]) -> None:
    places = list(product(*(range(side) for side in sides)))
    name = {place: "t" + ".".join(map(str, place)) for place in places}
    draft.switches(name.values())
    for place in places:
        for axis, side in enumerate(sides):
            after = (*place[:axis], (place[axis] + 1) % side, *place[axis + 1 :])
            if side > 2 or after > place:
                draft.link(name[place], name[after])
    draft.hosts(draft.spread(list(name.values()), 2))


def _torus_2d(draft: Draft) -> None:
    _torus(draft, (draft.generator.randint(2, 4), draft.generator.randint(3, 4)))


def _torus_3d(draft: Draft) -> None:
    _torus(draft, (2, 2, draft.generator.randint(2, 4)))


def _rails(draft: Draft, *, spine: bool) -> None:
    rails = draft.switches(f"r{i}" for i in range(draft.generator.randint(2, 4)))
    if spine:
        for top in draft.switches(f"s{i}" for i in range(draft.generator.randint(1, 2))):
            for rail in rails:
                draft.link(rail, top, draft.number(0.3, 2.0) * draft.base)
    hosts = draft.hosts([[]] * draft.generator.randint(4, 10))
    for host, rail in product(hosts, rails):
        draft.link(host, rail, draft.number(0.2, 1.5) * draft.base)


def _rails_with_a_spine(draft: Draft) -> None:
    _rails(draft, spine=True)


def _rails_without_a_spine(draft: Draft) -> Job:
    """Draw rails that only hosts join; roots are on all workers, as no other server would be reached."""
    _rails(draft, spine=False)
    return _job(draft)


def _asymmetric(draft: Draft) -> None:
    _leaf_spine(draft)
    draft.links = [
        (u, v, {"bandwidth_mbps": draft.number(0.2, 1.5) * attributes["bandwidth_mbps"]})
        for u, v, attributes in draft.links
    ]


def _dual_homed(draft: Draft) -> None:
    leaves = draft.switches(f"e{i}" for i in range(draft.generator.randint(2, 5)))
    spines = draft.switches(f"s{i}" for i in range(draft.generator.randint(1, 3)))
    for leaf, spine in product(leaves, spines):
        draft.link(leaf, spine, draft.number(0.3, 1.5) * draft.base)
    count = draft.generator.randint(5, 14)
    draft.hosts([draft.generator.sample(leaves, draft.generator.choice((1, 2, 2))) for _ in range(count)])


def _parallel_cables(draft: Draft) -> None:
    _leaf_spine(draft, 0.5)
    for u, v, attributes in list(draft.links):
        if draft.nodes[u]["kind"] == draft.nodes[v]["kind"] and u < v and draft.generator.random() < 0.6:
            draft.link(u, v, attributes["bandwidth_mbps"])


def _heterogeneous(draft: Draft) -> None:
    _fat_tree(draft)
    for i in range(0, len(draft.links), 2):
        rate = draft.number(0.3, 1.5) * draft.base
        for j in (i, i + 1):
            draft.links[j] = (*draft.links[j][:2], {"bandwidth_mbps": rate})


def _limited(draft: Draft, attribute: str, values: Sequence[int]) -> None:
    draft.generator.choice((_fat_tree, _leaf_spine, _jellyfish))(draft)
    for node in draft.nodes.values():
        if node["kind"] == "switch":
            node[attribute] = draft.generator.choice(values)


def _few_slots(draft: Draft) -> None:
    _limited(draft, "slots", (16, 32, 64, 128))


def _few_labels(draft: Draft) -> None:
    _limited(draft, "label_entries", (40, 60, 100, 200))


def _few_groups(draft: Draft) -> None:
    _limited(draft, "multicast_groups", (1, 2, 4))


def _few_trees(draft: Draft) -> Job:
    draft.generator.choice((_fat_tree, _leaf_spine, _jellyfish))(draft)
    return replace(_job(draft), max_trees=draft.generator.randint(1, 4))


def _hosts_that_add(draft: Draft) -> None:
    draft.generator.choice((_fat_tree, _leaf_spine, _jellyfish, _dual_homed))(draft)
    for node in draft.nodes.values():
        if node["kind"] == "server" and draft.generator.random() < 0.7:
            node["aggregation_mbps"] = draft.number(0.2, 3.0) * draft.base


def _hypercube(draft: Draft) -> None:
    dimensions = draft.generator.randint(2, 4)
    names = draft.switches(f"q{i:0{dimensions}b}" for i in range(2**dimensions))
    for i, axis in product(range(len(names)), range(dimensions)):
        if not i >> axis & 1:
            draft.link(names[i], names[i | 1 << axis], draft.number(0.3, 1.0) * draft.base)
    draft.hosts(draft.spread(names, 2))


def _jellyfish(draft: Draft) -> None:
    count = draft.generator.randint(5, 12)
    names = draft.switches(f"j{i}" for i in range(count))
    degree = 3 if count % 2 == 0 else 4
    while not nx.is_connected(graph := nx.random_regular_graph(degree, count, seed=draft.generator.randrange(10**6))):
        pass
    for u, v in sorted(tuple(sorted(edge)) for edge in graph.edges):
        draft.link(names[u], names[v], draft.number(0.3, 1.0) * draft.base)
    draft.hosts(draft.spread(names, 2))


def _wide_area(draft: Draft) -> None:
    """Draw sites with a server or a few, joined by a spanning tree and some more links of very different rates."""
    sites = draft.switches(f"w{i}" for i in range(draft.generator.randint(4, 12)))
    pairs = {(draft.generator.choice(sites[:i]), site) for i, site in enumerate(sites) if i}
    pairs |= set(draft.generator.sample(list(combinations(sites, 2)), len(sites) // 2))
    for u, v in sorted(pairs):
        rates = (round(10 ** draft.generator.uniform(-0.7, 1.0) * draft.base, 3) for _ in range(2))
        draft.link(u, v, *rates)
    draft.hosts([[site] for site in sites] + draft.spread(sites, 1))


def _background(draft: Draft) -> None:
    draft.generator.choice((_fat_tree, _leaf_spine, _jellyfish, _dual_homed))(draft)
    for _, _, attributes in draft.links:
        if draft.generator.random() < 0.4:
            attributes["used_bandwidth_mbps"] = draft.number(0, 0.9) * attributes["bandwidth_mbps"]
    for node in draft.nodes.values():
        if "aggregation_mbps" in node and draft.generator.random() < 0.3:
            node["used_aggregation_mbps"] = draft.number(0, 1.0) * node["aggregation_mbps"]


def _bcube(draft: Draft) -> Job:
    """Draw a BCube of two levels: host (i, j) hangs on switch i of the one and j of the other; only hosts join them."""
    side = draft.generator.randint(2, 4)
    levels = [draft.switches(f"b{level}.{i}" for i in range(side)) for level in range(2)]
    draft.hosts([[levels[0][i], levels[1][j]] for i, j in product(range(side), repeat=2)])
    return _job(draft)


def _limited_intake(draft: Draft) -> None:
    draft.generator.choice((_fat_tree, _leaf_spine, _dual_homed))(draft)
    for node in draft.nodes.values():
        if node["kind"] == "server" and draft.generator.random() < 0.7:
            node["ingress_mbps"] = draft.number(0.2, 1.2) * draft.base


def _big(draft: Draft) -> Job:
    leaves = draft.switches(f"e{i}" for i in range(draft.generator.randint(4, 10)))
    spines = draft.switches(f"s{i}" for i in range(draft.generator.randint(2, 6)))
    for leaf, spine in product(leaves, spines):
        draft.link(leaf, spine, draft.number(0.2, 1.0) * draft.base)
    places = [[leaf] for leaf in leaves for _ in range(6)]
    draft.hosts(draft.generator.sample(places, min(len(places), draft.generator.randint(20, BIG))))
    return _job(draft, BIG)


KINDS: dict[str, Callable[[Draft], Job | None]] = {
    "fat-tree": _fat_tree,
    "leaf-spine": _leaf_spine,
    "oversubscribed": _oversubscribed,
    "dragonfly": _dragonfly,
    "torus 2D": _torus_2d,
    "torus 3D": _torus_3d,
    "rails with a spine": _rails_with_a_spine,
    "rails without a spine": _rails_without_a_spine,
    "asymmetric": _asymmetric,
    "dual-homed": _dual_homed,
    "parallel cables": _parallel_cables,
    "heterogeneous": _heterogeneous,
    "few slots": _few_slots,
    "few labels": _few_labels,
    "few groups": _few_groups,
    "few trees": _few_trees,
    "hosts that add": _hosts_that_add,
    "hypercube": _hypercube,
    "jellyfish": _jellyfish,
    "wide area": _wide_area,
    "background traffic": _background,
    "BCube": _bcube,
    "limited intake": _limited_intake,
    "big": _big,
}
