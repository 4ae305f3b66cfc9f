"""Gives the operations of all trainers of a node one order.

All workers of a job must submit the same operations in the same order, and a node is one worker, whatever number of
ranks it has. The ranks of a node are programs of one kind, so the order is by turns: the first operation of rank 0, of
rank 1, ..., then the second of each. It is the same on all nodes without a message between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from worker_agent.agent import Agent
from worker_agent.collectives import Collective, Operation, collective
from worker_agent.errors import AbortedError
from worker_agent.operands import HostArray, operand
from worker_agent.ordered_queue import OrderedQueue, Place
from worker_agent.ways import Ways
from worker_agent.work import Work


class Team:
    """The trainers of one epoch of an agent.

    A team ends with the epoch. Operations that trainers submit afterwards fail, so that they meet none of the next
    epoch's, which trainers enter by a new team.

    Args:
        agent: the agent, which has to be ready.
        size: number of trainers that take turns.
    """

    def __init__(self, agent: Agent, size: int) -> None:
        self.size = size
        self._agent = agent
        self._queue = OrderedQueue(agent.submit)
        self._turns: list[deque[Place]] = [deque() for _ in range(size)]  # for each member, places before others' ones
        self._next = 0  # the member that gets the next place
        self._listeners: list[Callable[[str], None]] = []
        config = agent.wait_ready(0)
        self.epoch, self.workers, self.node, self.index = config.epoch, len(config.workers), config.node, config.index
        self.values_per_packet, self.ways = config.values_per_packet, Ways.of(config)
        agent.on_stop(self.end)
        if agent.problem:
            self.end(agent.problem)

    @property
    def ended(self) -> str:
        """The reason for which the team has ended; empty while it has not."""
        return self._queue.closed

    def on_end(self, listener: Callable[[str], None]) -> None:
        """Call `listener(reason)` when the team ends, or at once when it has ended."""
        with self._queue.lock:
            if not self.ended:
                self._listeners.append(listener)
                return
        listener(self.ended)

    def submit(self, member: int, memory: HostArray, op: Collective) -> Work:
        """Submit an operation, as Engine.submit does; it starts when it is this member's turn.

        One that the engine refuses has had its turn: on another node it may have been refused later.
        """
        with self._queue.lock:
            if not self._turns[member]:
                while self._next != member:
                    self._turns[self._next].append(self._queue.reserve())
                    self._next = (self._next + 1) % self.size
                self._next = (member + 1) % self.size
                return self._queue.submit(memory, op)
            place = self._turns[member].popleft()
        return self._queue.fill(place, memory, op)

    def late(self) -> list[str]:
        """Return the workers for whom the others wait: local ranks of this node, else workers of the job, as the roots
        report them.
        """
        with self._queue.lock:
            awaited = [len(turns) + (member >= self._next > 0) for member, turns in enumerate(self._turns)]
        behind = [f"local rank {member} of {self.node}" for member, n in enumerate(awaited) if n > min(awaited)]
        return behind or self._agent.late()

    def end(self, reason: str) -> None:
        """Take no more operations, and fail those that wait for their turn."""
        if not self._queue.close(reason):
            return
        with self._queue.lock:
            listeners, self._listeners = self._listeners, []
        self._agent.on_stop(self.end, remove=True)
        for listener in listeners:
            listener(reason)


class Port:
    """A trainer's place in a team of this process, with the methods that the hook and the backend need of an agent.

    Args:
        team: the team.
        member: the trainer's rank on this node.
        leave: called once, by `close` (True) or `abort` (False), with whether the trainer leaves in good order.
        stats: returns the agent's counters.
    """

    def __init__(self, team: Team, member: int, leave: Callable[[bool], None], stats: Callable[[], Any]) -> None:
        self.world_size, self.node, self.index, self.epoch = team.workers, team.node, team.index, team.epoch
        self.values_per_packet, self.ways = team.values_per_packet, team.ways
        self._team = team
        self._member = member
        self._leave: Callable[[bool], None] | None = leave
        self.stats = stats

    @property
    def ready(self) -> bool:
        """Whether the team takes operations."""
        return not self._team.ended and self._leave is not None

    def allreduce_async(self, array: Any, op: Operation = "sum", *, dtype: str | None = None) -> Work:
        """Submit an operation, as Engine.allreduce_async does."""
        if self._leave is None:
            raise AbortedError("the connection to the agent is closed")
        how = collective(op)
        return self._team.submit(self._member, operand(array, how, dtype), how)

    def late(self) -> list[str]:
        """Return the workers for whom the others wait."""
        return self._team.late()

    def close(self) -> None:
        """Leave the team. A second call does nothing."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave(True)

    def abort(self, reason: str) -> None:
        """End all operations of the team with AbortedError, and leave: the agent joins its job anew, which ends these
        operations for the other workers, too."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave(False)
