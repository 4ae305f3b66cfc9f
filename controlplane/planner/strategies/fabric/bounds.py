"""Upper bounds of the sending rate that cost next to nothing, for any scheme, single- or multi-level, split or not.

The evaluator's bound looks at switches, parameter servers and workers' links. Where the links between switches bind, a
cut says more. For a set of switches with their servers, W_i workers inside and W_o outside, let i and o be the rates of
the trees with roots inside and outside, f = i + o, and a_i, a_o, b_i, b_o what these use of the switches' capacities
inside (a) and outside (b). Of W streams a switch that adds n takes n - 1 <= n (1 - 1/W) away, so

    out of the set  W_i o - a_o (1 - 1/W_i) + [results] i <= U_out       o + [results] i <= U_out
    into it         W_o i - b_i (1 - 1/W_o) + [results] o <= U_in        i + [results] o <= U_in
    at its roots    W i - (a_i + b_i) (1 - 1/W) <= B_in                  i <= B_in       (and outside with o)
    capacities      a_i + a_o <= C_in, b_i + b_o <= C_out

(only streams that carry something from inside count on the way out, and two of these meet only inside before they leave
for the first time; likewise on the way in). The sets are racks, and what hangs together once the switches farthest from
servers are left out: in a fat-tree, pods. `rack_bound` looks at all racks at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from controlplane.planner.evaluate import bound
from controlplane.planner.job import Job
from controlplane.planner.plan.separated import separated
from controlplane.planner.strategies.fabric.rack_bound import rack_bound
from controlplane.planner.strategies.solver import Program
from controlplane.planner.topology import Topology

SMALL = 1e-9  # what rounding does
SOLVED = 1e-6  # to which a program of some thousand rows is solved
ENOUGH = 1e6  # in units of the evaluator's bound: as good as unlimited


@dataclass(frozen=True)
class Bound:
    """No plan has a higher rate. what: whose capacities say so."""

    mbps: float
    what: str


@dataclass
class Cut:
    """A set of switches with the servers that hang on these only. Rates in Mbit/s; workers and roots are counted."""

    name: str
    workers: int = 0
    roots: int = 0
    aggregation: float = 0.0
    ingress: float = 0.0
    out: float = 0.0
    into: float = 0.0


def cheap_bound(topology: Topology, job: Job) -> Bound:
    """The least of the evaluator's bound, those of the cuts, and that of all racks together; where hosts have several
    roles, also of the network in which these are taken apart."""
    parts = separated(topology, job)
    if parts is not None:
        inner = cheap_bound(parts.topology, parts.job)
        whole = Bound(bound(topology, job), "switches, parameter servers and workers' links")
        return whole if whole.mbps <= inner.mbps else Bound(inner.mbps, parts.words(inner.what))
    simple = Bound(bound(topology, job), "switches, parameter servers and workers' links")
    if simple.mbps <= 0:
        return simple
    best = simple
    everything = sum(topology.residual_aggregation_mbps(v) for v in topology.switches)
    ingress = sum(topology.residual_ingress_mbps(s) for s in job.parameter_servers)
    for cut in cuts(topology, job):
        if not cut.workers and not cut.roots:
            continue
        program = _Program(topology, job, cut, simple.mbps, (everything, ingress))
        # A quick look first: without roots inside, all is said by two lines.
        found = program.closed() if not cut.roots else program.solve()
        if found < best.mbps * (1 - SMALL):
            best = Bound(found, f"links of {cut.name}")
    together = rack_bound(topology, job, best.mbps) if best.mbps > 0 else None
    if together is not None and together < best.mbps * (1 - SOLVED):
        best = Bound(together, "links and switches of all racks together")
    return best


def cuts(topology: Topology, job: Job) -> Iterator[Cut]:
    """Racks, and larger parts."""
    distance = {v: 1 for v in topology.switches if any(topology.kind(u) == "server" for u in topology.neighbours(v))}
    queue = list(distance)
    for node in queue:
        for other in topology.neighbours(node):
            if topology.kind(other) == "switch" and other not in distance:
                distance[other] = distance[node] + 1
                queue.append(other)
    racks = {v: v for v, level in distance.items() if level == 1}
    yield from _parts(topology, job, racks, "rack {}")
    for level in range(1, max(distance.values(), default=0)):
        part: dict[str, str] = {}
        for first, far in distance.items():
            if far > level or first in part:
                continue
            part[first] = first
            queue = [first]
            for node in queue:
                for other in topology.neighbours(node):
                    if distance.get(other, level + 1) <= level and other not in part:
                        part[other] = first
                        queue.append(other)
        if len(set(part.values())) > 1 and part != racks:
            yield from _parts(topology, job, part, "the part around {}")


def _parts(topology: Topology, job: Job, part: dict[str, str], name: str) -> list[Cut]:
    """part: of each switch, named by one of its switches."""
    found = {first: Cut(name.format(first)) for first in part.values()}
    of = dict(part)
    for server in topology.servers:
        homes = {part.get(v, "") for v in topology.neighbours(server)}
        if len(homes) == 1 and (home := homes.pop()):
            of[server] = home
    for v, home in part.items():
        found[home].aggregation += topology.residual_aggregation_mbps(v)
    for worker in job.workers:
        if worker in of:
            found[of[worker]].workers += 1
    for root in job.parameter_servers:
        if root in of:
            found[of[root]].roots += 1
            found[of[root]].ingress += topology.residual_ingress_mbps(root)
    for u, v in topology.links:
        if of.get(u) != of.get(v):
            mbps = topology.residual_bandwidth_mbps(u, v)
            if u in of:
                found[of[u]].out += mbps
            if v in of:
                found[of[v]].into += mbps
    return list(found.values())


class _Program:
    """The rows of the module's text, in units of the evaluator's bound. all_take: all switches, and all roots."""

    def __init__(self, topology: Topology, job: Job, cut: Cut, scale: float, all_take: tuple[float, float]) -> None:
        everything, ingress = all_take

        def units(mbps: float) -> float:
            return min(mbps / scale, ENOUGH)

        self.cut, self.scale = cut, scale
        self.workers, self.inside = len(job.workers), cut.workers
        self.outside = self.workers - self.inside
        self.results = topology.results_on_links
        self.added_in = units(cut.aggregation)
        self.added_out = ENOUGH if everything == np.inf else units(max(0.0, everything - cut.aggregation))
        self.roots_in, self.roots_out = units(cut.ingress), units(max(0.0, ingress - cut.ingress))
        self.others = len(job.parameter_servers) - cut.roots
        self.out, self.into = units(cut.out), units(cut.into)

    def closed(self) -> float:
        """Where no root is inside."""
        own = self.inside
        most = min(self.out, (self.out + self.added_in * (1 - 1 / own)) / own, 1.0)
        return self.scale * (min(most, self.into) if self.results else most)

    def solve(self) -> float:
        inside, outside = self.inside, self.outside
        i, o, a_i, a_o, b_i, b_o = range(6)  # columns
        program = Program("a cut's bound", presolve=False)
        free = [1.0, 1.0 if self.others else 0.0, *[ENOUGH] * 4]
        program.add_columns([-1.0, -1.0, 0.0, 0.0, 0.0, 0.0], 0.0, free)
        back_out, back_in = float(self.results and outside > 0), float(self.results and inside > 0)
        for mine, used, workers, other, counted, capacity in (
            (o, a_o, inside, i, back_out, self.out),
            (i, b_i, outside, o, back_in, self.into),
        ):
            if workers:
                program.add_row([mine, used, other], [workers, -(1 - 1 / workers), counted], upper=capacity)
            program.add_row([mine, other], [float(workers > 0), counted], upper=capacity)
        whole = 1 - 1 / self.workers
        for root_side, both, ingress in ((i, (a_i, b_i), self.roots_in), (o, (a_o, b_o), self.roots_out)):
            program.add_row([root_side, *both], [self.workers, -whole, -whole], upper=ingress)
            program.add_row([root_side], [1.0], upper=ingress)
        program.add_row([a_i, a_o], [1.0, 1.0], upper=self.added_in)
        program.add_row([b_i, b_o], [1.0, 1.0], upper=self.added_out)
        return -program.solve().objective * self.scale
