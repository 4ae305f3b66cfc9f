"""Chunks that leave before the task is known that they are for, over the wire: overlay/core/scatter.py says which."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from functools import partial

from controlplane.planner.plan.task import Task
from overlay.core.execution import Execution, Values
from overlay.core.message import Header, Kind
from overlay.core.scatter import EAGER_PRIORITY, Blocks, Scatter
from overlay.net.neighbours import Neighbours

AHEAD = 4096
"""Chunks that are kept at most until the coordinator is heard whose agents sent them."""


class EagerScatter:
    """Of one agent."""

    def __init__(self, node: str, neighbours: Neighbours, counters: Counter[str]) -> None:
        self._node, self._neighbours, self._counters = node, neighbours, counters
        self._scatter: Scatter[Values] = Scatter(node)
        self._defaults: dict[int, tuple[int, Blocks]] = {}  # values -> values of a chunk, who adds what
        self._ahead: deque[tuple[Header, Values]] = deque(maxlen=AHEAD)

    def default(self, values: int, chunk_values: int, blocks: Blocks) -> None:
        """The splitting of so many values that is told beforehand."""
        self._defaults[values] = chunk_values, blocks

    # --- as a sender ---

    def send(self, turn: int, tensor: Values) -> None:
        """By the default splitting, where there is one for so many values."""
        chunk_values, blocks = self._defaults.get(tensor.size, (1, ()))
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
        """(tree, chunk) of what is with the right one already: the task has come."""
        return self._scatter.settle(task, self._neighbours.peers)

    def _sent(self, turn: int, owner: str, chunk: int) -> None:
        self._scatter.sent(turn, owner, chunk, self._neighbours.peers.get(owner))

    def stop(self) -> None:
        """No task comes: what has not left stays."""
        self._scatter.stop()

    # --- as a receiver ---

    def came(self, header: Header, values: Values, running: Mapping[int, Execution]) -> None:
        """It is added where its task runs, and else kept until that begins."""
        if header.epoch > self._neighbours.epoch:  # its sender has heard of a coordinator that is still to come here
            self._ahead.append((header, values))
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
            if execution.takes(tree, chunk, header.values):
                self._counters["early"] += 1
                execution.partial(tree, chunk, 1 << task.trees[tree].contributors.index(sender), values)

    def met(self, running: Mapping[int, Execution]) -> None:
        """The coordinator has said who is there: chunks that came before that can be understood."""
        ahead = list(self._ahead)
        self._ahead.clear()
        for header, values in ahead:
            self.came(header, values, running)

    def collect(self, execution: Execution) -> None:
        """The task begins: what has been kept for it is added."""
        for tree, chunk, bit, values in self._scatter.collect(execution.task):
            self._counters["early"] += 1
            execution.partial(tree, chunk, bit, values)
