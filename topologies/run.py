"""Emulate a network with its controller and jobs, give the jobs work, inject failures, and report the results.

    inart emulate run --topology fattree:k=4 --job workers=8,ps=2
    inart emulate run --topology leafspine:leaves=4,spines=2 --job workers=4 --job workers=5,ps=2 --share
    inart emulate run --topology fattree:k=4 --job workers=8,ps=2 --allreduce 10M --fail 'c1 at 3s for 10s'
    inart emulate run --topology fattree:k=4 --job workers=4 --script 'torchrun examples/train_digits.py'

Everything is removed at the end, after Ctrl-C too; several runs can go side by side. Each job's hosts are its own. A
--script runs on every worker of every job, by sh, with the variables that a launcher would set (MASTER_ADDR, RANK,
WORLD_SIZE, NODE_RANK, NNODES, PET_* for torchrun, GLOO_SOCKET_IFNAME) and INART_CONTROLLER, INART_JOB. --fail names a
switch, a link between two (V1-V2) or a server; its times count from when the work begins, and it may be repeated.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.common import command_line
from controlplane.common.log_lines import Log
from controlplane.common.numbers import short
from controlplane.planner.generators import parse_topology
from controlplane.planner.job import Job, JobError, parse_bytes, parse_next_job
from controlplane.planner.plan.limits import DoesNotFit, Limits, limited
from controlplane.planner.strategies import Infeasible, get_strategy
from controlplane.planner.topology import Topology, TopologyError
from controlplane.service.core.journal import Entry
from controlplane.service.journal import Journal, logger_of
from controlplane.service.running import JobsError
from controlplane.targets.base import TargetError
from topologies.agents import MODULES, JobAgents, Outcome
from topologies.choice import KINDS, choose
from topologies.command import Say, aligned, guarded, stopwatch
from topologies.deployment import Fabric, Service
from topologies.emulation import Emulation
from topologies.faults import Fault, Faults, parse_fault
from topologies.load import Load, LoadMonitor
from topologies.network import EmulationError
from topologies.scale import fitting, scaled, switched_packets
from topologies.zygote import Zygote

SLACK = 4.0
"""The factor of an all-reduce's timeout: it is this times the planned time, plus LEAST_SECONDS."""
LEAST_SECONDS = 120.0
MASTER_PORT = 29500
NAMED = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec sh -c "$1"')
"""The command that runs a script with the worker's own host name, which resolves to itself.

torchrun finds out by it which node hosts the rendezvous.
"""
LAST_LINES = 15
SECONDS = 3.0
"""Duration in seconds of an all-reduce whose size is not given, at the slowest job's planned rate."""
LIMITS = Limits.of_target()


@dataclass(frozen=True)
class Settings:
    """The settings of one run.

    Attributes:
        size: bytes of an all-reduce.
        repeat: number of all-reduces.
        ranks: processes per worker, for `script`.
        scale: factor on the topology's rates.
    """

    topology: Topology
    jobs: tuple[Job, ...]
    strategy: str
    share: bool
    size: int
    repeat: int
    script: str
    ranks: int
    faults: tuple[Fault, ...]
    switch: str
    seed: int
    hold: bool
    scale: float


@dataclass
class JobResult:
    """The results of one job.

    Attributes:
        outcomes: the outcomes of its all-reduces.
        codes: exit statuses of its script, by worker.
        failure: why it ended early, or "".
    """

    name: str
    workers: int
    parameter_servers: int
    planned_mbps: float
    bottleneck: str
    outcomes: list[Outcome] = field(default_factory=list)
    codes: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    failure: str = ""

    @property
    def measured_mbps(self) -> float:
        """The mean rate over the all-reduces, in Mbit/s."""
        return sum(one.rate_mbps for one in self.outcomes) / len(self.outcomes) if self.outcomes else 0.0

    @property
    def sound(self) -> bool:
        return not self.failure and all(one.right for one in self.outcomes) and not any(self.codes.values())


