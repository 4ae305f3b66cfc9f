"""The eager scatter: an agent sends chunks before its task is known (CREW paper, IV-A2, the non-blocking scatter).

An agent that is ready tells the coordinator, and at once sends its chunks to the aggregators of a default split of the
tensor, in increasing order. The task that contains its submission may assign blocks to other aggregators. Then chunks
that the right aggregator already has are not sent again, chunks at a wrong one are discarded there, and eager chunks
that have not left yet are not sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from controlplane.planner.plan.task import Task

Chunk = TypeVar("Chunk")
EAGER_PRIORITY = 1
"""The priority of eager chunks in a connection's queue: they leave after the chunks of tasks, whose priority is 0."""

TURNS = 2
"""Most turns (submissions) of one sender whose eager chunks a receiver keeps."""

OVER = 64
"""Number of turns of one sender that a receiver remembers after their tasks have begun: eager chunks of them that
arrive later are dropped.
"""

Blocks = tuple[tuple[str, int, int], ...]


def place(task: Task, tree: int, chunk: int) -> int:
    """Return the number, in the whole tensor, of a chunk of a tree."""
    return task.trees[tree].first // task.chunk_values + chunk


class Scatter(Generic[Chunk]):
    """The eager scatter of one agent, as a sender and as a receiver, without sockets.

    A turn is the sender's own number of a submission. The type `Chunk` is whatever stands for a chunk's values.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._turn: int | None = None  # the submission that is being sent eagerly
        self._with: dict[int, tuple[str, object]] = {}  # chunk -> (the agent that has it, the connections that took it)
        self._held: dict[str, dict[int, dict[int, Chunk]]] = {}  # sender -> turn -> chunk -> its values
        self._over: dict[str, deque[int]] = {}

    # --- as a sender ---

    def begin(self, turn: int, blocks: Blocks, chunk_values: int) -> list[tuple[str, int]]:
        """Return the (owner, chunk) pairs to send for this turn, in the order in which to send them.

        Args:
            turn: the submission.
            blocks: (owner, first value, number of values) of each block of the default split.
            chunk_values: values of a chunk.
        """
        self._turn, self._with = turn, {}
        found = []
        for owner, first, count in blocks:
            if owner != self._node:
                found += [(g, owner) for g in range(first // chunk_values, -(-(first + count) // chunk_values))]
        return [(owner, g) for g, owner in sorted(found)]

    def wants(self, turn: int) -> bool:
        """Return whether chunks of this turn that wait in a queue are still to be sent."""
        return turn == self._turn

    def sent(self, turn: int, owner: str, chunk: int, by: object = None) -> None:
        """Take note that the chunk has left for its owner, over the connections `by`."""
        if turn == self._turn:
            self._with[chunk] = owner, by

    def settle(self, task: Task, now: Mapping[str, object] | None = None) -> frozenset[tuple[int, int]]:
        """Return the (tree, chunk) pairs of a task that this agent need not send any more, and end the eager scatter of
        the turn that the task contains.

        Args:
            task: the task, which has just been announced.
            now: the present connections to each owner. A chunk that left over other connections may never have arrived
                (they broke, or the owner's process ended), and is sent again. None where connections do not break.
        """
        own = self.turns(task).get(self._node)
        if own is None or own != self._turn:
            return frozenset()
        self._turn = None
        return frozenset(
            (k, chunk)
            for k, tree in enumerate(task.trees)
            for chunk in range(task.chunks(k))
            if self._with.get(place(task, k, chunk)) == (tree.root, (now or {}).get(tree.root))
        )

    def stop(self) -> None:
        """End the eager scatter: no task will contain its turn, and chunks that have not left are not sent."""
        self._turn = None

    # --- as a receiver ---

    @staticmethod
    def turns(task: Task) -> Mapping[str, int]:
        """Return the turn of each participant that the task contains."""
        return dict(zip(task.participants, task.turns, strict=True)) if task.turns else {}

    def came(
        self, sender: str, turn: int, chunk: int, values: Chunk, tasks: Iterable[Task]
    ) -> tuple[Task, int, int] | None:
        """Return the (task, tree, chunk) among `tasks` to which an eager chunk that has arrived belongs. Return None
        where it belongs to none: the chunk is kept until its task begins, or dropped because its task does not want it
        here.
        """
        for task in tasks:
            if self.turns(task).get(sender) == turn:
                for k, tree in enumerate(task.trees):
                    begin = tree.first // task.chunk_values
                    if tree.root == self._node and begin <= chunk < begin + task.chunks(k):
                        return task, k, chunk - begin
                return None
        if turn not in self._over.get(sender, ()):
            turns = self._held.setdefault(sender, {})
            turns.setdefault(turn, {})[chunk] = values
            while len(turns) > TURNS:
                del turns[next(iter(turns))]
        return None

    def collect(self, task: Task) -> list[tuple[int, int, int, Chunk]]:
        """Return (tree, chunk, bit of the contributor, values) of each chunk of a task that arrived before the task
        began.
        """
        found = []
        for sender, turn in self.turns(task).items():
            self._over.setdefault(sender, deque(maxlen=OVER)).append(turn)
            held = self._held.get(sender, {}).pop(turn, {})
            for k, tree in enumerate(task.trees):
                if tree.root == self._node and sender != self._node:
                    bit = 1 << tree.contributors.index(sender)
                    chunks = range(task.chunks(k))
                    found += [(k, c, bit, held[g]) for c in chunks if (g := place(task, k, c)) in held]
        return found
