"""Draws instances of every kind that a planner may meet, from a seed: networks that are fat-trees and others, with
links divided, of two rates, missing or partly used, switches that do not add or hold little, hosts that add, results
counted on links or not, 2 to 60 workers and 1 to 8 parameter servers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx

from controlplane.planner.generators import fattree, leaf_spine, random_topology
from controlplane.planner.job import Job, place_job
from controlplane.planner.shapes import clos, dumbbell, ring
from controlplane.planner.topology import Topology
from controlplane.planner.wan_networks import by_distance, overlay

MOST_WORKERS = 60
MOST_SERVERS = 8
FEWEST = 3  # fewest servers of a network: two workers and a parameter server
SLOTS = (64, 128, 256, 1024)  # slots of a switch that holds little: 4, 8, 16 and 64 trees at most

Changes = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Instance:
    """A network and a job on it.

    Attributes:
        what: how it was drawn, in words.
    """

    seed: int
    what: tuple[str, ...]
    topology: Topology
    job: Job


def draw(seed: int) -> Instance:
    """Return the instance of a seed; the same seed gives the same instance."""
    generator = random.Random(f"varied {seed}")
    servers = 0
    while servers < FEWEST:
        family = generator.choice(tuple(FAMILIES))
        name, topology = FAMILIES[family](generator)
        servers = len(topology.servers)
    what = [f"{family} {name}"]
    roots = generator.randint(1, min(MOST_SERVERS, max(1, servers // 3)))
    workers = generator.randint(2, min(MOST_WORKERS, servers - roots))
    job = place_job(topology, workers, roots, seed=seed)
    if generator.random() < 0.15:
        job = replace(job, parameter_servers=job.workers)
    where = " on them" * bool(job.both_roles)
    what.append(f"{workers} workers, {len(job.parameter_servers)} parameter servers{where}")
    for text, chance, change in CHANGES:
        if generator.random() < chance:
            topology = change(generator, topology, job)
            what.append(text)
    return Instance(seed, tuple(what), topology, job)


def _fattree(generator: random.Random) -> tuple[str, Topology]:
    k, divisor = generator.choice((4, 4, 6, 6, 8)), generator.choice((1, 1, 2, 4, 8, 16))
    spread = generator.choice((None, (10.0, 30.0)))
    aggregation = generator.choice((9.0, 9.0, 20.0, 100.0))
    made = fattree(
        k, heterogeneous=spread, seed=generator.randrange(1000), oversubscription=divisor, aggregation_mbps=aggregation
    )
    return f"k={k} /{divisor}{' 10-30' * (spread is not None)} adds {aggregation:g}", made


def _leaf_spine(generator: random.Random) -> tuple[str, Topology]:
    leaves, spines, servers = generator.randint(2, 12), generator.randint(1, 4), generator.randint(2, 8)
    uplink, aggregation = generator.choice((1.0, 3.0, 5.0, 10.0, 20.0, 40.0)), generator.choice((4.0, 9.0, 40.0))
    made = leaf_spine(leaves, spines, servers, uplink_mbps=uplink, aggregation_mbps=aggregation)
    return f"{leaves}x{spines}x{servers} uplink {uplink:g} adds {aggregation:g}", made


def _clos(generator: random.Random) -> tuple[str, Topology]:
    pods, leaves, spines, cores = (generator.randint(1, 3) for _ in range(4))
    servers, over = generator.randint(2, 5), generator.choice((1.0, 2.0, 3.0, 8.0))
    made = clos(pods, leaves, spines, cores, servers=servers, oversubscription=over)
    return f"{pods}x{leaves}x{spines}x{cores}x{servers} /{over:g}", made


def _simple(generator: random.Random) -> tuple[str, Topology]:
    trunk = generator.choice((2.0, 5.0, 20.0, 60.0))
    if generator.random() < 0.5:
        left, right = generator.randint(2, 20), generator.randint(2, 20)
        return f"dumbbell {left}+{right} trunk {trunk:g}", dumbbell(left, right, trunk_mbps=trunk)
    switches, servers = generator.randint(3, 10), generator.randint(1, 5)
    return f"ring {switches}x{servers} trunk {trunk:g}", ring(switches, servers, trunk_mbps=trunk)


def _wide(generator: random.Random) -> tuple[str, Topology]:
    """Return a wide-area network with a worker and a server at each site, or sites on a random net of long, uneven
    links.
    """
    if generator.random() < 0.3:
        name, seed = generator.choice(("b4", "internet2")), generator.randrange(1, 1000)
        return f"{name} {seed}", overlay(by_distance(name, seed=seed, least=500.0, most=5000.0))
    sites, per_site, seed = generator.randint(4, 12), generator.randint(1, 5), generator.randrange(1000)
    made = random_topology(sites, sites * per_site + 2, sites // 2, seed, bandwidth_mbps=(20.0, 40.0))
    trunks = [(u, v) for u, v in made.links if u < v and not {u, v} & set(made.servers)]
    uneven = {pair: 10 ** generator.uniform(0.0, 1.7) for pair in trunks}
    return f"{sites} sites, {per_site} each", made.replace(
        links={link: {"bandwidth_mbps": rate} for (u, v), rate in uneven.items() for link in ((u, v), (v, u))}
    )


def _irregular(generator: random.Random) -> tuple[str, Topology]:
    switches, servers = generator.randint(1, 12), generator.randint(4, 60)
    extra, seed = generator.randint(0, 8), generator.randrange(10**6)
    made = random_topology(switches, servers, extra, seed)
    return f"{switches} switches, {servers} servers, {extra} more links", made


FAMILIES: dict[str, Callable[[random.Random], tuple[str, Topology]]] = {
    "fat-tree": _fattree,
    "leaf-spine": _leaf_spine,
    "Clos": _clos,
    "simple": _simple,
    "wide": _wide,
    "irregular": _irregular,
}


def _two_rates(generator: random.Random, topology: Topology, job: Job) -> Topology:
    """Return the topology with two and a half times the rate for some servers' links and intake."""
    links: dict[tuple[str, str], dict[str, float]] = {}
    nodes: Changes = {}
    for server in topology.servers:
        if generator.random() < 0.5:
            for near in topology.neighbours(server):
                for u, v in ((server, near), (near, server)):
                    links[u, v] = {"bandwidth_mbps": topology.bandwidth_mbps(u, v) * 2.5}
            nodes[server] = {"ingress_mbps": topology.ingress_mbps(server) * 2.5}
    return topology.replace(nodes=nodes, links=links)


