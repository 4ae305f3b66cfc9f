"""Keeps switches filled: one that restarts, or loses its program, is connected again and gets its rules back.

Nothing has to be told to the agents: registers start at zero, and the protocol treats a switch that forgot its slots
like one that lost some packets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from controlplane.rpc import inart_pb2 as pb
from controlplane.rules import RuleSet
from controlplane.targets.base import NotPrimary, SwitchTarget, TargetError, difference

HEARTBEAT_SECONDS = 2.0
HEARTBEAT_DEADLINE_SECONDS = 5.0
RECONNECT_SECONDS = 5.0
LAST_PAUSE_SECONDS = 5.0


class Keeper:
    """Watches one connected, installed target from a thread until `close`.

    It does not fight another controller that takes the switch over: it says so and only reads from then on.
    """

    def __init__(self, target: SwitchTarget, rules: RuleSet, log: Callable[[str], None]) -> None:
        self.target = target
        self.rules = rules
        self.refills = 0
        self.state = "connected"
        self.problem = ""
        self._log = log
        self._wake = threading.Event()
        self._closed = threading.Event()
        target.on_lost = self._lost
        self._thread = threading.Thread(target=self._run, name=f"keeper-{target.name}", daemon=True)
        self._thread.start()

    def _lost(self, reason: str) -> None:
        self.problem = reason
        self._wake.set()

    def _run(self) -> None:
        pause, filled = 0.1, True
        while not self._closed.is_set():
            try:
                if self._healthy() and filled:
                    pause = 0.1
                    self._wake.wait(HEARTBEAT_SECONDS)
                    self._wake.clear()
                    continue
                filled = False
                self._say("reconnecting")
                self._refill()
                filled = True
                self._say("connected")
            except NotPrimary as error:
                self.problem = str(error)
                self._say("not primary")
                return
            except TargetError as error:
                self.problem = str(error)
                self._say("reconnecting")
                self._closed.wait(pause)
                pause = min(2 * pause, LAST_PAUSE_SECONDS)

    def _healthy(self) -> bool:
        if self.target.demoted:
            raise NotPrimary("another controller took the switch over; its rules are that one's now")
        return self.target.alive and self.target.runs_program(HEARTBEAT_DEADLINE_SECONDS)

    def _refill(self) -> None:
        if not self.target.alive:
            self.target.connect(RECONNECT_SECONDS)
        self.target.load_pipeline()
        changes = difference(self.target.read(), self.rules)
        self.target.apply(changes)
        if difference(self.target.read(), self.rules):
            raise TargetError(f"switch {self.target.name} does not hold what was written to it")
        self.refills += 1
        self.problem = ""
        self._log(f"switch {self.target.name} is back: {len(changes)} entries written")

    def _say(self, state: str) -> None:
        if state != self.state:
            self.state = state
            if state != "connected":
                problem = self.problem or "it does not run our program any more"
                self._log(f"switch {self.target.name}: {state}: {problem}")

    def status(self) -> pb.SwitchStatus:
        """State, what is installed, and the verdict counters where the switch answers within its deadline."""
        reply = pb.SwitchStatus(
            name=self.target.name,
            address=self.target.address,
            state=self.state,
            problem=self.problem if self.state != "connected" else "",
            labels=len(self.rules.labels),
            groups=len(self.rules.groups),
            routes=len(self.rules.routes),
            refills=self.refills,
        )
        if self.state == "connected":
            try:
                reply.verdicts.update(self.target.read_verdicts())
            except TargetError as error:
                reply.problem = str(error)
        return reply

    def stop(self) -> None:
        """Stop watching, soon. The rules stay on the switch."""
        self._closed.set()
        self._wake.set()

    def close(self) -> None:
        """Stop watching, and wait for the end of it."""
        self.stop()
        self._thread.join(timeout=10)
