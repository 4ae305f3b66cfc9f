"""A network and a job in which workers' hosts do all that hosts can: each is a parameter server, and adds for others
inside of trees.
"""

from __future__ import annotations

from dataclasses import replace

from controlplane.planner.job import Job
from controlplane.planner.topology import Topology


def workers_add(topology: Topology, job: Job) -> tuple[Topology, Job]:
    """Return the network in which each worker's host adds as much as comes in over its link, and the job with a
    parameter server on each worker's server.

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
