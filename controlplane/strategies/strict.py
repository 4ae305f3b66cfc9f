"""inart-strict: ours under the paper's rule, one tree per parameter server (one assignment per worker and root).

With a_s = f x_s, root s takes floor(B_s / a_s) streams, so aggregation has to take away the other of the W streams; a
group of n workers at one switch takes n - 1 away and costs n a_s of its capacity. The rates worth trying are those at
which a switch or a root is just full: a in {C_v / n, B_s / m}. The groups are packed greedily, the rates improved one
root at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from controlplane.job import Job
from controlplane.plan.model import Plan
from controlplane.routing import Network
from controlplane.strategies.atp import atp, atp_strict
from controlplane.strategies.common import Choice, Infeasible, Split, plan_choices, prepare, split_or_equal
from controlplane.strategies.equal import equal
from controlplane.strategies.lbmm import lbmm
from controlplane.topology import Topology, TopologyError

SLACK = 1 + 1e-9
Groups = list[tuple[int, int, int]]  # root, switch, workers


@dataclass(frozen=True)
class _Instance:
    workers: int
    switches: tuple[float, ...]
    roots: tuple[float, ...]

    def pack(self, rates: list[float]) -> Groups | None:
        """Groups with which every root can take its rate; None when the greedy packing finds none."""
        needed, left = [], []
        for capacity, rate in zip(self.roots, rates, strict=True):
            streams = self.workers if rate <= 0 else math.floor(capacity / rate * SLACK)
            if streams < 1:
                return None
            needed.append(max(0, self.workers - streams))
            left.append(self.workers)
        groups: Groups = []
        taken: set[tuple[int, int]] = set()
        remaining = list(self.switches)
        order = sorted(range(len(remaining)), key=lambda v: (-remaining[v], v))
        while any(needed):
            best: tuple[int, float, int, int] | None = None
            for s in sorted(range(len(needed)), key=lambda s: -needed[s]):
                if not needed[s]:
                    continue
                # Largest reduction first; of equals the switch with the least room, the neediest root.
                most = min(needed[s] + 1, left[s])
                for v in order:
                    room = remaining[v]
                    size = most if room >= most * rates[s] else int(room / rates[s] * SLACK)
                    if size < 2 or (best is not None and size - 1 < best[0]) or (s, v) in taken:
                        continue
                    if best is None or (size - 1, -room) > best[:2]:
                        best = (size - 1, -room, s, v)
            if best is None:
                return None
            size, _, s, v = best[0] + 1, best[1], best[2], best[3]
            groups.append((s, v, size))
            taken.add((s, v))
            needed[s] -= size - 1
            left[s] -= size
            remaining[v] -= size * rates[s]
        return groups

    def levels(self) -> list[float]:
        """Rates at which a switch or a root is just full, highest first."""
        finite = {c for c in self.switches if 0 < c < math.inf}
        values = {c / n for c in finite for n in range(2, self.workers + 1)}
        values |= {c / m for c in set(self.roots) if c > 0 for m in range(1, self.workers + 1)}
        return sorted(values, reverse=True)


def inart_strict(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """One tree per parameter server. At least as good as the baselines, which are of the same kind."""
    network = prepare(topology, job)
    usable = _usable(network, job)
    instance = _Instance(
        len(job.workers),
        tuple(topology.residual_aggregation_mbps(v) for v in usable),
        tuple(topology.residual_ingress_mbps(s) for s in job.parameter_servers),
    )
    candidates: list[Plan] = []
    refusals: list[str] = []
    for baseline in (lbmm, atp, atp_strict, equal):
        try:
            candidates.append(baseline(topology, job, seed=seed, frozen_split=frozen_split))
        except (Infeasible, TopologyError) as error:
            refusals.append(str(error))
    if frozen_split is not None:
        vectors = _frozen_rates(instance, list(split_or_equal(job, frozen_split).values()))
    else:
        vectors = _free_rates(instance)
    for rates in vectors:
        groups = instance.pack(rates)
        if groups is not None and sum(rates) > 0:
            choices = _choices(network, job, usable, rates, groups)
            candidates.append(plan_choices(topology, job, "inart-strict", choices, seed, network=network))
    if not candidates:
        raise Infeasible(f"inart-strict: no plan has a rate above 0; {'; '.join(refusals)}")
    best = max(candidates, key=lambda plan: plan.rate_mbps)
    return Plan(job, "inart-strict", best.rate_mbps, best.trees, seed=seed)


def _usable(network: Network, job: Job) -> list[str]:
    """Switches that all workers reach and that reach all roots."""
    index, topology = network.index, network.topology
    result = []
    for v in topology.switches:
        to = network.distances_to(index[v])
        reached = all(to[index[w]] >= 0 for w in job.workers)
        if reached and all(network.distances_to(index[s])[index[v]] >= 0 for s in job.parameter_servers):
            result.append(v)
    return result


def _free_rates(instance: _Instance) -> list[list[float]]:
    """Rate vectors to try: equal, proportional to capacity and to its root, each improved; best first."""
    levels = instance.levels()
    roots = instance.roots
    results: dict[tuple[float, ...], float] = {}
    for weigh in (lambda b: 1.0, lambda b: math.sqrt(b), lambda b: b):
        weights = [weigh(b) / weigh(max(roots)) if max(roots) > 0 else 0.0 for b in roots]
        for level in levels:
            rates = [level * weight for weight in weights]
            if instance.pack(rates) is not None:
                results[tuple(_improved(instance, rates, levels))] = 0.0
                results[tuple(rates)] = 0.0
                break
    return [list(rates) for rates in sorted(results, key=lambda r: -sum(r))]


def _improved(instance: _Instance, rates: list[float], levels: list[float]) -> list[float]:
    """Raises one root's rate after the other as long as the packing holds."""
    rates = list(rates)
    changed = True
    while changed:
        changed = False
        for s in range(len(rates)):
            for level in levels:
                if level <= rates[s] * SLACK:
                    break
                trial = [*rates[:s], level, *rates[s + 1 :]]
                if instance.pack(trial) is not None:
                    rates, changed = trial, True
                    break
    return rates


def _frozen_rates(instance: _Instance, split: list[float]) -> list[list[float]]:
    rates = {level / share for level in instance.levels() for share in split if share > 0}
    for f in sorted(rates, reverse=True):
        vector = [f * share for share in split]
        if instance.pack(vector) is not None:
            return [vector]
    return []


def _choices(network: Network, job: Job, usable: list[str], rates: list[float], groups: Groups) -> list[Choice]:
    """Groups take the nearest workers that are left, the groups with the nearest workers first."""
    index = network.index
    total = sum(rates)
    choices = []
    for s, root in enumerate(job.parameter_servers):
        points = dict.fromkeys(job.workers, root)
        free = set(job.workers)
        mine = [(usable[v], size) for r, v, size in groups if r == s]
        hops = {v: network.distances_to(index[v]) for v, _ in mine}

        def reach(item: tuple[str, int], hops: dict[str, list[int]] = hops) -> tuple[int, str]:
            return sum(sorted(hops[item[0]][index[w]] for w in job.workers)[: item[1]]), item[0]

        for v, size in sorted(mine, key=reach):
            nearest = sorted(free, key=lambda w: (hops[v][index[w]], index[w]))[:size]
            for worker in nearest:
                points[worker] = v
            free -= set(nearest)
        choices.append(Choice(root, rates[s] / total, tuple(points[w] for w in job.workers)))
    return choices
