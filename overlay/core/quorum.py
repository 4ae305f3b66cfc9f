"""Decides which of several coordinators may act: the one to which more than half of all agents are connected.

An agent is connected to one coordinator at a time. Of two coordinators that cannot reach each other, at most one has
more than half of the agents, and only that one starts tasks; the other one disconnects its agents. A coordinator that
begins to act takes a term (a number) above every term that its agents have known. Two majorities share at least one
agent, so the new term is above that of every earlier coordinator. Agents never return to a coordinator with a lower
term, and a coordinator that hears of a higher term than its own has been replaced and steps down.

A coordinator whose agents know of no other coordinator needs no majority: it acts with the agents that are connected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


class Quorum:
    """The majority rule and the term of one coordinator.

    Args:
        agents: number of agents of the job.
        contested: see the attribute.

    Attributes:
        contested: whether other coordinators may exist, as far as this one was told at its start or by an agent
            since.
        term: number of this coordinator's latest time as the acting one; 0 where it has never acted.
    """

    def __init__(self, agents: int, *, contested: bool) -> None:
        self._agents, self.majority = agents, agents // 2 + 1
        self.contested = contested
        self.term = 0
        self._highest_known = 0

    def observe(self, message: Mapping[str, Any]) -> bool:
        """Take note of an agent's message to join. Return whether another coordinator has begun to act since this one
        did. Raise ValueError or TypeError when the message's term is not a number.
        """
        if message.get("others"):
            self.contested = True
        self._highest_known = max(self._highest_known, int(message.get("term", 0)))
        return self._highest_known > self.term

    def admits(self, agent: str) -> bool:
        """Return whether this coordinator would act for this agent at all. An agent that it does not admit has to look
        for another coordinator.
        """
        return True

    def reached_by(self, agents: Collection[str]) -> bool:
        """Return whether a coordinator with these agents connected may act."""
        return not self.contested or len(agents) >= self.majority

    @property
    def fresh(self) -> bool:
        """Whether this coordinator has done nothing yet that a second coordinator could do differently."""
        return False

    def all_here(self, agents: Collection[str]) -> bool:
        """Return whether this coordinator, to which these agents are connected, need not wait for others before it
        acts, because they are all that it expects.
        """
        return len(agents) == self._agents

    def start_term(self) -> None:
        """Begin a term of acting, with a number above all terms that this coordinator knows of."""
        self.term = self._highest_known = max(self.term, self._highest_known) + 1
