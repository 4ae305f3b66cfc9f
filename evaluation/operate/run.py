"""A day in the life of a network, scripted: jobs come and go, operators work, things fail; every sum is checked.

    python -m evaluation.operate --seed 1                     20 jobs on a fat-tree with k = 6
    python -m evaluation.operate --seed 1 --list              print the schedule
    python -m evaluation.operate --seed 1 --json > report.json
    python -m evaluation.operate --jobs 3 --minutes 1 --topology leafspine:leaves=3,spines=3,servers=3,bandwidth=20

There are two controllers. Jobs come through Slurm where it is installed (sbatch --comment inart:share), else through
`inart run` on each of their nodes; one more job, with parameter servers of its own, stays all day. Operators drain two
switches and put them back, add a rack (topology reload), and replace controller and P4 program (docs/operate.md).
Links, a switch, a parameter server and the leading controller fail. Foreign TCP runs over a third of the links. The
seed decides what happens, one thing at a time. Needs root. Exit status: 0 when all is well; 1 when it could not run; 3
when a sum was wrong; 4 when a job has failed, or an order could not be done; 130 when it was interrupted.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Any

from controlplane.common.command_line import whole
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, fetch_status
from controlplane.planner.generators import parse_topology
from controlplane.planner.job import Job
from evaluation.chaos.agent_events import AgentEvents
from evaluation.chaos.events import Act, Happening, Steps
from evaluation.chaos.harness import System
from evaluation.chaos.jobs import add_job
from evaluation.chaos.network_events import NetworkEvents
from evaluation.operate.controllers import Controllers
from evaluation.operate.day import KINDS, DayJob, draw
from evaluation.operate.launchers import Launcher, RunLauncher, SlurmLauncher
from evaluation.operate.report import JobReport, add_jobs, gather
from topologies.agents import HOSTS, MODULES
from topologies.emulation import Emulation
from topologies.network import EmulationError
from topologies.slurm import Slurm, missing
from topologies.zygote import HostFailure, HostProcess
from worker_agent.launch.adding import ANSWER_VARIABLE

DESCRIPTION = __doc__ or ""
DEFAULT_TOPOLOGY = "fattree:k=6,bandwidth=10"
JOIN_SECONDS = 120.0
END_SECONDS = 300.0
"""Seconds after the end of the day after which jobs that have not ended count as failed."""
FLOW_SECONDS = 20.0
"""Seconds after the end of the day for which a foreign flow may still have bytes in buffers."""
LOOK_SECONDS = 0.5
RATE_SECONDS = 2.0
RESIDENT = "resident"


class OperatorsDay(System):
    """Jobs that come and go in a network with two controllers, and its operators."""

    name, description, minutes = "operate", DESCRIPTION, 8.0
    kinds = KINDS
    preload = (*MODULES, "evaluation.chaos.worker")

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.seed, self.seconds, self.flow_mbps = arguments.seed, 60 * arguments.minutes, arguments.foreign
        self.slurm = not arguments.no_slurm and not missing()
        self.topology = parse_topology(arguments.topology)
        self.day = draw(self.topology, arguments.jobs, self.seconds, arguments.seed, arguments.elements)
        self.events = self.day.events
        self.title = f"{arguments.jobs} jobs on `{arguments.topology}`, seed {arguments.seed}"
        self.reports: list[JobReport] = []
        self._rates: dict[str, list[float]] = {}
        self._most_at_once = 0
        self._over = threading.Event()
        self._racked = threading.Event()
        self._threads: list[threading.Thread] = []
        self._flows: dict[str, tuple[HostProcess, HostProcess]] = {}
        self._flows_mbps: dict[str, float] = {}

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        jobs, elements = whole(1, what="a whole number above 0"), whole(4, what="a whole number from 4 on")
        parser.add_argument("--jobs", type=jobs, default=20, metavar="N", help="that come and go (%(default)s)")
        parser.add_argument("--topology", default=DEFAULT_TOPOLOGY, metavar="T", help="default: %(default)s")
        parser.add_argument(
            "--elements", type=elements, default=80_000, metavar="N", help="most values of an all-reduce (%(default)s)"
        )
        parser.add_argument(
            "--foreign", type=float, default=1.0, metavar="MBPS", help="the most that a TCP flow sends (%(default)g)"
        )
        parser.add_argument("--no-slurm", action="store_true", help="use `inart run` where Slurm is installed, too")

    def lines(self) -> list[str]:
        return self.day.lines()

    # -- the network and its jobs -------------------------------------------------------------------------------------

    def network(self) -> Emulation:
        return Emulation(self.topology, "softswitch", seed=self.seed)

    def start(self, stack: ExitStack) -> None:
        before = self.topology.replace(remove_nodes=self.day.rack)
        self._controllers = Controllers(self.place.emulation)
        stack.callback(self._controllers.close)
        self._controllers.know(before)
        self._controllers.start()
        self._launcher = self._make_launcher(stack)
        self.place.say(f"{len(before.switches)} switches, two controllers; jobs come through {self._launcher.name}")
        a, b, *servers = self.day.resident
        job = Job(RESIDENT, (a, b), tuple(servers), 10**6)
        self._resident = add_job(self.place, self._controllers.address, job, self.seed, pb.AddJobRequest(share=True))
        stack.callback(self._resident.end)
        self._resident.start()
        self._resident.wait_joined(JOIN_SECONDS)

    def _make_launcher(self, stack: ExitStack) -> Launcher:
        rack = [node for node in self.day.rack if node in self.topology.servers]
        hosts = [node for node in self.topology.servers if node not in (*self.day.resident, *rack)]
        emulation, address = self.place.emulation, self._controllers.address
        if self.slurm:
            patient = {ANSWER_VARIABLE: f"{JOIN_SECONDS:g}"}
            return SlurmLauncher(stack.enter_context(Slurm(emulation, address, [*hosts, *rack], patient)), rack)
        return RunLauncher(emulation, address, hosts, rack)

    def begin(self) -> None:
        self._start_flows()
        self._began = time.monotonic()
        self._resident.begin()
        lives = [threading.Thread(target=self._live, args=(job,), daemon=True) for job in self.day.jobs]
        self._threads = [*lives, threading.Thread(target=self._look, daemon=True)]
        for thread in self._threads:
            thread.start()

    def _start_flows(self) -> None:
        """Start the foreign TCP: the sink and the source of each flow."""
        for source, sink in self.day.flows:
            address = self.topology.address(sink)
            process = self.place.zygote.spawn(sink, f"{HOSTS}:tcp_sink", {"address": address})
            process.receive(JOIN_SECONDS)
            arguments = {"address": address, "seconds": self.seconds, "most_mbps": self.flow_mbps}
            self._flows[f"{source}-{sink}"] = process, self.place.zygote.spawn(source, f"{HOSTS}:tcp_source", arguments)

    def _live(self, job: DayJob) -> None:
        """Run one job from its arrival to its end."""
        report = JobReport(job.name, job.workers)
        folder = self.place.emulation.directory / job.name
        folder.mkdir()
        self._over.wait(max(0.0, self._began + job.at - time.monotonic()))
        words = ""
        try:
            if job.racked:
                self._racked.wait(self.seconds)
            self.place.say(f"{job.name} comes")
            self._launcher.start(job, folder)
            until = self._began + self.seconds + END_SECONDS
            while not self._launcher.over(job):
                if time.monotonic() > until:
                    raise EmulationError("it has not ended")
                time.sleep(LOOK_SECONDS)
            words = self._launcher.words(job)
            report.planned_mbps = self._planned(self._launcher.network_name(job))
            gather(report, folder, words)
        except EmulationError as error:
            report.failure = f"{error}; {words}"
        ended = f"FAILED: {report.failure}" if report.failure else f"{report.sums} sums"
        self.place.say(f"{job.name} has ended: {ended}")
        self.reports.append(report)

    def _planned(self, name: str) -> float:
        """Return the mean of the rates that plans have given a job, in Mbit/s."""
        rates = self._rates.get(name, [])
        return sum(rates) / len(rates) if rates else 0.0

    def _look(self) -> None:
        """Read the rates that plans give each job, all the time."""
        while not self._over.wait(RATE_SECONDS):
            with suppress(ControllerError, OSError):
                jobs = fetch_status(self._controllers.address, timeout=5.0).jobs
                for job in jobs:
                    self._rates.setdefault(job.name, []).append(job.planned_rate_mbps)
                self._most_at_once = max(self._most_at_once, len(jobs))

    # -- operators and failures ---------------------------------------------------------------------------------------

    def acts(self) -> Mapping[str, Act]:
        network = NetworkEvents(self.place.emulation).acts()

        def switch(one: Happening) -> Steps:
            yield from network["switch"](one)
            up = self.place.emulation.switches.is_up
            self.place.emulation.wait(lambda: up(one.event.target), f"{one.event.target} is up again", END_SECONDS)

        acts = {
            "link": network["link"], "switch": switch, "ps": AgentEvents(self.place, [self._resident]).acts()["ps"],
            "leader": self._leader, "drain": self._drain, "undrain": self._undrain, "upgrade": self._upgrade,
            "topology reload": self._reload,
        }  # fmt: skip
        return {kind: whole_act(act) for kind, act in acts.items()}

    def _leader(self, one: Happening) -> Steps:
        _done(one, self._controllers.kill_leader())
        yield
        self._controllers.mend()

    def _drain(self, one: Happening) -> Steps:
        _done(one, self._controllers.verb("drain", one.event.target, "--wait"))
        yield

    def _undrain(self, one: Happening) -> Steps:
        _done(one, self._controllers.verb("undrain", one.event.target))
        yield

    def _upgrade(self, one: Happening) -> Steps:
        _done(one, self._controllers.upgrade())
        yield

    def _reload(self, one: Happening) -> Steps:
        self._controllers.know(self.topology)
        said = self._controllers.verb("topology", "reload")
        self._launcher.rack_is_there()
        self._racked.set()
        _done(one, said.partition("\n")[0])
        yield

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        *lives, look = self._threads
        for thread in lives:
            while thread.is_alive():
                self.place.emulation.switches.check()
                thread.join(1.0)
        self._resident.finish(END_SECONDS)
        self._over.set()
        look.join()
        until = self._began + self.seconds + FLOW_SECONDS
        for pair, (sink, _) in self._flows.items():
            with suppress(HostFailure):  # It has not ended.
                carried = sink.receive(max(RATE_SECONDS, until - time.monotonic()))
                self._flows_mbps[pair] = round(float(carried), 3)

    def conclude(self) -> None:
        """Add the jobs that came and went to the findings, which have only the resident's until then."""
        self._over.set()
        findings = self.place.findings
        workers = len(self._resident.job.workers)
        own = JobReport(RESIDENT, workers, findings.sums, findings.flagged, planned_mbps=self._planned(RESIDENT))
        jobs = sorted(self.reports, key=lambda one: int(one.name.removeprefix("job")))
        add_jobs(findings, jobs)
        self.reports = [own, *jobs]

    def details(self) -> dict[str, Any]:
        return {
            "launcher": self._launcher.name, "most_at_once": self._most_at_once, "flows_mbps": self._flows_mbps,
            "jobs": [asdict(job) | {"loss": job.loss} for job in self.reports],
        }  # fmt: skip

    def detail_lines(self) -> list[str]:
        lines = ["", "| order or failure | at, s | took, s | |", "|---|---:|---:|---|"]
        for one in self.place.findings.happenings:
            if one.happened is not None:
                outcome = one.evidence.get("said", "") if one.happened else f"NOT DONE: {one.problem}"
                at, took = self.place.findings.since(one.began), one.ended - one.began
                lines.append(f"| {one.event.name} | {at:.0f} | {took:.1f} | {outcome} |")
        lines += [
            "", f"jobs through {self._launcher.name}, at most {self._most_at_once} at a time:", "",
            "| job | workers | sums | repeated | planned, Mbit/s | measured | loss of rate |",
            "|---|---:|---:|---:|---:|---:|---:|", *(job.row() for job in self.reports),
        ]  # fmt: skip
        if self._flows_mbps:
            rates = sorted(self._flows_mbps.values())
            lines += ["", f"foreign TCP: {len(rates)} flows, {rates[0]:.2f} to {rates[-1]:.2f} Mbit/s"]
        return lines

    def last_words(self) -> str:
        return self._controllers.last_words()


def whole_act(act: Act) -> Act:
    """Return an act that counts as done only if its end succeeds, too: a link that stays cut would spoil the day."""

    def steps(one: Happening) -> Steps:
        try:
            yield from act(one)
        except Exception:
            one.happened = False
            raise

    return steps


def _done(one: Happening, said: str) -> None:
    """Record that an order was done, with the last line of its output."""
    one.happened = True
    one.evidence["said"] = said.splitlines()[-1] if said else ""
