"""What a trainer brings: values that wait for a task, are in one, and end with a result, as they were, or an error."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import count

from overlay.core.errors import OverlayError
from overlay.core.execution import Values
from overlay.net.early import Early
from overlay.net.membership import Membership

ALONE_SECONDS = 1.0
"""Without a coordinator for so long, an agent that may goes on by itself."""


@dataclass(frozen=True)
class Done:
    """What a synchronisation was: the task's number, whose values are in the result, seconds from its announcement."""

    task: int
    participants: tuple[str, ...]
    seconds: float


@dataclass(eq=False)
class Bringing:
    """Values, and who waits for them. turn: its number, this agent's own, once the coordinator has heard of it."""

    tensor: Values
    future: concurrent.futures.Future[Done] = field(default_factory=concurrent.futures.Future)
    began: float = field(default_factory=time.monotonic)
    announced: bool = False
    turn: int = 0


class Brought:
    """Of one agent, in its loop. may_go_alone: whether the policy lets values go on without a coordinator."""

    def __init__(
        self,
        node: str,
        loop: asyncio.AbstractEventLoop,
        *,
        membership: Membership,
        early: Early,
        counters: Counter[str],
    ) -> None:
        self._node, self._loop = node, loop
        self._membership, self._early, self._counters = membership, early, counters
        self.waiting: deque[Bringing] = deque()  # in the order in which they were brought; not yet in a task
        self._in_task: dict[int, Bringing] = {}
        # Others must not take them for those before a restart.
        self._turns = count(int(time.time() * 1000) & 0x3FFFFFFF)
        self.may_go_alone = False
        self._met = False  # a coordinator that has ever said who is there
        self.left_at: float | None = None  # when the last coordinator was lost

    # --- before a task ---

    def bring(self, bringing: Bringing) -> None:
        self.waiting.append(bringing)
        if self.left_at is not None and self.may_go_alone and self._loop.time() > self.left_at + ALONE_SECONDS:
            self._all_alone()
        elif self._met:
            self._announce(bringing)

    def forget_announcements(self) -> None:
        """Another coordinator has heard of nothing."""
        for bringing in self.waiting:
            bringing.announced = False

    def announce(self) -> None:
        """A coordinator is there that says who else is."""
        self._met, self.left_at = True, None
        for bringing in self.waiting:
            self._announce(bringing)

    def _announce(self, bringing: Bringing) -> None:
        if not bringing.announced and self._membership.there:
            bringing.announced = True
            bringing.turn = next(self._turns)
            self._membership.tell(type="ready", values=bringing.tensor.size, turn=bringing.turn)
            self._early.send(bringing.turn, bringing.tensor)

    def unmet(self, turn: int | None, error: OverlayError) -> bool:
        """No task comes for these values (None: those that wait longest); whether they waited."""
        for bringing in self.waiting:
            if turn is None or bringing.turn == turn:
                self.withdraw(bringing, error)
                return True
        return False

    def withdraw(self, bringing: Bringing, error: OverlayError) -> None:
        """These values wait for no task any more."""
        if bringing in self.waiting:
            self.waiting.remove(bringing)
            self._early.stop()
            bringing.future.set_exception(error)

    def task_of(self, bringing: Bringing) -> int | None:
        """The number of the task that it is in; None: of none."""
        return next((number for number, each in self._in_task.items() if each is bringing), None)

    def task_by_turn(self, turn: int) -> int | None:
        """The same, of the values of this turn."""
        return next((number for number, each in self._in_task.items() if each.turn == turn), None)

    # --- without a task ---

    def coordinator_left(self) -> None:
        """Or did not answer; it may be said again and again."""
        if self.left_at is None:
            self.left_at = self._loop.time()
        self._loop.call_later(max(0.0, self.left_at + ALONE_SECONDS - self._loop.time()), self._all_alone)

    def _all_alone(self) -> None:
        """Whoever has brought values keeps them (CREW, IV-B): no coordinator can find others for them."""
        if self._membership.there or not self.may_go_alone or self.left_at is None:
            return
        while self.waiting:
            self.first_alone()

    def first_alone(self) -> None:
        """What waits longest goes on as it is."""
        if self.waiting:
            self._go_on(self.waiting.popleft())

    def _go_on(self, bringing: Bringing) -> None:
        """Its values stay what they are."""
        self._early.stop()
        self._counters["alone"] += 1
        bringing.future.set_result(Done(0, (self._node,), time.monotonic() - bringing.began))

    # --- in a task ---

    def take(self, task: int, values: int) -> Values | None:
        """What waits longest is for this task from now on; None: it is not of so many values, or nothing waits."""
        if not self.waiting or self.waiting[0].tensor.size != values:
            return None
        bringing = self._in_task[task] = self.waiting.popleft()
        return bringing.tensor

    def done(self, task: int, participants: tuple[str, ...], seconds: float) -> None:
        """The result is in its place."""
        bringing = self._in_task.pop(task, None)
        if bringing is not None:
            bringing.future.set_result(Done(task, participants, seconds))

    def go(self, task: int) -> None:
        """The policy lets the sender of a copy go on."""
        bringing = self._in_task.pop(task, None)
        if bringing is not None:
            bringing.future.set_result(Done(task, (self._node,), time.monotonic() - bringing.began))

    def again(self, task: int) -> None:
        """The task is given up, and its values wait for another one, before all others."""
        bringing = self._in_task.pop(task, None)
        if bringing is not None:
            bringing.announced = False
            self.waiting.appendleft(bringing)
            self._announce(bringing)

    def alone(self, task: int) -> None:
        """The task is given up, and its values go on as they are."""
        bringing = self._in_task.pop(task, None)
        if bringing is not None:
            self._go_on(bringing)

    def fail(self, task: int, error: OverlayError) -> None:
        """The task is given up, and nothing is done with its values."""
        bringing = self._in_task.pop(task, None)
        if bringing is not None:
            bringing.future.set_exception(error)

    def fail_all(self, error: OverlayError) -> None:
        for bringing in (*self._in_task.values(), *self.waiting):
            if not bringing.future.done():
                bringing.future.set_exception(error)
        self._in_task.clear()
        self.waiting.clear()
