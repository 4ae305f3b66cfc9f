"""Networks of a size that no emulation on one machine has: racks of workers below one switch, in any number."""

from __future__ import annotations

import math

from controlplane.planner.generators import leaf_spine
from controlplane.planner.job import Job
from controlplane.planner.plan.assignments import Assignment, Assignments
from controlplane.planner.plan.model import Plan, Relay, Tree
from controlplane.planner.topology import Topology

RACK = 32
"""Hosts of a rack: sums of up to so many, added at two levels, are those of 1,023 workers."""


def racks(workers: int, servers: int, bandwidth_mbps: float) -> tuple[Topology, Plan]:
    """Return a network and a plan with a tree for each parameter server, in which a rack's switch adds its workers'
    packets and one switch the racks' sums. The plan uses half of what the links carry.
    """
    topology = leaf_spine(math.ceil((workers + servers) / RACK), 1, RACK, bandwidth_mbps, delay_ms=0.01)
    hosts = topology.servers
    job = Job("racks", hosts[servers : servers + workers], hosts[:servers], model_bytes=4)
    trees = tuple(_tree(topology, job, root) for root in job.parameter_servers)
    return topology, Plan(job, "racks", bandwidth_mbps / 2, trees)


def _tree(topology: Topology, job: Job, root: str) -> Tree:
    above = topology.access_switch(root)
    (spine,) = (
        switch for switch in topology.switches if switch not in {topology.access_switch(h) for h in topology.servers}
    )
    below: dict[str, list[str]] = {}
    for worker in job.workers:
        below.setdefault(topology.access_switch(worker), []).append(worker)
    assignments = Assignments.of(Assignment(w, leaf, (w, leaf)) for leaf, of in below.items() for w in of)
    relays = (*(Relay(leaf, spine, (leaf, spine)) for leaf in below), Relay(spine, root, (spine, above, root)))
    others = [leaf for leaf in below if leaf != above]
    down = [(root, above), *([(above, spine)] if others else []), *((spine, leaf) for leaf in others)]
    down += [(leaf, worker) for leaf, of in below.items() for worker in of]
    return Tree(root, 1 / len(job.parameter_servers), assignments, relays, tuple(down))
