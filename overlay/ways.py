"""Which way a chunk takes to the next agent: the direct one, or a detour over idle links (NetStorm paper, VI).

A chunk goes the direct way while fewer than `busy_bound` of the agent's chunks are there, else over the first detour
with fewer than `detour_length`; else it waits until one of them is through.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from controlplane.plan.task import Edge, Task

Go = Callable[[Edge, Callable[[], None]], None]
"""Sends over the way, and calls back when the chunk is through."""


class Ways:
    """Of one agent."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._busy: Counter[Edge] = Counter()
        self._waiting: dict[str, deque[tuple[Task, Edge, Go]]] = {}

    def send(self, task: Task, edge: Edge, go: Go) -> None:
        """Along the edge, or a detour of the task's between the same agents."""
        detours = task.detours and any(d.receiver == edge.receiver for d in task.detours if d.sender == self._node)
        if not detours:
            go(edge, lambda: None)
            return
        self._waiting.setdefault(edge.receiver, deque()).append((task, edge, go))
        self._assign(edge.receiver)

    def _assign(self, receiver: str) -> None:
        waiting = self._waiting[receiver]
        while waiting:
            task, edge, go = waiting[0]
            detours = [d for d in task.detours if (d.sender, d.receiver) == (self._node, receiver)]
            way = edge if self._busy[edge] < task.busy_bound else None
            way = way or next((d for d in detours if self._busy[d] < task.detour_length), None)
            if way is None:
                return
            waiting.popleft()
            self._busy[way] += 1
            go(way, lambda way=way: self._through(way, receiver))  # type: ignore[misc]

    def _through(self, way: Edge, receiver: str) -> None:
        self._busy[way] -= 1
        self._assign(receiver)
