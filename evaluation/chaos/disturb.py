"""Makes each event happen for real, and checks whether it did."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress

from controlplane.common.rpc.client import ControllerError, fetch_status
from evaluation.chaos.agent_events import ANSWER_SECONDS, AgentEvents
from evaluation.chaos.controller import ControllerProcess
from evaluation.chaos.controller_events import ControllerEvents
from evaluation.chaos.findings import Happening, Steps
from evaluation.chaos.jobs import JobRun, Place
from evaluation.chaos.kinds import KINDS
from evaluation.chaos.network_events import NetworkEvents

ALONE = frozenset({"controller", "stop-controller", "clock"})


class Disturber:
    """Makes events happen in a network, its controller and its jobs. `run` takes one event from its beginning to its
    end; each runs in a thread of its own.
    """

    def __init__(self, place: Place, controller: ControllerProcess, jobs: Sequence[JobRun]) -> None:
        self._emulation, self._jobs = place.emulation, jobs
        self._findings, self._say = place.findings, place.say
        self._over = threading.Event()
        self._controlling = threading.Lock()
        operator = ControllerEvents(place, controller, jobs)
        self._kinds: dict[str, Callable[[Happening], Steps]] = {
            **NetworkEvents(place.emulation, operator).kinds(),
            **AgentEvents(place, controller, jobs).kinds(),
            **operator.kinds(),
        }

    def close(self) -> None:
        """End the events that are under way, and begin no other."""
        self._over.set()

    def run(self, one: Happening) -> None:
        """Wait for the time of an event, make it happen, and end it."""
        event = one.event
        self._over.wait(max(0.0, self._findings.began + event.at - time.monotonic()))
        if self._over.is_set():
            return
        one.jobs = self._waiting(event.kind, event.target)
        before = self._plans()
        # An event of the controller may take longer than it should, and another one must not begin meanwhile.
        alone = self._controlling if event.kind in ALONE else nullcontext()
        with alone:
            self._do(one)
        one.ended = time.monotonic()
        after = self._plans()
        if before and after and "plans" not in one.evidence:
            one.evidence["plans"] = f"{before} -> {after}" if before != after else "no change"
        self._say(f"{event.kind} {event.target}".rstrip() + f" is over: {one.evidence}")

    def _do(self, one: Happening) -> None:
        event = one.event
        one.began = time.monotonic()
        self._say(f"{event.kind} {event.target}".rstrip() + (f" for {event.seconds:.1f} s" if event.seconds else ""))
        try:
            steps = self._kinds[event.kind](one)
            next(steps)
            self._over.wait(max(0.0, one.began + event.seconds - time.monotonic()))
            with suppress(StopIteration):
                next(steps)
        except (
            Exception
        ) as error:  # an error of the emulation, or of a process that has ended, is a finding and not the end
            one.problem = f"{type(error).__name__}: {error}"
            one.happened = bool(one.happened)
            self._say(f"{event.kind} {event.target}: {one.problem}")

    def _plans(self) -> str:
        """Return the jobs' plan versions in words; "" where the controller does not answer."""
        with suppress(ControllerError, OSError):
            status = [fetch_status(run.controller, timeout=ANSWER_SECONDS, job=run.job.name) for run in self._jobs]
            return ",".join(str(one.plan_version) for one in status)
        return ""

    def _waiting(self, kind: str, target: str) -> frozenset[str]:
        """Return the jobs that can only wait while an event of this kind has hit this target."""
        if not KINDS[kind].waits:
            return frozenset()
        topology = self._emulation.topology
        touched = set()
        for run in self._jobs:
            hosts = (*run.job.workers, *run.job.parameter_servers)
            if not target or target in hosts or target in map(topology.access_switch, hosts):
                touched.add(run.job.name)
        return frozenset(touched)
