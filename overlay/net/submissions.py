"""A trainer's submissions: values that wait for a task, are in one, and end as a result, unchanged or with an error."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from controlplane.planner.strategies.wan.site_contents import Contents
from overlay.core.errors import OverlayError
from overlay.core.message import Values
from overlay.net.eager_scatter import EagerScatter
from overlay.net.membership import Membership

ALONE_SECONDS = 1.0
"""Seconds without a coordinator after which an agent continues alone, where its policy allows that."""


@dataclass(frozen=True)
class Done:
    """The end of a synchronisation.

    Attributes:
        task: number of the task; 0 where the agent continued alone.
        participants: the agents whose values are in the result.
        seconds: time since the task was announced.
        weights: the participants' weights, where they gave some.
    """

    task: int
    participants: tuple[str, ...]
    seconds: float
    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class About:
    """Description of a submission, for policies whose members come and go (`Ready`)."""

    round: int = 0
    op: str = ""
    weight: float = 1.0
    contents: Contents | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the description as an object of JSON."""
        contents = None if self.contents is None else self.contents.to_json()
        return {"round": self.round, "op": self.op, "weight": self.weight, "contents": contents}


@dataclass(eq=False)
class Submission:
    """Values, and the future of the trainer that waits for their result.

    Attributes:
        tensor: the values.
        about: description of the values; None where the policy needs none.
        ends: when the trainer stops waiting, in seconds of the monotonic clock; None where it waits without limit.
        future: gets the result.
        began: when the values were submitted, in seconds of the monotonic clock.
        announced: whether the coordinator has been told of the submission.
        turn: this agent's own number for the submission, given when the coordinator is told.
    """

    tensor: Values
    about: About | None = None
    ends: float | None = None
    future: concurrent.futures.Future[Done] = field(default_factory=concurrent.futures.Future)
    began: float = field(default_factory=time.monotonic)
    announced: bool = False
    turn: int = 0


