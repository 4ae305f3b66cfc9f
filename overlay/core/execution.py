"""One agent's part of one task: what it adds, passes on and waits for. No sockets, no threads.

Exactly once. A partial sum says whose values are in it, and an agent takes from each child exactly the sum of all that
is below it, once; anything else is counted and dropped. A result is taken once a chunk.

Bounded. A contributor without children sends chunk c of a tree only when all results up to c - window have come (a
window by range), and an inner agent holds one sum a chunk: nobody holds more than `window` chunks of a tree, and no
agent has to stop reading, which could stop all of them in a circle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from controlplane.planner.plan.task import Edge, Task
from overlay.core.message import Kind

Values = NDArray[np.float32]
REPORTS = 16
"""How often the sender of a copy tells how far it is with a receiver."""

AHEAD = 8
"""Chunks of a copy that wait for a connection to one receiver."""

LEAST_WAIT = 0.0005
"""Seconds of tokens that a paced tree may use at once, at least; a chunk at least in any case."""


@dataclass(frozen=True)
class SendRequest:
    """Something to send: `values` of a chunk along an edge. None: once, switches copy it to all receivers."""

    kind: Kind
    tree: int
    chunk: int
    contributors: int
    edge: Edge | None
    values: Values


@dataclass
class _Chunk:
    have: int = 0
    total: Values | None = None
    sent: bool = False


@dataclass
class _Part:
    """One tree, as this agent has it."""

    chunks: int
    own: int  # this agent's bit, 0: no contributor
    expected: int  # all bits that pass here on the way up; 0: this agent adds nothing
    below: tuple[int, ...]  # what may come: the bits of each child
    leaf: bool
    up: Edge | None
    down: tuple[Edge, ...]
    receiver: bool
    state: dict[int, _Chunk] = field(default_factory=dict)
    next: int = 0  # of a leaf's chunks
    answered: set[int] = field(default_factory=set)
    oldest: int = 0  # the first chunk without a result
    tokens_at: float = 0.0
    wakes: int = 0  # how often it has been told to wait; only the last timer counts
    pumping: bool = False


class Execution:
    """post(request): sends. later(seconds, callback): calls back. finished(): everything that this agent gets is there.

    state: what this agent keeps as a root of tasks with momentum, over the whole tensor; None: nothing, which counts as
    zeros. What it is to keep after the task is in `fresh`. skip: (tree, chunk) that this agent has sent before the task
    came. progress(receiver, left): part of a copy still to be sent.
    """

    def __init__(
        self,
        task: Task,
        node: str,
        *,
        post: Callable[[SendRequest], None],
        finished: Callable[[], None],
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
        state: Values | None = None,
        skip: Collection[tuple[int, int]] = (),
        progress: Callable[[str, float], None] = lambda receiver, left: None,
    ) -> None:
        self.task, self.node = task, node
        self.state, self.skip, self.progress = state, skip, progress
        self.fresh: Values | None = None
        if task.momentum and any(tree.root == node for tree in task.trees):
            self.fresh = np.zeros(task.values, np.float32)
        self.came: dict[tuple[int, int], Values] = {}  # of the last root's state
        self.unmoved: dict[tuple[int, int], Values] = {}  # sums that wait for it
        self.passed: Counter[str] = Counter()  # chunks of a copy, by receiver
        self.fed: Counter[str] = Counter()
        self.feeding: set[str] = set()
        self.post, self.finished, self.clock, self.later = post, finished, clock, later
        self.tensor: Values | None = None
        self.closed = False
        self.over = False  # this agent has all that it gets
        self.counters: Counter[str] = Counter()
        self.parts = [self._part(index) for index in range(len(task.trees))]
        self.left = sum(part.chunks for part in self.parts if part.receiver)
        self.source: Values | None = None  # what is sent: a copy where it must outlast the result
        self.replaced: dict[tuple[int, int], Values] = {}  # what was brought, of the chunks that results have replaced
        self.early: list[tuple[int, int, Values]] = []  # results that came before this agent's own values
        self.mixes = 1 + sum(part.receiver for part in self.parts)
        self.began = clock()

    def _part(self, index: int) -> _Part:
        tree, node = self.task.trees[index], self.node
        own = 1 << tree.contributors.index(node) if node in tree.contributors else 0
        below = tuple(tree.bits(child) for child in tree.children(node))
        return _Part(
            self.task.chunks(index),
            own,
            tree.bits(node),
            below,
            not below and own != 0,
            tree.parent.get(node),
            tuple(edge for edge in tree.down if edge.sender == node),
            node in tree.receivers,
        )

    # --- what happens ---

    def start(self, tensor: Values) -> None:
        """This agent's values are there; results are written over them. tensor: float32, one dimension, contiguous."""
        if tensor.dtype != np.float32 or tensor.shape != (self.task.values,):
            raise ValueError(f"task {self.task.number} needs {self.task.values} float32 values, got {tensor.shape}")
        self.tensor = tensor
        copied = self.task.op == "mix" or self.task.keep
        if self.task.op == "copy":  # the sender computes on, before all of it has left
            copied = self.node == self.task.trees[0].root
        self.source = tensor.copy() if copied else tensor
        for tree, chunk, values in self.early:
            self._take(tree, chunk, values)
        self.early.clear()
        if not any(part.receiver for part in self.parts):
            self._end()
        for index, each in enumerate(self.task.trees):
            if each.state is not None and each.state.sender == self.node:
                self._hand_over(index, each.state)
        for index, part in enumerate(self.parts):
            if part.own and self.task.op == "copy" and not self.task.trees[index].routes:
                for edge in part.down:
                    self._feed(edge)
            elif part.leaf:
                part.tokens_at = self.clock()
                self._pump(index)
            elif part.own:
                for number in list(part.state):
                    self._complete(index, number)

    def place(self, kind: Kind, tree: int, chunk: int) -> Values:
        """Where the values of a message may be received: the tensor itself for a result, else memory of their own."""
        start, end = self.task.chunk(tree, chunk)
        part = self.parts[tree]
        replaced = kind == Kind.DOWN and part.receiver and chunk not in part.answered and self.task.op != "mix"
        if replaced and self.tensor is not None:
            self._keep(tree, chunk)
            return self.tensor[start:end]
        return np.empty(end - start, np.float32)

    def takes(self, tree: int, chunk: int, values: int) -> bool:
        """Whether such a chunk exists."""
        if not (tree < len(self.parts) and chunk < self.parts[tree].chunks):
            return False
        start, end = self.task.chunk(tree, chunk)
        return values == end - start

    def partial(self, tree: int, chunk: int, contributors: int, values: Values) -> None:
        """A child's sum has come; `values` are this agent's from now on."""
        part = self.parts[tree]
        if self.closed or chunk in part.answered:
            self.counters["late"] += 1
            return
        state = part.state.setdefault(chunk, _Chunk())
        if contributors not in part.below:
            self.counters["refused"] += 1
            return
        if state.have & contributors or state.sent:
            self.counters["duplicate"] += 1
            return
        if state.total is None:
            state.total = values
        else:
            np.add(state.total, values, out=state.total)
        state.have |= contributors
        self._complete(tree, chunk)

    def result(self, tree: int, chunk: int, values: Values) -> None:
        """A result has come (or is made here, at the root)."""
        part = self.parts[tree]
        if self.closed or chunk in part.answered:
            self.counters["duplicate"] += 1
            return
        part.answered.add(chunk)
        part.state.pop(chunk, None)
        while part.oldest in part.answered:
            part.oldest += 1
        if part.down and self.task.trees[tree].routes:
            self.post(SendRequest(Kind.DOWN, tree, chunk, 0, None, values))
        else:
            for edge in part.down:
                self.post(SendRequest(Kind.DOWN, tree, chunk, 0, edge, values))
        if part.receiver:
            self._take(tree, chunk, values)
        if part.leaf:
            self._pump(tree)

    def kept(self, tree: int, chunk: int, values: Values) -> None:
        """What the last root kept of a chunk has come."""
        if self.closed or (tree, chunk) in self.came or self.fresh is None:
            self.counters["duplicate"] += 1
            return
        self.came[tree, chunk] = values
        total = self.unmoved.pop((tree, chunk), None)
        if total is not None:
            self._onward(tree, chunk, total, added=True)

    def mend(self, task: Task) -> None:
        """Trees have been replaced by others at the end (`Task.with_root`). What has come of them counts for nothing:
        whoever gets a result has all of it from one root."""
        self.task = task
        for index, part in enumerate(self.parts):
            if part.chunks and not task.trees[index].count:
                early = sum(tree == index for tree, *_ in self.early)
                self.left -= part.chunks - (len(part.answered) - early) if part.receiver else 0
                self.early = [each for each in self.early if each[0] != index]
                self.parts[index] = self._part(index)
        fresh = range(len(self.parts), len(task.trees))
        for index in fresh:
            part = self._part(index)
            part.receiver = part.receiver and not self.over  # its trainer goes on with what it has
            self.left += part.chunks if part.receiver else 0
            part.tokens_at = self.clock()
            self.parts.append(part)
        for index in fresh:
            if self.source is not None and self.parts[index].leaf:
                self._pump(index)

    def missing(self, tree: int) -> list[int]:
        """Chunks of a tree that this agent has no result of."""
        part = self.parts[tree]
        return [chunk for chunk in range(part.oldest, part.chunks) if chunk not in part.answered]

    def again(self, tree: int, chunks: Collection[int], receiver: str) -> None:
        """A receiver of what switches copy has not got these: they go to it alone."""
        part = self.parts[tree]
        if self.closed or self.source is None or not (part.own and self.task.trees[tree].routes):
            return
        for edge in part.down:
            for chunk in chunks if edge.receiver == receiver else ():
                if chunk in part.answered:
                    start, end = self.task.chunk(tree, chunk)
                    self.counters["again"] += 1
                    self.post(SendRequest(Kind.DOWN, tree, chunk, 0, edge, self.source[start:end]))

    def drop(self, nodes: Collection[str]) -> None:
        """These receivers of a copy get no more of it."""
        self.task = self.task.without(nodes)
        for part in self.parts:
            part.down = tuple(edge for edge in part.down if edge.receiver not in nodes)

    def pace(self, mbps: float) -> None:
        """What switches copy is sent so fast from now on."""
        self.task = self.task.at_rate(mbps)
        for index, part in enumerate(self.parts):
            if part.leaf and self.source is not None:
                part.tokens_at = min(part.tokens_at, self.clock() + self.task.chunk_values * 32e-6 / mbps)
                self._pump(index)

    def sends_to(self, node: str) -> bool:
        """Whether what waits for this receiver is still to go there."""
        return not self.closed and (
            self.task.op != "copy" or any(edge.receiver == node for part in self.parts for edge in part.down)
        )

    def sent(self, post: SendRequest) -> None:
        """A connection has taken it."""
        if self.task.op != "copy" or self.closed:
            return
        part = self.parts[post.tree]
        if post.edge is not None and self.task.trees[post.tree].routes:
            return  # what a receiver had not got, once more
        for edge in part.down if post.edge is None else (post.edge,):
            receiver = edge.receiver
            self.passed[receiver] += 1
            if self.passed[receiver] % max(1, part.chunks // REPORTS) == 0 or self.passed[receiver] == part.chunks:
                self.progress(receiver, 1 - self.passed[receiver] / part.chunks)
        if post.edge is not None:
            self._feed(post.edge)

    def _feed(self, edge: Edge) -> None:
        """A copy goes to each receiver as fast as that takes it, a few chunks ahead."""
        to, chunks = edge.receiver, self.parts[0].chunks
        if to in self.feeding:
            return  # called from below
        self.feeding.add(to)
        while self.source is not None and self.sends_to(to) and self.fed[to] < min(chunks, self.passed[to] + AHEAD):
            chunk = self.fed[to]
            self.fed[to] += 1
            start, end = self.task.chunk(0, chunk)
            self.post(SendRequest(Kind.DOWN, 0, chunk, 0, edge, self.source[start:end]))
        self.feeding.discard(to)

    def restore(self) -> None:
        """The tensor is again as it was brought, where this agent has not got all of its result: a task that is given
        up must not leave sums in a part of it. What has all of its result is the trainer's again, and stays."""
        if self.tensor is None or self.source is None or self.over:
            return
        if self.source is not self.tensor:
            self.tensor[:] = self.source
        for (tree, chunk), values in reversed(self.replaced.items()):
            start, end = self.task.chunk(tree, chunk)
            self.tensor[start:end] = values
        self.replaced.clear()

    def close(self) -> None:
        """Nothing more is sent or taken."""
        self.closed = True
        self.tensor = self.source = None
        self.replaced.clear()
        self.came.clear()
        self.unmoved.clear()

    # --- what follows ---

    def _keep(self, tree: int, chunk: int) -> None:
        """What was brought of a chunk that a result is going to replace, where nothing else has it. A copy that another
        agent sends (SelMcast, SSP) goes into memory that nobody has brought."""
        if self.tensor is not None and self.source is self.tensor and self.task.op != "copy":
            start, end = self.task.chunk(tree, chunk)
            self.replaced.setdefault((tree, chunk), self.tensor[start:end].copy())

    def _take(self, tree: int, chunk: int, values: Values) -> None:
        if self.tensor is None:
            self.early.append((tree, chunk, values))
            return
        start, end = self.task.chunk(tree, chunk)
        there = self.tensor[start:end]
        if self.task.op == "mix":
            there += values
        elif there.ctypes.data != values.ctypes.data:
            self._keep(tree, chunk)
            there[:] = values
        self.left -= 1
        if not self.left:
            self._end()

    def _end(self) -> None:
        if self.task.op == "mix" and self.tensor is not None:
            np.multiply(self.tensor, np.float32(1 / self.mixes), out=self.tensor)
        self.over = True
        self.replaced.clear()
        self.finished()

    def _complete(self, tree: int, chunk: int) -> None:
        """Sends the sum on when everything is in it."""
        part, state = self.parts[tree], self.parts[tree].state[chunk]
        if state.sent or state.have | part.own != part.expected or state.total is None:
            return
        if part.own:
            if self.tensor is None:
                return
            start, end = self.task.chunk(tree, chunk)
            assert self.source is not None
            np.add(state.total, self.source[start:end], out=state.total)
        state.sent = True
        total, state.total = state.total, None
        self._onward(tree, chunk, total)

    def _hand_over(self, index: int, edge: Edge) -> None:
        for chunk in range(self.parts[index].chunks):
            start, end = self.task.chunk(index, chunk)
            kept = np.zeros(end - start, np.float32) if self.state is None else self.state[start:end]
            self.post(SendRequest(Kind.STATE, index, chunk, 0, edge, kept))

    def _accelerated(self, tree: int, chunk: int, values: Values) -> Values | None:
        """momentum x what was kept + values, to be kept too; None: what was kept has not come yet."""
        assert self.fresh is not None
        start, end = self.task.chunk(tree, chunk)
        kept: Values | None
        if self.task.trees[tree].state is None:
            kept = None if self.state is None else self.state[start:end]
        elif (tree, chunk) in self.came:
            kept = self.came.pop((tree, chunk))
        else:
            self.unmoved[tree, chunk] = values
            return None
        if kept is not None:
            values = kept * np.float32(self.task.momentum) + values
        self.fresh[start:end] = values
        return self.fresh[start:end]

    def _onward(self, tree: int, chunk: int, values: Values, *, added: bool = False) -> None:
        part = self.parts[tree]
        if part.up is not None:
            self.post(SendRequest(Kind.UP, tree, chunk, part.expected, part.up, values))
            return
        count = len(self.task.trees[tree].contributors)
        if self.task.op == "mean" and count > 1 and not added:
            np.multiply(values, np.float32(1 / count), out=values)
        if self.task.momentum:
            moved = self._accelerated(tree, chunk, values)
            if moved is None:
                return
            values = moved
        self.result(tree, chunk, values)

    def _pump(self, tree: int) -> None:
        """Sends what window and rate allow of a tree that begins here."""
        part = self.parts[tree]
        rate = self.task.trees[tree].rate_of(self.node) if part.own else 0.0
        window = self.task.window if part.receiver and self.task.window else part.chunks
        if part.pumping:
            return  # called from below: where this agent is the root too, sending gives the result
        part.pumping = True
        try:
            self._send_more(tree, part, rate, window)
        finally:
            part.pumping = False

    def _wake(self, tree: int, part: _Part, number: int) -> None:
        if number == part.wakes:
            self._pump(tree)

    def _send_more(self, tree: int, part: _Part, rate: float, window: int) -> None:
        while not self.closed and self.source is not None and part.next < min(part.chunks, part.oldest + window):
            if (tree, part.next) in self.skip:
                part.next += 1
                continue
            start, end = self.task.chunk(tree, part.next)
            if rate > 0:
                now = self.clock()
                if part.tokens_at > now + LEAST_WAIT:
                    part.wakes += 1
                    self.later(part.tokens_at - now, partial(self._wake, tree, part, part.wakes))
                    return
                # What was not used is lost, but for one chunk: a late timer must not slow the tree down.
                seconds = (end - start) * 32e-6 / rate
                part.tokens_at = max(part.tokens_at, now - seconds) + seconds
            chunk, part.next = part.next, part.next + 1
            self._onward(tree, chunk, self.source[start:end])
