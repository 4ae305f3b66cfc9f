"""Keeps switches filled: one that restarts, or loses its program, is connected again and gets its rules back.

The agents need not be told: registers start at zero, and the protocol treats a switch that forgot its slots like one
that lost some packets.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from controlplane.common.log_lines import Log
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.entries import RuleSet
from controlplane.targets.base import NotPrimary, SwitchTarget, TargetError, timed_out
from controlplane.targets.fabric import AT_ONCE, everywhere
from controlplane.targets.switch_entries import SwitchEntries

Answer = TypeVar("Answer")
HEARTBEAT_SECONDS = 2.0
HEARTBEAT_DEADLINE_SECONDS = 5.0
PROMPT_SECONDS = 1.0
"""Seconds within which an answer shows that neither the switch nor this machine is slow."""
RECONNECT_SECONDS = 5.0
LAST_PAUSE_SECONDS = 5.0


class Keeper:
    """Watches one connected, installed target from a thread until `close`.

    It does not fight another controller that takes the switch over: it says so and only reads from then on.

    The attribute `rules` is what the switch shall hold. Whoever changes it writes it, too, with the switch's lock held,
    or calls `wake`.
    """

    def __init__(self, entries: SwitchEntries, rules: RuleSet, log: Log) -> None:
        self.entries, self.target = entries, entries.target
        self.rules = rules
        self.refills = 0
        self.orders = 0  # orders that write `rules` now
        self.state = "connected"
        self.problem = ""
        self.prompt = -math.inf
        """Time (seconds, monotonic) at which the last heartbeat was sent that was answered within PROMPT_SECONDS."""
        self._log = log
        self._wake = threading.Event()
        self._closed = threading.Event()
        self.target.on_lost = self._lost
        self._thread = threading.Thread(target=self._run, name=f"keeper-{entries.name}", daemon=True)
        self._thread.start()

    def _lost(self, reason: str) -> None:
        self.problem = reason
        self._wake.set()

    def _run(self) -> None:
        pause, filled = 0.1, True
        while not self._closed.is_set():
            try:
                if self._healthy() and filled:
                    self.catch_up()
                    self._say("connected")
                    pause = 0.1
                    self._wake.wait(HEARTBEAT_SECONDS)
                    self._wake.clear()
                    continue
                filled = False
                self._say("reconnecting")
                self._refill()
                filled = True
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
        asked = time.monotonic()
        healthy = self.target.alive and self.target.runs_program(HEARTBEAT_DEADLINE_SECONDS)
        if healthy and time.monotonic() - asked <= PROMPT_SECONDS:
            self.prompt = asked
        return healthy

    @property
    def ready(self) -> bool:
        """Whether the switch can be written to now."""
        return self.state == "connected" and self.target.alive

    @property
    def timed_out(self) -> bool:
        """Whether all that is known of a switch that is not ready is that it did not answer in time."""
        return not self.ready and timed_out(self.problem)

    @property
    def as_it_shall_be(self) -> bool:
        """Whether the switch is known to hold `rules`, because exactly these were written last."""
        return self.entries.holds is self.rules

    def wake(self) -> None:
        """Look at the switch at once, since `rules` may differ from what it holds."""
        self._wake.set()

    def read_again(self) -> None:
        """Forget what the switch is known to hold, so that it is read and gets what it lacks."""
        if self.entries.lock.acquire(blocking=False):  # Otherwise another thread is writing to the switch.
            try:
                self.entries.holds = None
            finally:
                self.entries.lock.release()
        self.wake()

    def catch_up(self) -> None:
        """Write the rules that could not be written while the switch was not ready."""
        # In this order: rules that an order has set are seen together with it.
        if self.as_it_shall_be or self.orders or not self.entries.lock.acquire(blocking=False):
            return
        try:
            changes = self.entries.write(self.rules)
            if changes:
                self._log.info(f"switch {self.target.name}: {changes} entries written that it lacked")
        finally:
            self.entries.lock.release()

    def _refill(self) -> None:
        if not self.target.alive:
            self.target.connect(RECONNECT_SECONDS)
        with self.entries.lock:
            self.entries.holds = None
            changes = self.entries.write(self.rules)
            self.refills += 1
            self.problem = ""
            self._log.info(f"switch {self.target.name} is back: {changes} entries written")
            self._say("connected")

    def _say(self, state: str) -> None:
        if state != self.state and not self._closed.is_set():
            self.state = state
            if state != "connected":
                problem = self.problem or "it does not run our program any more"
                self._log.warning(f"switch {self.target.name}: {state}: {problem}")

    def status(self) -> pb.SwitchStatus:
        """Return the switch's state, what is installed, and the verdict counters where the switch answers within its
        deadline."""
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

    def cut(self) -> None:
        """Stop waiting for a switch that does not answer. One that is being written to gets its time."""
        if self.entries.lock.acquire(blocking=False):
            try:
                self.target.close()
            finally:
                self.entries.lock.release()

    @property
    def ended(self) -> bool:
        """Whether it watches no more."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stop watching, and wait for the thread's end."""
        self.stop()
        self._thread.join(timeout=10)


def read_each(
    keepers: Iterable[Keeper], read: Callable[[SwitchTarget], Answer], at_once: int = AT_ONCE
) -> tuple[dict[str, tuple[float, Answer]], dict[str, str]]:
    """Return what `read` returns of each switch that answers, and when it was asked (`time.monotonic`); and why the
    others do not answer. At most `at_once` are asked in parallel."""

    def ask(keeper: Keeper) -> tuple[float, Answer] | str:
        if keeper.state != "connected":
            return keeper.problem or keeper.state
        try:
            return time.monotonic(), read(keeper.target)
        except TargetError as error:  # the keeper handles it
            return str(error)

    found = {keeper.target.name: answer for keeper, answer in everywhere(tuple(keepers), ask, at_once).items()}
    silent = {name: answer for name, answer in found.items() if isinstance(answer, str)}
    return {name: answer for name, answer in found.items() if not isinstance(answer, str)}, silent
