"""Seconds of all-reduces as the cost model has them beside those in the emulation: python -m evaluation.cost

Real agents, real switches, as root. The hosts' part of a round trip is measured first, with the smallest all-reduce. A
time is from the last worker's first packet to the last answer, the median of some. Needs a calm machine: about two
minutes with --mbps 20.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from controlplane.generators import parse_topology
from controlplane.job import Job, JobError, parse_job
from controlplane.plan.cost import Cost, cost_of
from controlplane.plan.limits import Limits, limited
from controlplane.plan.slots import with_host_ms
from controlplane.strategies import get_strategy
from controlplane.targets.base import TargetError
from controlplane.topology import Topology, TopologyError
from topologies import Emulation, EmulationError
from topologies.agents import MODULES, JobAgents
from topologies.deployment import HEADROOM, Fabric
from topologies.load import cpu_times
from topologies.zygote import Zygote

OPERATION_SECONDS = 300.0
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 10_000_000, 100_000_000)
SMALLEST = 4
REPEAT_SECONDS = 4.0  # of all-reduces of one size, as far as the model knows
MOST, LEAST = 15, 1
WANTED = 0.05


@dataclass(frozen=True)
class Row:
    """One size: seconds of the model, measured (median), of how many; packets sent again."""

    size: int
    model_s: float
    measured_s: float
    repeated: int
    resent: int

    @property
    def error(self) -> float:
        return self.measured_s / self.model_s - 1


@dataclass(frozen=True)
class Measured:
    """host_ms: of a worker and its root together, as measured. idle: share of the cores' time that was left."""

    rate_mbps: float
    trees: int
    host_ms: float
    idle: float
    rows: list[Row]


def measure(topology: Topology, job: Job, strategy: str, sizes: Sequence[int]) -> Measured:
    """Builds the network, measures, takes it down. Raises EmulationError, FabricError, HostFailure."""
    plan = get_strategy(strategy)(limited(topology, Limits.of_target()), job)

    def model(host_ms: float) -> Cost:
        known = limited(with_host_ms(topology, host_ms / 2), Limits.of_target())
        found = cost_of(plan, known, plan.rate_mbps, pace=1 - HEADROOM)
        assert found is not None
        return replace(found, stored=False)  # softswitch hands a frame on when its line begins with it

    with ExitStack() as stack:
        emulation = stack.enter_context(Emulation(topology, "softswitch"))
        zygote = stack.enter_context(Zygote(emulation, MODULES))
        fabric = stack.enter_context(Fabric(emulation))
        zygote.wait_ready()
        service = stack.enter_context(fabric.serve(plan))
        agents = JobAgents(emulation, zygote, service.address, job, named=False, checked=False)
        stack.enter_context(agents)
        agents.ready()
        idle, total = cpu_times()
        smallest, _ = repeated(agents, SMALLEST, MOST)
        host_ms = max(0.0, (smallest - model(0.0).seconds(SMALLEST)) * 1e3 / 2)
        cost = model(host_ms)
        rows = []
        for size in sizes:
            seconds = cost.seconds(size)
            times = max(LEAST, min(MOST, round(REPEAT_SECONDS / seconds)))
            measured, resent = repeated(agents, size, times)
            rows.append(Row(size, seconds, measured, times, resent))
        after, now = cpu_times()
        agents.leave()
    left = (after - idle) / max(1, now - total)
    return Measured(plan.rate_mbps, len(plan.trees), host_ms, left, rows)


def repeated(agents: JobAgents, size: int, times: int) -> tuple[float, int]:
    """(median seconds since all have begun, packets sent again) of so many all-reduces."""
    seconds, resent = [], 0
    for _ in range(times):
        agents.submit(size)
        replies = [worker.receive(OPERATION_SECONDS) for worker in agents.workers.values()]
        begin, end = (max(reply[when] for reply in replies) for when in ("first_send", "last_answer"))
        seconds.append(end - begin)
        resent += sum(reply["resent"] for reply in replies)
    return statistics.median(seconds), resent


def table(found: Measured) -> str:
    lines = [f"{'bytes':>10}{'model s':>12}{'measured s':>12}{'differs':>9}{'of':>4}{'resent':>8}"]
    lines += [
        f"{r.size:>10}{r.model_s:>12.5f}{r.measured_s:>12.5f}{100 * r.error:>+8.1f}%{r.repeated:>4}{r.resent:>8}"
        for r in found.rows
    ]
    worst = max(abs(row.error) for row in found.rows)
    lines.append(
        f"{found.rate_mbps:.4g} Mbit/s per worker planned, {found.trees} trees; agents keep {100 * HEADROOM:.0f} %. "
        f"Hosts: {found.host_ms:.3g} ms of a round trip. CPU {100 * found.idle:.0f} % idle."
    )
    verdict = "within" if worst <= WANTED else "NOT within"
    lines.append(f"The model is {verdict} {100 * WANTED:.0f} %: it differs by {100 * worst:.1f} % at most.")
    return "\n".join(lines)


def draw(found: Measured, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5.5, 3.8))
    sizes = [row.size for row in found.rows]
    axis.loglog(sizes, [row.model_s for row in found.rows], label="model", color="#2f5d9b")
    axis.loglog(sizes, [row.measured_s for row in found.rows], "o", label="emulation", color="#d0782a")
    axis.set_xlabel("bytes")
    axis.set_ylabel("seconds of an all-reduce")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 within 5 %, 3 not, 1 it failed."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.cost", description=__doc__)
    parser.add_argument("--mbps", type=float, default=20.0, help="of each link (default: %(default)g)")
    parser.add_argument("--topology", help="default: the paper's testbed at these rates, results counted")
    parser.add_argument("--job", default="workers=6,ps=2", help="default: %(default)s")
    parser.add_argument("--strategy", default="inart", help="default: %(default)s")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="BYTES")
    parser.add_argument("--plot", type=Path, metavar="PNG")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    mbps = arguments.mbps
    try:
        topology = parse_topology(
            arguments.topology or f"testbed:switch={mbps:g},server={mbps:g},link={mbps:g},results=1"
        )
        found = measure(topology, parse_job(arguments.job, topology), arguments.strategy, arguments.sizes)
    except (EmulationError, TargetError, TopologyError, JobError, ValueError) as error:
        print(f"cost: {error}", file=sys.stderr)
        return 1
    if arguments.plot:
        draw(found, arguments.plot)
    print(json.dumps(asdict(found), indent=2) if arguments.json else table(found))
    return 0 if all(abs(row.error) <= WANTED for row in found.rows) else 3


if __name__ == "__main__":
    sys.exit(main())
