"""Runs a day: the network, its controllers and its jobs, operators' orders, and failures."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, ask, fetch_status
from controlplane.planner.job import Job
from controlplane.planner.topology import Topology
from evaluation.chaos.findings import Findings
from evaluation.chaos.jobs import JobRun, Place
from evaluation.operate.controllers import Controllers
from evaluation.operate.day import Day, DayJob, Step
from evaluation.operate.launchers import Launcher, RunLauncher, SlurmLauncher
from evaluation.operate.report import JobReport, Report, VerbReport, gather
from topologies.agents import HOSTS, MODULES
from topologies.command import Say
from topologies.emulation import Emulation
from topologies.faults import link_of
from topologies.network import EmulationError
from topologies.slurm import Slurm
from topologies.zygote import HostFailure, HostProcess, Zygote
from worker_agent.launch.adding import ANSWER_VARIABLE

ADD_SECONDS = 60.0
JOIN_SECONDS = 120.0
END_SECONDS = 300.0
"""Seconds after the end of the day after which jobs that have not ended count as failed."""
FLOW_SECONDS = 20.0
"""Seconds after the end of the day for which a foreign flow may still have bytes in buffers."""
LOOK_SECONDS = 0.5
RATE_SECONDS = 2.0
RESIDENT = "resident"
LOGS = (".log", ".out", ".err", ".json", ".jsonl")


@dataclass(frozen=True)
class Settings:
    """Settings of a day.

    Attributes:
        slurm: whether jobs come through Slurm.
        flow_mbps: the most that a foreign TCP flow sends.
        logs: where logs are kept; None where they are not kept.
    """

    topology: Topology
    day: Day
    seconds: float
    seed: int
    slurm: bool
    flow_mbps: float
    logs: Path | None = None


def run(settings: Settings, say: Say) -> Report:
    """Run the whole day.

    Raises:
        EmulationError, ControllerError: the day could not begin.
    """
    topology, day = settings.topology, settings.day
    with ExitStack() as stack:
        emulation = stack.enter_context(Emulation(topology, "softswitch", seed=settings.seed))
        if settings.logs is not None:
            stack.callback(_keep_logs, emulation.directory, settings.logs)
        zygote = stack.enter_context(Zygote(emulation, (*MODULES, "evaluation.chaos.worker")))
        before = topology.replace(remove_nodes=day.rack)
        controllers = Controllers(emulation)
        stack.callback(controllers.close)
        controllers.know(before)
        controllers.start()
        zygote.wait_ready()
        launcher = _launcher(settings, emulation, controllers, stack)
        say(f"{len(before.switches)} switches, two controllers; jobs come through {launcher.name}")
        findings = Findings([])
        place = Place(emulation, zygote, findings, say)
        resident = _resident(settings, place, controllers, stack)
        made = _DayRun(settings, place, controllers, launcher, resident)
        flows = _flows(settings, zygote)
        end = time.monotonic() + settings.seconds
        report = made.run()
        report.flows_mbps = _carried(flows, end + FLOW_SECONDS)
        own = JobReport(RESIDENT, len(resident.job.workers), findings.sums, findings.flagged, list(findings.wrong))
        own.planned_mbps = made.planned(RESIDENT)
        own.failure = "; ".join(findings.failed)
        report.jobs.insert(0, own)
    return report


def _keep_logs(folder: Path, kept: Path) -> None:
    """Copy the processes' output from the folder of the emulation, which is removed with it."""
    for file in folder.rglob("*"):
        if file.suffix in LOGS and file.is_file():
            to = kept / file.relative_to(folder)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, to)


def _launcher(settings: Settings, emulation: Emulation, controllers: Controllers, stack: ExitStack) -> Launcher:
    day = settings.day
    rack = [node for node in day.rack if node in settings.topology.servers]
    hosts = [node for node in settings.topology.servers if node not in (*day.resident, *rack)]
    if settings.slurm:
        patient = {ANSWER_VARIABLE: f"{JOIN_SECONDS:g}"}
        slurm = stack.enter_context(Slurm(emulation, controllers.address, [*hosts, *rack], patient))
        return SlurmLauncher(slurm, rack)
    return RunLauncher(emulation, controllers.address, hosts, rack)


