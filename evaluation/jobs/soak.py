"""A soak test: jobs come and go at random on an emulated network whose links and switches fail; every sum is checked.

    python -m evaluation.jobs soak --seconds 600 --seed 1             k = 6, up to 20 jobs at a time
    python -m evaluation.jobs soak --k 4 --jobs 4 --arrivals 8        until so many jobs have come and gone
    python -m evaluation.jobs soak --servers 0.3                      parameter servers are killed, too

Every job is added and removed as an operator does it, over gRPC; its agents are real ones, and sum made-up gradients
all the time. A job ends in one of three ways: its workers leave, it is removed while it works, or its agents are
killed. At the end it reports, with exit status 3 if anything is wrong: wrong sums, failed all-reduces, leftover entries
on switches, leftover slots and processes. The seed decides what happens; the machine's speed decides when.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import Message

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, ask
from controlplane.planner.generators import fattree
from controlplane.planner.job import Job
from controlplane.planner.topology import Topology
from controlplane.service.record import EventLog
from controlplane.targets.base import SwitchTarget, TargetError
from topologies import Emulation, EmulationError
from topologies.agents import MODULES, JobAgents, Outcome
from topologies.command import Say, guarded, stopwatch
from topologies.deployment import Fabric, Service
from topologies.faults import link_of
from topologies.zygote import HostFailure, Zygote

ENDS = ("leave", "removed", "killed")
OPERATOR_SECONDS = 300.0
OPERATION_SECONDS = 300.0
SIZES = (4_000, 40_000, 120_000)
REFUSED_PAUSE = 2.0
SETTLE_SECONDS = 60.0


@dataclass(frozen=True)
class Settings:
    """Settings of a soak, which ends after `seconds`, or when `arrivals` jobs have come (None where it does not end
    so).

    Attributes:
        jobs: most jobs at a time.
        life: mean seconds of a job.
        pause: mean seconds between a job's all-reduces.
        faults: mean seconds between two failures.
        length: longest duration of a failure, in seconds.
        share: fraction of jobs that are planned together with the others.
        servers: fraction of failures that hit a parameter server whose job has another one.
    """

    k: int = 6
    jobs: int = 20
    seconds: float | None = 600.0
    arrivals: int | None = None
    bandwidth: float = 10.0
    life: float = 90.0
    pause: float = 1.0
    faults: float = 15.0
    length: float = 12.0
    share: float = 0.3
    servers: float = 0.0
    seed: int = 1


@dataclass
class Findings:
    """The findings of a soak. Threads only ever add to each field."""

    sums: int = 0
    refused: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    most: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def text(self) -> str:
        ends = ", ".join(f"{count} {how}" for how, count in sorted(self.ends.items()))
        faults = ", ".join(f"{count} {what}" for what, count in sorted(self.faults.items())) or "none"
        lines = [
            f"{sum(self.ends.values())} jobs came and went in {self.seconds:.0f} s ({ends}), up to {self.most} at a "
            f"time; {self.refused} times a job was refused for want of room",
            f"failures: {faults}",
            f"{self.sums} all-reduces with the right sum on all workers",
            *(f"WRONG: {what}" for what in self.wrong),
        ]
        return "\n".join(lines if self.wrong else [*lines, "nothing was wrong, nothing is left"])


class Soak:
    """One soak on a running emulation."""

    def __init__(self, settings: Settings, emulation: Emulation, zygote: Zygote, service: Service, say: Say) -> None:
        self.settings, self.emulation, self.zygote, self.service, self.say = settings, emulation, zygote, service, say
        self.findings = Findings()
        self.random = random.Random(settings.seed)
        self.over = threading.Event()
        self._lives: list[_Life] = []
        self._failed: set[str] = set()

    def run(self) -> Findings:
        settings, began = self.settings, time.monotonic()
        faults = threading.Thread(target=self._fail, args=(random.Random(settings.seed + 1),), daemon=True)
        faults.start()
        came = 0
        while (settings.seconds is None or time.monotonic() - began < settings.seconds) and (
            settings.arrivals is None or came < settings.arrivals
        ):
            self._lives = [life for life in self._lives if life.is_alive()]
            if len(self._lives) < settings.jobs:
                came += 1
                life = _Life(self, self._draw(came))
                self._lives.append(life)
                life.start()
            self.findings.most = max(self.findings.most, len(self.service.network.jobs))
            self.over.wait(self.random.expovariate(settings.jobs / settings.life))
        self.say("no more jobs; those that run come to their end")
        for life in self._lives:
            life.end.set()
        for life in self._lives:
            life.join()
        self.over.set()
        faults.join()
        self._look_for_leftovers()
        self.findings.seconds = time.monotonic() - began
        return self.findings

    def wrong(self, what: str) -> None:
        self.findings.wrong.append(what)
        self.say(f"WRONG: {what}")

    def _draw(self, number: int) -> _Drawn:
        draw, servers = self.random, self.emulation.topology.servers
        workers, roots = draw.randint(2, 5), draw.choice([1, 1, 2])
        nodes = draw.sample(servers, workers + roots)
        job = Job(f"job{number}", tuple(nodes[:workers]), tuple(nodes[workers:]), 400_000)
        return _Drawn(
            job, draw.random() < self.settings.share, draw.choice(ENDS), draw.expovariate(1 / self.settings.life),
            draw.randrange(1 << 30),
        )  # fmt: skip

    def _fail(self, draw: random.Random) -> None:
        """Make links and switches fail, one after another; some failures overlap."""
        topology = self.emulation.topology
        switches = list(topology.switches)
        links = [(u, v) for u, v in topology.links if u < v and link_of(f"{u}-{v}", topology)]
        while not self.over.wait(draw.expovariate(1 / self.settings.faults)):
            length = draw.uniform(1.0, self.settings.length)
            kind = draw.choice(("link", "switch", "reboot"))
            if self.settings.servers and draw.random() < self.settings.servers:
                self._kill_server(draw, length)
                continue
            u, v = draw.choice(links)
            switch = draw.choice(switches)
            name = f"{u}-{v}" if kind == "link" else switch
            if name in self._failed:
                continue
            self.findings.faults[{"link": "links", "switch": "switches off", "reboot": "switches restarted"}[kind]] += 1
            self.say(f"{name}: {kind} fails" + (f" for {length:.1f} s" if kind != "reboot" else ""))
            try:
                if kind == "reboot":
                    self.emulation.reboot(switch)
                    continue
                self._failed.add(name)
                if kind == "link":
                    self.emulation.cut(u, v)
                else:
                    self.emulation.fail(switch, length)
            except EmulationError as error:
                self.wrong(f"the emulation: {error}")
                return
            timer = threading.Timer(length, self._back, (kind, name, u, v))
            timer.daemon = True
            timer.start()

    def _kill_server(self, draw: random.Random, length: float) -> None:
        """Kill a parameter server of a job that has another one; the job goes on, and gets it back later."""
        lives = [life for life in self._lives if life.works and len(life.job.parameter_servers) > 1]
        lives = [life for life in lives if not self._failed.intersection(life.job.parameter_servers)]
        if not lives:
            return
        life = draw.choice(lives)
        node = draw.choice(life.job.parameter_servers)
        self._failed.add(node)
        self.findings.faults["parameter servers"] += 1
        self.say(f"{node}: parameter server of {life.job.name} is killed for {length:.1f} s")
        life.agents.kill(node)

        def back() -> None:
            self._failed.discard(node)
            with life.lock:
                if life.works:
                    life.agents.restart(node)

        timer = threading.Timer(length, back)
        timer.daemon = True
        timer.start()

    def _back(self, kind: str, name: str, u: str, v: str) -> None:
        if kind == "link" and not self.over.is_set():
            self.emulation.mend(u, v)
        self._failed.discard(name)

    def _look_for_leftovers(self) -> None:
        network = self.service.network
        for u, v in self.emulation.topology.links:
            if u < v and link_of(f"{u}-{v}", self.emulation.topology):
                self.emulation.mend(u, v)
        if len(network.jobs):
            self.wrong(f"jobs are left: {', '.join(job.name for job in network.jobs)}")
        with suppress(EmulationError):  # This is reported below, switch by switch.
            self.emulation.wait(
                lambda: not network.switches.off() and all(map(_clean, network.switches.targets)), "", SETTLE_SECONDS
            )
        taken = {switch: by for switch, by in network.switches.taken().items() if by.labels or by.groups or by.slots}
        for switch, by in taken.items():
            self.wrong(f"the controller keeps on {switch}: {by}")
        for target in network.switches.targets:
            try:
                rules = target.read()
            except TargetError as error:
                self.wrong(str(error))
                continue
            if rules.labels or rules.groups:
                self.wrong(f"{target.name} has {len(rules.labels)} entries and {len(rules.groups)} groups left")
            if not rules.routes:
                self.wrong(f"{target.name} has no IPv4 routes any more")
        for life in self._lives:
            for process in (*life.agents.roots.values(), *life.agents.workers.values()):
                if process.pid is not None and Path(f"/proc/{process.pid}").exists() and _runs(process.pid):
                    self.wrong(f"a process of {life.job.name} is left in {process.host}")


def _clean(target: SwitchTarget) -> bool:
    try:
        rules = target.read()
    except TargetError:
        return False
    return not rules.labels and not rules.groups


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@dataclass(frozen=True)
class _Drawn:
    job: Job
    share: bool
    how: str
    life: float
    seed: int


class _Life(threading.Thread):
    """The life of one job, from its arrival to its end."""

    def __init__(self, soak: Soak, drawn: _Drawn) -> None:
        super().__init__(name=drawn.job.name, daemon=True)
        self.soak, self.drawn, self.job = soak, drawn, drawn.job
        self.end = threading.Event()
        self.works = False
        self.lock = threading.Lock()
        address = soak.service.address
        self.agents = JobAgents(soak.zygote, address, drawn.job, seed=drawn.seed, patience=OPERATION_SECONDS)

    def run(self) -> None:
        try:
            if self._add():
                self._live()
        except (HostFailure, ControllerError, EmulationError, OSError) as error:
            self.soak.wrong(f"{self.job.name}: {error}")
        finally:
            self.agents.end()

    def _add(self) -> bool:
        share = self.drawn.share
        while not self.end.is_set():
            request = pb.AddJobRequest(job=json.dumps(self.job.to_json()), share=share)
            try:
                self._ask("add_job", request)
                return True
            except ControllerError as error:
                if any(job.name == self.job.name for job in self.soak.service.network.jobs):
                    return True  # The answer was lost.
                with self.soak.findings.lock:
                    self.soak.findings.refused += 1
                self.soak.say(f"{self.job.name} refused: {error}")
                share = True
                self.end.wait(REFUSED_PAUSE)
        return False

    def _live(self) -> None:
        draw, settings = random.Random(self.drawn.seed), self.soak.settings
        self.agents.start()
        self.agents.ready(OPERATION_SECONDS)
        until = time.monotonic() + self.drawn.life
        self.works = True
        while time.monotonic() < until and not self.end.is_set():
            self._check(self.agents.allreduce_next(draw.choice(SIZES), OPERATION_SECONDS))
            self.end.wait(draw.expovariate(1 / settings.pause))
        with self.lock:
            self.works = False
        how = self.drawn.how
        if how == "leave":
            self._check(self.agents.allreduce_next(SIZES[0], OPERATION_SECONDS))
            self.agents.leave()
        else:
            self.agents.submit(SIZES[-1])  # The job ends in the middle of this all-reduce.
            if how == "killed":
                for node in (*self.job.parameter_servers, *self.job.workers):
                    self.agents.kill(node)
        self._remove()
        self.agents.end()
        with self.soak.findings.lock:
            self.soak.findings.ends[how] += 1

    def _check(self, outcome: Outcome) -> None:
        if outcome.right:
            with self.soak.findings.lock:
                self.soak.findings.sums += 1
        else:
            self.soak.wrong(f"{self.job.name}: a sum is wrong: {outcome}")

    def _remove(self) -> None:
        until = time.monotonic() + OPERATOR_SECONDS
        while any(job.name == self.job.name for job in self.soak.service.network.jobs):
            try:
                self._ask("remove_job", pb.RemoveJobRequest(name=self.job.name))
            except ControllerError as error:  # On a busy machine a connection can end by itself.
                if time.monotonic() > until:
                    raise
                self.soak.say(f"{self.job.name} is removed again: {error}")
                self.soak.over.wait(REFUSED_PAUSE)

    def _ask(self, method: str, request: Message) -> None:
        ask(self.soak.service.address, method, request, timeout=OPERATOR_SECONDS)


def soak(settings: Settings, say: Say, topology: Topology | None = None) -> Findings:
    """Run a soak. Raise EmulationError, TargetError."""
    network = topology or fattree(settings.k, settings.bandwidth, aggregation_mbps=None, ingress_mbps=None)
    with ExitStack() as stack:
        emulation = stack.enter_context(Emulation(network, "softswitch", seed=settings.seed))
        zygote = stack.enter_context(Zygote(emulation, MODULES))
        fabric = stack.enter_context(Fabric(emulation, EventLog(say)))
        service = stack.enter_context(fabric.control())
        zygote.wait_ready()
        say(f"{len(network.switches)} switches and {len(network.servers)} hosts are up")
        return Soak(settings, emulation, zygote, service, say).run()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return the exit status: 0 when nothing was wrong, 1 when it could not run, 3 when something was
    wrong, 130 when it was interrupted.
    """
    usual = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.jobs soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--k", type=int, default=usual.k, help="ports of a switch of the fat-tree (%(default)s)")
    parser.add_argument("--jobs", type=int, default=usual.jobs, help="most jobs at a time (%(default)s)")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--seconds", type=float, metavar="S", help=f"how long jobs come ({usual.seconds:g})")
    end.add_argument("--arrivals", type=int, metavar="N", help="... or how many")
    parser.add_argument("--life", type=float, default=usual.life, help="mean seconds of a job (%(default)s)")
    parser.add_argument(
        "--faults", type=float, default=usual.faults, help="mean seconds between two failures (%(default)s)"
    )
    parser.add_argument("--bandwidth", type=float, default=usual.bandwidth, help="Mbit/s of each link (%(default)s)")
    parser.add_argument(
        "--share", type=float, default=usual.share, help="fraction of jobs planned with others (%(default)s)"
    )
    parser.add_argument(
        "--servers", type=float, default=usual.servers, help="fraction of failures that hit a server (%(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=usual.seed, help="of what happens; when, the machine decides (default: %(default)s)"
    )
    parser.add_argument("--quiet", action="store_true", help="print only the findings")
    arguments = parser.parse_args(argv)
    seconds = arguments.seconds if arguments.seconds or arguments.arrivals else usual.seconds
    settings = Settings(
        k=arguments.k, jobs=arguments.jobs, seconds=seconds, arrivals=arguments.arrivals, life=arguments.life,
        faults=arguments.faults, bandwidth=arguments.bandwidth, share=arguments.share, servers=arguments.servers,
        seed=arguments.seed,
    )  # fmt: skip
    say: Say = (lambda line: None) if arguments.quiet else stopwatch()

    def work() -> int:
        findings = soak(settings, say)
        print(findings.text())
        return 3 if findings.wrong else 0

    return guarded("soak", work, EmulationError, TargetError, ValueError)
