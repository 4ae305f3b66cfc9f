"""Drives a policy: makes events of the agents' messages, and messages to agents of the policy's orders.

The coordinator uses it, in its loop, and decides itself which agents join and whether it acts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import TYPE_CHECKING, Any

from controlplane.planner.plan.limits import DoesNotFit
from controlplane.planner.plan.model import PlanError
from controlplane.planner.plan.task import Task
from controlplane.planner.strategies.wan.policy import (
    Abort,
    Back,
    ContinueAlone,
    DefaultSplit,
    Drop,
    Event,
    Failed,
    Finished,
    LetGo,
    Lost,
    Measured,
    Order,
    Policy,
    Progress,
    Ready,
    Reject,
    Release,
    Withdrawn,
)
from controlplane.planner.strategies.wan.site_contents import Contents
from controlplane.targets.base import TargetError
from overlay.core.errors import OverlayError
from overlay.core.orders import OrderExecutor, RunningTask
from overlay.core.pending_submissions import PendingSubmissions
from overlay.net.members import Members
from overlay.net.recovery import AgentState, RecoveredTasks

if TYPE_CHECKING:
    from overlay.net.replication import Replication


class PolicyDriver:
    """Drives one policy. The Effects (core/orders.py) of its orders are messages to members.

    Args:
        policy: decides on tasks.
        members: the agents that are connected.
        replication: the switches that copy multicasts (L3); None where no switch does.
        log: gets each line of log.
        on_finished: called as on_finished(task, seconds) when a task is done; its slowest agent took so many
            seconds.

    Attributes:
        running: the tasks that run, by number.
        pending: submissions that no task contains.
        newest: the highest number of a task that has begun.
        default_splits: the message about the default split, for each size of tensors.
    """

    def __init__(
        self,
        policy: Policy,
        members: Members,
        *,
        replication: Replication | None,
        log: Callable[[str], None],
        on_finished: Callable[[Task, float], None],
    ) -> None:
        self.policy, self._members, self._replication = policy, members, replication
        self._log, self._on_finished = log, on_finished
        self._orders = OrderExecutor(self)
        self.running = self._orders.running
        self.pending = PendingSubmissions(lambda: policy.nodes)
        self.newest = -1
        self.default_splits: dict[int, dict[str, Any]] = {}

    # --- events ---

    def handle(self, event: Event) -> None:
        """Give the policy an event and carry out its orders."""
        try:
            orders = self.policy.handle(event, time.monotonic())
        except Exception as error:  # an error of any kind may end its round, but not the job
            self._log(f"no task can be made: {type(error).__name__}: {error}")
            orders = self._orders_after_error(event, f"no task can be made: {type(error).__name__}: {error}")
        self._carry_out(orders)

    def said(self, node: str, message: dict[str, Any]) -> None:
        """Handle an agent's message. Raise ValueError, KeyError or TypeError for one that is not well formed."""
        kind = message["type"]
        if kind == "ready":
            turn = int(message.get("turn", 0))
            self.pending.add(node, turn, time.monotonic())
            round_, op = int(message.get("round", 0)), str(message.get("op", ""))
            weight, within = float(message.get("weight", 1.0)), message.get("within")
            within = None if within is None else float(within)
            if not 0 <= weight < inf:
                raise ValueError(f"a weight is a number from 0 on, got {weight}")
            contents = message.get("contents")
            contents = None if contents is None else Contents.from_json(contents)
            self.handle(Ready(node, int(message["values"]), turn, round_, op, weight, within, contents))
        elif kind == "withdraw":
            self._withdraw(node, int(message["turn"]), message["task"], str(message["reason"]))
        elif kind == "finished":
            number = int(message["task"])
            if number in self.running:
                self._orders.finished(number, node, float(message["seconds"]))
                self.handle(Finished(node, number))
        elif kind == "measured":
            self.handle(Measured(str(message["sender"]), node, float(message["mbps"])))
        elif kind == "progress":
            self.handle(Progress(node, int(message["task"]), str(message["receiver"]), float(message["left"])))
        elif kind == "lost":
            self._log(f"{node}: {message['reason']}")
            other = self._members.get(message["node"])
            if other is not None and list(other.address) == message["address"]:  # else it has joined again since
                self.handle(Lost(node, other.node, str(message["reason"])))
        elif kind == "failed":
            self._fail(int(message["task"]), f"{node}: {message['reason']}")

    def _fail(self, number: int, reason: str) -> None:
        """Handle that a task cannot be carried out: it is given up, unless the policy has another answer."""
        self._log(f"task {number}: {reason}")
        self.handle(Failed(number, reason))
        if number in self.running:
            self._carry_out([Abort(number, reason)])

    def _withdraw(self, node: str, turn: int, number: int | None, reason: str) -> None:
        """Handle that an agent's trainer waits no longer, for the task of this number or (None) for a task that
        contains its submission. The agent is told which agents are missing.
        """
        if number is not None:
            if number in self.running and getattr(self.policy, "lets_go", False):
                self.handle(Withdrawn(node, turn, number))
            elif number in self.running:
                waiting = sorted(self.running[number].waiting)
                self._fail(number, f"{node}: {reason}; without all of it: {', '.join(waiting)}")
            return
        missing = self.pending.missing(self._members)
        self.pending.remove(node, turn)
        self.handle(Withdrawn(node, turn))
        self._members.tell((node,), type="unmet", turn=turn, reason=f"{reason}: {missing}")

    def _orders_after_error(self, event: Event, reason: str) -> list[Order]:
        """Return the orders to carry out when the policy has raised an error for this event. Trainers that wait get
        their values back, and the policy is told that their agents were lost and are back, so that it forgets their
        submissions. A lost agent's tasks are given up.
        """
        orders: list[Order] = []
        if isinstance(event, Ready):
            waiting = self.pending.waiting()
            orders.append(Reject(tuple(waiting), reason))
            for anew in [each for node in waiting for each in (Lost(node), Back(node))]:
                try:
                    orders += self.policy.handle(anew, time.monotonic())
                except Exception as error:
                    self._log(f"the policy cannot handle {anew}: {type(error).__name__}: {error}")
        elif isinstance(event, Lost):
            orders += [Abort(number, reason) for number, run in self.running.items() if event.node in run.task.nodes]
        return orders

    # --- tasks of the earlier coordinator ---

    def recover(self, recovered: RecoveredTasks, states: dict[str, AgentState]) -> None:
        """Continue with the tasks of the earlier coordinator. `states` are those of the members, as they joined."""
        for number, (task, waiting) in recovered.tasks.items():
            self.running[number] = RunningTask(task, set(waiting))
            aware = {node for node, state in states.items() if number <= state.newest or not state.epoch}
            self._tell_mended(task, [node for node in states if node in task.nodes and node not in aware])
        for number, task in recovered.given_up.items():
            self._members.tell(task.nodes, type="abort", task=number, reason="given up before", again=task.keep)
        for number, task in recovered.done.items():
            self._members.tell(task.nodes, type="done", task=number)
        nodes = {node for task, _ in recovered.tasks.values() for node in task.nodes}
        for node in [node for node, state in states.items() if node in nodes and not state.epoch]:
            self.handle(Lost(node))  # its process has restarted, and its part of these tasks is gone
            self.handle(Back(node))

    def forget(self) -> None:
        """Forget the tasks, as the coordinator acts no more: agents go on with them alone."""
        if self._replication is not None:
            for number in self.running:
                self._replication.remove(number)
        self.running.clear()

    # --- effects of orders ---

    def _carry_out(self, orders: Iterable[Order]) -> None:
        self._orders.carry_out(orders)
        if self._replication is not None:
            try:
                self._replication.settle()  # removes branches of lost receivers, which take bandwidth from others
            except TargetError as error:
                self._log(f"switches still copy to receivers that have been dropped: {error}")

    def prepare(self, task: Task) -> Task:
        """Install on switches what they are to copy. Return the task with the labels; raise OverlayError where that
        fails.
        """
        if task.number <= self.newest:
            raise OverlayError(f"the policy begins task {task.number} after task {self.newest}")
        if not any(tree.routes for tree in task.trees):
            return task
        if self._replication is None:
            raise OverlayError("switches are to copy multicasts (L3), and the coordinator was given none (--switches)")
        try:
            return self._replication.install(task)
        except (TargetError, DoesNotFit, PlanError) as error:
            raise OverlayError(str(error)) from None

    def refused(self, task: Task, error: OverlayError) -> None:
        self._log(f"task {task.number} is not started: {error}")
        self._orders.carry_out([Reject(task.submitters, str(error))])
        self.handle(Failed(task.number, str(error)))

    def started(self, task: Task) -> None:
        self.newest = task.number
        for node in task.submitters:
            self.pending.remove_first(node)
        self._members.announce(task, task.nodes)

    def mended(self, before: Task, task: Task) -> None:
        self._tell_mended(task, task.nodes - before.nodes)
        self._members.tell(before.nodes - task.nodes, type="done", task=task.number)

    def _tell_mended(self, task: Task, unaware: Collection[str]) -> None:
        """Tell the agents of a mended task. `unaware` are those that have not been told of the task before."""
        self._members.announce(task, unaware)
        self._members.tell([node for node in task.nodes if node not in unaware], type="mend", task=task.to_json())

    def dropped(self, before: Task, task: Task, order: Drop) -> None:
        self._members.tell((before.trees[0].root,), type="drop", task=task.number, lost=order.nodes)
        self._members.tell(order.nodes, type="done", task=task.number)
        if self._replication is not None:
            self._replication.prune(task)

    def paced(self, task: Task, mbps: float) -> None:
        self._members.tell((task.trees[0].root,), type="pace", task=task.number, mbps=mbps)

    def aborted(self, run: RunningTask, order: Abort) -> None:
        if self._replication is not None:
            self._replication.remove(order.task)
        self._log(f"task {order.task} is given up: {order.reason}")
        self._members.tell(run.task.nodes, type="abort", task=order.task, reason=order.reason, again=order.again)

    def done(self, run: RunningTask) -> None:
        number = run.task.number
        if self._replication is not None:
            self._replication.remove(number)
        self._members.tell(run.task.nodes, type="done", task=number)
        self._on_finished(run.task, run.seconds)

    def released(self, order: Release | LetGo) -> None:
        if isinstance(order, LetGo):
            self._log(f"task {order.task} goes on: {order.reason}")
            self._members.tell((order.node,), type="let go", task=order.task, reason=order.reason)
            return
        self._members.tell((order.node,), type="go", task=order.task)

    def left_alone(self, order: ContinueAlone) -> None:
        self.pending.remove_first(order.node)
        self._members.tell((order.node,), type="alone", reason=order.reason)

    def rejected(self, order: Reject) -> None:
        for node in order.nodes:
            self.pending.remove_first(node)
        self._log(f"{', '.join(order.nodes)}: {order.reason}")
        contents = None if order.contents is None else order.contents.to_json()
        about = {"reason": order.reason, "behind": order.behind, "again": order.again, "contents": contents}
        self._members.tell(order.nodes, type="unmet", turn=None, **about)

    def default_split_set(self, order: DefaultSplit) -> None:
        self.default_splits[order.values] = {
            "type": "default", "values": order.values, "chunk_values": order.chunk_values, "blocks": order.blocks,
        }  # fmt: skip
        self._members.tell(self._members, **self.default_splits[order.values])
