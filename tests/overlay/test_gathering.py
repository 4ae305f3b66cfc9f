"""Two coordinators that cannot reach each other gather agents: in the end one of them has enough."""

from __future__ import annotations

import heapq
import random
from itertools import count
from types import SimpleNamespace
from unittest.mock import MagicMock

from overlay.core.quorum import Quorum
from overlay.net.leadership import GATHER_SECONDS, Leadership
from overlay.net.members import Member, Members
from overlay.net.membership import REJOIN_SECONDS
from overlay.net.takeover import AgentState

NODES = ("a", "b", "c", "d")
LONGEST_SECONDS = 8 * GATHER_SECONDS
"""Longest time until one of the coordinators has more than half of the agents."""


class Clock:
    """Simulated seconds, and the timers of an event loop that run in them."""

    def __init__(self) -> None:
        self.now, self._order = 0.0, count()
        self._timers: list = []

    def call_later(self, seconds: float, callback, *args) -> SimpleNamespace:
        timer = SimpleNamespace(call=lambda: callback(*args))
        timer.cancel = lambda: setattr(timer, "call", lambda: None)
        heapq.heappush(self._timers, (self.now + seconds, next(self._order), timer))
        return timer

    def run(self, reached) -> None:
        while not reached():
            self.now, _, timer = heapq.heappop(self._timers)
            timer.call()


def seconds_of_gathering(drawn: random.Random) -> float:
    """Return the seconds until one of two coordinators acts. All agents can reach both; two begin with each."""
    clock, coordinators = Clock(), []
    for _ in range(2):
        members, quorum = Members(), Quorum(len(NODES), contested=True)
        driver = MagicMock(newest=-1, policy=MagicMock(nodes=NODES, spec=["nodes"]))
        leader = Leadership(clock, members, driver, quorum, MagicMock(), standby=None, log=lambda line: None)
        coordinators.append((members, leader))

    def joins(node: str, at: int) -> None:
        def look_elsewhere() -> None:
            clock.call_later(REJOIN_SECONDS * drawn.uniform(0.5, 1.5), joins, node, 1 - at)

        members, leader = coordinators[at]
        writer = SimpleNamespace(is_closing=lambda: False, write=lambda data: None, close=look_elsewhere)
        members[node] = Member(node, ("", 0), writer, AgentState(0, 0, {}, {}))
        leader.gather(members[node])

    for k, node in enumerate(NODES):
        clock.call_later(REJOIN_SECONDS * drawn.random(), joins, node, k % 2)
    clock.run(lambda: any(leader.active for _, leader in coordinators))
    return clock.now


def test_one_of_two_coordinators_has_enough_agents_soon(monkeypatch):
    """Their waits must not come out alike time after time, or each would go on taking the agents that the other one
    lets go.
    """
    drawn = random.Random(1)
    monkeypatch.setattr(random, "uniform", drawn.uniform)
    assert max(seconds_of_gathering(drawn) for _ in range(150)) < LONGEST_SECONDS