@dataclass
class Report:
    """The report of a run."""

    switch: str
    topology: str
    scale: float
    jobs: list[JobResult]
    load: Load
    events: list[Entry]
    work_began: float
    up_seconds: float

    @property
    def sound(self) -> bool:
        return all(job.sound for job in self.jobs)

    def to_json(self) -> dict[str, Any]:
        return {
            "switch": self.switch,
            "topology": self.topology,
            "scale": self.scale,
            "up_seconds": round(self.up_seconds, 2),
            "cpu_idle_share": round(self.load.idle, 4),
            "switch_drops": self.load.drops,
            "jobs": [
                {
                    "name": job.name,
                    "workers": job.workers,
                    "parameter_servers": job.parameter_servers,
                    "planned_rate_mbps": job.planned_mbps,
                    "measured_rate_mbps": job.measured_mbps,
                    "bottleneck": job.bottleneck,
                    "seconds": [one.seconds for one in job.outcomes],
                    "resent": sum(one.resent for one in job.outcomes),
                    "right": all(one.right for one in job.outcomes),
                    "exit_statuses": job.codes,
                    "failure": job.failure,
                }
                for job in self.jobs
            ],
            "events": [{"time": event.time, "text": event.text} for event in self.events],
        }

    def text(self) -> str:
        """Return the text that the command prints at its end."""
        rows = [
            ["job", "workers", "PSs", "planned", "measured", "ratio", "all-reduces", "mean s", "resent", "sums",
             "bottleneck"],
            ["", "", "", "Mbit/s", "Mbit/s", "", "", "", "", "", ""],
        ]  # fmt: skip
        for job in self.jobs:
            done = job.outcomes
            seconds = sum(one.seconds for one in done) / len(done) if done else job.seconds
            right = "right" if all(one.right for one in done) else "WRONG"
            if job.codes:
                right = "ended" if not any(job.codes.values()) else "FAILED"
            rows.append([
                job.name, str(job.workers), str(job.parameter_servers), f"{short(job.planned_mbps)}",
                f"{short(job.measured_mbps)}" if done else "",
                f"{job.measured_mbps / job.planned_mbps:.3f}" if done else "",
                str(len(done)) if done else "", f"{seconds:.2f}" if seconds else "",
                str(sum(one.resent for one in done)) if done else "",
                "FAILED" if job.failure else right if done or job.codes else "", job.bottleneck,
            ])  # fmt: skip
        lines = aligned(rows)
        lines += [f"\n{job.name}: {job.failure}" for job in self.jobs if job.failure]
        shown = [event for event in self.events if event.time >= self.work_began]
        if shown:
            lines += ["", "What happened, in seconds after the work began:"]
            lines += [f"  {event.time - self.work_began:7.2f}  {event.text}" for event in shown]
        lines += ["", f"Switches: {self.switch}, {self.topology}; CPU {self.load.idle:.0%} idle."]
        if self.scale < 1:
            lines.append(f"All rates are times {self.scale:g}: more would make the CPU the limit of {self.switch}.")
        if not self.load.network_was_the_limit:
            lines.append("The machine was busy: measured rates may be its own, not the network's.")
        if self.load.drops and any(self.load.drops.values()):
            lines.append("Frames lost: " + ", ".join(f"{n} ({reason})" for reason, n in self.load.drops.items()) + ".")
        return "\n".join(line.rstrip() for line in lines)


def run(settings: Settings, say: Say) -> Report:
    """Do the run and return its report. Raise EmulationError, TargetError, JobsError, and planners' errors."""
    topology, started = settings.topology, time.monotonic()
    say(f"building {len(topology.switches)} switches ({settings.switch}) and {len(topology.servers)} hosts")
    with ExitStack() as stack:
        emulation = stack.enter_context(Emulation(topology, settings.switch, seed=settings.seed))
        zygote = stack.enter_context(Zygote(emulation, MODULES))
        journal = Journal()
        log = logger_of(journal)
        fabric = stack.enter_context(Fabric(emulation, log, journal))
        service = stack.enter_context(fabric.control())
        results = [_admit(service, job, settings, say) for job in settings.jobs]
        zygote.wait_ready()
        teams = []
        for job in settings.jobs:
            roots_only = bool(settings.script)
            agents = JobAgents(zygote, service.address, job, seed=settings.seed, roots_only=roots_only)
            teams.append(stack.enter_context(agents))
        if not settings.script:
            for agents in teams:
                agents.ready()
        up = time.monotonic() - started
        say(f"up after {up:.1f} s; the controller is at {service.address}")

        def server(node: str, fails: bool) -> None:
            for agents in teams:
                (agents.kill if fails else agents.restart)(node)

        faults = Faults(emulation, settings.faults, server, lambda line: _announce(line, log, say))
        stack.callback(faults.close)
        monitor, began = LoadMonitor(emulation), time.time()
        faults.start()
        if settings.script:
            scripts = [_Scripts(settings, emulation, service, job, say) for job in settings.jobs]
            _all([each.run for each in scripts], results)
        elif settings.size:
            _all([_reducing(agents, settings, say) for agents in teams], results)
        report = Report(
            settings.switch, _described(topology), settings.scale, results, monitor.stop(), journal.lines(), began, up
        )
        if settings.hold:
            say(f"holding; Ctrl-C takes it all down\n\n{report.text()}")
            threading.Event().wait()
        return report


