"""One agent's tasks, from the coordinator's announcement until they are over, and how their chunks are sent."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from controlplane.planner.plan.task import Edge, Task, TaskError
from overlay.core.buffers import Buffers
from overlay.core.errors import OverlayError, PeerLost
from overlay.core.execution import Environment, Execution, SendRequest
from overlay.core.message import Header, Kind, Values
from overlay.core.path_selector import PathSelector
from overlay.net.detours import Detours
from overlay.net.eager_scatter import EagerScatter
from overlay.net.membership import Membership
from overlay.net.neighbours import Neighbours
from overlay.net.pending_messages import PendingMessages
from overlay.net.reliable_multicast import NOTHING, ReliableMulticast
from overlay.net.submissions import Done, Submissions
from overlay.net.told import Told

ENDED_TASKS = 256
"""Number of tasks of which an agent remembers how they ended, for a coordinator that was restarted."""


@dataclass(frozen=True)
class AgentParts:
    """The parts of an agent that its tasks use."""

    membership: Membership
    neighbours: Neighbours
    multicast: ReliableMulticast
    submissions: Submissions
    eager_scatter: EagerScatter
    pending_messages: PendingMessages
    buffers: Buffers = field(default_factory=Buffers)


class Tasks:
    """The tasks of one agent, in its loop.

    Args:
        node: the agent's name.
        loop: its event loop.
        parts: the other parts of the agent.
        counters: the agent's counters.
        copied: called as copied(sender, task, values) when a copy that another agent sends is complete.
        log: gets each line of log.

    Attributes:
        detours: the chunks that are on detours.
        running: the executions, by the task's number; a complete one stays until the coordinator has heard of all
            agents that theirs are complete, too.
        idle: set while no task runs.
    """

    def __init__(
        self,
        node: str,
        loop: asyncio.AbstractEventLoop,
        parts: AgentParts,
        *,
        counters: Counter[str],
        copied: Callable[[str, int, Values], None],
        log: Callable[[str], None],
    ) -> None:
        self._node, self._loop = node, loop
        self._membership, self._tell = parts.membership, parts.membership.tell
        self._neighbours, self._multicast, self.paths = parts.neighbours, parts.multicast, PathSelector(node)
        self.detours = Detours()
        self._submissions, self._eager_scatter = parts.submissions, parts.eager_scatter
        self._pending_messages, self._buffers = parts.pending_messages, parts.buffers
        self._counters, self._copied, self._log = counters, copied, log
        self.running: dict[int, Execution] = {}
        self.idle = threading.Event()
        self.idle.set()
        self._newest = 0  # the highest number of a task that the coordinator has announced
        self._told = Told()
        self._losses: list[tuple[str, str]] = []  # (neighbour, reason) since a coordinator acted last
        self._let_go: set[int] = set()  # tasks for whose results the trainer waits no longer
        self._ended: dict[int, bool] = {}  # task -> whether it was done; else it was given up

    def may_come(self, epoch: int, number: int) -> bool:
        """Return whether a task that does not run may still be announced."""
        return (epoch, number) > (self._neighbours.epoch, self._newest)

    # --- for a coordinator that was restarted ---

    def report(self) -> dict[str, Any]:
        """Return the state that a restarted coordinator needs (`AgentState`)."""
        running = [{"task": each.task.to_json(), "finished": each.complete} for each in self.running.values()]
        return {"newest": self._newest, "running": running, "ended": list(self._ended.items())}

    def new_epoch(self) -> None:
        """Give up all tasks: the coordinator that acts now does not know them, and its numbers begin again."""
        self.abort_all("a coordinator that does not know this task acts")
        self._newest = 0
        self._told.forget()
        self._ended.clear()

    # --- messages of the coordinator ---

    def begin_alike(self, number: int, new: int, round_: int) -> Execution | None:
        """Begin task `new`, which equals task `number`, the last one told of its kind, except for its number and round.
        Return None where it cannot be begun, and the coordinator has been told why.
        """
        before = self._told.numbered(number)
        if before is None:
            reason = f"it is to be like task {number}, and this agent was told of no such task, or of another one since"
            self._tell(type="failed", task=new, reason=reason)
            return None
        return self.begin(replace(before, number=new, round=round_), checked=True)

    def begin(self, task: Task, *, checked: bool = False) -> Execution | None:
        """Begin a task. Return None where it cannot be begun, and the coordinator has been told why. With `checked`,
        the task is known to be well formed.
        """
        number = task.number
        try:
            if not checked:
                task.check()
        except TaskError as error:
            self._tell(type="failed", task=number, reason=str(error))
            return None
        self._told.add(task)
        environment = Environment(
            send=lambda request: self._send_request(execution, request),
            finished=lambda: self._finished(execution),
            clock=self._loop.time,
            later=self._loop.call_later,
            progress=lambda receiver, left: self._tell(type="progress", task=number, receiver=receiver, left=left),
            buffers=self._buffers,
        )
        execution = Execution(task, self._node, environment, skip=self._eager_scatter.settle(task))
        self.running[number] = execution
        if task.budget:
            self._loop.call_later(task.budget, self._budget_spent, execution)
        self.idle.clear()
        self._newest = max(self._newest, number)
        self._neighbours.connect_for(task)
        if self._node in task.submitters:
            tensor = self._submissions.take(number, task.values)
            if tensor is None:
                reason = f"{self._node} has no {task.values} values"
                self._tell(type="failed", task=number, reason=reason)
                return None
            execution.start(tensor)
        elif self._node in task.participants:
            execution.start(np.empty(task.values, np.float32))
        return execution

    def mend(self, task: Task) -> Execution | None:
        """Go on with other trees of a running task, which other agents have taken over. Return None where the task is
        over at this agent, or cannot go on in this way.
        """
        number = task.number
        execution = self.running.get(number)
        if execution is None or execution.closed or len(task.trees) <= len(execution.task.trees):
            return None
        try:
            task.check()
        except TaskError as error:
            self._tell(type="failed", task=number, reason=str(error))
            return None
        # A message of the old trees that is arriving must not be received into memory that the new ones use.
        self._neighbours.divert(number, execution.tensor)
        self._counters["mended"] += 1
        execution.mend(task)
        self.detours.forget(number)
        return execution

    def let_go(self, number: int, reason: str) -> None:
        """End the trainer's wait for a task that goes on: its values are in the task, and others may need what passes
        through this agent. The trainer must not touch its tensor any more, in which results arrive.
        """
        if self._submissions.fail(number, PeerLost(f"{self._node}: {reason}")):
            self._let_go.add(number)

    def drop(self, number: int, receivers: list[str]) -> None:
        """Send no more of a copy to these receivers."""
        if number in self.running:
            self.running[number].drop(receivers)

    def pace(self, number: int, mbps: float) -> None:
        """Send the task's trees that switches copy at this rate (Mbit/s of values) from now on."""
        if number in self.running:
            self._multicast.pace(self.running[number], mbps)

    def done(self, number: int) -> None:
        """Forget the task, as all agents have every result that they are to get of it."""
        self._forget(number, commit=True)

    def abort(self, number: int, reason: str, again: bool = False) -> None:
        """Give the task up. With `again`, its submission waits for another task."""
        self._newest = max(self._newest, number)
        execution = self.running.get(number)
        alone = execution is not None and execution.task.keep and self._submissions.may_go_alone
        # Before the tensor is restored, since nothing that is arriving may get into it then.
        self._neighbours.divert(number, None if execution is None else execution.tensor)
        if execution is not None:
            execution.restore()
        self._forget(number)
        self._pending_messages.take_packets(self._neighbours.epoch, number)
        if again:
            self._submissions.requeue(number)
        elif alone:
            self._submissions.alone(number)
        else:
            self._submissions.fail(number, PeerLost(reason))

    def abort_all(self, reason: str) -> None:
        """Give up all tasks at this agent: trainers get their values back as they submitted them."""
        for number in list(self.running):
            self.abort(number, reason)

    # --- failures ---

    def lost(self, name: str, address: tuple[str, int] | None, reason: str) -> None:
        """Handle that a neighbour cannot be reached at the address at which it listened; another process may have its
        name by now.
        """
        self._tell(type="lost", node=name, address=address, reason=reason)
        if not self._membership.acting:
            self._losses.append((name, reason))
        if not self._membership.connected:
            self.coordinator_left()

    def coordinator_left(self) -> None:
        """Discard the tasks that need a neighbour that was lost since a coordinator acted: no coordinator can repair
        them.
        """
        losses, self._losses = self._losses, []
        for name, reason in losses:
            for number, execution in list(self.running.items()):
                if self._node in execution.task.participants and name in execution.task.nodes:
                    self.discard(number, f"{reason}, and there is no coordinator to repair the task")

    def coordinator_acts(self) -> None:
        """Forget the losses of neighbours: a coordinator acts, and has been told of all of them."""
        self._losses.clear()

    def discard(self, number: int, reason: str, *, pass_on: bool = True, alone: bool = False) -> None:
        """Give a task up: through the coordinator where one is connected, else (or with `alone`, when it does not
        answer) by telling the other agents (`pass_on`) and giving it up here.
        """
        execution = self.running.get(number)
        if execution is None or execution.complete or self._node not in execution.task.participants:
            return
        if self._membership.connected and not alone:
            self._tell(type="failed", task=number, reason=reason)
            return
        self._log(f"task {number} is discarded: {reason}")
        for name in sorted(execution.task.nodes & self._neighbours.peers.keys()) if pass_on else ():
            self._neighbours.control(Kind.DISCARD, execution.task, name, 0, NOTHING)
        self._counters["discarded"] += 1
        self.abort(number, reason)

    def _budget_spent(self, execution: Execution) -> None:
        if not execution.closed and not execution.complete:
            self.discard(execution.task.number, f"not done within {execution.task.budget:g} s")

    # --- sending and ending ---

    def _send_request(self, execution: Execution, request: SendRequest) -> None:
        """Send a chunk along the path that is free for it, or to the switches that copy it."""
        if request.edge is None:
            try:
                self._multicast.send(execution, request, self._neighbours.epoch)
            except OverlayError as error:
                self._tell(type="failed", task=execution.task.number, reason=str(error))
            return
        if not execution.task.detours:
            if not execution.closed:
                self._send(execution, request, request.edge, partial(execution.sent, request), lambda: None)
            return

        def send_over(path: Edge, left: Callable[[], None]) -> None:
            def taken() -> None:
                if path.via and execution.sends_to(path.receiver):
                    self.detours.add(execution.task.number, request.tree, request.chunk, path.receiver, left)
                else:
                    left()
                execution.sent(request)

            if execution.closed:
                left()  # the task is given up: the path is free for others
            else:
                self._send(execution, request, path, taken, left)

        self.paths.send(execution.task, request.edge, send_over)

    def _send(
        self, execution: Execution, request: SendRequest, edge: Edge,
        sent: Callable[[], None], dropped: Callable[[], None],
    ) -> None:  # fmt: skip
        task, epoch = execution.task, self._neighbours.epoch
        path = self._neighbours.path(self._node, *edge.via, edge.receiver)
        size, contributors = len(request.values), request.contributors
        header = Header(request.kind, epoch, task.number, path, 1, request.tree, request.chunk, size, contributors)
        self._neighbours.send(
            task.priority, header, request.values, sent,
            wanted=lambda: execution.sends_to(edge.receiver), dropped=dropped,
        )  # fmt: skip

    def _finished(self, execution: Execution) -> None:
        """Handle that the execution has every result that this agent is to get."""
        task = execution.task
        seconds = self._loop.time() - execution.began
        if task.op == "copy" and task.trees[0].root == self._node:
            return  # its trainer continues when the policy says so (`release`)
        self._neighbours.divert(task.number, execution.tensor)
        if task.op == "copy":
            assert execution.tensor is not None
            self._copied(task.trees[0].root, task.number, execution.tensor)
        if task.number in self._let_go:
            return  # the trainer has not waited for the result
        self._tell(type="finished", task=task.number, seconds=seconds)
        self._submissions.done(Done(task.number, self._mixed(task), seconds, task.weights))

    def _mixed(self, task: Task) -> tuple[str, ...]:
        """Return the agents whose values are in this agent's result."""
        if task.op != "mix":
            return task.participants
        return (self._node, *(tree.root for tree in task.trees if self._node in tree.receivers))

    def _forget(self, number: int, *, commit: bool = False) -> None:
        """Forget a task that is over. With `commit` it was done, else it was given up."""
        execution = self.running.pop(number, None)
        self._let_go.discard(number)
        self._pending_messages.take(self._neighbours.epoch, number)
        if execution is not None:
            self._ended[number] = commit
            while len(self._ended) > ENDED_TASKS:
                del self._ended[next(iter(self._ended))]
            self._counters.update(execution.counters)
            self._neighbours.adapt(execution.task)
            self._multicast.forget(execution.task)
            execution.close()
        self.detours.forget(number)  # a chunk that waits for a path finds its execution closed, and goes nowhere
        if not self.running:
            self.idle.set()
