"""Who has brought values that are in no task yet, as agents say it: so that whoever waits hears for whom."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence


class Pending:
    """Of one coordinator. nodes: all agents of the job. Of one agent, what it brought first goes into a task first."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._nodes = nodes
        self._turns: dict[str, deque[tuple[int, float]]] = {node: deque() for node in nodes}

    def brought(self, node: str, turn: int, now: float) -> None:
        """turn: the agent's number for these values."""
        self._turns[node].append((turn, now))

    def taken(self, node: str) -> None:
        """What it brought first waits no more."""
        if self._turns[node]:
            self._turns[node].popleft()

    def withdrawn(self, node: str, turn: int) -> None:
        """Its trainer wants these values back."""
        self._turns[node] = deque(each for each in self._turns[node] if each[0] != turn)

    def forget(self, node: str) -> None:
        """It is gone: whoever comes under this name brings its values anew."""
        self._turns[node].clear()

    def waiting(self, before: float = float("inf")) -> list[str]:
        """Who has brought something that waits, since before that time."""
        return [node for node in self._nodes if self._turns[node] and self._turns[node][0][1] <= before]

    def missing(self, members: Collection[str]) -> str:
        """In words, who of the others is not there or has brought nothing. members: who has joined."""
        away = [node for node in self._nodes if node not in members]
        empty = [node for node in self._nodes if node in members and not self._turns[node]]
        words = []
        if away:
            words.append(f"{', '.join(away)} {'has' if len(away) == 1 else 'have'} not joined")
        if empty:
            words.append(f"{', '.join(empty)} {'has' if len(empty) == 1 else 'have'} brought nothing")
        return "; ".join(words) or "all have brought values, and no task has been made of them"