def _described(topology: Topology) -> str:
    return f"{topology.name} of {len(topology.switches)} switches and {len(topology.servers)} hosts"


def _announce(line: str, log: Log, say: Say) -> None:
    log.info(f"--- {line}")
    say(line)


def _admit(service: Service, job: Job, settings: Settings, say: Say) -> JobResult:
    network = service.network
    try:
        admission, _, _ = network.launch(job, settings.strategy, settings.seed, together=settings.share)
    except JobsError as error:
        hint = "" if settings.share else "; --share plans all jobs together, fairly"
        raise JobsError(f"{error}{hint}") from None
    plan = admission.plan
    say(
        f"job {job.name}: {short(plan.rate_mbps)} Mbit/s, {len(plan.trees)} trees, {len(job.workers)} workers on "
        f"{_some(job.workers)}, parameter servers on {_some(job.parameter_servers)}"
    )
    return JobResult(job.name, len(job.workers), len(job.parameter_servers), plan.rate_mbps, admission.bottleneck)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])}, ..."


def _reducing(agents: JobAgents, settings: Settings, say: Say) -> Callable[[JobResult], None]:
    def reduce(result: JobResult) -> None:
        timeout = LEAST_SECONDS + SLACK * settings.size * 8 / 1e6 / result.planned_mbps
        for number in range(settings.repeat):
            outcome = agents.allreduce_next(settings.size, timeout)
            result.outcomes.append(outcome)
            say(
                f"{result.name}: all-reduce {number + 1} of {settings.repeat}: {outcome.seconds:.2f} s, "
                f"{short(outcome.rate_mbps)} of {short(result.planned_mbps)} Mbit/s, "
                f"{'right' if outcome.right else 'WRONG'}"
            )
        agents.leave()

    return reduce


def _all(works: Sequence[Callable[[JobResult], None]], results: Sequence[JobResult]) -> None:
    """Run each function in a thread, to its end; errors go into the results."""
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()

    def one(work: Callable[[JobResult], None], result: JobResult) -> None:
        began = time.monotonic()
        try:
            work(result)
        except Exception as error:
            result.failure = str(error)
        result.seconds = time.monotonic() - began
        ended.put(None)

    for work, result in zip(works, results, strict=True):
        # The threads are daemons: Ctrl-C ends the agents that they wait for, and must not wait for the threads.
        threading.Thread(target=one, args=(work, result), daemon=True).start()
    for _ in works:
        ended.get()


class _Scripts:
    """The script of a job, on all of its workers, started as a launcher would."""

    def __init__(self, settings: Settings, emulation: Emulation, service: Service, job: Job, say: Say) -> None:
        self._settings, self._emulation, self._say, self._job = settings, emulation, say, job
        self._controller = service.address

    def environment(self, number: int, node: str) -> dict[str, str]:
        """Return the script's environment on the worker with this number."""
        job, ranks, topology = self._job, self._settings.ranks, self._settings.topology
        master = topology.address(job.workers[0])
        torchrun = {"NNODES": str(len(job.workers)), "NODE_RANK": str(number), "MASTER_ADDR": master,
                    "MASTER_PORT": str(MASTER_PORT), "LOCAL_ADDR": topology.address(node)}  # fmt: skip
        return {
            **{f"PET_{name}": value for name, value in torchrun.items()},
            **torchrun,
            "PET_NPROC_PER_NODE": str(ranks),
            "RANK": str(number * ranks),
            "WORLD_SIZE": str(len(job.workers) * ranks),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": str(ranks),
            "GROUP_RANK": str(number),
            "GLOO_SOCKET_IFNAME": self._emulation.interface(node),
            "INART_CONTROLLER": self._controller,
            "INART_JOB": job.name,
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
            "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", "")])),
            "PYTHONUNBUFFERED": "1",
        }

    def run(self, result: JobResult) -> None:
        processes: dict[str, subprocess.Popen[Any]] = {}
        logs = {node: self._emulation.directory / f"script-{self._job.name}-{node}.log" for node in self._job.workers}
        for number, node in enumerate(self._job.workers):
            with logs[node].open("wb") as output:
                processes[node] = self._emulation.popen(
                    node, [*NAMED, node, self._settings.script], env=self.environment(number, node), cwd=os.getcwd(),
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                )  # fmt: skip
        for node, process in processes.items():
            result.codes[node] = process.wait()
            if result.codes[node] or node == self._job.workers[0]:
                status = f" ended with {result.codes[node]}" if result.codes[node] else ""
                for line in logs[node].read_text(errors="replace").strip().splitlines()[-LAST_LINES:]:
                    self._say(f"{result.name} {node}{status}: {line}")


