"""Lets a coordinator take over from another one: it watches that one, and learns from agents what they are doing.

Coordinators store nothing for that (CREW paper, IV-B: the controller is stateless); the agents have the running tasks.
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
from overlay.net.membership import CONNECT_SECONDS, LINE_BYTES, Address
from overlay.net.tls import Security

GONE_SECONDS = 3.0
"""Seconds of another coordinator's silence after which its backup lets agents join."""

IDLE_SECONDS = 6.0
"""Seconds for which the other coordinator may answer without acting before this one takes over: agents may not reach
the other one.
"""

NUMBERS_PER_COORDINATOR = 1 << 16
"""A coordinator that takes over numbers its tasks from the next multiple of this on, so that no number is used twice.
"""


def alive(message: Mapping[str, Any], **more: object) -> bytes:
    """Return the answer to a message that says that its sender lives; its `now` is this process's clock, in seconds."""
    return json.dumps({"type": "alive", "at": message.get("at", 0.0), "now": time.monotonic(), **more}).encode() + b"\n"


class Standby:
    """Watches the coordinator that this one backs up.

    Args:
        other: address of that coordinator.
        security: TLS; None for plaintext.
        log: gets each line of log.
        told: called with what that coordinator's desk shares (`Desk.shared`), once for each version.

    Attributes:
        over: whether the other coordinator does not act, as far as can be seen from here, so that agents may gather
            at this one.
        make_way: called when the other coordinator acts again; returns whether this one has made way for it.
    """

    def __init__(
        self,
        other: Address,
        security: Security | None,
        log: Callable[[str], None],
        told: Callable[[dict[str, Any]], None] = lambda shared: None,
    ) -> None:
        self._other, self._security, self._log, self._told = other, security, log, told
        self.make_way: Callable[[], bool] = lambda: False
        self.over = False
        self._task: asyncio.Task[None] | None = None

    def start(self, own: Address) -> None:
        """Begin to watch, in the running loop. `own` is the address at which this coordinator listens."""
        self._task = asyncio.ensure_future(self._watch(own))

    @property
    def other(self) -> str:
        """The other coordinator's address, in words."""
        return f"{self._other[0]}:{self._other[1]}"

    async def heard(self) -> None:
        """Return when the other coordinator has answered, whether it acts or not."""
        while True:
            async for _ in self._answers():
                return
            await asyncio.sleep(ALIVE_SECONDS / 4)

    async def _watch(self, own: Address) -> None:
        while True:
            await self._gone(own)
            self.over = True
            self._log(f"lets agents join, in the place of the coordinator at {self.other}")
            await self._returned()
            self.over = False
            self._log(f"makes way for the coordinator at {self.other}, which acts")

    async def _gone(self, own: Address) -> None:
        """Return when the other coordinator has not answered, or has not acted, for a while. Of two that back each
        other up and do not act, the one with the lower address goes first.
        """
        loop = asyncio.get_running_loop()
        silent = idle = loop.time()
        while loop.time() < silent + GONE_SECONDS:
            async for active in self._answers():
                silent = loop.time()
                idle = silent if active else idle
                if not active and (own < self._other or silent > idle + IDLE_SECONDS):
                    return
            await asyncio.sleep(ALIVE_SECONDS / 4)

    async def _returned(self) -> None:
        """Return when the other coordinator acts and this one has made way."""
        while True:
            async for active in self._answers():
                if active and self.make_way():
                    return
            await asyncio.sleep(ALIVE_SECONDS / 4)

    async def _answers(self) -> AsyncIterator[bool]:
        """Yield whether the other coordinator acts, again and again, until it does not answer any more."""
        try:
            async for active in self._ask():
                yield active
        except (OSError, ValueError, KeyError, OverlayError, TimeoutError):
            return

    async def _ask(self) -> AsyncIterator[bool]:
        context = self._security.connect if self._security else None
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(*self._other, ssl=context, limit=LINE_BYTES)
        version = None  # version of what the other coordinator shares
        try:
            if self._security:
                self._security.check(writer.transport, "controller")
            while True:
                writer.write(json.dumps({"type": "watch", "version": version}).encode() + b"\n")
                async with asyncio.timeout(GONE_SECONDS):
                    line = await reader.readline()
                if not line:
                    return
                answer = json.loads(line)
                if answer.get("shared") is not None:
                    version = answer["shared"]["version"]
                    self._told(answer["shared"])
                yield bool(answer["active"])
                await asyncio.sleep(ALIVE_SECONDS / 2)
        finally:
            writer.close()


@dataclass(frozen=True)
class AgentState:
    """The state that an agent tells when it joins.

    Attributes:
        epoch: epoch of the coordinator that the agent followed last; 0 where none has told it anything yet.
        newest: the highest number of a task that the agent was told of.
        running: by number, the task and whether the agent has every result that it is to get of it.
        ended: for each task that is over, whether it was done (else it was given up).
    """

    epoch: int
    newest: int
    running: Mapping[int, tuple[Task, bool]]
    ended: Mapping[int, bool]

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> AgentState:
        """Return the state in the message "join". Raise ValueError, KeyError or TypeError for one that is not well
        formed.
        """
        tasks = [(Task.from_json(each["task"]), bool(each["finished"])) for each in message.get("running", ())]
        return cls(
            int(message.get("epoch", 0)),
            int(message.get("newest", 0)),
            {task.number: (task, finished) for task, finished in tasks},
            {int(number): bool(done) for number, done in message.get("ended", ())},
        )


@dataclass(frozen=True)
class RecoveredTasks:
    """The tasks of another coordinator, as its agents report them.

    Attributes:
        epoch: that coordinator's epoch.
        number: new tasks are numbered above this.
        tasks: by number, each task under way and the agents that still wait for results of it.
        done, given_up: tasks that are over at some agents, which the other agents do not know yet.
    """

    epoch: int
    number: int
    tasks: Mapping[int, tuple[Task, frozenset[str]]]
    done: Mapping[int, Task]
    given_up: Mapping[int, Task]


def first_number(newest: int) -> int:
    """Return the multiple of NUMBERS_PER_COORDINATOR above the number of the newest task."""
    return (newest // NUMBERS_PER_COORDINATOR + 1) * NUMBERS_PER_COORDINATOR


def recover_tasks(states: Mapping[str, AgentState]) -> RecoveredTasks | None:
    """Return the tasks of the coordinator that these agents followed; None where they followed several, or none."""
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
                known[number] = task  # the version that was mended last has the most trees
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
    """Return whether the agent with this state (None where it has not joined) still waits for results of a task."""
    if state is None:
        return True
    return not state.running[number][1] if number in state.running else number > state.newest
