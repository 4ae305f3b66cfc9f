"""Sites that have forgotten their state take that of a site that still has one, and do not begin beside it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from overlay.core.site_network import SiteNetwork
from overlay.core.site_quorum import History, SiteQuorum, after
from overlay.net import leadership
from overlay.net.site_services import SiteServices, State
from overlay.sites.command import SiteSettings, make_coordinator

SITES = ("a", "b", "c")
HISTORY: History = ((7, 1, SITES), (8, 1, SITES))


class Spoken:
    """A site of which a test says every message to the coordinator."""

    def __init__(self, name: str, address: tuple[str, int], history: History = (), term: int = 0) -> None:
        self._history = history
        self._socket = socket.create_connection(address, timeout=60)
        self._lines = self._socket.makefile("r")
        self._tell(type="join", node=name, host="", port=9, epoch=0, history=history, term=term, tasks={}, results={})

    def _tell(self, **message: object) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def here(self, round_: int) -> None:
        active = bool(self._history)
        about = {"round": round_, "digest": f"state {round_}", "active": active, "history": self._history}
        self._tell(type="site", what="here", **about)

    def until(self, kind: str) -> list[dict[str, Any]]:
        """Return the messages up to the first one of this type, which is the last one."""
        messages: list[dict[str, Any]] = []
        while not messages or messages[-1]["type"] != kind:
            messages.append(json.loads(self._lines.readline()))
        return messages

    def took(self) -> tuple[str | None, int]:
        """Wait until the coordinator says whose state to take. Return that site, and the round."""
        while (message := self.until("site")[-1])["what"] != "take":
            pass
        return message["from"], message["round"]

    def told(self) -> list[str]:
        """Return what the coordinator has sent until now, after it has handled all that this site has sent."""
        self._tell(type="alive", at=0.0)
        return [message.get("what", message["type"]) for message in self.until("alive")]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def address(monkeypatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(leadership, "GATHER_SECONDS", 0.05)
    with make_coordinator("127.0.0.1", 0, SiteSettings(2, probe_seconds=0.0), SiteNetwork(256)) as coordinator:
        yield coordinator.address


def test_sites_that_have_forgotten_begin_again_with_the_state_of_one_that_joins_later(address):
    """The coordinator and b and c are new processes; a, which has the state before round 9, joins after b and c."""
    b, c = Spoken("b", address), Spoken("c", address)
    b.until("members"), c.until("members")
    b.here(0), c.here(0)
    assert b.took() == c.took() == (None, 0), "nobody can know that a has another state"
    a = Spoken("a", address, HISTORY, term=1)
    b.until("standby"), c.until("standby")
    b, c = Spoken("b", address, term=1), Spoken("c", address, term=1)
    for site in (a, b, c):
        site.until("members")
    b.here(0), c.here(0)
    assert "take" not in b.told() + c.told(), "they wait for the state of a, which has joined and not yet reported it"
    a.here(9)
    assert a.took() == (None, 9) and b.took() == ("a", 9) and c.took() == ("a", 9)
    for site in (a, b, c):
        site.close()


def test_sites_begin_with_less_only_when_all_sites_of_the_last_rounds_have_forgotten():
    quorum = SiteQuorum()
    assert quorum.may_begin(0, "ab"), "nobody knows of a round"
    quorum.observe({"node": "a", "history": HISTORY, "term": 1})
    assert quorum.contested and quorum.may_begin(9, "a")
    assert not quorum.may_begin(8, "bcd") and not quorum.may_begin(0, "bcdef"), "a has the state before round 9"
    assert quorum.may_begin(0, "abcd")
    quorum.start_term()
    quorum.begin_at(0)
    assert quorum.history == (), "no site has a result of these rounds any more"

    # A coordinator that lives goes on without the only site that had the result of the last round, and no further back.
    quorum = SiteQuorum()
    quorum.start_term()
    for round_ in (7, 8):
        quorum.did(round_, SITES)
    assert quorum.may_begin(8, "bc") and not quorum.may_begin(7, "bc")


@pytest.mark.parametrize("own, others, steps_down", [(0, 0, True), (0, 8, True), (9, 8, False), (10, 8, False)])
def test_a_coordinator_steps_down_for_a_site_that_is_ahead_of_those_that_have_begun(own, others, steps_down):
    quorum = SiteQuorum()
    quorum.start_term()
    message = {"node": "a", "history": ((others, 1, SITES),), "term": 1}
    assert not quorum.observe(message), "no site has begun"
    quorum.begin_at(own)
    assert quorum.observe(message) == steps_down


def test_a_site_that_had_the_last_result_alone_does_not_end_the_others_round():
    quorum = SiteQuorum()
    quorum.start_term()
    quorum.begin_at(7)
    quorum.did(7, SITES)
    history = after(quorum.history, 8, 1, SITES)
    assert not quorum.observe({"node": "a", "history": history, "term": 1}), "the coordinator knows all but this result"


def test_a_site_knows_rounds_only_when_it_has_their_state():
    """Else sites without the state could be most of the last round's, and begin without the ones that have it."""
    told: list[dict[str, Any]] = []

    async def take() -> None:
        membership = SimpleNamespace(tell=lambda **message: told.append(message), term=1)
        neighbours = SimpleNamespace(peers={}, epoch=1, members={})
        site = SiteServices("b", asyncio.get_running_loop(), membership, neighbours)  # type: ignore[arg-type]
        answer = site.here(State(0, "", np.zeros(4, np.uint8)))
        await asyncio.sleep(0)
        site.said({"what": "take", "from": "a", "round": 9, "history": HISTORY})
        assert answer.result(0)["from"] == "a" and site.history == ()
        site.coordinator_left()
        site.here(State(9, "", np.zeros(4, np.uint8)))
        await asyncio.sleep(0)
        assert [each["history"] for each in told] == [(), ()]
        site.said({"what": "take", "from": None, "round": 9, "history": HISTORY})
        assert site.history == HISTORY

    asyncio.run(take())
