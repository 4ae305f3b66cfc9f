"""Compares seconds of all-reduces in the cost model with those in the emulation.

    python -m evaluation.cost --json >run.json
    python -m evaluation.cost --read run.json --plot cost.png

It runs real agents and real switches, as root. The hosts' part of a round trip is measured first, with the smallest
all-reduce. All workers begin at one moment, after a pause that fills all token buckets; a time is from the last
worker's first packet to the last answer, the median of several. Small all-reduces are measured on slow links, where
they take tens of milliseconds: shorter ones would measure how a shared machine schedules. Takes about four minutes on a
calm machine.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from controlplane.planner.generators import parse_topology
from controlplane.planner.job import Job, parse_job
from controlplane.planner.plan.cost import Cost, cost_of
from controlplane.planner.plan.limits import Limits, limited
from controlplane.planner.plan.slots import with_host_ms
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology
from controlplane.targets.base import TargetError
from evaluation import commands
from topologies import Emulation, EmulationError
from topologies.agents import MODULES, JobAgents
from topologies.deployment import HEADROOM, Fabric
from topologies.links import link_credit_ms
from topologies.load import cpu_times
from topologies.zygote import Zygote

OPERATION_SECONDS = 300.0
SIZES = (
    *(10_000, 20_000, 30_000, 50_000, 100_000, 300_000),
    *(1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000),
)
JOB = "workers=6,ps=2"
SMALLEST = 1000  # one packet of data, and not so few values that agents need no exponents (worker_agent/gathered.py)
HOSTS_EXACT_MS = 1e-3
SLOW, FAST = 4.0, 20.0  # Mbit/s of a link
LEAST_SECONDS = 0.04  # shorter all-reduces are measured on slower links
MOST_SECONDS = 5.0  # longer all-reduces are measured on faster links, if there are any
REPEAT_SECONDS = 5.0  # seconds of all-reduces of one size, as far as the model predicts
MOST, LEAST = 25, 1
ORDER_SECONDS = 0.02  # seconds until all workers have the order
WANTED = 0.05
COLOURS = ("#2f5d9b", "#d0782a", "#4a8f52", "#8a4f9e")


@dataclass(frozen=True)
class Row:
    """Results for one size: the model's seconds, the median of the measured ones and their number, and packets sent
    again.
    """

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
    """Results on one network.

    Attributes:
        link_mbps: rate of its links.
        host_ms: time of a worker and its parameter server together, as measured.
        idle: fraction of the processors' time that was idle.
    """

    link_mbps: float
    rate_mbps: float
    trees: int
    host_ms: float
    idle: float
    rows: list[Row]


def measure(topology: Topology, job: Job, *, link_mbps: float, most_s: float) -> Measured:
    """Build the network, measure, remove it. Raise EmulationError, FabricError, HostFailure.

    Sizes that take less than LEAST_SECONDS or more than most_s are left out.
    """
    plan = get_strategy("inart")(limited(topology, Limits.of_target()), job)

    def model(host_ms: float) -> Cost:
        known = limited(with_host_ms(topology, host_ms / 2), Limits.of_target())
        found = cost_of(plan, known, plan.rate_mbps, pace=1 - HEADROOM)
        assert found is not None
        # softswitch passes a frame on when its line begins with it
        return replace(found, stored=False, credit=link_credit_ms)

    with ExitStack() as stack:
        emulation = stack.enter_context(Emulation(topology, "softswitch"))
        zygote = stack.enter_context(Zygote(emulation, MODULES))
        fabric = stack.enter_context(Fabric(emulation))
        zygote.wait_ready()
        service = stack.enter_context(fabric.serve(plan))
        agents = JobAgents(zygote, service.address, job, named=False, checked=False)
        stack.enter_context(agents)
        agents.ready()
        idle, total = cpu_times()
        refill = model(0.0).refill_s
        smallest, _ = repeated(agents, SMALLEST, MOST, refill)
        host_ms = hosts_part(smallest, lambda ms: model(ms).seconds(SMALLEST))
        cost = model(host_ms)
        rows = []
        for size in SIZES:
            seconds = cost.seconds(size)
            if not LEAST_SECONDS <= seconds <= most_s:
                continue
            times = max(LEAST, min(MOST, round(REPEAT_SECONDS / (seconds + refill))))
            measured, resent = repeated(agents, size, times, refill)
            rows.append(Row(size, seconds, measured, times, resent))
        after, now = cpu_times()
        agents.leave()
    left = (after - idle) / max(1, now - total)
    return Measured(link_mbps, plan.rate_mbps, len(plan.trees), host_ms, left, rows)


def hosts_part(measured: float, modelled: Callable[[float], float]) -> float:
    """Return the hosts' part of a round trip (ms) with which the model gives the measured time; 0 where that is
    shorter.

    Args:
        measured: the measured seconds.
        modelled: returns the model's seconds for a hosts' part. They rise with it: once for the exponents, if these
            do not come back before there is a token for data, and once for the data.
    """
    low, high = 0.0, max(0.0, measured) * 1e3
    while high - low > HOSTS_EXACT_MS:
        middle = (low + high) / 2
        low, high = (middle, high) if modelled(middle) < measured else (low, middle)
    return low


def repeated(agents: JobAgents, size: int, times: int, pause: float) -> tuple[float, int]:
    """Return (median seconds since all have begun, packets sent again) of `times` all-reduces, each after a pause."""
    seconds, resent = [], 0
    for _ in range(times):
        agents.submit(size, at=time.monotonic() + max(pause, ORDER_SECONDS))
        replies = [worker.receive(OPERATION_SECONDS) for worker in agents.workers.values()]
        begin, end = (max(reply[when] for reply in replies) for when in ("first_send", "last_answer"))
        seconds.append(end - begin)
        resent += sum(reply["resent"] for reply in replies)
    return statistics.median(seconds), resent


def table(found: Sequence[Measured]) -> str:
    lines = []
    for one in found:
        lines += [
            f"Links of {one.link_mbps:g} Mbit/s: {one.rate_mbps:.4g} Mbit/s per worker planned, {one.trees} trees; "
            f"agents keep {100 * HEADROOM:.0f} %. Hosts: {one.host_ms:.3g} ms of a round trip. "
            f"CPU {100 * one.idle:.0f} % idle.",
            f"{'bytes':>10}{'model s':>12}{'measured s':>12}{'differs':>9}{'of':>4}{'resent':>8}",
        ]
        for row in one.rows:
            times = f"{row.model_s:>12.5f}{row.measured_s:>12.5f}{100 * row.error:>+8.1f}%"
            lines.append(f"{row.size:>10}{times}{row.repeated:>4}{row.resent:>8}")
    worst = worst_of(found)
    verdict = "within" if worst <= WANTED else "NOT within"
    lines.append(f"The model is {verdict} {100 * WANTED:.0f} %: it differs by {100 * worst:.1f} % at most.")
    return "\n".join(lines)


def from_json(one: dict[str, Any]) -> Measured:
    """Return the object that `asdict` converted. Raise TypeError."""
    return Measured(**{**one, "rows": [Row(**row) for row in one["rows"]]})


def worst_of(found: Sequence[Measured]) -> float:
    return max(abs(row.error) for one in found for row in one.rows)


def draw(found: Sequence[Measured], path: Path) -> None:
    """Draw seconds above, and measured over modelled time below."""
    with commands.drawing(path, 2, dpi=130, figsize=(5.5, 5.2), sharex=True, height_ratios=(3, 1.4)) as (_, axes):
        above, below = axes[:, 0]
        colours: dict[float, str] = {}
        for one in found:
            seen = one.link_mbps in colours  # a network of this rate was in another run
            colour = colours.setdefault(one.link_mbps, COLOURS[len(colours) % len(COLOURS)])
            sizes = [row.size for row in one.rows]
            label, dots = (None, None) if seen else (f"model, {one.link_mbps:g} Mbit/s", "emulation")
            above.loglog(sizes, [row.model_s for row in one.rows], color=colour, label=label)
            above.loglog(sizes, [row.measured_s for row in one.rows], "o", color=colour, label=dots)
            below.semilogx(sizes, [100 * row.error for row in one.rows], "o-", color=colour)
        below.axhspan(-100 * WANTED, 100 * WANTED, color="#888888", alpha=0.2)
        below.set_ylim(-15, 15)
        below.set_ylabel("differs, %")
        below.set_xlabel("bytes")
        above.set_ylabel("seconds of an all-reduce")
        above.legend(frameon=False)
        for axis in (above, below):
            axis.grid(alpha=0.3)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return the exit status: 0 within 5 %, 3 where it is not within 5 %, 1 when it failed."""
    parser = commands.parser("cost", __doc__)
    parser.add_argument("--plot", type=Path, metavar="PNG", help="also draw")
    parser.add_argument(
        "--read", type=Path, nargs="+", metavar="JSON", help="measure nothing: show what earlier runs printed (--json)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for --read")
    arguments = parser.parse_args(argv)
    found = []
    try:
        for file in arguments.read or ():
            found += [from_json(one) for one in json.loads(file.read_text())]
        for mbps, most in () if arguments.read else ((SLOW, MOST_SECONDS), (FAST, math.inf)):
            topology = parse_topology(f"testbed:switch={mbps:g},server={mbps:g},link={mbps:g},results=1")
            found.append(measure(topology, parse_job(JOB, topology), link_mbps=mbps, most_s=most))
    except (EmulationError, TargetError, OSError, TypeError, ValueError) as error:
        print(f"cost: {error}", file=sys.stderr)
        return 1
    if arguments.plot:
        draw(found, arguments.plot)
    print(json.dumps([asdict(one) for one in found], indent=2) if arguments.json else table(found))
    return 0 if worst_of(found) <= WANTED else 3


if __name__ == "__main__":
    sys.exit(main())
