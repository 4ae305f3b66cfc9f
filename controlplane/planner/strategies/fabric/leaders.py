"""leaders: a reduction among hosts that add, rack by rack: for each of a root's trees one host of every rack adds its
rack's gradients, and sends the sum to the root.

Another host of the rack does it for the next tree, so that all carry as much: it is a reduce-scatter in which a rack
sends one stream over the links that it shares. Where these links are the only bottleneck, such trees with the right
shares are as fast as any: of n racks each takes in f + (n - 2) i, with i the shares of its own roots. It is no strategy
of its own: `inart` compares its plan with this one, and takes it if no time is left for a search.
"""

from __future__ import annotations

from controlplane.planner.job import Job
from controlplane.planner.plan.model import Plan
from controlplane.planner.strategies.common import (
    Choice,
    Infeasible,
    Split,
    finish,
    plan_choices,
    prepare,
    split_or_equal,
)
from controlplane.planner.strategies.fabric.limited_trees import refit
from controlplane.planner.topology import Topology
from controlplane.planner.topology_hosts import HOST

EACH = 4  # trees per root, whose ways differ as links fill
MOST_TREES = 256  # most trees of all roots, unless there are more roots
MOST_FLOWS = 20_000  # trees times racks up to which routing takes half a second


def leaders(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return the plan of up to EACH trees per root, with the shares that give the highest rate. Raise Infeasible where
    no rack has a host that adds for others, or there are too many trees and racks.
    """
    network = prepare(topology, job)
    split = split_or_equal(job, frozen_split)
    own = {worker: _own_switch(topology, worker) for worker in job.workers}
    rack = {worker: _rack(topology, own[worker] or worker) for worker in job.workers}
    adding: dict[str, list[str]] = {}
    members: dict[str, int] = {}
    for worker, switch in own.items():
        members[rack[worker]] = members.get(rack[worker], 0) + 1
        if switch is not None and topology.residual_aggregation_mbps(switch) > 0:
            adding.setdefault(rack[worker], []).append(switch)
    leading = {at: switches for at, switches in adding.items() if members[at] > 1}
    if not leading:
        raise Infeasible("leaders: no host adds for others of its rack")
    each = max(1, min(EACH, MOST_TREES // len(job.parameter_servers)))
    roots = job.parameter_servers * each
    if len(roots) * len(members) > MOST_FLOWS:
        raise Infeasible(f"leaders: {len(roots)} trees of {len(members)} racks are too many")
    choices = []
    for number, root in enumerate(roots):
        home = _rack(topology, _own_switch(topology, root) or root)
        turn = number + number // len(job.parameter_servers)
        first = {at: switches[turn % len(switches)] for at, switches in leading.items() if at != home}
        points = tuple(first.get(rack[worker], root) for worker in job.workers)
        choices.append(Choice(root, split[root] / each, points))
    plan = plan_choices(topology, job, "leaders", choices, seed, network=network)
    return finish(topology, job, "leaders", refit(network, job, list(plan.trees), frozen_split), seed)


def _own_switch(topology: Topology, server: str) -> str | None:
    """Return the switch on the server's host, or inside of it (separated.py), if it is the only one; else None."""
    near = topology.neighbours(server)
    return near[0] if len(near) == 1 and HOST in topology.graph.nodes[near[0]] else None


def _rack(topology: Topology, node: str) -> str:
    """Return the first switch that a server or the switch on its host hangs on."""
    near = topology.neighbours(node)
    return next((v for v in near if HOST not in topology.graph.nodes[v]), None) or _rack(topology, near[0])
