"""The P4Runtime target on switches that were not written for it: softswitch, and bmv2 where it is installed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import pytest

from controlplane.common.log_lines import SILENT
from controlplane.planner.entries import Forward, LabelEntry, Route, RuleSet
from controlplane.service.keeper import Keeper
from controlplane.targets import fabric
from controlplane.targets.base import NotPrimary, SwitchAddress, TargetError, difference
from controlplane.targets.p4runtime import session
from controlplane.targets.p4runtime.kind import P4RuntimeKind
from controlplane.targets.p4runtime.target import P4RuntimeTarget
from controlplane.targets.switch_entries import SwitchEntries
from controlplane.targets.switches_file import connect_targets, load_switches
from p4src.artifacts import find
from p4src.protocol import VERDICTS
from tests.deploy.certificates import make_certificates
from tests.deploy.rules import MAC, large, small
from tests.deploy.switch import Switch


def test_installs_updates_reads_and_removes(target):
    installed = fabric.install([target], {"s1": small("s1")})
    assert installed == {"s1": 6}
    assert difference(target.read(), small("s1")) == []
    assert sum(fabric.install([target], {"s1": small("s1")}).values()) == 0
    # The next version has other labels, the same group with other ports, and a route that moves.
    later = RuleSet("s1", small("s1", 50).labels, small("s1").groups, (Route("10.0.0.7", 32, MAC, 2),))
    fabric.install([target], {"s1": later})
    assert difference(target.read(), later) == []
    assert fabric.remove([target]) == {"s1": 5}
    assert target.read() == RuleSet("s1", (), (), ())


def test_many_entries(target):
    fabric.install([target], {"s1": large("s1", 1000)})
    assert len(target.read().labels) == 1000


def test_full_table_is_undone(target, program):
    fabric.install([target], {"s1": small("s1")})
    routes = tuple(
        Route(f"10.7.{number // 256}.{number % 256}", 32, MAC, 1)
        for number in range(program.table("ipv4_table").size + 5)
    )
    with pytest.raises(fabric.FabricError) as failure:
        fabric.install([target], {"s1": RuleSet("s1", (), (), routes)})
    message = str(failure.value)
    assert "switch s1 refused" in message
    # bmv2 has no error code of its own for a full table.
    assert "RESOURCE_EXHAUSTED" in message or "Error when adding match entry to target" in message
    assert "all switches are as they were before" in message
    assert difference(target.read(), small("s1")) == []


def test_counters(switch, target):
    fabric.install([target], {"s1": small("s1")})
    counters = target.read_counters()
    assert counters.verdicts == dict.fromkeys(VERDICTS, 0)
    assert counters.labels == {(1, 1): (0, 0), (1, 2): (0, 0), (2, 3): (0, 0)}
    passed = target.read_traffic()
    assert not passed.whole and set(passed.ports.values()) == {(0, 0)}, "nothing has come to any port"


def test_later_controller_takes_over(switch, target, program, until: Callable):
    later = P4RuntimeTarget(SwitchAddress("s1", switch.address, 7), program)
    later.connect(10.0)
    try:
        until(lambda: target.demoted, "the first controller hears of the second")
        with pytest.raises(TargetError, match=re.compile("PERMISSION_DENIED", re.IGNORECASE)):
            target.load_pipeline()
        assert later.load_pipeline()
    finally:
        later.close()


def test_switch_of_a_controller_that_has_gone_is_free(switch, program):
    for _ in range(2):
        target = P4RuntimeTarget(SwitchAddress("s1", switch.address, 7), program)
        target.polite = True
        target.connect(20.0)
        second = P4RuntimeTarget(SwitchAddress("s1", switch.address, 7), program)
        second.polite = True
        with pytest.raises(NotPrimary, match="has a controller that lives"):
            second.connect(20.0)
        target.close()


YEAR_NS = 365 * 24 * 3600 * 1_000_000_000
time_ns = time.time_ns


@pytest.mark.parametrize("lives", [False, True])
def test_a_controllers_fast_clock_locks_no_other_controller_out(switch, program, monkeypatch, lives):
    """After the first controller has gone, the switch is free for any; while it lives, only a controller that takes
    over gets it.
    """
    ahead = P4RuntimeTarget(SwitchAddress("s1", switch.address, 7), program)
    with monkeypatch.context() as patch:
        patch.setattr(session.time, "time_ns", lambda: time_ns() + YEAR_NS)
        ahead.connect(20.0)
    polite = P4RuntimeTarget(SwitchAddress("s1", switch.address, 7), program)
    polite.polite = True
    if lives:
        with pytest.raises(NotPrimary, match="has a controller that lives"):
            polite.connect(20.0)
        taking = P4RuntimeTarget(SwitchAddress("s1", switch.address, 7), program)
        taking.connect(20.0)
        taking.load_pipeline()
        assert taking.runs_program()
        taking.close()
    ahead.close()
    polite.connect(20.0)
    polite.load_pipeline()
    assert polite.runs_program()
    polite.close()
    ahead.close()


def test_a_reconnecting_controller_takes_the_switch_from_no_other(switch, target, program, until, monkeypatch):
    later = P4RuntimeTarget(SwitchAddress("s1", switch.address, 7), program)
    with monkeypatch.context() as patch:
        patch.setattr(session.time, "time_ns", lambda: time_ns() + YEAR_NS)
        later.connect(20.0)
    until(lambda: target.demoted, "the first controller hears of the second")
    target.close()
    with pytest.raises(NotPrimary, match="held by another controller"):
        target.connect(20.0)
    later.close()
    target.connect(20.0)
    assert target.alive


def test_the_election_id_is_above_those_that_the_switch_has_seen():
    seconds, _ = now = session.new_election_id()
    assert session.new_election_id((seconds - 5, 7)) > now
    assert session.new_election_id((seconds + 5, 7)) == (seconds + 5, 8)
    assert session.new_election_id((seconds + 5, (1 << 64) - 1)) == (seconds + 6, 0)


def test_killed_switch_is_filled_again(switch, target, until: Callable):
    rules = RuleSet("s1", (LabelEntry(1, 1, Forward(2)),), (), ())
    fabric.install([target], {"s1": rules})
    keeper = Keeper(SwitchEntries(target), rules, SILENT)
    try:
        switch.kill()
        switch.start()
        until(lambda: keeper.refills == 1, "the switch is filled again", 30.0)
        assert difference(target.read(), rules) == []
    finally:
        keeper.close()


def test_wrong_device_id(switch, program):
    target = P4RuntimeTarget(SwitchAddress("s1", switch.address, 8), program)
    with pytest.raises(TargetError):
        target.connect(1.0)
        target.load_pipeline()
    target.close()


def test_softswitch_over_tls(tmp_path, program):
    try:
        files = make_certificates(tmp_path)
    except FileNotFoundError:
        pytest.skip("needs openssl to make certificates")
    switch = Switch("softswitch", tmp_path, tls=files)
    client = {"authority": "ca.pem", "certificate": "client.pem", "key": "client.key"}
    (tmp_path / "switches.json").write_text(
        json.dumps({"s1": {"address": switch.address, "device_id": 7, "tls": client}})
    )
    entry = load_switches(tmp_path / "switches.json")["s1"]
    try:
        switch.start(entry.tls)
        plain = P4RuntimeTarget(SwitchAddress("s1", switch.address, 7), program)
        with pytest.raises(TargetError):
            plain.connect(0.5)
        (target,) = connect_targets([entry], P4RuntimeKind(find("v1model")), 20.0, SILENT)
        fabric.install([target], {"s1": small("s1")})
        assert difference(target.read(), small("s1")) == []
        target.close()
    finally:
        switch.kill()
