"""Plans two jobs on one network, one after the other and together, and compares their rates with the fair bound.

    python -m evaluation.jobs fair                     k = 6, two jobs of 22 workers and 2 parameter servers

The lower rate of these two jobs cannot be above 10.6 Mbit/s: their servers' links bound it (tests/controlplane/
test_sharing.py). The rates printed for `together` hold for both at once: each is evaluated beside the other's load.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from controlplane.planner.evaluate import evaluate
from controlplane.planner.generators import fattree
from controlplane.planner.job import Job, place_job
from controlplane.planner.strategies import Infeasible, get_strategy
from controlplane.planner.strategies.fabric.sharing import Demand, share
from controlplane.planner.topology import Topology
from controlplane.service.residual import with_loads


def two_jobs(topology: Topology, workers: int, servers: int, seed: int) -> list[Job]:
    """Return two jobs on servers of their own, drawn by the seed."""
    first = place_job(topology, workers, servers, seed=seed, name="one")
    free = topology.replace(remove_nodes=[*first.workers, *first.parameter_servers])
    return [first, place_job(free, workers, servers, seed=seed + 1, name="two")]


def rates(topology: Topology, jobs: Sequence[Job]) -> dict[str, list[float]]:
    """Return the rates of the jobs in Mbit/s: alone, one after the other, together; each holds for all jobs at once."""
    planner = get_strategy("inart")
    alone = [planner(topology, job, seed=0) for job in jobs]
    greedy = [alone[0]]
    for job in jobs[1:]:
        try:
            greedy.append(planner(with_loads(topology, greedy), job, seed=0))
        except Infeasible:
            break
    together = share(topology, [Demand(job, (plan,)) for job, plan in zip(jobs, alone, strict=True)])
    for number, plan in enumerate(together):
        others = together[:number] + together[number + 1 :]
        left = evaluate(plan, with_loads(topology, others)).rate_mbps
        assert left >= plan.rate_mbps * (1 - 1e-6), "together they are more than the network carries"
    return {
        "alone": [plan.rate_mbps for plan in alone],
        "one after the other": [plan.rate_mbps for plan in greedy] + [0.0] * (len(jobs) - len(greedy)),
        "together": [plan.rate_mbps for plan in together],
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.jobs fair", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--k", type=int, default=6, help="ports of a switch of the fat-tree (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=22, help="of each job (%(default)s)")
    parser.add_argument("--ps", type=int, default=2, help="of each job (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of where jobs are (default: %(default)s)")
    arguments = parser.parse_args(argv)
    topology = fattree(arguments.k)
    began = time.process_time()
    found = rates(topology, two_jobs(topology, arguments.workers, arguments.ps, arguments.seed))
    print(f"{topology.name}, two jobs of {arguments.workers} workers and {arguments.ps} parameter servers; Mbit/s")
    for how, values in found.items():
        print(f"  {how:20}" + "".join(f"{value:8.2f}" for value in values) + f"   lowest {min(values):.2f}")
    print(f"planned in {time.process_time() - began:.1f} s of CPU")
    return 0
