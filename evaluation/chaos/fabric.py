"""Real all-reduces on an emulated network while everything fails, one or two things at a time; every sum is checked.

    python -m evaluation.chaos --minutes 30 --seed 1                                      fat-tree, k = 4
    python -m evaluation.chaos --minutes 30 --seed 1 --topology leafspine:leaves=4,spines=4,servers=3,bandwidth=20
    python -m evaluation.chaos --minutes 5 --seed 7 --events flip,forge,link --json > report.json
    python -m evaluation.chaos --minutes 10 --coming 16 --topology fattree:k=6 --events link,switch,edge,reboot,ps
    python -m evaluation.chaos --minutes 30 --seed 1 --list                               print the schedule
    python -m evaluation.chaos --summary one.json two.json                                reports as one table

Needs root (network namespaces). Workers add up whole numbers, whose sum fixed point and float32 carry exactly; each
worker compares each result with it, bit for bit. The seed decides what happens and when, which is printed first; the
network is removed at the end, after Ctrl-C, too. Exit status: 0 when all is well; 1 when it could not run; 3 when a sum
was wrong; 4 when an operation failed for good, an event was not seen to happen, or something was left when all jobs
were removed; 130 when it was interrupted.
docs/chaos.md explains the figures.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

from controlplane.common.command_line import whole
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, fetch_status
from controlplane.planner.generators import parse_topology
from controlplane.planner.job import Job, parse_next_job
from evaluation.chaos.agent_events import ANSWER_SECONDS, AgentEvents
from evaluation.chaos.coming import Coming, left_over
from evaluation.chaos.controller import ControllerProcess
from evaluation.chaos.controller_events import ControllerEvents
from evaluation.chaos.events import Act, Event, Happening
from evaluation.chaos.harness import System
from evaluation.chaos.jobs import JobRun, add_job
from evaluation.chaos.kinds import KINDS
from evaluation.chaos.network_events import NetworkEvents
from evaluation.chaos.schedule import draw
from topologies.agents import MODULES
from topologies.emulation import Emulation

DESCRIPTION = __doc__ or ""
DEFAULT_TOPOLOGY = "fattree:k=4,bandwidth=20"
JOIN_SECONDS = 120.0
FINISH_SECONDS = 60.0


def _kinds(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in KINDS:
            raise argparse.ArgumentTypeError(f"there is no event {name!r}; there are {', '.join(KINDS)}")
    return names


class Fabric(System):
    """Jobs in a network of switches, with one controller."""

    name, description, minutes = "chaos", DESCRIPTION, 5.0
    kinds = KINDS
    preload = (*MODULES, "evaluation.chaos.worker")

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.seed, self.at_once = arguments.seed, arguments.coming
        self.title = f"`{arguments.topology}`, seed {arguments.seed}"
        self.topology = parse_topology(arguments.topology)
        jobs: dict[str, Job] = {}
        for number in range(1, arguments.jobs + 1):
            taken = {job.name: (*job.workers, *job.parameter_servers) for job in jobs.values()}
            words = f"workers={arguments.workers},ps={arguments.ps},name=job{number}"
            jobs[f"job{number}"] = parse_next_job(words, self.topology, taken)
        self.jobs = list(jobs.values())
        kinds = [name for name in arguments.events if name not in arguments.without]
        seconds = 60 * arguments.minutes
        self.events: Sequence[Event] = draw(self.topology, self.jobs, kinds, seconds, self.seed) if kinds else []
        self._runs: list[JobRun] = []

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        some, any_number = whole(1, what="a whole number above 0"), whole(0, what="a whole number from 0 on")
        parser.add_argument(
            "--topology", default=DEFAULT_TOPOLOGY, metavar="T",
            help="a file, or words such as leafspine:leaves=4,spines=2 (default: %(default)s)",
        )  # fmt: skip
        parser.add_argument("--jobs", type=some, default=1, metavar="N", help="that share the network (%(default)s)")
        parser.add_argument(
            "--coming", type=any_number, default=0, metavar="N", help="more jobs at a time, which come and go (0)"
        )
        parser.add_argument("--workers", type=some, default=6, metavar="W", help="of each job (%(default)s)")
        parser.add_argument("--ps", type=some, default=2, metavar="S", help="parameter servers per job (%(default)s)")
        parser.add_argument(
            "--events", type=_kinds, default=list(KINDS), metavar="A,B",
            help="kinds that happen, of those above (default: all)",
        )  # fmt: skip
        parser.add_argument("--without", type=_kinds, default=[], metavar="A,B", help="kinds that do not")

    def network(self) -> Emulation:
        return Emulation(self.topology, "softswitch", seed=self.seed)

    def start(self, stack: ExitStack) -> None:
        place = self.place
        topology = place.emulation.directory / "topology.json"
        topology.write_text(json.dumps(self.topology.to_json()))
        self._controller = controller = ControllerProcess(place.emulation, topology)
        stack.callback(controller.close)
        controller.start()
        share = len(self.jobs) + self.at_once > 1
        for job in self.jobs:
            run = add_job(place, controller.address, job, self.seed, pb.AddJobRequest(seed=self.seed, share=share))
            stack.callback(run.end)
            run.start()
            self._runs.append(run)
        for run in self._runs:
            run.wait_joined(JOIN_SECONDS)
        self._coming = Coming(place, controller, self.at_once, self.seed)
        stack.callback(self._coming.end)
        place.say(f"{len(self.topology.switches)} switches, {len(self.jobs)} jobs: all workers have joined")

    def acts(self) -> Mapping[str, Act]:
        operator = ControllerEvents(self.place, self._controller, self._runs)
        return {
            **NetworkEvents(self.place.emulation, operator.take_back).acts(),
            **AgentEvents(self.place, self._runs, self._controller.agents).acts(),
            **operator.acts(),
        }

    def begin(self) -> None:
        for run in self._runs:
            run.begin()
        self._coming.begin()

    @contextmanager
    def around(self, one: Happening) -> Iterator[None]:
        """Record the jobs that can only wait during an event, and their plan versions before and after it."""
        one.jobs = self._waiting(one.event)
        before = self._plans()
        yield
        after = self._plans()
        if before and after and "plans" not in one.evidence:
            one.evidence["plans"] = f"{before} -> {after}" if before != after else "no change"

    def _plans(self) -> str:
        """Return the jobs' plan versions in words; "" where the controller does not answer."""
        with suppress(ControllerError, OSError):
            status = [fetch_status(run.controller, timeout=ANSWER_SECONDS, job=run.job.name) for run in self._runs]
            return ",".join(str(one.plan_version) for one in status)
        return ""

    def _waiting(self, event: Event) -> frozenset[str]:
        """Return the jobs that can only wait during this event."""
        if not KINDS[event.kind].waits:
            return frozenset()
        touched = set()
        for job in self.jobs:
            hosts = (*job.workers, *job.parameter_servers)
            if not event.target or event.target in hosts or event.target in map(self.topology.access_switch, hosts):
                touched.add(job.name)
        return frozenset(touched)

    def finish(self) -> None:
        self._coming.finish()
        for run in self._runs:
            run.finish(FINISH_SECONDS)
        self.place.findings.left.extend(left_over(self.place.emulation, self._controller, self._runs))

    def last_words(self) -> str:
        return self._controller.last_words(40)
