"""The coordinator's list of submissions that no task contains yet, so that agents that wait can be told for whom."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence


class PendingSubmissions:
    """The submissions of each agent that wait for a task, oldest first; tasks take an agent's oldest submission.

    nodes(): all agents of the job at present. A submission is known by its turn, the agent's own number for it.
    """

    def __init__(self, nodes: Callable[[], Sequence[str]]) -> None:
        self._nodes = nodes
        self._turns: dict[str, deque[tuple[int, float]]] = defaultdict(deque)

    def add(self, node: str, turn: int, now: float) -> None:
        """The agent has submitted values, at this time in seconds."""
        self._turns[node].append((turn, now))

    def remove_first(self, node: str) -> None:
        """The agent's oldest submission is in a task now, or has been given back."""
        if self._turns[node]:
            self._turns[node].popleft()

    def remove(self, node: str, turn: int) -> None:
        """The agent's trainer has withdrawn this submission."""
        self._turns[node] = deque(each for each in self._turns[node] if each[0] != turn)

    def clear(self, node: str) -> None:
        """The agent is gone; an agent that joins again under its name submits its values again."""
        self._turns[node].clear()

    def waiting(self, before: float = float("inf")) -> list[str]:
        """The agents whose oldest submission has waited since this time or longer."""
        return [node for node in self._nodes() if self._turns[node] and self._turns[node][0][1] <= before]

    def missing(self, members: Collection[str]) -> str:
        """Return, in words, which agents have not joined and which have submitted nothing. members: the agents that
        joined."""
        away = [node for node in self._nodes() if node not in members]
        empty = [node for node in self._nodes() if node in members and not self._turns[node]]
        words = []
        if away:
            words.append(f"{', '.join(away)} {'has' if len(away) == 1 else 'have'} not joined")
        if empty:
            words.append(f"{', '.join(empty)} {'has' if len(empty) == 1 else 'have'} submitted nothing")
        return "; ".join(words) or "all agents have submitted values, and no task has been made of them"