def _resident(settings: Settings, place: Place, controllers: Controllers, stack: ExitStack) -> JobRun:
    """Start the job that stays all day, whose parameter servers are machines of their own. Raise EmulationError."""
    a, b, *servers = settings.day.resident
    job = Job(RESIDENT, (a, b), tuple(servers), 10**6)
    request = pb.AddJobRequest(job=json.dumps(job.to_json()), share=True)
    try:
        reply = ask(controllers.address, "add_job", request, timeout=ADD_SECONDS)
    except ControllerError as error:
        raise EmulationError(f"the resident job cannot be added: {error}") from error
    made = JobRun(place, controllers.address, job, reply.rate_mbps, settings.seed)
    stack.callback(made.end)
    made.start()
    made.wait_joined(JOIN_SECONDS)
    return made


def _flows(settings: Settings, zygote: Zygote) -> dict[str, tuple[HostProcess, HostProcess]]:
    """Start the foreign TCP. Return each flow's sink and source."""
    flows: dict[str, tuple[HostProcess, HostProcess]] = {}
    for source, sink in settings.day.flows:
        address = settings.topology.address(sink)
        process = zygote.spawn(sink, f"{HOSTS}:tcp_sink", {"address": address})
        process.receive(JOIN_SECONDS)
        arguments = {"address": address, "seconds": settings.seconds, "most_mbps": settings.flow_mbps}
        flows[f"{source}-{sink}"] = process, zygote.spawn(source, f"{HOSTS}:tcp_source", arguments)
    return flows


def _carried(flows: dict[str, tuple[HostProcess, HostProcess]], until: float) -> dict[str, float]:
    """Return the rate of each flow in Mbit/s, except for flows that have not ended at the time `until`
    (`time.monotonic`): they end with the day, which may be longer than its jobs.
    """
    carried = {}
    for pair, (sink, _) in flows.items():
        with suppress(HostFailure):
            carried[pair] = round(float(sink.receive(max(RATE_SECONDS, until - time.monotonic()))), 3)
    return carried


