"""Placement of parameter servers in a fabric: `plan place`.

Workers stay where the job has them. Servers of a rack that have the same links and ingress are interchangeable, so the
search chooses how many parameter servers each rack gets: first it adds one after the other where the cheap bound of the
rate grows most, then it moves single ones as long as the bound grows. The bound is a good guess of the rate that the
planner reaches; the best few placements and the job's own are planned, and the fastest plan is the answer.

The bound over all placements lets the roots be anywhere at once: it is the racks' program (parts_bound.py) with as much
ingress in every rack as its free servers have, and in all no more than that of the fastest ones.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from controlplane.cli.plan.report import write_json
from controlplane.planner.evaluate import evaluate
from controlplane.planner.job import Job, JobError
from controlplane.planner.plan.model import Plan
from controlplane.planner.plan.planning import ERRORS, searching, timed
from controlplane.planner.strategies import Strategy, get_strategy
from controlplane.planner.strategies.deadline import deadline
from controlplane.planner.strategies.fabric.bounds import cheap_bound
from controlplane.planner.strategies.fabric.parts_bound import Bound, divisions, parts_bound
from controlplane.planner.topology import Topology

PLANNED = 3  # placements to plan, beside the job's own
# A placement must improve the bound by this factor to count as better.
BETTER = 1 + 1e-6


@dataclass(frozen=True)
class Placement:
    """The best placement found: the job with its parameter servers moved, its plan, and a bound over all placements."""

    job: Job
    plan: Plan
    bound: Bound


def free_servers(topology: Topology, job: Job, on_workers: bool = False) -> dict[tuple[object, ...], list[str]]:
    """Return the servers where a parameter server may go, grouped by what makes them interchangeable: the switch and
    capacity of the link, and whether a worker is on the server. With `on_workers`, servers with a worker are among
    them."""
    workers = set(job.workers)
    alike: dict[tuple[object, ...], list[str]] = {}
    for server in topology.servers:
        if (on_workers or server not in workers) and topology.neighbours(server):
            near = topology.neighbours(server)
            mbps = tuple(
                topology.residual_bandwidth_mbps(u, v) if topology.has_link(u, v) else 0.0
                for other in near
                for u, v in ((server, other), (other, server))
            )
            alike.setdefault((near, mbps, topology.residual_ingress_mbps(server), server in workers), []).append(server)
    return alike


def placement_bound(topology: Topology, job: Job, on_workers: bool = False) -> Bound:
    """Return a bound in Mbit/s that holds for all placements of the job's parameter servers, with the workers fixed."""
    free = [server for servers in free_servers(topology, job, on_workers).values() for server in servers]
    everywhere = replace(job, parameter_servers=tuple(free))
    fastest = sorted((topology.residual_ingress_mbps(s) for s in free), reverse=True)[: len(job.parameter_servers)]
    workers = len(job.workers)
    added = sum(topology.residual_aggregation_mbps(v) for v in topology.switches)
    # A parameter server on a worker's server receives that worker's stream without the network.
    streams = workers - bool(everywhere.both_roles)
    together_mbps = min((added * (1 - 1 / workers) + sum(fastest)) / streams, sum(fastest))
    simple = min(cheap_bound(topology, everywhere).mbps, together_mbps)
    found = Bound(simple, "switches, the fastest servers and workers' links, wherever the parameter servers are")
    if everywhere.both_roles or not simple > 0:
        return found
    together = parts_bound(topology, everywhere, simple, divisions(topology)[0], ingress_mbps=sum(fastest))
    if together is not None and together.mbps < simple * (1 - 1e-6):
        found = Bound(together.mbps, "links and switches of all racks together, wherever the parameter servers are")
    return found


