"""A switch that restarts, or is wiped, gets its rules back; one that another controller takes is left to that
controller.
"""

from __future__ import annotations

import threading

import pytest

from controlplane.common.log_lines import calling
from controlplane.service import keeper as keeper_module
from controlplane.service.keeper import Keeper
from controlplane.targets import fabric
from controlplane.targets.base import SwitchAddress, difference
from controlplane.targets.p4runtime.target import P4RuntimeTarget
from controlplane.targets.switch_entries import SwitchEntries
from tests.deploy.fake_switch import FakeSwitch
from tests.deploy.rules import small


@pytest.fixture
def kept(program, monkeypatch, until):
    """Return a switch with rules, and its keeper with a short heartbeat."""
    monkeypatch.setattr(keeper_module, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(keeper_module, "RECONNECT_SECONDS", 0.5)
    switch = FakeSwitch()
    target = P4RuntimeTarget(SwitchAddress("s1", switch.address, 1), program)
    fabric.connect([target], 5.0)
    fabric.install([target], {"s1": small("s1")})
    log: list[str] = []
    keeper = Keeper(SwitchEntries(target), small("s1"), calling(log.append))
    until(lambda: keeper.as_it_shall_be, "the keeper has looked at the switch once")
    state = {"switch": switch}
    yield keeper, state, log
    keeper.close()
    target.close()
    state["switch"].stop()


def test_restarted_switch_is_filled_again(kept, until):
    keeper, state, log = kept
    before = state["switch"].snapshot()
    port = state["switch"].port
    state["switch"].stop()
    until(lambda: keeper.state == "reconnecting", "the keeper notices")
    assert keeper.status().state == "reconnecting"
    assert keeper.status().problem
    state["switch"] = FakeSwitch(1, port)
    until(lambda: keeper.refills == 1, "the switch is filled")
    assert state["switch"].snapshot() == before
    until(lambda: keeper.state == "connected")
    assert any("s1 is back: 6 entries written" in line for line in log)


def test_switch_that_lost_its_program_behind_our_back_is_filled_again(kept, until):
    keeper, state, _ = kept
    before = state["switch"].snapshot()
    state["switch"].config.Clear()
    state["switch"].entities.clear()
    until(lambda: keeper.refills == 1, "the heartbeat notices")
    assert state["switch"].snapshot() == before


def test_end_does_not_wait_for_a_switch_that_is_silent(kept, until, monkeypatch):
    monkeypatch.setattr(keeper_module, "HEARTBEAT_DEADLINE_SECONDS", 3600.0)
    keeper, state, log = kept
    faults, answer = state["switch"].faults, threading.Event()
    faults.answer = answer
    try:
        until(faults.asked.is_set, "a heartbeat is under way")
        keeper.stop()
        keeper.cut()
        until(lambda: keeper.ended, "the keeper's thread ends")
        assert keeper.state == "connected"
        assert not log
    finally:
        faults.answer = None
        answer.set()


def test_failing_refill_is_tried_again(kept, until):
    keeper, state, _ = kept
    port = state["switch"].port
    state["switch"].stop()
    until(lambda: keeper.state == "reconnecting")
    again = FakeSwitch(1, port)
    again.faults.fail_updates = {2}
    state["switch"] = again
    until(lambda: keeper.refills == 1, "the second try works")
    assert difference(keeper.target.read(), keeper.rules) == []


def test_keeper_does_not_fight_another_controller(kept, program, until):
    keeper, state, log = kept
    other = P4RuntimeTarget(SwitchAddress("s1", state["switch"].address, 1), program)
    other.connect(5.0)
    try:
        until(lambda: keeper.state == "not primary", "the keeper hears of it")
        fabric.remove([other])
        assert not state["switch"].entities
        assert any("another controller took the switch over" in line for line in log)
        assert keeper.refills == 0
    finally:
        other.close()


def test_status_has_the_verdicts(kept):
    keeper, _, _ = kept
    status = keeper.status()
    assert (status.labels, status.groups, status.routes) == (3, 1, 2)
    assert status.verdicts["absorbed"] == 102
