"""Sends and receives chunks whose task is not known yet, over agents' connections; core/scatter.py says which."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from functools import partial

from controlplane.planner.plan.task import Task
from overlay.core.execution import Execution
from overlay.core.message import Header, Kind, Values
from overlay.core.scatter import EAGER_PRIORITY, Blocks, Scatter
from overlay.net.neighbours import Neighbours

FUTURE_CHUNKS = 4096
"""Most chunks that are kept of senders that follow a coordinator of which this agent has not heard yet."""


class EagerScatter:
    """The eager scatter of one agent (CREW paper, IV-A2)."""

    def __init__(self, node: str, neighbours: Neighbours, counters: Counter[str]) -> None:
        self._node, self._neighbours, self._counters = node, neighbours, counters
        self._scatter: Scatter[Values] = Scatter(node)
        self._splits: dict[int, tuple[int, Blocks]] = {}  # size of the tensor -> values of a chunk, who adds which
        self._future: deque[tuple[Header, Values]] = deque(maxlen=FUTURE_CHUNKS)

    def set_default_split(self, values: int, chunk_values: int, blocks: Blocks) -> None:
        """Take the split by which tensors of this many values are sent before their task is known.

        Args:
            values: number of values of a tensor.
            chunk_values: values of a chunk.
            blocks: (owner, first value, number of values) of each block.
        """
        self._splits[values] = chunk_values, blocks

    # --- as a sender ---

    def send(self, turn: int, tensor: Values) -> None:
        """Send the submission's chunks by the default split; nothing where there is none for tensors of this size."""
        chunk_values, blocks = self._splits.get(tensor.size, (1, ()))
        for owner, chunk in self._scatter.begin(turn, blocks, chunk_values):
            if owner in self._neighbours.members:
                values = tensor[chunk * chunk_values : (chunk + 1) * chunk_values]
                path = self._neighbours.path(self._node, owner)
                self._neighbours.send(
                    EAGER_PRIORITY,
                    Header(Kind.EAGER, self._neighbours.epoch, turn, path, 1, 0, chunk, len(values)),
                    values,
                    partial(self._sent, turn, owner, chunk),
                    partial(self._scatter.wants, turn),
                )

    def settle(self, task: Task) -> frozenset[tuple[int, int]]:
        """Return the (tree, chunk) pairs of a task, which has just been announced, that the right aggregators have
        already.
        """
        return self._scatter.settle(task, self._neighbours.peers)

    def _sent(self, turn: int, owner: str, chunk: int) -> None:
        self._scatter.sent(turn, owner, chunk, self._neighbours.peers.get(owner))

    def stop(self) -> None:
        """End the eager scatter: no task will contain the submission, and chunks that have not left are not sent."""
        self._scatter.stop()

    # --- as a receiver ---

    def received(self, header: Header, values: Values, running: Mapping[int, Execution]) -> None:
        """Give an eager chunk that has arrived to its task if that is running; else keep it until the task begins."""
        if header.epoch > self._neighbours.epoch:  # its sender has heard of a coordinator that this agent has not
            self._future.append((header, values))
            return
        sender = self._neighbours.name(header.path[0])
        if header.epoch != self._neighbours.epoch or sender is None:
            self._counters["old task"] += 1
            return
        tasks = [execution.task for execution in running.values()]
        found = self._scatter.came(sender, header.task, header.chunk, values, tasks)
        if found is not None:
            task, tree, chunk = found
            execution = running[task.number]
            if execution.has_chunk(tree, chunk, header.values):
                self._counters["early"] += 1
                execution.partial(tree, chunk, 1 << task.trees[tree].contributors.index(sender), values)

    def introduced(self, running: Mapping[int, Execution]) -> None:
        """Assign the chunks that arrived before the coordinator of their epoch said who the members are."""
        future = list(self._future)
        self._future.clear()
        for header, values in future:
            self.received(header, values, running)

    def collect(self, execution: Execution) -> None:
        """Add the eager chunks that arrived before a task began to its sums."""
        for tree, chunk, bit, values in self._scatter.collect(execution.task):
            self._counters["early"] += 1
            execution.partial(tree, chunk, bit, values)