class Submissions:
    """All submissions of one agent that have not ended, in the agent's loop.

    Attributes:
        waiting: submissions that no task contains yet, oldest first.
        may_go_alone: whether the policy lets trainers continue with their own values while no coordinator answers
            (CREW).
        left_at: when the last coordinator was lost, in seconds of the loop; None where one is connected.
    """

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
        self.waiting: deque[Submission] = deque()
        self._in_task: dict[int, Submission] = {}
        # Turns of this process must differ from those before a restart.
        self._turns = count(int(time.time() * 1000) & 0x3FFFFFFF)
        self.may_go_alone = False
        self._introduced = False  # whether a coordinator has ever said who the members are
        self.left_at: float | None = None

    # --- before a task ---

    def submit(self, submission: Submission) -> None:
        """Take values that the trainer wants to synchronise."""
        self.waiting.append(submission)
        if self.left_at is not None and self.may_go_alone and self._loop.time() > self.left_at + ALONE_SECONDS:
            self._all_alone()
        elif self._introduced:
            self._announce(submission)

    def forget_announcements(self) -> None:
        """Forget which submissions were announced: the agent joins another coordinator, which has heard of none."""
        for submission in self.waiting:
            submission.announced = False

    def announce(self) -> None:
        """Tell a coordinator that has said who the members are of all submissions that wait."""
        self._introduced, self.left_at = True, None
        for submission in self.waiting:
            self._announce(submission)

    def _announce(self, submission: Submission) -> None:
        if submission.ends is not None and submission.ends <= time.monotonic():
            return  # its trainer waits no longer: a round with this deadline would leave others out
        if not submission.announced and self._membership.connected:
            submission.announced = True
            submission.turn = next(self._turns)
            about = {} if submission.about is None else submission.about.to_json()
            if submission.ends is not None:
                about["within"] = max(0.0, submission.ends - time.monotonic())
            self._membership.tell(type="ready", values=submission.tensor.size, turn=submission.turn, **about)
            self._eager_scatter.send(submission.turn, submission.tensor)

    def reject(self, turn: int | None, error: OverlayError) -> bool:
        """End the submission of this turn (None for the oldest one), which no task can contain, with an error. Return
        whether it was waiting.
        """
        for submission in self.waiting:
            if turn is None or submission.turn == turn:
                self.withdraw(submission, error)
                return True
        return False

    def withdraw(self, submission: Submission, error: OverlayError) -> None:
        """End a submission that waits for a task with an error; do nothing where it does not wait."""
        if submission in self.waiting:
            self.waiting.remove(submission)
            self._eager_scatter.stop()
            submission.future.set_exception(error)

    def task_of(self, submission: Submission) -> int | None:
        """Return the number of the task that contains the submission; None where no task does."""
        return next((number for number, each in self._in_task.items() if each is submission), None)

    def task_by_turn(self, turn: int) -> int | None:
        """Return the number of the task that contains the submission of this turn; None where no task does."""
        return next((number for number, each in self._in_task.items() if each.turn == turn), None)

    # --- without a coordinator ---

    def coordinator_left(self) -> None:
        """Handle that the coordinator is gone, or none has answered; may be called again and again."""
        if self.left_at is None:
            self.left_at = self._loop.time()
        self._loop.call_later(max(0.0, self.left_at + ALONE_SECONDS - self._loop.time()), self._all_alone)

    def _all_alone(self) -> None:
        """Let trainers whose values wait continue with them (CREW paper, IV-B), as no coordinator can form a group for
        them.
        """
        if self._membership.connected or not self.may_go_alone or self.left_at is None:
            return
        while self.waiting:
            self.first_alone()

    def first_alone(self) -> None:
        """Let the trainer continue with the values of its oldest submission as they are."""
        if self.waiting:
            self._continue_alone(self.waiting.popleft())

    def _continue_alone(self, submission: Submission) -> None:
        self._eager_scatter.stop()
        self._counters["alone"] += 1
        submission.future.set_result(Done(0, (self._node,), time.monotonic() - submission.began))

    # --- in a task ---

    def take(self, task: int, values: int) -> Values | None:
        """Put the oldest submission into the task, and return its tensor. Return None where no submission waits, or the
        oldest one has another number of values than `values`.
        """
        if not self.waiting or self.waiting[0].tensor.size != values:
            return None
        submission = self._in_task[task] = self.waiting.popleft()
        return submission.tensor

    def done(self, done: Done) -> None:
        """Handle that the task's result is in the submission's tensor."""
        submission = self._in_task.pop(done.task, None)
        if submission is not None:
            submission.future.set_result(done)

    def release(self, task: int) -> None:
        """Let the trainer that sends a copy continue, as the policy says."""
        submission = self._in_task.pop(task, None)
        if submission is not None:
            submission.future.set_result(Done(task, (self._node,), time.monotonic() - submission.began))

    def requeue(self, task: int) -> None:
        """Have the submission of a task that is given up wait for another task, before all others."""
        submission = self._in_task.pop(task, None)
        if submission is not None:
            submission.announced = False
            self.waiting.appendleft(submission)
            self._announce(submission)

    def alone(self, task: int) -> None:
        """Let the trainer of a task that is given up continue with its own values."""
        submission = self._in_task.pop(task, None)
        if submission is not None:
            self._continue_alone(submission)

    def fail(self, task: int, error: OverlayError) -> bool:
        """End the submission in a task with an error: the task is given up, or goes on without the trainer. Return
        whether a submission was in the task.
        """
        submission = self._in_task.pop(task, None)
        if submission is not None:
            submission.future.set_exception(error)
        return submission is not None

    def fail_all(self, error: OverlayError) -> None:
        """Let every future that is not done raise the error: the agent ends."""
        for submission in (*self._in_task.values(), *self.waiting):
            if not submission.future.done():
                submission.future.set_exception(error)
        self._in_task.clear()
        self.waiting.clear()
