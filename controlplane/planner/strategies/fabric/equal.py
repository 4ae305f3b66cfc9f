"""equal: one tree per parameter server with equal shares, all workers aggregated at the best single switch."""

from __future__ import annotations

import math

from controlplane.planner.job import Job
from controlplane.planner.plan.model import Plan
from controlplane.planner.strategies.common import Choice, Infeasible, Split, plan_choices, prepare, split_or_equal
from controlplane.planner.topology import Topology


def equal(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return the plan in which root after root takes the switch that leaves the highest rate; of equals, the nearest to
    its workers and itself.
    """
    network = prepare(topology, job)
    split = split_or_equal(job, frozen_split)
    index = network.index
    loads = dict.fromkeys(topology.switches, 0.0)
    choices = []
    for root in job.parameter_servers:
        onwards = network.distances_to(index[root])
        best: tuple[float, int, str] | None = None
        for v in topology.switches:
            to = network.distances_to(index[v])
            distances = [to[index[w]] for w in job.workers]
            if min(distances) < 0 or onwards[index[v]] < 0:
                continue
            capacity = topology.residual_aggregation_mbps(v)
            load = loads[v] + split[root] * len(job.workers)
            rate = 0.0 if capacity == 0 else (math.inf if load == 0 else capacity / load)
            candidate = (-rate, sum(distances) + onwards[index[v]], v)
            best = candidate if best is None or candidate < best else best
        if best is None:
            raise Infeasible(f"equal: no switch is reached by all workers and reaches parameter server {root}")
        loads[best[2]] += split[root] * len(job.workers)
        choices.append(Choice(root, split[root], (best[2],) * len(job.workers)))
    return plan_choices(topology, job, "equal", choices, seed, network=network)
