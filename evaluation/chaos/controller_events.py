"""Events of the controller: it is killed and stopped, its clock jumps, its disk is full."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Mapping, Sequence

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, ask
from controlplane.service.core.disabled import Why
from evaluation.chaos.controller import ControllerProcess, eventually, stopped
from evaluation.chaos.events import Act, Happening, Steps
from evaluation.chaos.harness import Place
from evaluation.chaos.jobs import JobRun

YEAR = 365.25 * 86400
JUMPS = (3600.0, 86400.0, YEAR, 10 * YEAR)
REPLAN_SECONDS = 20.0


class ControllerEvents:
    """Events that affect the controller, and orders of its operator."""

    def __init__(self, place: Place, controller: ControllerProcess, jobs: Sequence[JobRun]) -> None:
        self._emulation, self._findings = place.emulation, place.findings
        self._controller, self._jobs = controller, jobs

    def acts(self) -> dict[str, Act]:
        """Return the function that makes an event happen, by kind."""
        return {
            "controller": self._kill_controller, "stop-controller": self._stop_controller,
            "clock": self._clock, "disk": self._disk,
        }  # fmt: skip

    def _kill_controller(self, one: Happening) -> Steps:
        one.evidence["process"] = self._controller.kill()
        one.happened = bool(one.evidence["process"])
        yield from self._controller_back(one)

    def _controller_back(self, one: Happening) -> Steps:
        starts = self._controller.starts
        try:
            yield
        finally:
            self._controller.back()
        self._serves_again(one, starts)

    def _serves_again(self, one: Happening, starts: int) -> None:
        began = time.monotonic()
        if eventually(lambda: self._controller.starts > starts, 60.0):
            one.evidence["served again after"] = f"{time.monotonic() - began:.1f} s"
        else:
            self._findings.failed.append(f"the controller does not serve again after {one.event}: {self._said()}")

    def _said(self) -> str:
        return self._controller.ended[-1] if self._controller.ended else self._controller.last_words()

    def _stop_controller(self, one: Happening) -> Steps:
        pid = self._controller.send(signal.SIGSTOP)
        one.happened = eventually(lambda: stopped(pid))
        one.evidence["process"] = pid
        try:
            yield
        finally:
            self._controller.send(signal.SIGCONT)

    def _clock(self, one: Happening) -> Steps:
        drawn = random.Random(one.event.seed)
        ahead = drawn.choice(JUMPS) * drawn.choice((1, -1))
        reads = self._controller.clock.wrong_reads
        self._controller.clock.jump(ahead)
        one.evidence["clock"] = f"{ahead / 86400:+.4g} days"
        starts = self._controller.starts
        self._controller.kill()
        self._controller.back()
        self._serves_again(one, starts)
        try:
            yield
        finally:
            self._controller.clock.jump(0.0)
        one.evidence["wrong times read"] = self._controller.clock.wrong_reads - reads
        one.happened = one.evidence["wrong times read"] > 0
        starts = self._controller.starts
        self._controller.kill()
        self._controller.back()
        self._serves_again(one, starts)

    def _disk(self, one: Happening) -> Steps:
        one.evidence["bytes filled"] = self._controller.fill_disk()
        one.happened = one.evidence["bytes filled"] > 0
        topology = self._emulation.topology
        with_hosts = {topology.access_switch(node) for node in topology.servers}
        spine = random.Random(one.event.seed).choice([name for name in topology.switches if name not in with_hosts])
        thread = threading.Thread(target=self._disable, args=(one, {"without": [spine]}), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._controller.free_disk()
        thread.join()
        self._disable(one, {"restored": [spine]})

    def take_back(self, one: Happening) -> None:
        """Enable the switches and links again that the controller has disabled because they corrupt, as an operator
        does who has mended them.
        """
        try:
            request = pb.StatusRequest(job=self._jobs[0].job.name)
            reply = ask(self._controller.address, "status", request, timeout=REPLAN_SECONDS)
        except (ControllerError, OSError):
            return
        disabled = [name.partition(" (")[0] for name in reply.without if name.endswith(f"({Why.CORRUPTS})")]
        if disabled:
            one.evidence["disabled"] = ", ".join(disabled)
            self._disable(one, {"restored": disabled})

    def _disable(self, one: Happening, change: Mapping[str, list[str]]) -> None:
        """Order a change that the controller must keep: it needs a new plan, and an epoch."""
        request = pb.ReplanRequest(
            job=self._jobs[0].job.name, without=change.get("without", ()), restored=change.get("restored", ())
        )
        try:
            said = ask(self._controller.address, "replan", request, timeout=REPLAN_SECONDS).outcome
        except (ControllerError, OSError) as error:
            said = f"refused: {str(error)[:200]}"
        one.evidence[f"asked {next(iter(change))}"] = said
