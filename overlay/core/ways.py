"""Which way a chunk takes to the next agent: the direct one, or a detour over idle links (NetStorm paper, VI).

A chunk goes the direct way while fewer than `busy_bound` of the agent's chunks are there, else over the first detour
with fewer than `detour_length`; else it waits until one of them is through.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from controlplane.planner.plan.task import Edge, Task

Go = Callable[[Edge, Callable[[], None]], None]
"""Sends over the way, and calls back, always and once: when the chunk is through, or when it never will be."""


class Ways:
    """Of one agent."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._busy: Counter[Edge] = Counter()
        self._waiting: dict[str, deque[tuple[Task, Edge, Go]]] = {}
        self._assigning: set[str] = set()  # receivers whose chunks are being given ways just now

    def send(self, task: Task, edge: Edge, go: Go) -> None:
        """Along the edge, or a detour of the task's between the same agents."""
        detours = task.detours and any(d.receiver == edge.receiver for d in task.detours if d.sender == self._node)
        if not detours:
            go(edge, lambda: None)
            return
        self._waiting.setdefault(edge.receiver, deque()).append((task, edge, go))
        self._assign(edge.receiver)

    def _assign(self, receiver: str) -> None:
        if receiver in self._assigning:
            return  # called from below, by a chunk that is through at once: the loop below goes on
        self._assigning.add(receiver)
        try:
            while self._assign_first(receiver):
                pass
        finally:
            self._assigning.discard(receiver)

    def _assign_first(self, receiver: str) -> bool:
        """Gives the chunk that waits longest its way; whether there was one for it."""
        waiting = self._waiting[receiver]
        if not waiting:
            return False
        task, edge, go = waiting[0]
        detours = [d for d in task.detours if (d.sender, d.receiver) == (self._node, receiver)]
        way = edge if self._busy[edge] < task.busy_bound else None
        way = way or next((d for d in detours if self._busy[d] < task.detour_length), None)
        if way is None:
            return False
        waiting.popleft()
        self._busy[way] += 1
        go(way, partial(self._through, way, receiver))
        return True

    def _through(self, way: Edge, receiver: str) -> None:
        self._busy[way] -= 1
        self._assign(receiver)
