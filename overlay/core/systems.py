"""Makes the policies of the four papers' systems, their baselines and ours, for a network of sites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np

from controlplane.planner.job import Job
from controlplane.planner.plan.framing import MTU
from controlplane.planner.plan.model import Plan
from controlplane.planner.plan.task import Sending
from controlplane.planner.routing import ways
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.wan.apsp.algorithm import most_connected
from controlplane.planner.strategies.wan.apsp.policy import Apsp, ApspSettings
from controlplane.planner.strategies.wan.crew.links import Links
from controlplane.planner.strategies.wan.crew.policy import Crew, CrewSettings
from controlplane.planner.strategies.wan.netstorm.policy import NetStorm, NetStormSettings
from controlplane.planner.strategies.wan.policy import FollowNetwork, FollowPlan, Policy
from controlplane.planner.strategies.wan.selmcast.network import Network
from controlplane.planner.strategies.wan.selmcast.policy import SelMcast, SelMcastRounds, SelMcastSettings
from controlplane.planner.strategies.wan.tree_packing.strategy import wan
from controlplane.planner.topology import Topology
from controlplane.planner.wan_networks import overlay
from overlay.core.errors import OverlayError
from overlay.core.framing import tcp_framing
from overlay.core.tcp import ONE_OR_MORE, Connections, with_tcp_rates

PAPERS = {  # paper -> its baselines, and its own system last
    "apsp": ("apsp-random", "apsp-connected", "apsp"),
    "netstorm": ("star", "balanced-tree", "tsengine", "netstorm", "netstorm-pro"),
    "crew": ("a2a", "opr", "crew-early", "crew"),
    "selmcast": (
        "orpheus-bsp",
        "selmcast-bsp",
        "orpheus-bsp-l3",
        "selmcast-bsp-l3",
        "orpheus",
        "selmcast",
        "orpheus-l3",
        "selmcast-l3",
    ),
    "wan": ("star", "apsp", "netstorm", "crew", "selmcast", "wan"),
}
SELECTABLE = (
    "apsp", "netstorm", "netstorm-pro", "tsengine", "crew", "crew-early", "opr", "a2a", "orpheus-bsp", "selmcast-bsp",
    "orpheus", "selmcast",
)  # fmt: skip
"""The systems of `overlay coordinator --system`. They adapt to what agents measure and to which agents are ready, on
any network with one agent a site. netstorm-pro is NetStorm with auxiliary paths, as its paper has it; netstorm is the
variant without them (the paper's "std").
"""

BSP = ("orpheus-bsp", "selmcast-bsp", "orpheus-bsp-l3", "selmcast-bsp-l3")
COPIED_HEADROOM = 0.12
"""The part of the plan's rate that multicasts copied by switches leave unused: headers take 6 %, and queues drain only
when links are not quite full.
"""

COPIES = ("selmcast", "orpheus", "selmcast-l3", "orpheus-l3")
"""Systems whose trainers send copies to some others and continue (stale synchronisation, SSP). With all other systems
trainers get a mean in place of their values."""


@dataclass(frozen=True)
class LinkQuality:
    """Quality of the links between sites.

    Attributes:
        loss: the part of the packets that each link loses.
        delay_ms: delay of each link, in milliseconds.
    """

    loss: float = 0.0
    delay_ms: float = 0.0


PERFECT = LinkQuality()


def _agent(node: int | str) -> str:
    """Return the name of a site's agent: h and the site's number, or the site's name where it has one."""
    return node if isinstance(node, str) else f"h{node}"


def links_of(graph: nx.DiGraph) -> Links:
    """Return the links between sites, under the names of their agents, and the links that each connection uses."""
    rates = {(_agent(u), _agent(v)): data["mbps"] for u, v, data in graph.edges(data=True)}
    return Links([_agent(node) for node in graph], _routes(graph), rates)


def _routes(graph: nx.DiGraph) -> dict[tuple[str, str], list[str]]:
    """Return the route of each connection over the sites, under the names of their agents, as the switches' routes have
    it.
    """
    agents = {f"h{node}": _agent(node) for node in graph}
    sites = {f"dc{node}": _agent(node) for node in graph}
    return {
        (agents[sender], agents[receiver]): [sites[name] for name in route if name in sites]
        for (sender, receiver), route in ways(overlay(graph)).items()
        if sender in agents and receiver in agents
    }


def between_sites(topology: Topology, job: Job) -> nx.DiGraph:
    """Return the graph of the links between the sites of a job's workers, under the workers' names, with the rate in
    Mbit/s as the attribute "mbps". A path over switches without a worker counts as one link, with the least of its
    rates. Raise OverlayError when two workers are at one site.
    """
    at: dict[str, str] = {}
    for worker in job.workers:
        switch = topology.access_switch(worker)
        if switch in at:
            raise OverlayError(f"{at[switch]} and {worker} are both at {switch}: a system has one agent a site")
        at[switch] = worker
    switches = topology.graph.subgraph(topology.switches)
    graph = nx.DiGraph(name=topology.name)
    graph.add_nodes_from(job.workers)
    for switch, worker in at.items():
        inner = switches.subgraph([node for node in switches if node == switch or node not in at])
        for middle, way in nx.single_source_shortest_path(inner, switch).items():
            for other in set(switches.successors(middle)) & at.keys() - {switch}:
                rates = [topology.bandwidth_mbps(u, v) for u, v in pairwise([*way, other])]
                mbps = max(min(rates), graph.get_edge_data(worker, at[other], {}).get("mbps", 0.0))
                graph.add_edge(worker, at[other], mbps=mbps)
    return graph


def planned(
    strategy: str,
    topology: Topology,
    job: Job,
    *,
    seed: int,
    chunk: int,
    mtu: int = MTU,
    loss: float = 0.0,
    connections: Connections = ONE_OR_MORE,
) -> Plan:
    """Return a plan for agents over TCP.

    Agents keep the planned rates only with `wan`, so only `wan` leaves room for headers and acknowledgements. Where
    links lose packets, `wan` plans with the rates that the agents' TCP connections reach. Raise as the strategy does.

    Args:
        strategy: name of the strategy.
        topology: the network.
        job: the job.
        seed: the strategy's seed.
        chunk: values of a chunk.
        mtu: bytes of a packet.
        loss: part of the packets that each link loses.
        connections: how many TCP connections an agent has to each other agent.
    """
    if strategy == "wan":
        left = with_tcp_rates(topology, loss, connections, mtu=mtu)
        return wan(left, job, seed=seed, framing=tcp_framing(chunk, mtu))
    return get_strategy(strategy)(topology, job, seed=seed)


def make(
    name: str,
    graph: nx.DiGraph,
    values: int,
    *,
    p: int,
    chunk: int,
    seed: int,
    update: float = 5.0,
    links: LinkQuality = PERFECT,
) -> Policy:
    """Return a new policy of a system. Raise as strategies do for an unknown name.

    Args:
        name: the system.
        graph: sites 0, 1, .. (agents h0, h1, ..) or the agents' names (`between_sites`); edges have "mbps".
        values: float32 values of the model.
        p: agents of a group (CREW and its baselines), or a multicast's receivers and its sender (SelMcast,
            Orpheus).
        chunk: values of a chunk.
        seed: seed of all random choices.
        update: NetStorm's UPDATE_TIME, in seconds.
        links: quality of the links, which `wan` plans with.
    """
    named = nx.relabel_nodes(graph, {node: _agent(node) for node in graph})
    nodes = tuple(named.nodes)
    if name in ("apsp", "apsp-random", "apsp-connected"):
        root = None
        if name == "apsp-random":
            root = nodes[int(np.random.default_rng(seed).integers(len(nodes)))]
        elif name == "apsp-connected":
            root = most_connected(named)[0]
        change = None if root else 0.05
        return Apsp(named, ApspSettings(seed=seed, change=change, chunk_values=chunk), root=root)
    if name in ("netstorm", "netstorm-pro", "tsengine"):
        tree = "MST" if name == "tsengine" else "FAPT"
        return NetStorm(
            named,
            NetStormSettings(topology=tree, auxiliary=name == "netstorm-pro", update=update, chunk_values=chunk),
        )
    if name in ("crew", "crew-early", "opr", "a2a"):
        known = links_of(graph)
        scheme = "CREW" if name == "crew-early" else name.upper()
        settings = CrewSettings(scheme=scheme, blocking=name != "crew-early", chunk_values=chunk)
        return Crew(nodes, known.narrowest(), p, settings, links=known)
    if name in COPIES or name in BSP:
        out = [sum(data["mbps"] for _, _, data in graph.out_edges(node, data=True)) for node in graph]
        into = [sum(data["mbps"] for _, _, data in graph.in_edges(node, data=True)) for node in graph]
        copied = name.endswith("-l3")
        network = Network(named, _routes(graph), switch=_switch if copied else None)
        multicasts = SelMcastSettings(
            scheme="SelMcast" if name.startswith("selmcast") else "Orpheus", seed=seed, chunk_values=chunk,
            layer="L3" if copied else "L7", headroom=COPIED_HEADROOM,
        )  # fmt: skip
        policy = SelMcastRounds if name in BSP else SelMcast
        return policy(nodes, out, into, max(1, p - 1), multicasts, network=network)

    job = Job("wan", nodes, tuple(f"p{node}" for node in graph), 4 * values)
    topology, sending = overlay(graph, links.delay_ms), Sending(chunk, 64, paced=name == "wan")
    plan = partial(planned, name, job=job, seed=seed, chunk=chunk, loss=links.loss)
    if name == "wan":  # with the other strategies agents send as fast as TCP lets them
        return FollowNetwork(plan, topology, sending, link=_link)
    return FollowPlan(plan(topology), topology, sending)


def _switch(node: str) -> str:
    return f"dc{node[1:]}"


def _link(sender: str, receiver: str) -> tuple[str, str]:
    return _switch(sender), _switch(receiver)


def maker(name: str, graph: nx.DiGraph, values: int, **options: Any) -> Callable[[], Policy]:
    """Return a function that makes a new policy at each call, since a policy remembers its run. The arguments are those
    of `make`.
    """
    return partial(make, name, graph, values, **options)
