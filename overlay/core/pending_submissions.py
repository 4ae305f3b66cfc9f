"""The coordinator's list of submissions that no task contains yet, by which it tells agents that wait whose values are
missing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence


class PendingSubmissions:
    """The submissions of each agent that wait for a task, oldest first; a task takes each participant's oldest
    submission.

    Args:
        nodes: returns the names of all agents of the job at present.

    A submission is known by its turn: the agent's own number for it.
    """

    def __init__(self, nodes: Callable[[], Sequence[str]]) -> None:
        self._nodes = nodes
        self._turns: dict[str, deque[tuple[int, float]]] = defaultdict(deque)

    def add(self, node: str, turn: int, now: float) -> None:
        """Take note that the agent submitted values at the time `now`, in seconds."""
        self._turns[node].append((turn, now))

    def remove_first(self, node: str) -> None:
        """Remove the agent's oldest submission: it is in a task now, or has been given back."""
        if self._turns[node]:
            self._turns[node].popleft()

    def remove(self, node: str, turn: int) -> None:
        """Remove a submission that the agent's trainer has withdrawn."""
        self._turns[node] = deque(each for each in self._turns[node] if each[0] != turn)

    def clear(self, node: str) -> None:
        """Remove all submissions of an agent that is lost: one that joins again under its name submits its values
        again.
        """
        self._turns[node].clear()

    def waiting(self, before: float = float("inf")) -> list[str]:
        """Return the agents whose oldest submission was made at the time `before` or earlier."""
        return [node for node in self._nodes() if self._turns[node] and self._turns[node][0][1] <= before]

    def missing(self, members: Collection[str]) -> str:
        """Return, in words, which agents have not joined and which have submitted nothing. `members` are the agents
        that have joined.
        """
        away = [node for node in self._nodes() if node not in members]
        empty = [node for node in self._nodes() if node in members and not self._turns[node]]
        words = []
        if away:
            words.append(f"{', '.join(away)} {'has' if len(away) == 1 else 'have'} not joined")
        if empty:
            words.append(f"{', '.join(empty)} {'has' if len(empty) == 1 else 'have'} submitted nothing")
        return "; ".join(words) or "all agents have submitted values, and no task has been made of them"
