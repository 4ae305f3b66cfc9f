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
from overlay.net.eager_scatter import EagerScatter
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
class Submission:
    """Values, and who waits for them. turn: its number, this agent's own, once the coordinator has heard of it."""

    tensor: Values
    future: concurrent.futures.Future[Done] = field(default_factory=concurrent.futures.Future)
    began: float = field(default_factory=time.monotonic)
    announced: bool = False
    turn: int = 0


class Submissions:
    """Of one agent, in its loop. may_go_alone: whether the policy lets values go on without a coordinator."""

    def __init__(
        self,
        node: str,
        loop: asyncio.AbstractEventLoop,
        *,
        membership: Membership,
        eager_scatter: EagerScatter,
        counters: Counter[str],
    ) -> None:
        self._node, self._loop = node, loop
        self._membership, self._eager_scatter, self._counters = membership, eager_scatter, counters
        self.waiting: deque[Submission] = deque()  # in the order in which they were brought; not yet in a task
        self._in_task: dict[int, Submission] = {}
        # Others must not take them for those before a restart.
        self._turns = count(int(time.time() * 1000) & 0x3FFFFFFF)
        self.may_go_alone = False
        self._met = False  # a coordinator that has ever said who is there
        self.left_at: float | None = None  # when the last coordinator was lost

    # --- before a task ---

    def submit(self, submission: Submission) -> None:
        self.waiting.append(submission)
        if self.left_at is not None and self.may_go_alone and self._loop.time() > self.left_at + ALONE_SECONDS:
            self._all_alone()
        elif self._met:
            self._announce(submission)

    def forget_announcements(self) -> None:
        """Another coordinator has heard of nothing."""
        for submission in self.waiting:
            submission.announced = False

    def announce(self) -> None:
        """A coordinator is there that says who else is."""
        self._met, self.left_at = True, None
        for submission in self.waiting:
            self._announce(submission)

    def _announce(self, submission: Submission) -> None:
        if not submission.announced and self._membership.there:
            submission.announced = True
            submission.turn = next(self._turns)
            self._membership.tell(type="ready", values=submission.tensor.size, turn=submission.turn)
            self._eager_scatter.send(submission.turn, submission.tensor)

    def unmet(self, turn: int | None, error: OverlayError) -> bool:
        """No task comes for these values (None: those that wait longest); whether they waited."""
        for submission in self.waiting:
            if turn is None or submission.turn == turn:
                self.withdraw(submission, error)
                return True
        return False

    def withdraw(self, submission: Submission, error: OverlayError) -> None:
        """These values wait for no task any more."""
        if submission in self.waiting:
            self.waiting.remove(submission)
            self._eager_scatter.stop()
            submission.future.set_exception(error)

    def task_of(self, submission: Submission) -> int | None:
        """The number of the task that it is in; None: of none."""
        return next((number for number, each in self._in_task.items() if each is submission), None)

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

    def _go_on(self, submission: Submission) -> None:
        """Its values stay what they are."""
        self._eager_scatter.stop()
        self._counters["alone"] += 1
        submission.future.set_result(Done(0, (self._node,), time.monotonic() - submission.began))

    # --- in a task ---

    def take(self, task: int, values: int) -> Values | None:
        """What waits longest is for this task from now on; None: it is not of so many values, or nothing waits."""
        if not self.waiting or self.waiting[0].tensor.size != values:
            return None
        submission = self._in_task[task] = self.waiting.popleft()
        return submission.tensor

    def done(self, task: int, participants: tuple[str, ...], seconds: float) -> None:
        """The result is in its place."""
        submission = self._in_task.pop(task, None)
        if submission is not None:
            submission.future.set_result(Done(task, participants, seconds))

    def go(self, task: int) -> None:
        """The policy lets the sender of a copy go on."""
        submission = self._in_task.pop(task, None)
        if submission is not None:
            submission.future.set_result(Done(task, (self._node,), time.monotonic() - submission.began))

    def again(self, task: int) -> None:
        """The task is given up, and its values wait for another one, before all others."""
        submission = self._in_task.pop(task, None)
        if submission is not None:
            submission.announced = False
            self.waiting.appendleft(submission)
            self._announce(submission)

    def alone(self, task: int) -> None:
        """The task is given up, and its values go on as they are."""
        submission = self._in_task.pop(task, None)
        if submission is not None:
            self._go_on(submission)

    def fail(self, task: int, error: OverlayError) -> None:
        """The task is given up, and nothing is done with its values."""
        submission = self._in_task.pop(task, None)
        if submission is not None:
            submission.future.set_exception(error)

    def fail_all(self, error: OverlayError) -> None:
        for submission in (*self._in_task.values(), *self.waiting):
            if not submission.future.done():
                submission.future.set_exception(error)
        self._in_task.clear()
        self.waiting.clear()
