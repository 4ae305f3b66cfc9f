"""A network and a job in which every worker's host does all that hosts can (topology_hosts.py)."""

from __future__ import annotations

from dataclasses import replace

from controlplane.planner.job import Job
from controlplane.planner.topology import Topology


def workers_add(topology: Topology, job: Job) -> tuple[Topology, Job]:
    """Return the network in which each worker's host adds for others as much as comes in over its links, and the job
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
        told = worker in topology.switch_on or "aggregation_mbps" in topology.graph.nodes[worker]
        if not told and comes > 0:
            rates[worker] = {"aggregation_mbps": comes}
    servers = tuple(roots) or job.parameter_servers
    return topology.replace(nodes=rates), replace(job, parameter_servers=servers)


def with_adding_switches(topology: Topology) -> Topology:
    """Return the network with a switch on each host that adds: the topology itself, as each has them from the start.
    (Scripts from before that call this.)
    """
    return topology
