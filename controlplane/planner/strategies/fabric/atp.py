"""ATP: aggregation at each worker's top-of-rack switch, equal split (InArt paper, sections 2.1 and 5.1.2).

`atp-strict` aggregates everything there. `atp` is best effort, as ATP works: what exceeds the switch's capacity goes to
the parameter server directly.
"""

from __future__ import annotations

import math
from collections import Counter

from controlplane.planner.job import Job
from controlplane.planner.plan.model import Plan
from controlplane.planner.strategies.common import Choice, Split, plan_choices, prepare, split_or_equal
from controlplane.planner.topology import Topology


def atp_strict(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """One tree per parameter server with every worker aggregated at its top-of-rack switch."""
    network = prepare(topology, job)
    split = split_or_equal(job, frozen_split)
    racks = tuple(topology.access_switch(w) for w in job.workers)
    choices = [Choice(root, split[root], racks) for root in job.parameter_servers]
    return plan_choices(topology, job, "atp-strict", choices, seed, network=network)


def atp(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Best effort: at sending rate f a switch takes as many flows as f * x_s of each fits in it, the others go direct.

    The more it takes the slower it must run, and the fewer, the more reaches the parameter servers: the rate is the
    best over all numbers of flows that any switch can take.
    """
    network = prepare(topology, job)
    split = split_or_equal(job, frozen_split)
    roots = [root for root in job.parameter_servers if split[root] > 0]
    racks = [topology.access_switch(w) for w in job.workers]
    members = Counter(racks)
    capacity = {v: topology.residual_aggregation_mbps(v) for v in members}
    ingress = {root: topology.residual_ingress_mbps(root) for root in roots}

    def admitted(rate: float) -> dict[tuple[str, str], int]:
        """Per (switch, root), how many of its workers' flows are aggregated there when workers send at `rate`.

        Flows are taken root by root, fullest root first, so that direct flows end up where there is room.
        """
        result: dict[tuple[str, str], int] = {}
        for rank, v in enumerate(members):
            # An unlimited switch stays so at any rate, also at the unlimited one (where the quotient would be NaN).
            left = capacity[v] if math.isinf(capacity[v]) else capacity[v] / rate * (1 + 1e-9)
            order = sorted(roots, key=lambda r: (ingress[r] / split[r], (roots.index(r) - rank) % len(roots)))
            for root in order:
                count = members[v] if math.isinf(left) else min(members[v], int(left / split[root]))
                # A flow that is aggregated alone saves nothing.
                result[v, root] = count if count > 1 or members[v] == 1 == count else 0
                left -= result[v, root] * split[root]
        return result

    def feasible_rate(counts: dict[tuple[str, str], int]) -> float:
        rates = [math.inf]
        for root in roots:
            streams = sum((counts[v, root] > 0) + members[v] - counts[v, root] for v in members)
            rates.append(ingress[root] / (split[root] * streams))
        for v in members:
            load = sum(counts[v, root] * split[root] for root in roots)
            rates.append(capacity[v] / load if load else math.inf)
        return min(rates)

    candidates = {math.inf}
    for v, count in members.items():
        if 0 < capacity[v] < math.inf:
            for root in roots:
                candidates |= {capacity[v] / (n * split[root]) for n in range(1, count * len(roots) + 1)}
    rated = [(feasible_rate(counts), rate, counts) for rate, counts in ((r, admitted(r)) for r in sorted(candidates))]
    counts = max(rated, key=lambda item: item[:2])[2]
    choices = []
    for root in roots:
        left = {v: counts[v, root] for v in members}
        points = []
        for v in racks:
            points.append(v if left[v] > 0 else root)
            left[v] -= 1
        choices.append(Choice(root, split[root], tuple(points)))
    return plan_choices(topology, job, "atp", choices, seed, network=network)