class _Search:
    """A search over placements, each given as the group of servers (`alike`) of each parameter server, in order.
    `tried` holds a bound of the rate of each placement so far, by its groups in sorted order."""

    def __init__(self, topology: Topology, job: Job, alike: Sequence[Sequence[str]]) -> None:
        self.topology, self.job, self.alike = topology, job, alike
        self.tried: dict[tuple[int, ...], float] = {}

    def at(self, chosen: Sequence[int]) -> Job:
        """Return the job with this placement."""
        roots = [self.alike[group][list(chosen[:i]).count(group)] for i, group in enumerate(chosen)]
        return replace(self.job, parameter_servers=tuple(roots))

    def best_with_one_more(self, chosen: Sequence[int]) -> tuple[float, int]:
        """Return the best group for one more parameter server, as (bound of the rate with it, group).

        Among equals, the group with the fewest parameter servers comes first.
        """
        found = []
        for group, servers in enumerate(self.alike):
            if list(chosen).count(group) < len(servers):
                key = tuple(sorted([*chosen, group]))
                if key not in self.tried:
                    self.tried[key] = cheap_bound(self.topology, self.at(key)).mbps
                found.append((self.tried[key], -list(chosen).count(group), -group))
        mbps, _, group = max(found)
        return mbps, -group

    def search(self, count: int) -> list[int]:
        """Return the best placement that was found of so many parameter servers: these are added one after the other,
        then moved one by one."""
        chosen: list[int] = []
        for _ in range(count):
            chosen.append(self.best_with_one_more(chosen)[1])
        best = self.tried[tuple(sorted(chosen))]
        moved = True
        while moved and not deadline().passed():
            moved = False
            for i in range(count):
                rest = [*chosen[:i], *chosen[i + 1 :]]
                mbps, group = self.best_with_one_more(rest)
                if mbps > best * BETTER:
                    chosen, best, moved = [*rest, group], mbps, True
        return chosen


def place(topology: Topology, job: Job, strategy: Strategy, *, seed: int = 0, on_workers: bool = False) -> Placement:
    """Return the best placement that was found of the job's parameter servers; with `on_workers`, servers of workers
    count, too. Raise JobError, Infeasible and other planning errors where there is none."""
    alike = list(free_servers(topology, job, on_workers).values())
    count = len(job.parameter_servers)
    if sum(map(len, alike)) < count:
        raise JobError(f"the job needs {count} servers for parameter servers, {sum(map(len, alike))} have no worker")
    search = _Search(topology, job, alike)
    first = tuple(sorted(search.search(count)))
    least = placement_bound(topology, job, on_workers)
    full = sorted((key for key in search.tried if len(key) == count), key=lambda key: -search.tried[key])[:PLANNED]
    candidates = [search.at(key) for key in dict.fromkeys([first, *full])]
    plans: list[Plan] = []
    for candidate in [*candidates, job]:
        try:
            plans.append(strategy(topology, candidate, seed=seed))
        except ERRORS:
            if candidate is job and not plans:
                raise
            continue
        if deadline().passed() or plans[-1].rate_mbps * BETTER >= least.mbps:
            break
    plan = max(plans, key=lambda p: p.rate_mbps)
    return Placement(plan.job, plan, least)


def _placed(arguments: argparse.Namespace, topology: Topology, job: Job, strategy: Strategy) -> Placement:
    """Return the faster of two placements: without workers' servers, and with these unless --apart is given. Raise as
    `place` where there is none."""
    found: list[Placement] = []
    refusal: Exception | None = None
    for on_workers in (False,) if arguments.apart else (False, True):
        try:
            found.append(place(topology, job, strategy, seed=arguments.seed, on_workers=on_workers))
        except ERRORS as error:  # too few servers have no worker, or the strategy knows no hosts of both roles
            refusal = refusal or error
    if not found:
        assert refusal is not None
        raise refusal
    best = found[0]
    for other in found[1:]:
        best = other if other.plan.rate_mbps > best.plan.rate_mbps * BETTER else best
    return best


def command(arguments: argparse.Namespace, topology: Topology, job: Job) -> None:
    """Print where the parameter servers go, and the rate before and after."""
    strategy = get_strategy(arguments.strategy)
    with timed(searching(arguments)) as limit:
        before: float | None
        try:
            before = strategy(topology, job, seed=arguments.seed).rate_mbps
        except ERRORS:
            before = None
        found = _placed(arguments, topology, job, strategy)
    rate, bound = found.plan.rate_mbps, found.bound
    gap = max(0.0, 1 - rate / bound.mbps) if bound.mbps > 0 else 0.0
    content = {
        "topology": topology.name,
        "job": found.job.to_json(),
        "rate_mbps": rate,
        "rate_before_mbps": before,
        "bound_mbps": bound.mbps,
        "bound": bound.what,
        "gap": gap,
        "bottleneck": evaluate(found.plan, topology).bottleneck.to_json(),
        "cut_short": limit.cut_short,
    }
    if arguments.output:
        write_json(found.job.to_json(), arguments.output)
    if arguments.json:
        print(json.dumps(content, indent=2))
        return
    print(f"parameter servers  {', '.join(found.job.parameter_servers)}")
    where = "" if before is None else f" (at {', '.join(job.parameter_servers)}: {before:.6g})"
    print(f"rate        {rate:.6g} Mbit/s per worker{where}")
    print(f"bound       {bound.mbps:.6g} Mbit/s (gap {100 * gap:.2f} %): {bound.what}")
    if arguments.output:
        print(f"job file    {arguments.output}")
