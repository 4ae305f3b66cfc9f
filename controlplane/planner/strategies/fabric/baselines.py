"""The schemes that comparisons need beside ours, each with one tree per parameter server and an equal split.

- `lbmm`: load-balancing min-min routing without in-network aggregation (InArt paper, section 5.1.2);
- `equal`: all workers aggregated at the best single switch;
- `atp-strict` and `atp`: aggregation at each worker's top-of-rack switch (InArt paper, sections 2.1 and 5.1.2).
  `atp-strict` aggregates everything there. `atp` is best effort, as ATP works: flows that exceed the switch's capacity
  go to the parameter server directly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from controlplane.planner.job import Job
from controlplane.planner.plan.model import Plan
from controlplane.planner.strategies.common import Choice, Infeasible, Split, plan_choices, prepare, split_or_equal
from controlplane.planner.topology import Topology


def lbmm(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return the plan with one star per parameter server, equal split, in which each flow takes the path on which it
    raises the link load least.
    """
    network = prepare(topology, job)
    split = split_or_equal(job, frozen_split)
    choices = [Choice(root, split[root], (root,) * len(job.workers)) for root in job.parameter_servers]
    return plan_choices(topology, job, "lbmm", choices, seed, network=network)


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


def atp_strict(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return the plan with one tree per parameter server, in which every worker is aggregated at its top-of-rack
    switch.
    """
    network = prepare(topology, job)
    split = split_or_equal(job, frozen_split)
    racks = tuple(topology.access_switch(w) for w in job.workers)
    choices = [Choice(root, split[root], racks) for root in job.parameter_servers]
    return plan_choices(topology, job, "atp-strict", choices, seed, network=network)


def atp(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return the best-effort plan: at sending rate f a switch takes as many flows of f * x_s each as it has capacity
    for, the others go to the parameter servers directly.

    The more flows a switch takes the slower it must run, and the fewer, the more flows reach the parameter servers: the
    rate is the best over all numbers of flows that any switch can take.
    """
    network = prepare(topology, job)
    split = split_or_equal(job, frozen_split)
    roots = [root for root in job.parameter_servers if split[root] > 0]
    racks = [topology.access_switch(w) for w in job.workers]
    members = Counter(racks)
    capacity = {v: topology.residual_aggregation_mbps(v) for v in members}
    flows = _Flows(members, capacity, {root: topology.residual_ingress_mbps(root) for root in roots}, split)
    candidates = {math.inf}
    for v, count in members.items():
        if 0 < capacity[v] < math.inf:
            for root in roots:
                candidates |= {capacity[v] / (n * split[root]) for n in range(1, count * len(roots) + 1)}
    rates = np.array(sorted(candidates))
    rated = flows.feasible(rates)
    best = int(np.flatnonzero(rated == rated.max())[-1])
    counts = {(v, root): int(count[0]) for v, root, count in flows.admitted(rates[best : best + 1])}
    choices = []
    for root in roots:
        left = {v: counts[v, root] for v in members}
        points = []
        for v in racks:
            points.append(v if left[v] > 0 else root)
            left[v] -= 1
        choices.append(Choice(root, split[root], tuple(points)))
    return plan_choices(topology, job, "atp", choices, seed, network=network)


@dataclass(frozen=True)
class _Flows:
    """Choice of the workers' flows that are added at their racks' switches.

    Attributes:
        members: Workers by switch.
        capacity: By switch, the Mbit/s that it adds.
        ingress: By root with a part of the model, its ingress in Mbit/s.
        split: The part of each root.
    """

    members: Mapping[str, int]
    capacity: Mapping[str, float]
    ingress: Mapping[str, float]
    split: Mapping[str, float]

    def admitted(self, rates: np.ndarray) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yield (switch, root, how many of its workers' flows are aggregated there when workers send at each rate).

        Flows are taken root by root, fullest root first, so that direct flows go to roots with room.
        """
        roots, split = list(self.ingress), self.split
        for rank, (v, there) in enumerate(self.members.items()):
            # An unlimited switch is so at any rate, also at an infinite one, where the quotient would be NaN.
            most = self.capacity[v]
            left = np.full(len(rates), math.inf) if math.isinf(most) else most / rates * (1 + 1e-9)
            turned = [(root, (number - rank) % len(roots)) for number, root in enumerate(roots)]
            for root, _ in sorted(turned, key=lambda each: (self.ingress[each[0]] / split[each[0]], each[1])):
                count = np.minimum(there, np.floor(left / split[root]))
                if there > 1:
                    count[count == 1] = 0  # A flow that is aggregated alone saves nothing.
                left = left - count * split[root]
                yield v, root, count

    def feasible(self, rates: np.ndarray) -> np.ndarray:
        """Return the rates that are possible with the flows that are admitted at each of these rates."""
        streams = {root: np.zeros(len(rates)) for root in self.ingress}
        loads = {v: np.zeros(len(rates)) for v in self.members}
        for v, root, count in self.admitted(rates):
            streams[root] += (count > 0) + self.members[v] - count
            loads[v] += count * self.split[root]
        found = np.full(len(rates), math.inf)
        for root, ingress in self.ingress.items():
            found = np.minimum(found, ingress / (self.split[root] * streams[root]))
        for v, load in loads.items():
            without = np.full(len(rates), math.inf)
            found = np.minimum(found, np.divide(self.capacity[v], load, out=without, where=load > 0))
        return found
