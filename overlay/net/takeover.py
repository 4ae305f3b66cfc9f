"""A coordinator in another one's place: who watches whom, and what agents tell of what they are in the middle of.

Nothing is kept by coordinators for that (CREW paper, IV-B: the controller is stateless): what runs is with the agents.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.planner.plan.task import Task
from overlay.core.errors import OverlayError
from overlay.net.liveness import ALIVE_SECONDS
from overlay.net.membership import CONNECT_SECONDS, Address
from overlay.net.tls import Security

GONE_SECONDS = 3.0
"""Without a word from the coordinator that it backs up, a backup lets agents in."""

IDLE_SECONDS = 6.0
"""And after so long, where the other one answers and does not act: it may be out of the agents' reach."""

NUMBERS_PER_COORDINATOR = 1 << 16
"""Numbers of tasks of one coordinator: another one begins above the next multiple, so that none means two things."""


def alive(message: Mapping[str, Any], **more: object) -> bytes:
    """The answer to who says that he is there."""
    return json.dumps({"type": "alive", "at": message.get("at", 0.0), "now": time.monotonic(), **more}).encode() + b"\n"


class Standby:
    """Watches another coordinator. `over`: it does not coordinate (any more), as far as can be seen from here, so that
    agents may gather. back(): it does again; whether this one makes way for it."""

    def __init__(
        self, other: Address, security: Security | None, log: Callable[[str], None], back: Callable[[], bool]
    ) -> None:
        self._other, self._security, self._log, self._back = other, security, log, back
        self.over = False
        self._task: asyncio.Task[None] | None = None

    def start(self, own: Address) -> None:
        self._task = asyncio.ensure_future(self._watch(own))

    @property
    def other(self) -> str:
        """Where the other one listens."""
        return f"{self._other[0]}:{self._other[1]}"

    async def _watch(self, own: Address) -> None:
        while True:
            await self._gone(own)
            self.over = True
            self._log(f"lets agents in, in the place of {self.other}")
            await self._returned()
            self.over = False
            self._log(f"makes way for {self.other}, which coordinates")

    async def _gone(self, own: Address) -> None:
        """Returns when the other one has not been heard of, or has not acted, for a while. Of two that do not act, each
        of which backs up the other one, the one with the lower address goes first."""
        loop = asyncio.get_running_loop()
        silent = idle = loop.time()
        while loop.time() < silent + GONE_SECONDS:
            async for active in self._words():
                silent = loop.time()
                idle = silent if active else idle
                if not active and (own < self._other or silent > idle + IDLE_SECONDS):
                    return
            await asyncio.sleep(ALIVE_SECONDS / 4)

    async def _returned(self) -> None:
        """Returns when the other one acts and this one has made way."""
        while True:
            async for active in self._words():
                if active and self._back():
                    return
            await asyncio.sleep(ALIVE_SECONDS / 4)

    async def _words(self) -> AsyncIterator[bool]:
        """Whether it acts, again and again, until it is not heard any more."""
        try:
            async for active in self._said():
                yield active
        except (OSError, ValueError, KeyError, OverlayError, TimeoutError):
            return

    async def _said(self) -> AsyncIterator[bool]:
        context = self._security.connect if self._security else None
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(*self._other, ssl=context)
        try:
            if self._security:
                self._security.check(writer.transport, "controller")
            while True:
                writer.write(b'{"type": "watch"}\n')
                async with asyncio.timeout(GONE_SECONDS):
                    line = await reader.readline()
                if not line:
                    return
                yield bool(json.loads(line)["active"])
                await asyncio.sleep(ALIVE_SECONDS / 2)
        finally:
            writer.close()


@dataclass(frozen=True)
class AgentState:
    """What an agent says of itself when it joins. epoch 0: it was never told what to do. running: tasks, and whether
    the agent has got all that it gets; ended: whether they were done, or else given up."""

    epoch: int
    newest: int
    running: Mapping[int, tuple[Task, bool]]
    ended: Mapping[int, bool]

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> AgentState:
        """Raises ValueError, KeyError, TypeError."""
        tasks = [(Task.from_json(each["task"]), bool(each["finished"])) for each in message.get("running", ())]
        return cls(
            int(message.get("epoch", 0)),
            int(message.get("newest", 0)),
            {task.number: (task, finished) for task, finished in tasks},
            {int(number): bool(done) for number, done in message.get("ended", ())},
        )


@dataclass(frozen=True)
class RecoveredTasks:
    """number: new tasks are above it. tasks: under way, and who waits for the end. done, given_up: over for some; the
    others have not heard of it."""

    epoch: int
    number: int
    tasks: Mapping[int, tuple[Task, frozenset[str]]]
    done: Mapping[int, Task]
    given_up: Mapping[int, Task]


def first_number(newest: int) -> int:
    """A multiple of NUMBERS_PER_COORDINATOR above the number of the newest task."""
    return (newest // NUMBERS_PER_COORDINATOR + 1) * NUMBERS_PER_COORDINATOR


def recover_tasks(states: Mapping[str, AgentState]) -> RecoveredTasks | None:
    """From what all say; None: they have worked for different coordinators, or for none."""
    epochs = {state.epoch for state in states.values() if state.epoch}
    if len(epochs) != 1:
        return None
    tasks: dict[int, tuple[Task, frozenset[str]]] = {}
    done: dict[int, Task] = {}
    given_up: dict[int, Task] = {}
    known: dict[int, Task] = {}
    for state in states.values():
        for number, (task, _) in state.running.items():
            if number not in known or len(task.trees) > len(known[number].trees):
                known[number] = task  # as it was mended last
    for number, task in sorted(known.items()):
        ends = [state.ended[number] for state in states.values() if number in state.ended]
        if not all(ends):
            given_up[number] = task
            continue
        waiting = frozenset(node for node in task.awaited if _waits(states.get(node), number))
        if ends or not waiting:
            done[number] = task
        else:
            tasks[number] = task, waiting
    newest = max(state.newest for state in states.values())
    return RecoveredTasks(epochs.pop(), first_number(newest), tasks, done, given_up)


def _waits(state: AgentState | None, number: int) -> bool:
    if state is None:
        return True  # it has not come (yet)
    return not state.running[number][1] if number in state.running else number > state.newest
