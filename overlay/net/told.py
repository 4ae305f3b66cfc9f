"""The tasks that an agent was told of last, one of each kind.

The coordinator keeps them for each agent, and the agent keeps its own, by the same rule: a task that equals one which
both know, except for its number and round, is announced by that one's number.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from controlplane.planner.plan.task import Task

KINDS = 16
"""Most kinds of tasks that are kept; those told longest ago are forgotten. A round of few bits is two tasks, scales and
sums, of a fragment of the model."""

Kind = tuple[str, int]
"""A task's operation and number of values."""


def _kind(task: Task) -> Kind:
    return task.op, task.values


class Told:
    """The tasks of which one agent was told; their kinds are in the order in which they were told last."""

    def __init__(self) -> None:
        self._tasks: dict[Kind, Task] = {}

    def add(self, task: Task) -> Task | None:
        """Keep a task of which the agent is told. Return the last one of its kind before; None where there was none."""
        before = self._tasks.pop(_kind(task), None)
        self._tasks[_kind(task)] = task
        while len(self._tasks) > KINDS:
            del self._tasks[next(iter(self._tasks))]
        return before

    def numbered(self, number: int) -> Task | None:
        """Return the task of this number; None where it is not kept any more."""
        return next((task for task in self._tasks.values() if task.number == number), None)

    def forget(self) -> None:
        """Forget all tasks: their numbers are used again."""
        self._tasks.clear()


def packed(task: Task) -> str:
    """Return the task in the form in which it is sent, compressed: its trees name the same agents again and again."""
    return base64.b64encode(zlib.compress(json.dumps(task.to_json()).encode(), 1)).decode()


def unpacked(message: dict[str, Any]) -> Task:
    """Return the task that a message tells.

    Raises:
        TaskError: it is not well formed.
    """
    return Task.from_json(json.loads(zlib.decompress(base64.b64decode(message["packed"]))))
