"""Measures plans of few trees on small networks: beside the optimum of one tree per parameter server (`exact`), with
more trees, and with more parameter servers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from controlplane.planner.generators import random_topology
from controlplane.planner.job import Job, place_job
from controlplane.planner.plan.planning import ERRORS
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.deadline import limited_time
from controlplane.planner.topology import Topology

EXACT_S = 15.0
"""Seconds of processor time for the optimum of one choice of parameter servers; a solve that takes longer gives its
best."""
AIM = 0.01
"""Fraction by which a plan may be below the optimum of one tree per parameter server."""
ROUNDING = 1e-6


@dataclass(frozen=True)
class Few:
    """A small instance.

    Attributes:
        rates_mbps: rate of the plan with the job's first parameter servers alone (first index; 0 is one server) and
            at most so many trees (second index; 0 is one tree).
        exact_mbps: with at most so many trees, the best that `exact` finds for any choice of as many of all the
            parameter servers; 0 where it refused.
        seconds: processor time of the slowest plan.
    """

    seed: int
    what: str
    rates_mbps: tuple[tuple[float, ...], ...]
    exact_mbps: tuple[float, ...]
    seconds: float

    @property
    def gap(self) -> float:
        """The part by which the plan is below `exact`, with the number of trees with which it is furthest below."""
        pairs = zip(self.rates_mbps[-1], self.exact_mbps, strict=False)
        return max((1 - rate / most for rate, most in pairs if most > 0), default=0.0)

    @property
    def worse(self) -> tuple[str, ...]:
        """Words that say where another tree or another parameter server made the plan worse."""
        found = []
        for servers, rates in enumerate(self.rates_mbps, start=1):
            for trees, (fewer, more) in enumerate(pairwise(rates), start=1):
                if more < fewer * (1 - ROUNDING):
                    found.append(f"{servers} servers: {fewer:.4f} with {trees} trees, {more:.4f} with one more")
        for servers, (one, two) in enumerate(zip(self.rates_mbps, self.rates_mbps[1:], strict=False), start=1):
            for trees, (fewer, more) in enumerate(zip(one, two, strict=True), start=1):
                if more < fewer * (1 - ROUNDING):
                    found.append(f"{trees} trees: {fewer:.4f} with {servers} servers, {more:.4f} with one more")
        return tuple(found)


def draw(seed: int) -> tuple[Topology, Job]:
    """Return a random network of up to five switches and a job of up to six workers and three parameter servers."""
    generator = random.Random(f"few {seed}")
    switches, workers, servers = generator.randint(2, 5), generator.randint(2, 6), generator.randint(1, 3)
    topology = random_topology(switches, workers + servers + 1, generator.randint(0, 4), generator.randrange(10**6))
    return topology, place_job(topology, workers, servers, seed=seed)


def measure(seed: int) -> Few:
    """Plan the instance of a seed with each number of its parameter servers and of trees."""
    topology, job = draw(seed)
    servers = len(job.parameter_servers)
    slowest = 0.0
    rates = []
    for count in range(1, servers + 1):
        row = []
        for trees in range(1, servers + 2):
            begin = time.process_time()
            part = replace(job, parameter_servers=job.parameter_servers[:count], max_trees=trees)
            row.append(_rate("inart", topology, part))
            slowest = max(slowest, time.process_time() - begin)
        rates.append(tuple(row))
    best, optima = 0.0, []
    for trees in range(1, servers + 1):
        for roots in combinations(job.parameter_servers, trees):
            with limited_time(EXACT_S, clock=time.process_time):
                best = max(best, _rate("exact", topology, replace(job, parameter_servers=roots)))
        optima.append(best)
    what = f"{len(topology.switches)} switches, {len(job.workers)} workers, {servers} parameter servers"
    return Few(seed, what, tuple(rates), tuple(optima), slowest)


def _rate(name: str, topology: Topology, job: Job) -> float:
    strategy = get_strategy(name)
    try:
        return strategy(topology, job).rate_mbps
    except ERRORS:
        return 0.0


def line(found: Few) -> str:
    """Return the measurements of one instance as a line of text."""
    rates = " ".join(f"{rate:.4f}" for rate in found.rates_mbps[-1])
    optima = " ".join(f"{rate:.4f}" for rate in found.exact_mbps)
    return (
        f"{found.seed:>4} {found.what}: with 1, 2, .. trees {rates}; exact {optima}; at most "
        f"{100 * max(0.0, found.gap):.2f} % below; {found.seconds:.1f} s" + "".join(f"; WORSE {w}" for w in found.worse)
    )


def summary(all_found: Sequence[Few]) -> Iterator[str]:
    """Return how many instances miss the aims, in lines of text."""
    below = [found.seed for found in all_found if found.gap > AIM]
    largest = max((found.gap for found in all_found), default=0.0)
    worse = [found.seed for found in all_found if found.worse]
    yield (
        f"{len(all_found)} instances: {len(below)} more than {100 * AIM:g} % below exact {below}, at most "
        f"{100 * max(0.0, largest):.2f} %"
    )
    yield f"another tree or parameter server makes the plan worse: {len(worse)} {worse}"
