"""Which of several coordinators may act: the one that more than half of all agents are with.

An agent is with one coordinator at a time. So of two coordinators that cannot reach each other, at most one has more
than half of the agents, and only that one begins tasks; the other one lets its agents go. Whoever begins to act takes a
term above all that its agents have known. Since two majorities share an agent, that term is above every earlier
coordinator's, and an agent never goes back to a lower one: a coordinator that hears of a higher term than its own has
been replaced, and steps down.

Where no other coordinator is known there is nothing to decide: the only one acts with whoever is there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


class Fence:
    """Of one coordinator. contested: whether there may be others, by what it was told itself or by an agent. term: of
    its own time as the one that acts; 0: it has not been."""

    def __init__(self, agents: int, *, contested: bool) -> None:
        self.most = agents // 2 + 1
        self.contested = contested
        self.term = 0
        self._known = 0

    def heard(self, message: Mapping[str, Any]) -> bool:
        """What an agent says when it joins; whether another coordinator has begun to act since this one did. Raises
        ValueError, TypeError."""
        self.contested = self.contested or bool(message.get("others"))
        self._known = max(self._known, int(message.get("term", 0)))
        return self._known > self.term

    def enough(self, agents: Collection[str]) -> bool:
        """Whether one that these are with may act."""
        return not self.contested or len(agents) >= self.most

    def begin(self) -> None:
        """Acts from now on."""
        self.term = self._known = max(self.term, self._known) + 1
