"""The velocity that roots keep in a task with momentum: v = momentum v + sum or mean, and v is the result.

A root is a parameter server with a momentum optimiser (APSP). When the root moves, the last root sends its velocity to
the next one, chunk by chunk, before the round's sums can be finished there.
"""

from __future__ import annotations

import numpy as np

from controlplane.planner.plan.task import Task
from overlay.core.message import Values


class Velocity:
    """The velocity at one agent, in one task. before: this agent's, over the whole tensor, from the task before; None:
    it has none, which counts as zeros. after: what it keeps when the task is done; None: it is no root of the task."""

    def __init__(self, task: Task, node: str, before: Values | None) -> None:
        self._task, self._before = task, before
        self.after: Values | None = None
        if task.momentum and any(tree.root == node for tree in task.trees):
            self.after = np.zeros(task.values, np.float32)
        self._arrived: dict[tuple[int, int], Values] = {}  # (tree, chunk) -> the last root's velocity
        self._waiting_sums: dict[tuple[int, int], Values] = {}  # sums that are complete and wait for it

    def of_chunk(self, tree: int, chunk: int) -> Values:
        """Return this agent's velocity of a chunk, to be sent to the next root."""
        start, end = self._task.chunk(tree, chunk)
        return np.zeros(end - start, np.float32) if self._before is None else self._before[start:end]

    def expects(self, tree: int, chunk: int) -> bool:
        """Return whether the last root's velocity of this chunk is wanted here and has not arrived."""
        return self.after is not None and (tree, chunk) not in self._arrived

    def arrived(self, tree: int, chunk: int, velocity: Values) -> Values | None:
        """The last root's velocity of a chunk has arrived. Returns the chunk's sum when that has waited for it."""
        self._arrived[tree, chunk] = velocity
        return self._waiting_sums.pop((tree, chunk), None)

    def applied(self, tree: int, chunk: int, total: Values) -> Values | None:
        """The chunk's result: momentum times the old velocity plus `total`. It is the new velocity, too. None: the old
        velocity has not arrived yet; `arrived` will return the sum."""
        assert self.after is not None, "only roots of a task with momentum have a velocity"
        start, end = self._task.chunk(tree, chunk)
        old: Values | None
        if self._task.trees[tree].state is None:
            old = None if self._before is None else self._before[start:end]
        elif (tree, chunk) in self._arrived:
            old = self._arrived.pop((tree, chunk))
        else:
            self._waiting_sums[tree, chunk] = total
            return None
        if old is not None:
            total = old * np.float32(self._task.momentum) + total
        self.after[start:end] = total
        return self.after[start:end]

    def clear(self) -> None:
        """The task is over: nothing waits any more."""
        self._arrived.clear()
        self._waiting_sums.clear()
