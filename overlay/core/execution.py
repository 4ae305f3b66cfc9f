"""Carries out one agent's part of one task, without sockets and threads: what it adds, passes on and waits for.

Exactly once: a partial sum says whose values are in it, and an agent takes from each child exactly the sum of all
agents below that child, once. It counts and drops everything else. It takes each chunk's result once.

Bounded: a contributor without children sends chunk c of a tree only when all results up to c - window have arrived, and
an inner agent holds one sum a chunk. So nobody holds more than `window` chunks of a tree, and no agent has to stop
reading from its connections, which could stop all agents in a circle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from controlplane.planner.plan.task import Edge, Task
from overlay.core.buffers import Buffers
from overlay.core.copy_sender import CopySender
from overlay.core.leaf_sender import Leaf, LeafSender
from overlay.core.message import Kind, Values
from overlay.core.trainer_tensor import TrainerTensor
from overlay.core.tree_state import PartialSum, TreeState, combine_of


class SendRequest(NamedTuple):
    """A chunk to send along `edge`; where `edge` is None it leaves once, and switches copy it to all receivers."""

    kind: Kind
    tree: int
    chunk: int
    contributors: int
    edge: Edge | None
    values: Values


@dataclass(frozen=True)
class Environment:
    """The surroundings of an execution: the network, the clock and the trainer.

    Attributes:
        send: sends a chunk.
        finished: called when this agent has every result of the task that it is to get.
        clock: returns the time in seconds.
        later: called as later(seconds, callback); calls back after so many seconds.
        progress: called as progress(receiver, part) when this part (0 to 1) of a copy is still to be sent to the
            receiver.
        buffers: memory for chunks.
    """

    send: Callable[[SendRequest], None]
    finished: Callable[[], None]
    clock: Callable[[], float]
    later: Callable[[float, Callable[[], None]], object]
    progress: Callable[[str, float], None] = lambda receiver, part: None
    buffers: Buffers = field(default_factory=Buffers)


class Execution:
    """One agent's part of one task.

    Args:
        task: the task.
        node: name of this agent.
        environment: sends, tells the time and hears of the end.
        skip: (tree, chunk) of each chunk that this agent sent eagerly, before the task was announced (scatter.py).

    Attributes:
        complete: this agent has every result that it is to get.
        closed: the execution sends and takes nothing any more.
    """

    def __init__(
        self,
        task: Task,
        node: str,
        environment: Environment,
        *,
        skip: Collection[tuple[int, int]] = (),
    ) -> None:
        self.task, self.node, self._skip = task, node, skip
        self._environment, self._send, self._clock = environment, environment.send, environment.clock
        self._copies = CopySender(environment.progress)
        self._leaves = LeafSender(environment.clock, environment.later)
        self._tensor = TrainerTensor(environment.buffers.take, restorable=task.op != "copy")
        self._early_results: list[tuple[int, int, Values]] = []  # results that arrived before this agent's own values
        self._combine = combine_of(task.op)
        self.closed = self.complete = False
        self.counters: Counter[str] = Counter()
        self.trees = [TreeState.of(task, index, node) for index in range(len(task.trees))]
        self._results_left = sum(tree.chunks for tree in self.trees if tree.is_receiver)
        self._mixed = 1 + sum(tree.is_receiver for tree in self.trees)  # number of tensors in the mean of a "mix"
        self.began = self._clock()

    # --- events ---

    def start(self, tensor: Values) -> None:
        """Begin with the trainer's values, over which results will be written: float32, one dimension, contiguous.
        Raise ValueError for another type, or for another size than the task's.
        """
        if tensor.dtype != np.float32 or tensor.shape != (self.task.values,):
            raise ValueError(f"task {self.task.number} needs {self.task.values} float32 values, got {tensor.shape}")
        self._tensor.submit(tensor, copied=_outlasts_results(self.task, self.node))
        for index, chunk, values in self._early_results:
            self._take(index, chunk, values)
        self._early_results.clear()
        if not any(tree.is_receiver for tree in self.trees):
            self._end()
        for index, tree in enumerate(self.trees):
            if tree.own_bit and self.task.op == "copy" and not self.task.trees[index].routes:
                for edge in tree.down:
                    self._send_copy(edge)
            elif tree.is_leaf:
                tree.pace.next_at = self._clock()
                self._send_leaf(index)
            elif tree.own_bit:
                for chunk in list(tree.sums):
                    self._send_if_complete(index, chunk)

    def partial(self, index: int, chunk: int, contributors: int, values: Values) -> None:
        """Take a child's partial sum of a chunk; `values` belong to this execution from now on.

        Args:
            index: number of the tree.
            chunk: number of the chunk in the tree.
            contributors: a bit for each contributor of the tree whose values are in the sum.
            values: the sum.
        """
        tree = self.trees[index]
        if self.closed or chunk in tree.results:
            self.counters["late"] += 1
            return
        known = tree.sums.setdefault(chunk, PartialSum())
        if contributors not in tree.child_bits:
            self.counters["refused"] += 1
            return
        if known.contributors & contributors or known.sent:
            self.counters["duplicate"] += 1
            return
        known.add(values, contributors, self._combine)
        self._send_if_complete(index, chunk)

    def result(self, index: int, chunk: int, values: Values) -> None:
        """Take a chunk's result, which has arrived or, at the root, has been computed here: pass it on and give it to
        the trainer.
        """
        tree = self.trees[index]
        if self.closed or chunk in tree.results:
            self.counters["duplicate"] += 1
            return
        tree.add_result(chunk)
        if tree.down and self.task.trees[index].routes:
            self._send(SendRequest(Kind.DOWN, index, chunk, 0, None, values))
        else:
            for edge in tree.down:
                self._send(SendRequest(Kind.DOWN, index, chunk, 0, edge, values))
        if tree.is_receiver:
            self._take(index, chunk, values)
        if tree.is_leaf:
            self._send_leaf(index)

    def sent(self, request: SendRequest) -> None:
        """Take note that a connection has taken the chunk."""
        if self.task.op != "copy" or self.closed:
            return
        tree = self.trees[request.tree]
        if request.edge is not None and self.task.trees[request.tree].routes:
            return  # a chunk sent again, which switches had copied and one receiver did not get
        for edge in tree.down if request.edge is None else (request.edge,):
            self._copies.sent(edge.receiver, tree.chunks)
        if request.edge is not None:
            self._send_copy(request.edge)

    # --- orders ---

    def mend(self, task: Task) -> None:
        """Go on with a task in which trees have been replaced by others at the end of the list (`Task.with_root`).
        Results of the replaced trees are forgotten: an agent that gets a result has all of it from one root.
        """
        self.task = task
        for index, tree in enumerate(self.trees):
            if tree.chunks and not task.trees[index].count:
                early = sum(each == index for each, *_ in self._early_results)
                self._results_left -= tree.chunks - (len(tree.results) - early) if tree.is_receiver else 0
                self._early_results = [each for each in self._early_results if each[0] != index]
                self.trees[index] = TreeState.of(task, index, self.node)
        added = range(len(self.trees), len(task.trees))
        for index in added:
            tree = TreeState.of(task, index, self.node)
            tree.is_receiver = tree.is_receiver and not self.complete  # a complete agent keeps the results it has
            self._results_left += tree.chunks if tree.is_receiver else 0
            tree.pace.next_at = self._clock()
            self.trees.append(tree)
        for index in added:
            if self._tensor.source is not None and self.trees[index].is_leaf:
                self._send_leaf(index)

    def resend(self, index: int, chunks: Collection[int], receiver: str) -> None:
        """Send these chunks again, to one receiver alone: it lacks them of a tree that switches copy."""
        tree = self.trees[index]
        if self.closed or self._tensor.source is None or not (tree.own_bit and self.task.trees[index].routes):
            return
        for edge in tree.down:
            for chunk in chunks if edge.receiver == receiver else ():
                if chunk in tree.results:
                    start, end = self.task.chunk(index, chunk)
                    self.counters["again"] += 1
                    self._send(SendRequest(Kind.DOWN, index, chunk, 0, edge, self._tensor.source[start:end]))

    def drop(self, nodes: Collection[str]) -> None:
        """Send no more of a copy to these receivers."""
        self.task = self.task.without(nodes)
        for tree in self.trees:
            tree.down = tuple(edge for edge in tree.down if edge.receiver not in nodes)

    def pace(self, mbps: float) -> None:
        """Send the trees that switches copy at this rate (Mbit/s of values) from now on."""
        self.task = self.task.at_rate(mbps)
        for index, tree in enumerate(self.trees):
            if tree.is_leaf and self._tensor.source is not None:
                tree.pace.hasten(self._clock() + self.task.chunk_values * 32e-6 / mbps)
                self._send_leaf(index)

    def restore(self) -> None:
        """Give the task up: give the trainer's tensor the submitted values again, so that no sums stay in a part of it.
        A complete tensor belongs to the trainer already and is not touched.
        """
        if not self.complete:
            self._tensor.restore()

    def close(self) -> None:
        """Send and take nothing from now on."""
        self.closed = True
        self._tensor.clear()

    # --- questions ---

    @property
    def tensor(self) -> Values | None:
        """The trainer's tensor, over whose values results are written; None before `start` and after `close`."""
        return self._tensor.values

    def has_chunk(self, index: int, chunk: int, values: int) -> bool:
        """Return whether the task has a chunk of this number in this tree, with this many values."""
        if not (index < len(self.trees) and chunk < self.trees[index].chunks):
            return False
        start, end = self.task.chunk(index, chunk)
        return values == end - start

    def buffer_for(self, kind: Kind, index: int, chunk: int) -> Values:
        """Return memory into which a message's chunk may be received: the trainer's tensor itself for a result that
        replaces values there, else other memory.
        """
        start, end = self.task.chunk(index, chunk)
        tree = self.trees[index]
        in_place = kind == Kind.DOWN and tree.is_receiver and chunk not in tree.results and self.task.op != "mix"
        buffer = self._tensor.buffer(start, end) if in_place else None
        return self._environment.buffers.take(end - start) if buffer is None else buffer

    def sends_to(self, node: str) -> bool:
        """Return whether chunks that wait in the queue for this receiver are still to be sent."""
        return not self.closed and (
            self.task.op != "copy" or any(edge.receiver == node for tree in self.trees for edge in tree.down)
        )

    # --- results ---

    def _take(self, index: int, chunk: int, values: Values) -> None:
        """Write a result into the trainer's tensor, or keep it until the trainer has submitted its values."""
        if self.tensor is None:
            self._early_results.append((index, chunk, values))
            return
        start, end = self.task.chunk(index, chunk)
        if self.task.op == "mix":
            self._tensor.add(start, end, values)
        else:
            self._tensor.write(start, end, values)
        self._results_left -= 1
        if not self._results_left:
            self._end()

    def _end(self) -> None:
        if self.task.op == "mix":
            self._tensor.scale(1 / self._mixed)
        self.complete = True
        self._tensor.commit()
        self._environment.finished()

    # --- sums ---

    def _send_if_complete(self, index: int, chunk: int) -> None:
        """Send the chunk's sum to the parent if it has everything that this agent is to add."""
        tree, known = self.trees[index], self.trees[index].sums[chunk]
        if known.sent or known.contributors | tree.own_bit != tree.expected or known.total is None:
            return
        if tree.own_bit:
            if self._tensor.source is None:
                return
            start, end = self.task.chunk(index, chunk)
            known.add(self._tensor.source[start:end], tree.own_bit, self._combine)
            if tree.is_receiver:
                self._tensor.keep(start, end)
        self._send_up(index, chunk, known.taken())

    def _send_up(self, index: int, chunk: int, values: Values) -> None:
        """Send a sum to the parent; at the root, make it the result."""
        tree = self.trees[index]
        if tree.up is not None:
            self._send(SendRequest(Kind.UP, index, chunk, tree.expected, tree.up, values))
            return
        count = len(self.task.trees[index].contributors)
        if self.task.op == "mean" and count > 1:
            np.multiply(values, np.float32(1 / count), out=values)
        self.result(index, chunk, values)

    def _send_leaf(self, index: int) -> None:
        """Send as many chunks as window and rate allow, of a tree in which this agent is a leaf."""
        tree, source = self.trees[index], self._tensor.source
        if source is None:
            return
        rate = self.task.trees[index].rate_mbps if tree.own_bit else 0.0
        window = self.task.window if tree.is_receiver and self.task.window else tree.chunks

        def seconds(chunk: int) -> float:
            if rate <= 0 or (index, chunk) in self._skip:
                return 0.0
            start, end = self.task.chunk(index, chunk)
            return (end - start) * 32e-6 / rate

        def post(chunk: int) -> bool:
            if (index, chunk) not in self._skip:
                start, end = self.task.chunk(index, chunk)
                self._send_up(index, chunk, source[start:end])
            return not self.closed

        self._leaves.send(Leaf(tree, window, seconds, post, again=partial(self._send_leaf, index)))

    def _send_copy(self, edge: Edge) -> None:
        """Send chunks of a copy to a receiver, as many as its connection takes soon."""

        def post(chunk: int) -> bool:
            if self._tensor.source is None or not self.sends_to(edge.receiver):
                return False
            start, end = self.task.chunk(0, chunk)
            self._send(SendRequest(Kind.DOWN, 0, chunk, 0, edge, self._tensor.source[start:end]))
            return True

        self._copies.send(edge.receiver, self.trees[0].chunks, post)


def _outlasts_results(task: Task, node: str) -> bool:
    """Return whether this agent still needs the submitted values when results have replaced them in the trainer's
    tensor, or when its trainer has gone on.
    """
    if task.op == "copy":  # the sender's trainer continues before all of the copy has left
        return node == task.trees[0].root
    adds_only = any(node in tree.contributors and node not in tree.receivers for tree in task.trees)
    return task.op == "mix" or task.keep or adds_only
