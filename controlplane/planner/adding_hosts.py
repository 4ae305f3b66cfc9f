"""Hosts that add: as they are deployed, each with a switch of its own between its network card and its agents
(`with_adding_switches`), and a network and a job in which every worker's host does all that hosts can (`workers_add`).

A host that adds for others inside of trees does what a switch does: it waits for the contributions of a chunk, adds
them, sends the sum on under the next label, and sends an incomplete sum on when it is asked to. So it runs the same
program (softswitch on the host, over its network card and a virtual interface that the host's agents have), and
everything that holds for a switch's slots holds for the host's: each contribution counts once, a host that forgets its
memory costs time and makes no wrong sum, plans migrate, failures are handled. The protocol's model and its search need
no further node.

    its access switch -- the host's own link -- switch "h1-adds", on the host -- the server h1 with its agents

A host with several links has one such switch with all of them, so that its agents have one interface and all the links
through it. That switch also forwards packets from one link to another, as every switch does: plans count these on the
host's links.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from controlplane.planner.job import Job
from controlplane.planner.topology import Topology
from controlplane.planner.topology_checks import TopologyError

INSIDE = 10.0
"""Bandwidth between a host's switch and its agents, in units of the host's own links: memory, and so no limit."""
OF_ADDING = ("aggregation_mbps", "used_aggregation_mbps")


def adding_switch(server: str) -> str:
    """Return the name of the switch on a host that adds."""
    return f"{server}-adds"


def with_adding_switches(topology: Topology) -> Topology:
    """Return the network with a switch on each host that adds for others (a server with `aggregation_mbps`); that
    switch may add as much as the host may. Return the network itself where no host adds. Ports of other switches and
    all addresses stay the same.

    Raise TopologyError where a host that adds hangs on something else than switches, or a node has the name that the
    host's switch would get.
    """
    hosts = topology.adding_servers
    if not hosts:
        return topology
    nodes: dict[str, dict[str, Any]] = {node: dict(topology.graph.nodes[node]) for node in topology.nodes}
    links: list[tuple[str, str, dict[str, Any]]] = []
    for host in sorted(hosts):
        name, near = adding_switch(host), topology.neighbours(host)
        others = [node for node in near if topology.kind(node) != "switch"]
        if others or not near:
            what = f"it is linked with {', '.join(others)}" if others else "it has no link"
            raise TopologyError(f"server {host} adds for others, and so must hang on switches only: {what}")
        if name in topology:
            raise TopologyError(f"node {name!r} has the name of the switch on {host}, which adds for others")
        own = nodes[host]
        nodes[name] = {"kind": "switch", **{key: own.pop(key) for key in OF_ADDING if key in own}}
        own["ip"] = topology.address(host)
        come = sum(topology.bandwidth_mbps(node, host) for node in near if topology.has_link(node, host))
        go = sum(topology.bandwidth_mbps(host, node) for node in near if topology.has_link(host, node))
        fast = INSIDE * max(come, go)
        links += [(*pair, {"bandwidth_mbps": fast}) for pair in ((host, name), (name, host))]
    for u, v, attributes in topology.graph.edges(data=True):
        ends = [adding_switch(node) if node in hosts else node for node in (u, v)]
        ports = {node: topology.port(node, other) for node, other in ((u, v), (v, u)) if node not in hosts}
        links.append((ends[0], ends[1], {**attributes, "ports": ports}))
    return Topology(nodes, links, topology.name, results_on_links=topology.results_on_links)


def workers_add(topology: Topology, job: Job) -> tuple[Topology, Job]:
    """Return the network in which each worker's host adds for others as much as comes in over its link, and the job
    with a parameter server on each worker's server.

    Every collective among hosts alone is a plan of these (a host that adds what comes in makes a ring's, or any tree's,
    partial sums), so that the best plan is at least as fast. A host whose `aggregation_mbps` the topology gives adds
    that and no more: 0 forbids it. A host that does not hang on switches stays a worker; where that is so of all of
    them, the job keeps its parameter servers.
    """
    rates: dict[str, dict[str, float]] = {}
    roots = []
    for worker in job.workers:
        near = topology.neighbours(worker)
        if not near or any(topology.kind(other) != "switch" for other in near):
            continue
        roots.append(worker)
        comes = sum(topology.bandwidth_mbps(other, worker) for other in near if topology.has_link(other, worker))
        if "aggregation_mbps" not in topology.graph.nodes[worker] and comes > 0:
            rates[worker] = {"aggregation_mbps": comes}
    servers = tuple(roots) or job.parameter_servers
    return topology.replace(nodes=rates), replace(job, parameter_servers=servers)
