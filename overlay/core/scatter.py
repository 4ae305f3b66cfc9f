"""Sending before it is known to whom one adds: CREW's scatter that does not block (CREW paper, IV-A2).

Whoever is ready sends its chunks by a default splitting, in increasing order, and tells the coordinator. The task that
it gets into may give blocks to others: chunks that are with the right one already are not sent again, the others are
discarded where they came, and what has not left yet stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from controlplane.planner.plan.task import Task

Held = TypeVar("Held")
EARLY_PRIORITY = 1
"""After what tasks have to send."""

TURNS = 2
"""Of one sender, the chunks of so many turns are kept at most."""

OVER = 64
"""Of one sender, so many turns are known to be over."""

Blocks = tuple[tuple[str, int, int], ...]


def place(task: Task, tree: int, chunk: int) -> int:
    """Which chunk of the whole tensor it is."""
    return task.trees[tree].first // task.chunk_values + chunk


class Scatter(Generic[Held]):
    """Of one agent. A turn is one bringing of values: its number is the sender's own."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._turn: int | None = None  # the one that is being scattered
        self._with: dict[int, tuple[str, object]] = {}  # chunk -> with whom it is, and by which connections
        self._held: dict[str, dict[int, dict[int, Held]]] = {}  # sender -> turn -> chunk
        self._over: dict[str, deque[int]] = {}

    # --- as a sender ---

    def begin(self, turn: int, blocks: Blocks, chunk_values: int) -> list[tuple[str, int]]:
        """Whom to send which chunk, in this order. blocks: (owner, first value, values)."""
        self._turn, self._with = turn, {}
        found = []
        for owner, first, count in blocks:
            if owner != self._node:
                found += [(g, owner) for g in range(first // chunk_values, -(-(first + count) // chunk_values))]
        return [(owner, g) for g, owner in sorted(found)]

    def wants(self, turn: int) -> bool:
        """Whether what waits of this turn is still to be sent."""
        return turn == self._turn

    def sent(self, turn: int, owner: str, chunk: int, by: object = None) -> None:
        """It has left. by: the connections to the owner that took it."""
        if turn == self._turn:
            self._with[chunk] = owner, by

    def settle(self, task: Task, now: Mapping[str, object] | None = None) -> frozenset[tuple[int, int]]:
        """(tree, chunk) of what need not be sent any more: the task has come that this turn is for.

        now: the connections that there are to each owner. What left by others may never have come (the owner's process
        has ended meanwhile, or they broke), and is sent again. None: connections do not break.
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
        """Nothing comes of this turn."""
        self._turn = None

    # --- as a receiver ---

    @staticmethod
    def turns(task: Task) -> Mapping[str, int]:
        return dict(zip(task.participants, task.turns, strict=True)) if task.turns else {}

    def came(
        self, sender: str, turn: int, chunk: int, values: Held, tasks: Iterable[Task]
    ) -> tuple[Task, int, int] | None:
        """(task, tree, chunk) that it is for; None: it is kept until the task comes, or nobody wants it."""
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

    def collect(self, task: Task) -> list[tuple[int, int, int, Held]]:
        """(tree, chunk, bit of the contributor, values) of what is here already for a task that begins."""
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