def _missing_links(generator: random.Random, topology: Topology, job: Job) -> Topology:
    """Return the topology without up to three of the links between switches, as long as everything stays connected."""
    pairs = [(u, v) for u, v in topology.links if u < v and not {u, v} & set(topology.servers)]
    for u, v in generator.sample(pairs, min(3, len(pairs))):
        left = topology.replace(remove_links=[link for link in ((u, v), (v, u)) if topology.has_link(*link)])
        if nx.is_strongly_connected(left.graph):
            topology = left
    return topology


def _some(generator: random.Random, names: Iterable[str], part: float) -> list[str]:
    return [name for name in names if generator.random() < part]


def _plain_switches(generator: random.Random, topology: Topology, job: Job) -> Topology:
    names = _some(generator, topology.switches, generator.choice((0.3, 0.7)))
    return topology.replace(nodes={v: {"aggregation_mbps": 0.0} for v in names})


def _few_slots(generator: random.Random, topology: Topology, job: Job) -> Topology:
    return topology.replace(nodes={v: {"slots": generator.choice(SLOTS)} for v in topology.switches})


def _used_links(generator: random.Random, topology: Topology, job: Job) -> Topology:
    names = [link for link in topology.links if generator.random() < 0.2]
    used = {link: {"used_bandwidth_mbps": generator.uniform(0, 0.7) * topology.bandwidth_mbps(*link)} for link in names}
    return topology.replace(links=used)


def _hosts_add(generator: random.Random, topology: Topology, job: Job) -> Topology:
    """Return the topology in which every worker's host adds as much as comes in over its link."""
    adds = {
        w: sum(topology.bandwidth_mbps(u, w) for u in topology.neighbours(w) if topology.has_link(u, w))
        for w in job.workers
    }
    return topology.replace(nodes={w: {"aggregation_mbps": rate} for w, rate in adds.items()})


def _uncounted(generator: random.Random, topology: Topology, job: Job) -> Topology:
    data = topology.to_json()
    data.setdefault("graph", {})["results_on_links"] = False
    return Topology.load(data)


CHANGES: tuple[tuple[str, float, Callable[[random.Random, Topology, Job], Topology]], ...] = (
    ("servers of two rates", 0.2, _two_rates),
    ("links missing", 0.2, _missing_links),
    ("some switches do not add", 0.2, _plain_switches),
    ("few slots", 0.15, _few_slots),
    ("links partly used", 0.15, _used_links),
    ("workers' hosts add", 0.2, _hosts_add),
    ("results not counted", 0.1, _uncounted),
)
