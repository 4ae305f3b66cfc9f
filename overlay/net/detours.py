"""The record of the chunks that an agent has sent over detours. A detour has room for another chunk when its receiver
has said that one is there (message THROUGH).
"""

from __future__ import annotations

from collections.abc import Callable


class Detours:
    """The chunks that an agent has sent over detours, and of which it has not heard that they are at the detour's end.
    A chunk that is lost on its way, with an agent or a connection, is one of them until its task is over or mended.
    """

    def __init__(self) -> None:
        self._chunks: dict[int, dict[tuple[int, int, str], list[Callable[[], None]]]] = {}  # by task

    def add(self, task: int, tree: int, chunk: int, receiver: str, left: Callable[[], None]) -> None:
        """Call `left` when this chunk of a task has come to this receiver, or its task is forgotten."""
        self._chunks.setdefault(task, {}).setdefault((tree, chunk, receiver), []).append(left)

    def ended(self, task: int, tree: int, chunk: int, receiver: str) -> None:
        """Take note that a chunk has come to its receiver."""
        if found := self._chunks.get(task, {}).pop((tree, chunk, receiver), None):
            for left in found:
                left()

    def forget(self, task: int) -> None:
        """Wait for no chunk of this task any more."""
        for found in self._chunks.pop(task, {}).values():
            for left in found:
                left()
