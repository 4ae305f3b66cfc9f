"""Kills a switch in the middle of an all-reduce and measures how much later all workers have the right sum, and why.

    python -m evaluation.jobs failover                  the core switch that most trees use
    python -m evaluation.jobs failover --switch a2      an aggregation switch

The same all-reduce runs twice on an emulated fat-tree (k = 4, links of 20 Mbit/s), first undisturbed. The switch stays
off, and its controller cannot reach it any more. The output divides the delay into the time until the controller takes
the switch for lost (*noticed*), the time until the running job is rerouted (*rerouted*), and *the rest*, which is that
of sending lost packets again and of the lower rate of the remaining routes. A part of the rest, *at these rates*, is
unavoidable: the remaining data at the remaining rate. The exit status is 3 when a sum was wrong.
"""

from __future__ import annotations

import re
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from controlplane.planner.generators import parse_topology
from controlplane.planner.job import Job, parse_next_job
from controlplane.planner.plan import Plan
from controlplane.planner.topology import Topology
from controlplane.service.journal import Journal, logger_of
from evaluation import commands
from topologies import Emulation, EmulationError
from topologies.agents import MODULES, JobAgents
from topologies.command import Say, guarded, stopwatch
from topologies.deployment import Fabric
from topologies.zygote import Zygote

TOPOLOGY, JOB, BYTES, RUNS = "fattree:k=4,bandwidth=20", "workers=8,ps=2", 12_000_000, 3
IN_THE_MIDDLE = 0.4
"""Fraction of the undisturbed time after which the switch is killed."""
SLACK_SECONDS = 120.0


@dataclass(frozen=True)
class Run:
    """The times of one run, in seconds.

    Attributes:
        undisturbed, failed: time of the all-reduce without the failure and with it.
        noticed: time from the failure until the controller knew.
        led: time from the failure until the job was rerouted.
        slower: additional time at the remaining routes' rates.
        what: the controller's words for it.
    """

    undisturbed: float
    failed: float
    noticed: float
    led: float
    slower: float
    what: str
    right: bool

    @property
    def more(self) -> float:
        return self.failed - self.undisturbed

    def text(self) -> str:
        return (
            f"{self.undisturbed:.2f} s undisturbed, {self.failed:.2f} s with the failure: {self.more:.2f} s more "
            f"(noticed after {self.noticed:.2f} s, rerouted {self.led - self.noticed:.2f} s later, the rest "
            f"{self.more - self.led:.2f} s, {self.slower:.2f} s of it at these rates), "
            f"{'right' if self.right else 'WRONG'}; "
            f"{self.what or 'nothing was rerouted'}"
        )


def spine(plan: Plan, topology: Topology) -> str:
    """Return, of the switches that are farthest from servers, the one that most trees of a plan use."""
    ring, seen = set(topology.servers), set(topology.servers)
    while further := {v for node in ring for v in topology.neighbours(node)} - seen:
        ring, seen = further, seen | further
    used = Counter(node for tree in plan.trees for node in {v for flow in tree.flows for v in flow.route})
    return max(sorted(ring), key=lambda v: used[v])


def measure(topology: Topology, job: Job, size: int, *, switch: str, seed: int, say: Say) -> Run:
    """Run the all-reduce twice on one network, and kill `switch` ("" for that of `spine`) in the second. Raise
    EmulationError.
    """
    with ExitStack() as stack:
        emulation = stack.enter_context(Emulation(topology, "softswitch", seed=seed))
        zygote = stack.enter_context(Zygote(emulation, MODULES))
        journal = Journal()
        service = stack.enter_context(stack.enter_context(Fabric(emulation, logger_of(journal), journal)).control())
        admission, _, _ = service.network.launch(job, "inart", seed)
        zygote.wait_ready()
        agents = stack.enter_context(JobAgents(zygote, service.address, job, seed=seed))
        agents.ready()
        timeout = SLACK_SECONDS + 8 * size * 8 / 1e6 / admission.plan.rate_mbps
        first = agents.allreduce_next(size, timeout)
        chosen = switch or spine(admission.plan, topology)
        agents.submit(size, timeout=timeout)
        time.sleep(IN_THE_MIDDLE * first.seconds)
        say(f"{chosen} is killed")
        failed = time.time()
        emulation.fail(chosen)
        second = agents.collect(timeout)
        agents.leave()
        events = [event for event in journal.lines() if event.time >= failed]
        noticed = next((event.time - failed for event in events if event.text.startswith("lost:")), 0.0)
        led = next((event for event in events if "rerouted around" in event.text), None)
        what = led.text if led else ""
        return Run(
            first.seconds, second.seconds, noticed, led.time - failed if led else noticed,
            slower((1 - IN_THE_MIDDLE) * first.seconds, what), what, first.right and second.right,
        )  # fmt: skip


def slower(left: float, what: str) -> float:
    """Return how many seconds longer the remaining data takes at the remaining rate, read from the controller's
    words.
    """
    rates = re.search(r"at ([0-9.e+-]+) of ([0-9.e+-]+) Mbit/s", what)
    return left * (float(rates[2]) / float(rates[1]) - 1) if rates else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = commands.parser("jobs failover", __doc__)
    parser.add_argument("--switch", default="", metavar="NAME", help="default: the most used spine")
    arguments = parser.parse_args(argv)
    say = stopwatch()

    def work() -> int:
        topology = parse_topology(TOPOLOGY)
        job = parse_next_job(JOB, topology, {})
        runs = []
        for seed in range(RUNS):
            runs.append(measure(topology, job, BYTES, switch=arguments.switch, seed=seed, say=say))
            say(runs[-1].text())
        more = statistics.median(run.more for run in runs)
        print(f"{more:.2f} s more with the failure (median of {len(runs)})")
        return 0 if all(run.right for run in runs) else 3

    return guarded("evaluation.jobs failover", work, EmulationError, ValueError)