class _DayRun:
    """The run of one day: jobs come in one thread, operators work in another, and a third one reads rates."""

    def __init__(
        self, settings: Settings, place: Place, controllers: Controllers, launcher: Launcher, resident: JobRun
    ) -> None:
        self._settings, self._emulation, self._say = settings, place.emulation, place.say
        self._controllers, self._launcher, self._resident = controllers, launcher, resident
        self._report = Report(launcher.name, settings.seed)
        self._rates: dict[str, list[float]] = {}
        self._over = threading.Event()
        self._racked = threading.Event()
        self._began = 0.0
        self._verbs: dict[str, Callable[[Step], str]] = {
            "drain": lambda step: controllers.verb("drain", step.target, "--wait"),
            "undrain": lambda step: controllers.verb("undrain", step.target),
            "topology reload": self._reload,
            "upgrade": lambda step: controllers.upgrade(),
            "leader is killed": self._kill_leader,
            "link fails": self._link,
            "switch fails": self._switch,
            "parameter server is killed": self._server,
        }

    def planned(self, name: str) -> float:
        """Return the mean of the rates that plans have given a job, in Mbit/s."""
        rates = self._rates.get(name, [])
        return sum(rates) / len(rates) if rates else 0.0

    def run(self) -> Report:
        """Run from the first job to the end of the last one."""
        self._began = time.monotonic()
        self._resident.begin()
        threads = [threading.Thread(target=target, daemon=True) for target in (self._operate, self._look)]
        for thread in threads:
            thread.start()
        lives = [threading.Thread(target=self._live, args=(job,), daemon=True) for job in self._settings.day.jobs]
        for thread in lives:
            thread.start()
        for thread in (*lives, threads[0]):
            while thread.is_alive():
                self._emulation.switches.check()
                thread.join(1.0)
        self._resident.finish(END_SECONDS)
        self._over.set()
        threads[1].join()
        self._report.seconds = time.monotonic() - self._began
        self._report.jobs.sort(key=lambda one: int(one.name.removeprefix("job")))
        return self._report

    def _wait(self, at: float) -> None:
        self._over.wait(max(0.0, self._began + at - time.monotonic()))

    # -- jobs -------------------------------------------------------------------------------------------------------

    def _live(self, job: DayJob) -> None:
        """Run one job from its arrival to its end."""
        report = JobReport(job.name, job.workers)
        folder = self._emulation.directory / job.name
        folder.mkdir()
        self._wait(job.at)
        words = ""
        try:
            if job.racked:
                self._racked.wait(self._settings.seconds)
            self._say(f"{job.name} comes")
            self._launcher.start(job, folder)
            until = self._began + self._settings.seconds + END_SECONDS
            while not self._launcher.over(job):
                if time.monotonic() > until:
                    raise EmulationError("it has not ended")
                time.sleep(LOOK_SECONDS)
            words = self._launcher.words(job)
            report.planned_mbps = self.planned(self._launcher.network_name(job))
            gather(report, folder, words)
        except EmulationError as error:
            report.failure = f"{error}; {words}"
        ended = f"FAILED: {report.failure}" if report.failure else f"{report.sums} sums"
        self._say(f"{job.name} has ended: {ended}")
        self._report.jobs.append(report)

    def _look(self) -> None:
        """Read the rates that plans give each job, all the time."""
        while not self._over.wait(RATE_SECONDS):
            with suppress(ControllerError, OSError):
                jobs = fetch_status(self._controllers.address, timeout=5.0).jobs
                for job in jobs:
                    self._rates.setdefault(job.name, []).append(job.planned_rate_mbps)
                self._report.most_at_once = max(self._report.most_at_once, len(jobs))

    # -- operators and failures ---------------------------------------------------------------------------------------

    def _operate(self) -> None:
        for step in self._settings.day.steps:
            self._wait(step.at)
            began = time.monotonic()
            self._say(f"{step.verb} {step.target}".rstrip())
            try:
                done, outcome = True, self._verbs[step.verb](step)
            except (EmulationError, ControllerError, OSError) as error:
                done, outcome = False, str(error)
            took = time.monotonic() - began
            last = outcome.splitlines()[-1] if outcome else ""
            self._say(f"{step.verb} {step.target}: {'done' if done else 'NOT DONE'} after {took:.1f} s: {last}")
            self._report.verbs.append(VerbReport(step.verb, step.target, began - self._began, took, done, last))

    def _reload(self, _: Step) -> str:
        self._controllers.know(self._settings.topology)
        said = self._controllers.verb("topology", "reload")
        self._launcher.rack_is_there()
        self._racked.set()
        return said.splitlines()[0] if said else ""

    def _kill_leader(self, step: Step) -> str:
        said = self._controllers.kill_leader()
        time.sleep(step.seconds)
        self._controllers.mend()
        return said

    def _link(self, step: Step) -> str:
        ends = link_of(step.target, self._emulation.topology)
        assert ends is not None, "it was drawn from the links between switches"
        self._emulation.cut(*ends)
        time.sleep(step.seconds)
        self._emulation.mend(*ends)
        return f"lost everything for {step.seconds:.1f} s"

    def _switch(self, step: Step) -> str:
        self._emulation.fail(step.target, step.seconds)
        time.sleep(step.seconds)
        self._emulation.wait(
            lambda: self._emulation.switches.is_up(step.target), f"{step.target} answers again", END_SECONDS
        )
        return f"was off for {step.seconds:.1f} s"

    def _server(self, step: Step) -> str:
        self._resident.kill(step.target)
        time.sleep(step.seconds)
        self._resident.restart(step.target)
        return f"started again after {step.seconds:.1f} s"
