"""Jobs that come and go while everything fails, and a search for what is left when all jobs are gone."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import count

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, ask, fetch_status
from controlplane.planner.job import Job
from controlplane.targets.base import TargetError
from evaluation.chaos.controller import ControllerProcess, eventually
from evaluation.chaos.harness import Place
from evaluation.chaos.jobs import JobRun
from topologies.deployment import Fabric
from topologies.emulation import Emulation
from topologies.network import EmulationError

ENDS = ("leave", "removed", "killed")
"""Ways in which a job ends: its workers leave, it is removed while it works, or its agents are killed."""
LIFE_SECONDS = 30.0
"""Mean seconds of a job."""
OPERATOR_SECONDS = 300.0
REFUSED_PAUSE = 2.0
SETTLE_SECONDS = 60.0


class Coming:
    """Jobs of which so many run at a time: when one has ended, another one comes. The seed decides what each of them
    is; the machine decides when it comes.
    """

    def __init__(self, place: Place, controller: ControllerProcess, at_once: int, seed: int) -> None:
        self._place, self._controller, self._seed = place, controller, seed
        self._findings = place.findings
        self._numbers = count(1)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._lives, daemon=True) for _ in range(at_once)]
        self._runs: list[JobRun] = []

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Let no other job come, and return when all have come to their end."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def end(self) -> None:
        """End all processes, where `finish` was not reached."""
        self._over.set()
        for run in list(self._runs):
            run.end()

    def _lives(self) -> None:
        while not self._over.is_set():
            number = next(self._numbers)
            drawn = random.Random(f"{self._seed} coming {number}")
            servers = self._place.emulation.topology.servers
            workers = drawn.randint(2, min(5, len(servers) - 2))
            nodes = drawn.sample(servers, workers + drawn.choice((1, 1, 2)))
            job = Job(f"coming{number}", tuple(nodes[:workers]), tuple(nodes[workers:]), 400_000)
            try:
                self._live(job, drawn)
            except (ControllerError, EmulationError, OSError) as error:
                self._findings.failed.append(f"{job.name}: {error}")
                self._place.say(f"FAILED: {job.name}: {error}")

    def _live(self, job: Job, drawn: random.Random) -> None:
        """Run one job from its arrival to its end."""
        how, seconds, share = drawn.choice(ENDS), drawn.expovariate(1 / LIFE_SECONDS), drawn.random() < 0.3
        rate = self._added(job, share)
        if rate is None:
            return
        run = JobRun(self._place, self._controller.address, job, rate, self._seed, outages=False)
        self._runs.append(run)
        try:
            run.start()
            run.wait_joined(OPERATOR_SECONDS)
            run.begin()
            self._over.wait(seconds)
            if how == "leave":
                run.finish(OPERATOR_SECONDS)
                run.leave(OPERATOR_SECONDS)
            else:
                run.abandon()
                for node in (*job.parameter_servers, *job.workers) if how == "killed" else ():
                    run.kill(node)
            remove(self._controller.address, job.name)
        finally:
            run.end()
        self._findings.add_ended(how)
        self._findings.left.extend(run.still_running())

    def _added(self, job: Job, share: bool) -> float | None:
        """Return the rate in Mbit/s that the job was given, or None where the run was over before there was room."""
        while not self._over.is_set():
            request = pb.AddJobRequest(job=json.dumps(job.to_json()), share=share, seed=self._seed)
            try:
                reply = ask(self._controller.address, "add_job", request, timeout=OPERATOR_SECONDS)
                self._place.say(f"{job.name} comes: {len(job.workers)} workers, {reply.rate_mbps:.4g} Mbit/s")
                return float(reply.rate_mbps)
            except ControllerError as error:
                for status in present(self._controller.address):
                    if status.name == job.name:  # The answer was lost.
                        return float(status.planned_rate_mbps)
                self._findings.add_turned_away()
                self._place.say(f"{job.name} is refused: {error}")
                share = True
                self._over.wait(REFUSED_PAUSE)
        return None


def present(controller: str) -> list[pb.JobStatus]:
    """Return the jobs that the controller has; none where it does not answer."""
    with suppress(ControllerError, OSError):
        return list(fetch_status(controller, timeout=5.0).jobs)
    return []


def remove(controller: str, name: str) -> None:
    """Remove a job, however often the controller is away meanwhile. Raise ControllerError."""
    until = time.monotonic() + OPERATOR_SECONDS
    while True:
        with suppress(ControllerError, OSError):
            if all(job.name != name for job in fetch_status(controller, timeout=5.0).jobs):
                return
        try:
            ask(controller, "remove_job", pb.RemoveJobRequest(name=name), timeout=OPERATOR_SECONDS)
        except (ControllerError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(REFUSED_PAUSE)


def left_over(emulation: Emulation, controller: ControllerProcess, jobs: Iterable[JobRun]) -> list[str]:
    """End and remove the last jobs, close the controller, and return in words what is left: jobs, processes, entries
    that the controller keeps, and entries on switches. IPv4 routes have to be left.
    """
    left: list[str] = []
    for run in jobs:
        run.end()
        left += run.still_running()
        remove(controller.address, run.job.name)

    eventually(lambda: not _kept(controller), SETTLE_SECONDS)
    left += _kept(controller)
    controller.close()
    return left + _on_switches(emulation)


def _kept(controller: ControllerProcess) -> list[str]:
    """Return in words what the controller still has."""
    try:
        status = fetch_status(controller.address, timeout=5.0)
    except (ControllerError, OSError) as error:
        return [f"the controller does not say what is left: {error}"]
    left = [f"job {job.name}" for job in status.jobs]
    for switch in status.switches:
        if switch.state != "connected":
            left.append(f"{switch.name} is {switch.state}: {switch.problem}")
        elif switch.labels or switch.groups:
            left.append(f"the controller keeps {switch.labels} entries and {switch.groups} groups of {switch.name}")
    return left


def _on_switches(emulation: Emulation) -> list[str]:
    left = []
    with Fabric(emulation) as fabric:
        for one in fabric.targets:
            try:
                rules = one.read()
            except TargetError as error:
                left.append(str(error))
                continue
            if rules.labels or rules.groups:
                left.append(f"{one.name} has {len(rules.labels)} entries and {len(rules.groups)} groups")
            if not rules.routes:
                left.append(f"{one.name} has no IPv4 routes")
    return left
