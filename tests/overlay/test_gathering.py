"""A deputy gathers sites that also try a coordinator whose network is cut off: in the end all of them are connected."""

from __future__ import annotations

import heapq
import random
from itertools import count
from types import SimpleNamespace
from unittest.mock import MagicMock

from overlay.core.site_quorum import DeputyQuorum
from overlay.net import leadership
from overlay.net.leadership import GATHER_SECONDS, Leadership
from overlay.net.members import Member, Members
from overlay.net.membership import CONNECT_SECONDS, REJOIN_SECONDS
from overlay.net.recovery import AgentState

SITES = ("a", "b", "c", "d")
HISTORY = ((4, 1, SITES), (5, 1, SITES))
LONGEST_SECONDS = 12 * GATHER_SECONDS
"""Longest time until all sites are connected to the deputy at once."""


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
        """Run timers until `reached` returns True, or for ten times LONGEST_SECONDS."""
        while not reached() and self.now < 10 * LONGEST_SECONDS:
            self.now, _, timer = heapq.heappop(self._timers)
            timer.call()


def seconds_of_gathering(drawn: random.Random) -> float:
    """Return the seconds until a deputy acts. Between two visits to it, a site waits for the coordinator in vain."""
    clock, members, quorum = Clock(), Members(), DeputyQuorum(HISTORY)
    driver = MagicMock(newest=-1, policy=MagicMock(nodes=SITES, spec=["nodes"]))
    leader = Leadership(clock, members, driver, quorum, MagicMock(), log=lambda line: None)

    def joins(name: str) -> None:
        def look_elsewhere() -> None:
            pauses = REJOIN_SECONDS * (drawn.uniform(0.5, 1.5) + drawn.uniform(0.5, 1.5))
            clock.call_later(CONNECT_SECONDS + pauses, joins, name)

        writer = SimpleNamespace(is_closing=lambda: False, write=lambda data: None, close=look_elsewhere)
        members[name] = Member(name, ("", 0), writer, AgentState(0, 0, {}, {}))
        quorum.observe({"node": name, "history": HISTORY})
        leader.gather(members[name])

    for name in SITES:
        clock.call_later((CONNECT_SECONDS + REJOIN_SECONDS) * drawn.random(), joins, name)
    clock.run(lambda: leader.active)
    return clock.now


def test_a_deputy_has_all_sites_soon(monkeypatch):
    assert max(seconds_of_gathering(random.Random(seed)) for seed in range(150)) < LONGEST_SECONDS
    monkeypatch.setattr(leadership, "MAX_WAITS", 1)
    assert max(seconds_of_gathering(random.Random(seed)) for seed in range(150)) > LONGEST_SECONDS, "waits must grow"
