"""Reports the part of the packets to each neighbour that is lost, as the kernel has seen it (Linux's TCP_INFO)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

LEAST_SEGMENTS = 200
"""Least packets to a neighbour since the last report of it for a new report."""


class Sender(Protocol):
    """A neighbour (transport.Peer)."""

    def sent_again(self) -> tuple[int, int]:
        """Return how many segments its present connections have sent again, of how many in all."""
        ...


class Losses:
    """Losses of one agent's neighbours, by name."""

    def __init__(self, peers: Mapping[str, Sender]) -> None:
        self._peers = peers
        self._then: dict[str, tuple[int, int]] = {}

    def since(self) -> dict[str, float]:
        """Return, for each neighbour to which LEAST_SEGMENTS were sent since its last report, the part of these packets
        that was sent again.
        """
        found = {}
        for name, peer in self._peers.items():
            again, segments = peer.sent_again()
            again_then, then = self._then.get(name, (0, 0))
            if segments < then or again < again_then:  # the counts are of other connections than before
                again_then = then = 0
            if segments - then >= LEAST_SEGMENTS:
                found[name] = (again - again_then) / (segments - then)
                self._then[name] = again, segments
        return found
