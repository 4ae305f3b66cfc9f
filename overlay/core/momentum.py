"""The velocity that roots keep in a task with momentum: v = momentum v + sum or mean, and v is the result.

Such a root is a parameter server with a momentum optimiser (APSP). When the root moves, the last root sends its
velocity to the next one, chunk by chunk, and the next root finishes a chunk's sum only when it has the chunk's
velocity.
"""

from __future__ import annotations

import numpy as np

from controlplane.planner.plan.task import Task
from overlay.core.message import Values


class Velocity:
    """The velocity at one agent, in one task.

    Args:
        task: the task.
        node: name of the agent.
        before: this agent's velocity over the whole tensor, from the task before; None where it has none, which
            counts as zeros.

    Attributes:
        after: the velocity that the agent keeps when the task is done; None where it is no root of the task.
    """

    def __init__(self, task: Task, node: str, before: Values | None) -> None:
        self._task, self._before = task, before
        self.after: Values | None = None
        if task.momentum and any(tree.root == node for tree in task.trees):
            self.after = np.zeros(task.values, np.float32)
        self._arrived: dict[tuple[int, int], Values] = {}  # (tree, chunk) -> the last root's velocity
        self._waiting_sums: dict[tuple[int, int], Values] = {}  # complete sums that wait for their velocity

    def of_chunk(self, tree: int, chunk: int) -> Values:
        """Return this agent's velocity of a chunk, to be sent to the next root."""
        start, end = self._task.chunk(tree, chunk)
        return np.zeros(end - start, np.float32) if self._before is None else self._before[start:end]

    def expects(self, tree: int, chunk: int) -> bool:
        """Return whether this agent needs the last root's velocity of this chunk and does not have it yet."""
        return self.after is not None and (tree, chunk) not in self._arrived

    def arrived(self, tree: int, chunk: int, velocity: Values) -> Values | None:
        """Take the last root's velocity of a chunk. Return the chunk's sum where that has waited for the velocity, else
        None.
        """
        self._arrived[tree, chunk] = velocity
        return self._waiting_sums.pop((tree, chunk), None)

    def applied(self, tree: int, chunk: int, total: Values) -> Values | None:
        """Return the chunk's result, which is the new velocity, too: momentum times the old velocity plus `total`.
        Return None where the old velocity has not arrived yet; `arrived` will return the sum.
        """
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
        """Forget the velocities and sums that wait for each other: the task is over."""
        self._arrived.clear()
        self._waiting_sums.clear()
