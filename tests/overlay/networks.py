"""Random trees, and executions joined by a network that delivers messages in any order and some more than once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from controlplane.planner.plan.task import Edge, Op, SumTree, Task
from overlay.core.execution import Environment, Execution, SendRequest
from overlay.core.message import Kind


def random_tree(rng: random.Random, nodes: Sequence[str], first: int, count: int, members: Sequence[str]) -> SumTree:
    """Draw up and down trees over all nodes independently; only `members` contribute and receive."""
    root = rng.choice(nodes)

    def edges(down: bool) -> tuple[Edge, ...]:
        placed, found = [root], []
        for node in rng.sample([n for n in nodes if n != root], len(nodes) - 1):
            other = rng.choice(placed)
            over = [n for n in nodes if n not in (node, other)]
            via = tuple(rng.sample(over, rng.randint(0, min(2, len(over))))) if rng.random() < 0.2 else ()
            found.append(Edge(other, node, via) if down else Edge(node, other, via))
            placed.append(node)
        return tuple(found)

    up, down = edges(False), edges(True)
    # Remove branches on which nobody contributes.
    while useless := {e.sender for e in up} - {e.receiver for e in up} - set(members):
        up = tuple(e for e in up if e.sender not in useless)
    return SumTree(root, first, count, up, down, tuple(members), tuple(members))


def random_task(rng: random.Random, nodes: Sequence[str], values: int, op: Op = "mean") -> Task:
    members = rng.sample(list(nodes), rng.randint(1, len(nodes)))
    cuts = sorted(rng.sample(range(1, values), min(values - 1, rng.randint(0, 3))))
    bounds = [0, *cuts, values]
    trees = tuple(random_tree(rng, nodes, a, b - a, members) for a, b in pairwise(bounds))
    return Task(1, values, trees, op, chunk_values=rng.randint(1, values), window=rng.choice([0, 1, 2, 5]))


class Hub:
    """Carries requests between executions in an order that `rng` draws; some come twice."""

    def __init__(self, task: Task, tensors: dict[str, np.ndarray], rng: random.Random, twice: float = 0.1) -> None:
        self.rng, self.twice = rng, twice
        self.finished: list[str] = []
        self.under_way: list[SendRequest] = []
        self.most = 0
        self.now = 0.0
        self.timers: list[tuple[float, object]] = []
        self.at = {node: self._execution(task, node) for node in sorted(task.nodes)}
        self.tensors = tensors
        self.unstarted = [n for n in self.at if n in tensors]
        self.unaware: list[str] = []  # the agents that have not heard yet how the task is repaired
        self.mended: Task | None = None
        self.left = -1  # the number of messages before the loss

    def _execution(self, task: Task, node: str) -> Execution:
        return Execution(
            task,
            node,
            Environment(
                send=self.under_way.append,
                finished=lambda: self.finished.append(node),
                clock=lambda: self.now,
                later=lambda seconds, callback: self.timers.append((self.now + seconds, callback)),
            ),
        )

    def mend_after(self, messages: int, task: Task) -> None:
        """Lose an agent that the task can do without; the others hear of it one by one."""
        self.left, self.mended = messages, task

    def _mend(self) -> None:
        assert self.mended is not None
        lost = self.at.keys() - self.mended.nodes
        self.under_way[:] = [p for p in self.under_way if p.edge.receiver not in lost]
        for node in lost:
            del self.at[node]
        for node in self.mended.nodes - self.at.keys():
            self.at[node] = self._execution(self.mended, node)
        self.unaware = sorted(self.at)

    def run(self) -> None:
        while self.under_way or self.unstarted or self.timers or self.unaware or self.left >= 0:
            if self.left >= 0:
                self.left -= 1
                if self.left < 0 or not (self.under_way or self.unstarted or self.timers):
                    self.left = -1
                    self._mend()
            if self.unaware and (not self.under_way or self.rng.random() < 0.3):
                node = self.unaware.pop(self.rng.randrange(len(self.unaware)))
                if len(self.at[node].trees) < len(self.mended.trees):
                    self.at[node].mend(self.mended)
                continue
            self.most = max(self.most, len(self.under_way))
            if self.unstarted and (not self.under_way or self.rng.random() < 0.3):
                node = self.unstarted.pop(self.rng.randrange(len(self.unstarted)))
                self.at[node].start(self.tensors[node])
            elif self.under_way:
                index = self.rng.randrange(len(self.under_way))
                request = self.under_way[index]
                if self.rng.random() >= self.twice:
                    self.under_way.pop(index)
                self.deliver(request)
            elif self.timers:
                self.timers.sort(key=lambda timer: timer[0])
                self.now, callback = self.timers.pop(0)
                callback()

    def deliver(self, request: SendRequest) -> None:
        there = self.at.get(request.edge.receiver)
        if there is None:
            return  # The request is lost.
        if request.tree >= len(there.trees):
            self.under_way.append(request)  # The request is held until its receiver hears of the change.
            return
        if self.mended is not None and not there.has_chunk(request.tree, request.chunk, len(request.values)):
            return
        assert there.has_chunk(request.tree, request.chunk, len(request.values))
        place = there.buffer_for(request.kind, request.tree, request.chunk)
        place[:] = request.values
        if request.kind == Kind.UP:
            there.partial(request.tree, request.chunk, request.contributors, place)
        else:
            there.result(request.tree, request.chunk, place)
