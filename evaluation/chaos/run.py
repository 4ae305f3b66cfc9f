"""Runs chaos once: builds the network, its controller and its jobs, makes the events happen, and keeps the findings."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, ask
from controlplane.planner.job import Job
from controlplane.planner.topology import Topology
from evaluation.chaos.coming import Coming, left_over
from evaluation.chaos.controller import ControllerProcess
from evaluation.chaos.disturb import Disturber
from evaluation.chaos.findings import Findings, Happening
from evaluation.chaos.jobs import JobRun, Place
from evaluation.chaos.schedule import Event
from topologies.agents import MODULES
from topologies.command import Say
from topologies.emulation import Emulation
from topologies.network import EmulationError
from topologies.zygote import Zygote

ADD_SECONDS = 60.0
JOIN_SECONDS = 120.0
FINISH_SECONDS = 60.0


@dataclass(frozen=True)
class Settings:
    """Settings of one run.

    Attributes:
        events: the events, drawn before (see `schedule`).
        seconds: how long the run lasts, also when the events are over.
        coming: number of jobs beside `jobs` that run at a time, of those that come and go.
        log: where the controller's log is kept, or None.
    """

    topology: Topology
    jobs: tuple[Job, ...]
    strategy: str
    events: tuple[Event, ...]
    seconds: float
    seed: int
    coming: int = 0
    log: Path | None = None


def run(settings: Settings, say: Say) -> Findings:
    """Build the network, disturb its jobs, and take it down. An interruption ends the run early and loses no finding.

    Raises:
        EmulationError, ControllerError: the run could not begin.
    """
    findings = Findings([Happening(event) for event in settings.events])
    with ExitStack() as stack:
        emulation = stack.enter_context(Emulation(settings.topology, "softswitch", seed=settings.seed))
        zygote = stack.enter_context(Zygote(emulation, (*MODULES, "evaluation.chaos.worker")))
        topology = emulation.directory / "topology.json"
        topology.write_text(json.dumps(settings.topology.to_json()))
        controller = ControllerProcess(emulation, topology)
        stack.callback(controller.close)
        controller.start()
        zygote.wait_ready()
        place = Place(emulation, zygote, findings, say)
        jobs = _jobs(settings, place, controller, stack)
        say(f"{len(settings.topology.switches)} switches, {len(jobs)} jobs: all workers have joined")
        disturber = Disturber(place, controller, jobs)
        coming = Coming(place, controller, settings.coming, settings.seed)
        stack.callback(coming.end)
        findings.began = time.monotonic()
        try:
            _disturbed(settings, jobs, coming, disturber, place)
            say("all events are over; all jobs are removed")
            findings.left.extend(left_over(emulation, controller, jobs))
        except KeyboardInterrupt:
            findings.interrupted = True
            say("interrupted: what was found until now")
        finally:
            disturber.close()
        findings.seconds = time.monotonic() - findings.began
        if findings.status:
            say(f"the controller's last words:\n{controller.last_words(40)}")
        if settings.log is not None:
            settings.log.write_text("\n".join(controller.log_lines()) + "\n")
    return findings


def _jobs(settings: Settings, place: Place, controller: ControllerProcess, stack: ExitStack) -> list[JobRun]:
    runs = []
    share = len(settings.jobs) + settings.coming > 1
    for job in settings.jobs:
        request = pb.AddJobRequest(
            job=json.dumps(job.to_json()), strategy=settings.strategy, seed=settings.seed, share=share
        )
        try:
            reply = ask(controller.address, "add_job", request, timeout=ADD_SECONDS)
        except ControllerError as error:
            raise EmulationError(f"job {job.name} cannot be added: {error}") from error
        there = f"{len(job.workers)} workers, {len(job.parameter_servers)} parameter servers"
        place.say(f"job {job.name}: {there}, {reply.rate_mbps:.4g} Mbit/s")
        run = JobRun(place, controller.address, job, reply.rate_mbps, settings.seed)
        stack.callback(run.end)
        run.start()
        runs.append(run)
    for run in runs:
        run.wait_joined(JOIN_SECONDS)
    return runs


def _disturbed(settings: Settings, jobs: Sequence[JobRun], coming: Coming, disturber: Disturber, place: Place) -> None:
    """Run from the first operation to the last one, with events and other jobs meanwhile."""
    findings = place.findings
    for job in jobs:
        job.begin()
    coming.begin()
    events = [threading.Thread(target=disturber.run, args=(one,), daemon=True) for one in findings.happenings]
    for thread in events:
        thread.start()
    until = findings.began + settings.seconds
    while time.monotonic() < until:
        place.emulation.switches.check()
        time.sleep(min(0.5, max(0.0, until - time.monotonic())))
    for thread in events:
        while thread.is_alive():
            thread.join(1.0)
    coming.finish()
    for job in jobs:
        job.finish(FINISH_SECONDS)
