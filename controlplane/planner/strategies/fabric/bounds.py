"""Upper bounds of the sending rate that cost next to nothing, for any scheme, single- or multi-level, split or not.

The evaluator's bound looks at switches, parameter servers and workers' links. Where the links between switches are the
bottleneck, a cut gives a lower one. For a set of switches with their servers, W_i workers inside and W_o outside, let i
and o be the rates of the trees with roots inside and outside, f = i + o, and a_i, a_o, b_i, b_o what these use of the
switches' capacities inside (a) and outside (b). Of W streams a switch that adds n takes n - 1 <= n (1 - 1/W) away, so

    out of the set  W_i o - a_o (1 - 1/W_i) + [results] i <= U_out       o + [results] i <= U_out
    into it         W_o i - b_i (1 - 1/W_o) + [results] o <= U_in        i + [results] o <= U_in
    at its roots    W i - (a_i + b_i) (1 - 1/W) <= B_in                  i <= B_in       (and outside with o)
    capacities      a_i + a_o <= C_in, b_i + b_o <= C_out

(only streams that carry something from inside count on the way out, and two of these meet only inside before they leave
for the first time; likewise on the way in). The sets are racks, and the parts that stay connected once the switches
farthest from servers are left out: in a fat-tree, pods. `rack_bound` looks at all racks at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import numpy as np

from controlplane.planner.evaluate import bound
from controlplane.planner.job import Job
from controlplane.planner.plan.separated import separated
from controlplane.planner.strategies.fabric.any_bound import all_reduce_bound
from controlplane.planner.strategies.fabric.cuts import Bound, Cut, cuts
from controlplane.planner.strategies.fabric.rack_bound import rack_bound
from controlplane.planner.strategies.solver import Program
from controlplane.planner.topology import Topology

SMALL = 1e-9  # relative error of rounding
SOLVED = 1e-6  # relative error to which a program of some thousand rows is solved
ENOUGH = 1e6  # a capacity that counts as unlimited, in units of the evaluator's bound


_known: ContextVar[Bound | None] = ContextVar("known bound", default=None)


@contextmanager
def bounded_by(known: Bound) -> Iterator[None]:
    """Tell searches inside the block that no plan is faster than this bound. A network whose hosts are taken apart does
    not show the limits of the whole one, so a search in it would go on after it has found the best plan.
    """
    token = _known.set(known)
    try:
        yield
    finally:
        _known.reset(token)


def cheap_bound(topology: Topology, job: Job) -> Bound:
    """Return the least of the bound that is known (`bounded_by`), the evaluator's bound, that of any all-reduce, those
    of the cuts, and that of all racks together. Where hosts have several roles, the cuts are those of the network in
    which these are taken apart, and the bound of all racks together is computed in both networks.
    """
    return _cheap_bound(topology, job, _known.get())


@lru_cache(maxsize=4)
def _cheap_bound(topology: Topology, job: Job, known: Bound | None) -> Bound:
    """Return what `cheap_bound` does; it is kept, since a search asks for it again and again, for the same network and
    job.
    """
    parts = separated(topology, job)
    best = Bound(bound(topology, job), "switches, parameter servers and workers' links")
    if known is not None:
        best = _less(known, best, SMALL)
    if best.mbps <= 0:
        return best
    best = _less(all_reduce_bound(topology, job), best, SMALL)
    if parts is None:
        best = _of_cuts(topology, job, best)
    else:
        inner = _of_cuts(parts.topology, parts.job, Bound(bound(parts.topology, parts.job), best.what))
        best = _less(Bound(inner.mbps, parts.words(inner.what)), best, SMALL)
    together = rack_bound(topology, job, best.mbps) if best.mbps > 0 else None
    if together is not None:
        best = _less(Bound(together, "links and switches of all racks together"), best, SOLVED)
    if parts is not None and best.mbps > 0:
        together = rack_bound(parts.topology, parts.job, best.mbps)
        if together is not None:
            best = _less(Bound(together, "links and switches of all hosts and racks together"), best, SOLVED)
    return best


def _less(found: Bound, best: Bound, rounding: float) -> Bound:
    """Return the lower bound of the two; the best so far where they are equal but for rounding."""
    return found if found.mbps < best.mbps * (1 - rounding) else best


def _of_cuts(topology: Topology, job: Job, best: Bound) -> Bound:
    """Return the least of the cuts' bounds and of `best`, which is a bound of this network."""
    scale = bound(topology, job)
    if scale <= 0:
        return best
    everything = sum(topology.residual_aggregation_mbps(v) for v in topology.switches)
    ingress = sum(topology.residual_ingress_mbps(s) for s in job.parameter_servers)
    for cut in cuts(topology, job):
        if not cut.workers and not cut.roots:
            continue
        program = _Program(topology, job, cut, scale, (everything, ingress))
        # Without roots inside, the bound has a closed form.
        found = program.closed() if not cut.roots else program.solve()
        best = _less(Bound(found, f"links of {cut.name}"), best, SMALL)
    return best


class _Program:
    """The rows of the module's text for one cut, in units of the evaluator's bound. `all_take` has the aggregation
    capacity of all switches and the ingress of all roots.
    """

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
        """Return the bound where no root is inside."""
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
