"""Decides which of two agents opens the connections between them, by which of them can.

An agent behind address translation or a firewall reaches others, and they do not reach it. Agents find that out by
trial: each tries to connect to each other one, and reports those that do not answer. A connection carries one
direction, and its sender opens it; where the sender cannot, the receiver opens it. If neither can, the two have no
link.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

REMEDY = (
    "start one of the two with --listen HOST:PORT --advertise HOST:PORT, at a port that the other one reaches, or add "
    "a site that both reach"
)


@dataclass(frozen=True)
class Reachability:
    """The agents that can open connections to others, as far as is known.

    Attributes:
        hidden: agents that are reached at no port, as their operators have declared (`--advertise none`).
        unreached: why an agent could not connect to another one, with the address, by (the agent, the other one).
    """

    hidden: frozenset[str] = frozenset()
    unreached: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def dials(self, agent: str, other: str) -> bool:
        """Return whether this agent can connect to the other one, as far as is known."""
        return other not in self.hidden and (agent, other) not in self.unreached

    def linked(self, agent: str, other: str) -> bool:
        """Return whether one of the two agents can connect to the other one, as far as is known."""
        return self.dials(agent, other) or self.dials(other, agent)

    def reached_by_all(self, agent: str, others: Iterable[str]) -> bool:
        """Return whether all the others can connect to this agent."""
        return all(self.dials(other, agent) for other in others if other != agent)

    def why_unlinked(self, agent: str, other: str) -> str:
        """Return in words why two agents have no link."""
        reasons = []
        for sender, receiver in ((agent, other), (other, agent)):
            if receiver in self.hidden:
                reasons.append(f"{receiver} is reached at no port (--advertise none)")
            elif (sender, receiver) in self.unreached:
                reasons.append(f"{sender} cannot connect to {receiver} at {self.unreached[sender, receiver]}")
        return ", and ".join(reasons)
