"""An agent's tasks, from when the coordinator tells them until they are over; what they send goes out from here."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from controlplane.planner.plan.task import Edge, Task, TaskError
from overlay.core.errors import OverlayError, PeerLost
from overlay.core.execution import Execution, SendRequest, Values
from overlay.core.message import Header, Kind
from overlay.core.path_selector import PathSelector
from overlay.net.eager_scatter import EagerScatter
from overlay.net.membership import Membership
from overlay.net.neighbours import Neighbours
from overlay.net.pending_messages import PendingMessages
from overlay.net.reliable_multicast import NOTHING, ReliableMulticast
from overlay.net.submissions import Submissions

ENDED = 256
"""Tasks that are over, of which an agent knows how they ended."""


class Tasks:
    """Of one agent, in its loop. copied(sender, task, values): a copy is complete that another agent sent.

    running: executions by the task's number; one that has all that it gets is there until the coordinator has heard so
    of everybody. idle: none is. state: what the agent keeps as a root of tasks with momentum.
    """

    def __init__(
        self,
        node: str,
        loop: asyncio.AbstractEventLoop,
        *,
        membership: Membership,
        neighbours: Neighbours,
        multicast: ReliableMulticast,
        submissions: Submissions,
        eager_scatter: EagerScatter,
        pending_messages: PendingMessages,
        counters: Counter[str],
        copied: Callable[[str, int, Values], None],
        log: Callable[[str], None],
    ) -> None:
        self._node, self._loop = node, loop
        self._membership, self._tell = membership, membership.tell
        self._neighbours, self._multicast, self._paths = neighbours, multicast, PathSelector(node)
        self._submissions, self._eager_scatter, self._pending_messages = submissions, eager_scatter, pending_messages
        self._counters, self._copied, self._log = counters, copied, log
        self.running: dict[int, Execution] = {}
        self.idle = threading.Event()
        self.idle.set()
        self.state: Values | None = None
        self._newest = 0
        self._latest: Task | None = None  # that was told
        self._unmended: list[tuple[str, str]] = []  # neighbours lost since a coordinator acted last, and how
        self._ended: dict[int, bool] = {}  # task -> whether it was done; else it was given up

    def to_come(self, epoch: int, number: int) -> bool:
        """Whether a task that is not running may be announced yet."""
        return (epoch, number) > (self._neighbours.epoch, self._newest)

    # --- for a coordinator that takes over from another one ---

    def report(self) -> dict[str, Any]:
        """What it needs to know."""
        running = [{"task": each.task.to_json(), "finished": each.over} for each in self.running.values()]
        return {"newest": self._newest, "running": running, "ended": list(self._ended.items())}

    def begin_anew(self) -> None:
        """It knows nothing of these, and has numbers of its own."""
        self.abort_all("another coordinator has taken over")
        self._newest = 0
        self._ended.clear()

    # --- what the coordinator says ---

    def begin_alike(self, number: int, new: int, round_: int) -> Execution | None:
        """A task as the last one that this coordinator has told."""
        if self._latest is None or self._latest.number != number:
            self._tell(type="failed", task=new, reason=f"it is to be as task {number}, which this agent has not taken")
            return None
        return self.begin(replace(self._latest, number=new, round=round_), checked=True)

    def begin(self, task: Task, *, checked: bool = False) -> Execution | None:
        """None: it cannot, and the coordinator has been told why."""
        number, self._latest = task.number, None
        try:
            if not checked:
                task.check()
        except TaskError as error:
            self._tell(type="failed", task=number, reason=str(error))
            return None
        self._latest = task
        execution = Execution(
            task,
            self._node,
            skip=self._eager_scatter.settle(task),
            post=lambda post: self._post(execution, post),
            finished=lambda: self._finished(execution),
            clock=self._loop.time,
            later=self._loop.call_later,
            state=self.state if self.state is not None and self.state.size == task.values else None,
            progress=lambda receiver, left: self._tell(type="progress", task=number, receiver=receiver, left=left),
        )
        self.running[number] = execution
        if task.budget:
            self._loop.call_later(task.budget, self._late, execution)
        self.idle.clear()
        self._newest = max(self._newest, number)
        self._neighbours.expect(task)
        if self._node in task.submitters:
            tensor = self._submissions.take(number, task.values)
            if tensor is None:
                self._tell(type="failed", task=number, reason=f"{self._node} has no {task.values} values")
                return None
            execution.start(tensor)
        elif self._node in task.participants:
            execution.start(np.empty(task.values, np.float32))
        return execution

    def mend(self, task: Task) -> Execution | None:
        """Other agents have taken trees of a task over. None: it is over here, or cannot go on so."""
        number = task.number
        execution = self.running.get(number)
        if execution is None or execution.closed or len(task.trees) <= len(execution.task.trees):
            return None
        try:
            task.check()
        except TaskError as error:
            self._tell(type="failed", task=number, reason=str(error))
            return None
        # What is on its way of the old trees must not meet what comes of the new ones.
        self._neighbours.divert(number)
        self._counters["mended"] += 1
        execution.mend(task)
        return execution

    def drop(self, number: int, lost: list[str]) -> None:
        """These receivers of a copy get no more of it."""
        if number in self.running:
            self.running[number].drop(lost)

    def pace(self, number: int, mbps: float) -> None:
        """What switches copy of it is sent so fast from now on."""
        if number in self.running:
            self._multicast.pace(self.running[number], mbps)

    def done(self, number: int) -> None:
        """Everybody has what he gets."""
        self._forget(number, commit=True)

    def abort(self, number: int, reason: str, again: bool = False) -> None:
        """It is given up. again: what was brought for it waits for another one."""
        self._newest = max(self._newest, number)
        execution = self.running.get(number)
        alone = execution is not None and execution.task.keep and self._submissions.may_go_alone
        self._neighbours.divert(number)  # before the tensor is restored: what still comes must not get into it
        if execution is not None:
            execution.restore()
        self._forget(number)
        self._pending_messages.take_packets(self._neighbours.epoch, number)
        if again:
            self._submissions.again(number)
        elif alone:
            self._submissions.alone(number)
        else:
            self._submissions.fail(number, PeerLost(reason))

    def abort_all(self, reason: str) -> None:
        """This agent gives up all that it is in: its trainer gets its values back as it brought them."""
        for number in list(self.running):
            self.abort(number, reason)

    # --- what goes wrong here ---

    def lost(self, name: str, address: tuple[str, int] | None, reason: str) -> None:
        """A neighbour cannot be reached. address: where it listened; by now it may be another process."""
        self._tell(type="lost", node=name, address=address, reason=reason)
        if not self._membership.led:
            self._unmended.append((name, reason))
        if not self._membership.there:
            self.coordinator_left()

    def coordinator_left(self) -> None:
        """Nobody mends what has broken since a coordinator acted last."""
        unmended, self._unmended = self._unmended, []
        for name, reason in unmended:
            for number, execution in list(self.running.items()):
                if self._node in execution.task.participants and name in execution.task.nodes:
                    self.discard(number, f"{reason}, and there is no coordinator to mend it")

    def led(self) -> None:
        """A coordinator acts, and has heard of what has broken."""
        self._unmended.clear()

    def discard(self, number: int, reason: str, *, pass_on: bool = True, alone: bool = False) -> None:
        """Gives a task up: by the coordinator where there is one, else (or with `alone`, where it does not answer) by
        telling the others and going on alone."""
        execution = self.running.get(number)
        if execution is None or execution.over or self._node not in execution.task.participants:
            return
        if self._membership.there and not alone:
            self._tell(type="failed", task=number, reason=reason)
            return
        self._log(f"task {number} is discarded: {reason}")
        for name in sorted(execution.task.nodes & self._neighbours.peers.keys()) if pass_on else ():
            self._neighbours.control(Kind.DISCARD, execution.task, name, 0, NOTHING)
        self._counters["discarded"] += 1
        self.abort(number, reason)

    def _late(self, execution: Execution) -> None:
        if not execution.closed and not execution.over:
            self.discard(execution.task.number, f"not done within {execution.task.budget:g} s")

    # --- what executions do ---

    def _post(self, execution: Execution, post: SendRequest) -> None:
        def go(way: Edge, through: Callable[[], None]) -> None:
            def taken() -> None:
                through()
                execution.sent(post)

            if execution.closed:
                through()  # it is given up: the way is free for others
            else:
                self._send(execution, post, way, taken, through)

        if post.edge is not None:
            self._paths.send(execution.task, post.edge, go)
            return
        try:
            self._multicast.send(execution, post, self._neighbours.epoch)
        except OverlayError as error:
            self._tell(type="failed", task=execution.task.number, reason=str(error))

    def _send(
        self, execution: Execution, post: SendRequest, edge: Edge, sent: Callable[[], None], dropped: Callable[[], None]
    ) -> None:
        task, epoch = execution.task, self._neighbours.epoch
        path = self._neighbours.path(self._node, *edge.via, edge.receiver)
        header = Header(
            post.kind, epoch, task.number, path, 1, post.tree, post.chunk, len(post.values), post.contributors
        )
        self._neighbours.send(
            task.priority, header, post.values, sent, wanted=lambda: execution.sends_to(edge.receiver), dropped=dropped
        )

    def _finished(self, execution: Execution) -> None:
        task = execution.task
        seconds = self._loop.time() - execution.began
        if task.op == "copy":
            sender = task.trees[0].root
            if sender == self._node:
                return  # until the policy lets it go on
            assert execution.tensor is not None
            self._copied(sender, task.number, execution.tensor)
        self._tell(type="finished", task=task.number, seconds=seconds)
        self._submissions.done(task.number, self._mixed(task), seconds)

    def _mixed(self, task: Task) -> tuple[str, ...]:
        """Whose values are in this agent's result."""
        if task.op != "mix":
            return task.participants
        return (self._node, *(tree.root for tree in task.trees if self._node in tree.receivers))

    def _forget(self, number: int, *, commit: bool = False) -> None:
        execution = self.running.pop(number, None)
        self._pending_messages.take(self._neighbours.epoch, number)
        if execution is not None:
            self._ended[number] = commit
            while len(self._ended) > ENDED:
                del self._ended[next(iter(self._ended))]
            self._counters.update(execution.counters)
            self._neighbours.adapt(execution.task)
            self._multicast.forget(execution.task)
            if execution.fresh is not None and commit:
                self.state = execution.fresh
            elif commit and any(t.state is not None and t.state.sender == self._node for t in execution.task.trees):
                self.state = None  # the next root has it
            execution.close()
        if not self.running:
            self.idle.set()
