"""Chooses the path of each chunk to the next agent: the direct edge, or a detour over idle links.

Detours are the auxiliary paths of the NetStorm paper, section VI. A chunk that finds none waits until a chunk has left
one of them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from controlplane.planner.plan.task import Edge, Task

Send = Callable[[Edge, Callable[[], None]], None]
"""Sends a chunk along an edge, and calls its second argument exactly once: when the chunk has left, or when it is
certain that it never will.
"""


class PathSelector:
    """Chooses the paths of one agent's chunks.

    Attributes:
        chunks_on: number of chunks that have not left yet, by path.
        waiting: chunks that have found no path, oldest first, by receiver.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self.chunks_on: Counter[Edge] = Counter()
        self.waiting: dict[str, deque[tuple[Task, Edge, Send]]] = {}
        self._assigning: set[str] = set()  # receivers for whose chunks `_assign` is running

    def send(self, task: Task, edge: Edge, send_over: Send) -> None:
        """Send a chunk along the edge, or along one of the task's detours between the same two agents."""
        detours = task.detours and any(d.receiver == edge.receiver for d in task.detours if d.sender == self._node)
        if not detours:
            send_over(edge, lambda: None)
            return
        self.waiting.setdefault(edge.receiver, deque()).append((task, edge, send_over))
        self._assign(edge.receiver)

    def _assign(self, receiver: str) -> None:
        """Send as many of the chunks that wait for this receiver as find a path."""
        if receiver in self._assigning:
            return  # a chunk that left at once called back: the loop further up the stack continues
        self._assigning.add(receiver)
        try:
            while self._assign_first(receiver):
                pass
        finally:
            self._assigning.discard(receiver)

    def _assign_first(self, receiver: str) -> bool:
        """Send the chunk that has waited longest for this receiver. Return whether a chunk and a path for it were
        found.
        """
        waiting = self.waiting[receiver]
        if not waiting:
            return False
        task, edge, send_over = waiting[0]
        path = self._free_path(task, edge)
        if path is None:
            return False
        waiting.popleft()
        self.chunks_on[path] += 1
        send_over(path, partial(self._left, path, receiver))
        return True

    def _free_path(self, task: Task, edge: Edge) -> Edge | None:
        """Return the path of a chunk by section VI-A of the NetStorm paper: the direct edge while few chunks are on it,
        else the first detour with room, else the direct edge again, or None where the task is `lazy`.
        """
        if self.chunks_on[edge] < task.busy_bound:
            return edge
        for path in task.detours:
            ends = (path.sender, path.receiver)
            if ends == (self._node, edge.receiver) and self.chunks_on[path] < task.detour_length:
                return path
        return None if task.lazy else edge

    def _left(self, path: Edge, receiver: str) -> None:
        """Take note that a chunk has left this path, or never will, and send one that waits."""
        self.chunks_on[path] -= 1
        self._assign(receiver)
