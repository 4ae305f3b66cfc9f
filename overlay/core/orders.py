"""Carries out a policy's orders, and keeps the table of running tasks, for the coordinator and the simulator alike.

Here is what an order does to the table. Its consequences for agents are in `Effects`: the coordinator sends them
messages (net/policy_driver.py), the simulator changes its agents' executions (sim/simulation.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from controlplane.planner.plan.task import Task
from controlplane.planner.strategies.wan.policy import (
    Abort,
    ContinueAlone,
    DefaultSplit,
    Drop,
    LetGo,
    Mend,
    Order,
    Pace,
    Reject,
    Release,
    Start,
)
from overlay.core.errors import OverlayError


@dataclass
class RunningTask:
    """A task that runs, in the table of tasks.

    Attributes:
        waiting: the agents that have not yet got every result that they are to get of the task.
        seconds: how long the slowest of the other agents took.
    """

    task: Task
    waiting: set[str]
    seconds: float = 0.0


class Effects(Protocol):
    """Consequences of orders. The table has changed already when a method is called, except for `prepare` and for
    `paced`, which are called before.
    """

    def prepare(self, task: Task) -> Task:
        """Return the task as it will be started, with everything that it needs outside of agents. Raise OverlayError
        where that cannot be had.
        """

    def refused(self, task: Task, error: OverlayError) -> None:
        """Handle that `prepare` has failed: the task is not started."""

    def started(self, task: Task) -> None:
        """Start the task at its agents."""

    def mended(self, before: Task, task: Task) -> None:
        """Tell the agents that a running task has other trees now."""

    def dropped(self, before: Task, task: Task, order: Drop) -> None:
        """Handle that a copy has lost receivers: `task` is `before` without them. Afterwards nobody waits for these any
        more.
        """

    def paced(self, task: Task, mbps: float) -> None:
        """Have the sender of a copy send at another rate from now on."""

    def aborted(self, run: RunningTask, order: Abort) -> None:
        """Have the agents give a task up."""

    def done(self, run: RunningTask) -> None:
        """Handle that no agent waits for the task any more."""

    def released(self, order: Release | LetGo) -> None:
        """Let a trainer go on: the one that sends a copy, or one that no longer waits for a task which goes on without
        keeping the result for it.
        """

    def left_alone(self, order: ContinueAlone) -> None:
        """Let a trainer continue with its own values."""

    def rejected(self, order: Reject) -> None:
        """Give trainers their oldest submissions back."""

    def default_split_set(self, order: DefaultSplit) -> None:
        """Tell agents the split of the tensor by which they begin to send as soon as they are ready."""


class OrderExecutor:
    """The running tasks by number, and what orders do to them. Orders for tasks that do not run are ignored."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self.running: dict[int, RunningTask] = {}

    def carry_out(self, orders: Iterable[Order]) -> None:
        """Carry the orders out, one after the other."""
        for order in orders:
            match order:
                case Start(task):
                    self._start(task)
                case Release():
                    self._effects.released(order)
                case ContinueAlone():
                    self._effects.left_alone(order)
                case Reject():
                    self._effects.rejected(order)
                case DefaultSplit():
                    self._effects.default_split_set(order)
                case Mend(task):
                    if task.number in self.running:
                        run = self.running[task.number]
                        before, run.task = run.task, task
                        self._effects.mended(before, task)
                case Drop() | Pace() | Abort() | LetGo():
                    if order.task in self.running:
                        self._change(order)

    def _start(self, task: Task) -> None:
        try:
            task = self._effects.prepare(task)
        except OverlayError as error:
            self._effects.refused(task, error)
            return
        self.running[task.number] = RunningTask(task, set(task.awaited))
        self._effects.started(task)

    def _change(self, order: Drop | Pace | Abort | LetGo) -> None:
        run = self.running[order.task]
        match order:
            case Drop():
                before, run.task = run.task, run.task.without(order.nodes)
                self._effects.dropped(before, run.task, order)
                self.stop_waiting(order.task, order.nodes)
            case Pace():
                self._effects.paced(run.task, order.mbps)
                run.task = run.task.at_rate(order.mbps)
            case LetGo():
                self._effects.released(order)
                self.stop_waiting(order.task, (order.node,))
            case Abort():
                del self.running[order.task]
                self._effects.aborted(run, order)

    def finished(self, number: int, node: str, seconds: float) -> None:
        """Take note that an agent has every result that it is to get of the task, `seconds` after it began. Unknown
        tasks are ignored.
        """
        if number in self.running:
            run = self.running[number]
            run.seconds = max(run.seconds, seconds)
            self.stop_waiting(number, (node,))

    def stop_waiting(self, number: int, nodes: Iterable[str]) -> None:
        """Take note that these agents have their results of a running task, or will not get them; the task is done when
        no agent waits.
        """
        run = self.running[number]
        run.waiting.difference_update(nodes)
        if not run.waiting:
            del self.running[number]
            self._effects.done(run)
