"""Ends submissions without a result: their trainers wait no longer, or no task can contain them."""

from __future__ import annotations

import asyncio
from typing import Any

from controlplane.planner.strategies.wan.site_contents import Contents
from overlay.core.errors import Behind, OverlayError, PeerLost, Unfit
from overlay.net.membership import Membership
from overlay.net.submissions import Submission, Submissions
from overlay.net.tasks import Tasks

ANSWER_SECONDS = 3.0
"""Seconds that a trainer whose timeout has passed waits for the coordinator to name the agents that are missing."""


class Withdrawals:
    """Ends the submissions of one agent before their result, in the agent's loop."""

    def __init__(
        self,
        node: str,
        loop: asyncio.AbstractEventLoop,
        membership: Membership,
        submissions: Submissions,
        tasks: Tasks,
    ) -> None:
        self._node, self._loop = node, loop
        self._membership, self._submissions, self._tasks = membership, submissions, tasks

    def give_up(self, submission: Submission, reason: str) -> None:
        """End a submission for whose result the trainer waits no longer. The coordinator, where one answers, names the
        agents that are missing.
        """
        if submission.future.done():
            return
        number = self._submissions.task_of(submission)
        if self._membership.connected and (number is not None or submission.announced):
            self._membership.tell(type="withdraw", turn=submission.turn, task=number, reason=reason)
            unanswered = f"{reason}, and no coordinator answers"
            self._loop.call_later(ANSWER_SECONDS, self._give_up_alone, submission, unanswered)
        else:
            self._give_up_alone(submission, f"{reason}: there is no coordinator at {self._membership.known}")

    def _give_up_alone(self, submission: Submission, reason: str) -> None:
        """End a submission for whose result the trainer waits no longer, without an answer of the coordinator."""
        number = self._submissions.task_of(submission)
        if submission.future.done():
            return
        if number is not None and submission.about is not None:
            self._tasks.let_go(number, reason)
        elif number is not None:
            self._tasks.discard(number, reason, alone=True)
        else:
            self._submissions.withdraw(submission, OverlayError(f"{self._node}: {reason}"))

    def reject(self, turn: int | None, reason: str, message: dict[str, Any]) -> None:
        """End the submission of this turn (None for the oldest one), which no task can contain, as the coordinator's
        message says.
        """
        words, behind = f"{self._node}: {reason}", message.get("behind")
        error = OverlayError(words) if behind is None else Behind(words, behind)
        if message.get("again"):
            error = PeerLost(words)
        if message.get("contents") is not None:
            error = Unfit(words, Contents.from_json(message["contents"]))
        if not self._submissions.reject(turn, error) and turn is not None:
            number = self._submissions.task_by_turn(turn)
            if number is not None:  # its task has begun since the trainer gave up
                self._membership.tell(type="withdraw", turn=turn, task=number, reason=reason)