def parse(argv: Sequence[str] | None = None) -> tuple[Settings, Path | None]:
    """Parse the command line; exit with a message on errors.

    Raise TopologyError, JobError, EmulationError or Infeasible for arguments that cannot be.
    """
    parser = command_line.make("emulate run", __doc__)
    parser.add_argument(
        "--topology", required=True, metavar="T",
        help="a file, fattree:k=4, leafspine:leaves=4,spines=2, ring:, dumbbell:, clos:, testbed, ...; see `generate`",
    )  # fmt: skip
    parser.add_argument(
        "--job", action="append", metavar="J",
        help="a file, or workers=8,ps=2,seed=1,name=x; may be given again (default: one on all hosts)",
    )  # fmt: skip
    parser.add_argument("--strategy", default="inart", metavar="S", help="default: %(default)s")
    parser.add_argument("--share", action="store_true", help="plan all jobs together, fairly (default: what is left)")
    work = parser.add_mutually_exclusive_group()
    work.add_argument("--allreduce", metavar="BYTES", help="size of the all-reduces, like 10M (default: 3 s each)")
    work.add_argument("--script", default="", metavar="COMMAND", help="run this on every worker instead")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="all-reduces of each job (%(default)s)")
    parser.add_argument("--ranks", type=int, default=1, help="processes per worker, for --script (%(default)s)")
    parser.add_argument("--fail", action="append", default=[], metavar="'WHAT at 10s [for 5s]'", help="see above")
    parser.add_argument("--switch", choices=KINDS, help="default: $SWITCH, else bmv2 if it is installed")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument("--hold", action="store_true", help="leave it all running after the work, until Ctrl-C")
    parser.add_argument("--output", type=command_line.new_file, metavar="FILE", help="write the summary as JSON")
    arguments = parser.parse_args(argv)
    if arguments.repeat < 1 or arguments.ranks < 1:
        parser.error("--repeat and --ranks are at least 1")
    switch, topology = choose(arguments.switch), parse_topology(arguments.topology)
    jobs: dict[str, Job] = {}
    for spec in arguments.job or [""]:
        job = parse_next_job(_read(spec), topology, {j.name: (*j.workers, *j.parameter_servers) for j in jobs.values()})
        if job.name in jobs:
            raise JobError(f"two jobs are named {job.name!r}: give one another name=")
        jobs[job.name] = job
    faults = tuple(parse_fault(text, topology) for text in arguments.fail)
    planner = get_strategy(arguments.strategy)
    plans = [planner(limited(topology, LIMITS), job, seed=arguments.seed) for job in jobs.values()]
    scale = fitting(switch, (switched_packets(plan, topology) for plan in plans))
    slowest = min(plan.rate_mbps for plan in plans) * scale
    size = parse_bytes(arguments.allreduce) if arguments.allreduce else int(slowest * 1e6 / 8 * SECONDS)
    return Settings(
        topology=scaled(topology, scale) if scale < 1 else topology, jobs=tuple(jobs.values()),
        strategy=arguments.strategy, share=arguments.share, size=0 if arguments.script else size // 4 * 4,
        repeat=arguments.repeat, script=arguments.script, ranks=arguments.ranks, faults=faults,
        switch=switch, seed=arguments.seed, hold=arguments.hold, scale=scale,
    ), arguments.output  # fmt: skip


def _read(spec: str) -> str:
    """Return a job's description, from the command line or from its file."""
    if not spec or "=" in spec:
        return spec
    try:
        return Path(spec).read_text()
    except OSError as error:
        raise JobError(f"cannot read job file {spec}: {error.strerror}; a job is a file or workers=8,ps=2") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    The exit status is 0 where all is well, 1 where it could not run, 3 where a sum was wrong or a job failed, and 130
    where it was interrupted.
    """
    say = stopwatch()

    def work() -> int:
        settings, output = parse(argv)
        report = run(settings, say)
        print(f"\n{report.text()}")
        if output is not None:
            output.write_text(json.dumps(report.to_json(), indent=1) + "\n")
        return 0 if report.sound else 3

    refusals = EmulationError, TargetError, TopologyError, JobError, JobsError, DoesNotFit, Infeasible, ValueError
    return guarded("topologies run", work, *refusals)
