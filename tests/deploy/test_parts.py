"""The events that take switches and links out of use and bring them back: the core alone, in microseconds."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.planner.generators import leaf_spine
from controlplane.service.core import parts, ports, trust
from controlplane.service.core.actions import Say
from controlplane.service.core.disabled import Why
from controlplane.service.core.journal import event_of_network, replay_network
from controlplane.service.core.parts import Parts
from controlplane.service.core.ways import Need, connected
from controlplane.service.journal import CoreJournal, Journal
from controlplane.service.network_state import layout_of

NETWORK = leaf_spine(2, 2, 3, 300.0)
LAYOUT = layout_of(NETWORK)
NEEDS = (Need(("h1", "h2", "h4", "h6")),)
DOCS = Path(__file__).parents[2] / "docs" / "controller.md"


class Life:
    """A network whose jobs are rerouted around disabled switches and links whenever their servers still reach each
    other.

    said: the log. moves: the changes of the state of a switch or link, and why.
    """

    def __init__(self) -> None:
        self.state, self.now = Parts(LAYOUT), 0.0
        self.journal = CoreJournal(Journal())
        self.said: list[str] = []
        self.moves: set[tuple[str, str]] = set()
        self.planned = 0
        self.ready = dict.fromkeys(NETWORK.switches, True)
        self.up = {v: dict.fromkeys(LAYOUT.ports[v], True) for v in NETWORK.switches}

    @property
    def off(self) -> dict[str, Why]:
        return dict(self.state.off)

    def take(self, event: Callable[..., parts.Decided], *given: Any, **more: Any) -> None:
        before = self.state
        self.state, done = event(before, self.now, *given, **more)
        if done or self.state != before:
            entry = event_of_network(before, event, given, more, now=self.now, clock=1e9)
            self.journal.add(before, entry, self.state)
        for name in {*before.off, *self.state.off}:
            move = str(before.off.get(name, "used")), str(self.state.off.get(name, "used"))
            if move[0] != move[1]:
                self.moves.add(move)
        for action in done:
            if isinstance(action, Say):
                self.said.append(action.line)
            elif isinstance(action, parts.PlanSoon):
                self.planned += 1
            elif isinstance(action, parts.RerouteJobs) and action.silent:
                self.take(parts.rerouted, action.silent, self.every(), NEEDS, again=action.again)

    def every(self) -> bool:
        return all(connected(LAYOUT, need.nodes, self.state.off) for need in NEEDS)

    def second(self, seconds: float = 1.0) -> None:
        """Let time pass, with a check every half a second."""
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            self.take(parts.switches_seen, dict(self.ready))
            self.take(parts.ports_seen, {v: dict(up) for v, up in self.up.items() if self.ready[v]})
            self.take(parts.looked, NEEDS)

    def plug(self, u: str, v: str, up: bool) -> None:
        self.up[u][LAYOUT.port(u, v)] = up


@pytest.fixture
def life() -> Life:
    made = Life()
    made.second()
    return made


def test_switch_that_dies_is_out_and_back_when_it_has_answered_for_half_a_minute(life):
    life.ready["s1"] = False
    life.second()
    assert life.off == {"s1": Why.LOST} and life.said[-1] == "lost: switch s1 does not answer"
    life.ready["s1"] = True
    life.second(trust.STEADY_SECONDS - 1)
    assert life.off
    life.second(2)
    assert not life.off and life.planned == 2, "replanned both times"


@pytest.mark.parametrize("why", [Why.LOST, Why.SILENT])
def test_what_is_disabled_is_used_again_when_it_was_said(life, why):
    if why == Why.LOST:
        life.ready["s1"] = False
        life.second()
        assert "it has answered for" in trust.used_again(life.state.trust, "s1", why, life.now)
        life.ready["s1"] = True
    else:
        life.take(parts.found_silent, ("s1",))
    life.second(3)
    seconds = int(re.search(r"again.* in (\d+) s", trust.used_again(life.state.trust, "s1", why, life.now))[1])
    life.second(seconds - 1)
    assert life.off == {"s1": why}
    life.second(1)
    assert not life.off


def test_a_mended_link_is_used_as_soon_as_it_is_the_only_path(life):
    """Item 8 of the issue: the job stood for 50 s."""
    life.take(parts.found_silent, ("e1-s1",))
    life.second(11)
    assert life.off == {"e1-s1": Why.SILENT}, "there is another way"
    life.ready["s2"] = False
    life.second(1)
    assert life.off == {"s2": Why.LOST}
    assert "e1-s1 can be used again: a job has no other way" in life.said


def test_a_silent_only_path_is_retried_after_a_second_instead_of_a_minute(life):
    life.ready["s2"] = False
    life.second()
    life.take(parts.found_silent, ("e1-s1",))
    assert life.off == {"s2": Why.LOST, "e1-s1": Why.SILENT}, "it has just been seen that it carries nothing"
    life.second(2)
    assert life.off == {"s2": Why.LOST}


def test_a_link_after_port_down_is_back_sooner_where_a_job_has_no_other_path(life):
    life.plug("s1", "e1", False)
    life.second()
    life.plug("s1", "e1", True)
    life.second()
    assert life.off == {"e1-s1": Why.PORT_DOWN}, "its ports are up, but not for long"
    life.ready["s2"] = False
    life.second(1)
    assert life.off == {"s2": Why.LOST}


def test_maintenance_outlives_observations_of_the_switch(life):
    """A switch that was taken out and then restarts is not used again merely because it answers."""
    life.take(parts.ordered, ("s1",), ())
    life.take(parts.failed, {"s1": "switch s1 does not answer"}, Why.LOST)
    life.second(2 * trust.STEADY_SECONDS)
    assert life.off == {"s1": Why.OPERATOR}
    life.take(parts.ordered, (), ("s1",))
    assert not life.off


def test_a_corrupting_link_stays_disabled_though_a_job_has_no_other_path(life):
    life.take(parts.failed, {"s1": "switch s1 corrupts"}, Why.CORRUPTS)
    assert "until an operator" in trust.used_again(life.state.trust, "s1", life.off["s1"], life.now)
    life.ready["s2"] = False
    life.second(100)
    assert life.off == {"s1": Why.CORRUPTS, "s2": Why.LOST}


def _table() -> set[tuple[str, str]]:
    text = DOCS.read_text()
    rows = text[text.index("## Switches and links") :].split("\n\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", rows, re.MULTILINE))


def test_reasons_change_as_documented_in_any_order_of_events():
    seen: set[tuple[str, str]] = set()
    links = sorted({f"{u}-{v}" for u, v in NETWORK.links if u < v and {u, v} <= LAYOUT.switches})
    for seed in range(150):
        random_, life = random.Random(seed), Life()
        for _ in range(40):
            part = random_.choice([*NETWORK.switches, *links])
            what = random_.randrange(7)
            if what == 0 and part in life.ready:
                life.ready[part] = not life.ready[part]
            elif what == 1 and part in links:
                u, v = part.split("-")
                life.plug(u, v, random_.random() < 0.5)
            elif what == 2 and part not in life.off:
                life.take(parts.found_silent, (part,))
            elif what == 3:
                life.take(parts.failed, {part: f"{part} corrupts"}, Why.CORRUPTS)
            elif what == 4:
                life.take(parts.ordered, (part,), ())
            elif what == 5 and life.off:
                life.take(parts.ordered, (), (random_.choice(sorted(life.off)),))
            else:
                life.second(random_.choice([0.5, 2.0, 40.0]))
        seen |= life.moves
        assert replay_network(life.journal.records()) == life.state
    assert seen == _table()


def test_every_look_of_ports_says_a_loss_once_and_doubles_the_wait(life):
    for times in (1, 2, 3):
        life.plug("s1", "e1", False)
        life.second()
        assert life.state.ports.losses == {"e1-s1": times}
        life.plug("s1", "e1", True)
        life.second(ports.STEADY_SECONDS * 2 ** (times - 1) - 1)
        assert life.off == {"e1-s1": Why.PORT_DOWN}
        life.second(2)
        assert not life.off
