"""A stream of jobs on one network, planned and simulated: their durations under different ways to share it.

    python -m evaluation.jobs stream --jobs 20 --seed 1

The network is a fat-tree with k = 8. Jobs arrive at random (Poisson), each with an amount to all-reduce; rates hold
between two events. The ways to share are

    shared       weighted max-min over all jobs' trees, planned together at every event (job add --share)
    queue        one after the other, each alone on the network
    static       all at once, each with the same fixed fraction of what it would have alone, for the most jobs at a time
    atp          ATP's plans, each made as if it were alone; best effort: rates are max-min over the plans' loads
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controlplane.planner.evaluate import unit_loads
from controlplane.planner.generators import fattree
from controlplane.planner.job import Job
from controlplane.planner.plan import Plan
from controlplane.planner.simulate import Simulator
from controlplane.planner.simulate.plans import PlanNetwork
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.fabric.sharing import Demand, share
from controlplane.planner.topology import Topology
from evaluation import commands

GAP_SECONDS = 60.0
"""Mean seconds between two arrivals."""

Rates = dict[str, float]
Way = Callable[[Sequence["Arrival"]], Rates]


@dataclass(frozen=True)
class Arrival:
    """The arrival of a job.

    Attributes:
        at: time in seconds.
        megabits: what each worker has to send in all.
    """

    job: Job
    at: float
    megabits: float


def draw(topology: Topology, count: int, seed: int) -> list[Arrival]:
    """Draw jobs of 8 to 24 workers and 1 or 2 parameter servers anywhere."""
    chosen, now, arrivals = random.Random(seed), 0.0, []
    for number in range(count):
        workers, roots = chosen.randint(8, 24), chosen.choice([1, 2])
        nodes = chosen.sample(topology.servers, workers + roots)
        job = Job(f"job{number + 1}", tuple(nodes[:workers]), tuple(nodes[workers:]), 1_000_000)
        arrivals.append(Arrival(job, now, chosen.choice([500.0, 1000.0, 4000.0])))
        now += chosen.expovariate(1 / GAP_SECONDS)
    return arrivals


def max_min(topology: Topology, plans: Sequence[Plan]) -> list[float]:
    """Return max-min rates of plans whose trees stay as they are: all rates rise alike until a resource is full."""
    network = PlanNetwork(topology)
    simulator = Simulator(network.capacities)
    flows = []
    for plan in plans:
        links, switches, roots = unit_loads(plan, topology.results_on_links)
        use = {network.links[link]: load for link, load in links.items()}
        use.update({network.adders[v]: load for v, load in switches.items()})
        use.update({network.takers[s]: load for s, load in roots.items()})
        flows.append(simulator.send(1.0, list(use), coefficients=list(use.values())))
    return [simulator.rate(flow) for flow in flows]


def run(arrivals: Sequence[Arrival], way: Way) -> list[float]:
    """Return the seconds from each job's arrival to its end."""
    left = {arrival.job.name: arrival.megabits for arrival in arrivals}
    took: dict[str, float] = {}
    waiting, now = list(arrivals), 0.0
    present: list[Arrival] = []
    while waiting or present:
        if not present:
            now = max(now, waiting[0].at)
        while waiting and waiting[0].at <= now:
            present.append(waiting.pop(0))
        rates = way(present)
        ends = {a.job.name: left[a.job.name] / rates[a.job.name] for a in present if rates.get(a.job.name, 0.0) > 0}
        step = min([*ends.values(), *([waiting[0].at - now] if waiting else [])])
        now += step
        for arrival in list(present):
            name = arrival.job.name
            left[name] -= rates.get(name, 0.0) * step
            if left[name] <= 1e-6:
                present.remove(arrival)
                took[name] = now - arrival.at
    return [took[arrival.job.name] for arrival in arrivals]


def ways(topology: Topology, arrivals: Sequence[Arrival], together: int) -> dict[str, Way]:
    """Return all ways to share one network, by name. A static share is made for `together` jobs."""
    inart, atp = get_strategy("inart"), get_strategy("atp")
    alone = {arrival.job.name: inart(topology, arrival.job, seed=0) for arrival in arrivals}
    fixed = {arrival.job.name: atp(topology, arrival.job, seed=0) for arrival in arrivals}

    def shared(present: Sequence[Arrival]) -> Rates:
        demands = [Demand(arrival.job, (alone[arrival.job.name],)) for arrival in present]
        return {plan.job.name: plan.rate_mbps for plan in share(topology, demands)}

    def queue(present: Sequence[Arrival]) -> Rates:
        first = present[0].job.name
        return {first: alone[first].rate_mbps}

    def static(present: Sequence[Arrival]) -> Rates:
        return {arrival.job.name: alone[arrival.job.name].rate_mbps / together for arrival in present}

    def best_effort(present: Sequence[Arrival]) -> Rates:
        plans = [fixed[arrival.job.name] for arrival in present]
        return {plan.job.name: rate for plan, rate in zip(plans, max_min(topology, plans), strict=True)}

    return {"shared": shared, "queue": queue, "static": static, "atp": best_effort}


def most_together(arrivals: Sequence[Arrival], took: Sequence[float]) -> int:
    """Return the largest number of jobs at a time."""
    spans = [(arrival.at, arrival.at + seconds) for arrival, seconds in zip(arrivals, took, strict=True)]
    return max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)


def main(argv: Sequence[str] | None = None) -> int:
    parser = commands.parser("jobs stream", __doc__)
    parser.add_argument("--jobs", type=int, default=20, help="how many come (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the jobs and when they come (default: %(default)s)")
    arguments = parser.parse_args(argv)
    topology, began = fattree(8), time.process_time()
    arrivals = draw(topology, arguments.jobs, arguments.seed)
    took = {"shared": run(arrivals, ways(topology, arrivals, 1)["shared"])}
    together = most_together(arrivals, took["shared"])
    others = ways(topology, arrivals, together)
    took |= {name: run(arrivals, others[name]) for name in ("queue", "static", "atp")}
    print(f"{topology.name}, {arguments.jobs} jobs, up to {together} at once when shared; seconds to completion")
    print(f"{'':10}{'mean':>10}{'median':>10}{'longest':>10}{'mean over shared':>20}")
    mean = sum(took["shared"]) / len(arrivals)
    for name, seconds in took.items():
        ordered, own = sorted(seconds), sum(seconds) / len(seconds)
        print(f"{name:10}{own:10.1f}{ordered[len(ordered) // 2]:10.1f}{ordered[-1]:10.1f}{own / mean:20.2f}")
    print(f"planned in {time.process_time() - began:.0f} s of CPU")
    return 0
