"""Installing rules on P4Runtime switches that answer over real gRPC and that fail in the middle."""

from __future__ import annotations

import signal
import socket
import threading

import pytest
from hypothesis import given, settings

from controlplane.common.log_lines import calling
from controlplane.planner.entries import Forward, Item, LabelEntry, MulticastGroup, Route, RuleSet
from controlplane.targets import fabric
from controlplane.targets.base import (
    Change,
    InstallError,
    Operation,
    SwitchAddress,
    TargetError,
    UpdateFailure,
    difference,
    empty,
)
from controlplane.targets.p4runtime import session
from controlplane.targets.p4runtime import target as p4runtime
from controlplane.targets.p4runtime.program import Program, ProgramMismatch
from controlplane.targets.p4runtime.session import NotPrimary, ask
from controlplane.targets.p4runtime.target import P4RuntimeTarget
from p4src.protocol import VERDICTS
from tests.deploy.fake_switch import FakeSwitch
from tests.deploy.rules import MAC, large, rule_sets, small

BATCH = 16


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(p4runtime, "BATCH", BATCH)


def connected(targets):
    fabric.connect(targets, 5.0)
    return targets


def test_installs_reads_back_and_removes(targets, switches):
    rules = {target.name: small(target.name) for target in connected(targets)}
    installed = fabric.install(targets, rules)
    assert list(installed.values()) == [6] * 3
    for target in targets:
        assert difference(target.read(), rules[target.name]) == []
    assert sum(fabric.remove(targets).values()) == 18
    assert all(not switch.entities for switch in switches)


@given(rules=rule_sets())
@settings(max_examples=100, deadline=None)
def test_rules_round_trip_through_p4runtime(program, rules):
    entities = [update.entity for update in program.write_request(difference(empty("s1"), rules)).updates]
    assert difference(program.rule_set("s1", entities), rules) == []


def test_second_time_changes_nothing(targets, switches):
    rules = {target.name: small(target.name) for target in connected(targets)}
    fabric.install(targets, rules)
    writes = [switch.writes for switch in switches]
    again = fabric.install(targets, rules)
    assert list(again.values()) == [0] * 3
    assert [switch.writes for switch in switches] == writes
    assert [switch.pipelines for switch in switches] == [1, 1, 1]


def test_switch_without_rules_is_emptied(targets, switches):
    fabric.install(connected(targets), {target.name: small(target.name) for target in targets})
    fabric.install(targets, {"s1": small("s1")})
    assert [len(switch.entities) for switch in switches] == [6, 0, 0]


def test_large_rule_set_goes_in_batches(targets, switches):
    count = 2 * BATCH + 10
    fabric.install(connected(targets[:1]), {"s1": large("s1", count)})
    assert len(switches[0].entities) == count
    assert switches[0].writes == 3


@pytest.mark.parametrize("failing", [1, 3, BATCH + 7, 2 * BATCH + 10])
def test_failure_in_the_middle_leaves_all_switches_as_they_were(targets, switches, failing):
    fabric.install(connected(targets), {target.name: small(target.name) for target in targets})
    before = [switch.snapshot() for switch in switches]
    switches[1].faults.fail_updates = {switches[1].updates + failing}
    wanted = {target.name: large(target.name, 2 * BATCH + 10) for target in targets}
    with pytest.raises(fabric.FabricError) as failure:
        fabric.install(targets, wanted)
    message = str(failure.value)
    assert "switch s2 refused 1 of" in message
    assert "RESOURCE_EXHAUSTED: table full" in message
    assert "_table: " in message
    assert "all switches are as they were before" in message
    assert [switch.snapshot() for switch in switches] == before


def test_lost_answer_is_undone_too(targets, switches):
    fabric.install(connected(targets), {target.name: small(target.name) for target in targets})
    before = [switch.snapshot() for switch in switches]
    switches[2].faults.fail_writes = {switches[2].writes + 2}
    with pytest.raises(fabric.FabricError, match="the answer was lost"):
        fabric.install(targets, {target.name: large(target.name, 2 * BATCH) for target in targets})
    assert [switch.snapshot() for switch in switches] == before


def test_ctrl_c_while_switches_are_written_to_leaves_them_as_they_were(targets, switches, monkeypatch):
    fabric.install(connected(targets), {target.name: small(target.name) for target in targets})
    before = [switch.snapshot() for switch in switches]
    apply = targets[1].apply

    def interrupted(changes):
        monkeypatch.setattr(targets[1], "apply", apply)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        apply(changes)

    monkeypatch.setattr(targets[1], "apply", interrupted)
    with pytest.raises(KeyboardInterrupt, match="all switches are as they were before"):
        fabric.install(targets, {target.name: large(target.name, 2 * BATCH) for target in targets})
    assert [switch.snapshot() for switch in switches] == before


def test_restoring_tries_again(targets, switches):
    fabric.install(connected(targets[:1]), {"s1": small("s1")})
    before = switches[0].snapshot()
    now = switches[0].updates
    # The second update of the new rules fails, then one of those that undo the first batch.
    switches[0].faults.fail_updates = {now + 2, now + 30}
    with pytest.raises(fabric.FabricError, match="as they were before"):
        fabric.install(targets[:1], {"s1": large("s1", 20)})
    assert switches[0].snapshot() == before


def test_switch_that_forgets_a_write_is_found_by_reading_back(targets, switches):
    connected(targets[:1])
    switches[0].faults.forget_updates = {2}
    with pytest.raises(fabric.FabricError, match="does not hold what was written") as failure:
        fabric.install(targets[:1], {"s1": small("s1")})
    assert "insert label_table" in str(failure.value)
    assert not switches[0].entities


def test_switch_that_dies_is_named_and_the_others_restored(targets, switches):
    fabric.install(connected(targets), {target.name: small(target.name) for target in targets})
    before = [switch.snapshot() for switch in switches]
    switches[1].stop()
    with pytest.raises(fabric.FabricError, match=r"1 of 3 switches \(s2\)"):
        fabric.install(targets, {target.name: large(target.name, 10) for target in targets})
    assert [switches[i].snapshot() for i in (0, 2)] == [before[0], before[2]]


def test_hanging_switch_meets_the_deadline(targets, switches, monkeypatch):
    connected(targets[:1])
    targets[0].load_pipeline()
    switches[0].faults.hang_seconds = 3.0
    request = targets[0].program.write_request(difference(empty("s1"), small("s1")))
    with pytest.raises(session.WriteRejected, match=r"s1 .* a write failed: DEADLINE_EXCEEDED.*did not answer in time"):
        targets[0].session.write_batch(request, timeout=0.2)


def test_all_unreachable_switches_are_reported_together(program, switches):
    absent = [P4RuntimeTarget(SwitchAddress(f"x{number}", "127.0.0.1:1", 1), program) for number in range(2)]
    present = P4RuntimeTarget(SwitchAddress("s1", switches[0].address, 1), program)
    try:
        with pytest.raises(fabric.FabricError, match=r"2 of 3 switches \(x0, x1\): not connected") as failure:
            fabric.connect([*absent, present], 0.3)
    finally:
        present.close()
    assert "gave up after 0.3 s" in str(failure.value)
    assert "it is not running, or not at this address" in str(failure.value)


def test_connecting_waits_for_a_switch_that_still_starts(program, switches):
    port = switches[0].port
    switches[0].stop()
    target = P4RuntimeTarget(SwitchAddress("s1", f"127.0.0.1:{port}", 1), program)
    threading.Timer(0.5, lambda: switches.append(FakeSwitch(1, port))).start()
    target.connect(10.0)
    assert target.alive
    target.close()


def test_later_controller_takes_over_and_the_earlier_notices(program, switches, until):
    lost: list[str] = []
    first = P4RuntimeTarget(SwitchAddress("s1", switches[0].address, 1), program, on_lost=lost.append)
    second = P4RuntimeTarget(SwitchAddress("s1", switches[0].address, 1), program)
    first.connect(5.0)
    second.connect(5.0)
    try:
        until(lambda: first.demoted, "the first controller hears of the second")
        assert "another controller took the switch over" in lost
        with pytest.raises(TargetError, match=r"PERMISSION_DENIED.*another controller is primary"):
            first.apply(difference(empty("s1"), small("s1")))
        second.load_pipeline()
        second.apply(difference(empty("s1"), small("s1")))
    finally:
        first.close()
        second.close()


def test_switch_held_with_a_larger_election_id_is_refused_and_can_be_taken_over(program, switches):
    holder = session.Session(SwitchAddress("s1", switches[0].address, 1), (1 << 62, 0))
    target = P4RuntimeTarget(SwitchAddress("s1", switches[0].address, 1), program)
    target.polite = True
    try:
        with pytest.raises(NotPrimary, match=r"has a controller that lives.* take over with --take-over"):
            target.connect(5.0)
        target.polite = False
        target.connect(5.0)
        assert target.alive
    finally:
        target.close()
        holder.close()


def test_server_that_is_no_p4runtime_switch_is_refused_in_time(program, monkeypatch):
    monkeypatch.setattr(session, "ARBITRATION_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = P4RuntimeTarget(SwitchAddress("s1", f"127.0.0.1:{listener.getsockname()[1]}", 1), program)
        with pytest.raises(TargetError, match="does not answer the P4Runtime handshake"):
            target.connect(0.5)  # without its deadline this would wait for ever
        target.close()


def test_unconnected_target_says_so(program):
    with pytest.raises(TargetError, match=r"s1 .* is not connected"):
        P4RuntimeTarget(SwitchAddress("s1", "127.0.0.1:1", 1), program).read()


def test_counters(targets):
    connected(targets[:1])
    targets[0].load_pipeline()
    counters = targets[0].read_counters()
    assert counters.verdicts == {name: 100 + index for index, name in enumerate(VERDICTS)}


def test_ask_needs_no_arbitration(switches):
    assert "P4Runtime 1.4.1" in str(ask(SwitchAddress("s1", switches[0].address, 1), 5.0))
    with pytest.raises(TargetError, match="is the device id right"):
        ask(SwitchAddress("s1", switches[0].address, 7), 5.0)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (RuleSet("s1", (LabelEntry(1 << 9, 1, Forward(2)),), (), ()), "512 does not fit in 9 bits"),
        (RuleSet("s1", (LabelEntry(1, 1 << 32, Forward(2)),), (), ()), "does not fit in 32 bits"),
        (RuleSet("s1", (), (MulticastGroup(1 << 15, (1,)),), ()), "outside 1..32767"),
        (RuleSet("s1", (), (MulticastGroup(1, (2, 2)),), ()), "has a port twice"),
    ],
)
def test_values_that_do_not_fit_are_refused_before_anything_is_sent(targets, switches, rules, message):
    connected(targets[:1])
    with pytest.raises(fabric.FabricError, match=message):
        fabric.install(targets[:1], {"s1": rules})
    assert switches[0].writes == 0


def test_rules_for_a_switch_that_is_not_there(targets):
    with pytest.raises(fabric.FabricError, match="not in the switches file: s9"):
        fabric.install(connected(targets), {"s9": small("s9")})


def test_other_program_is_refused(tmp_path, program):
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "a.txtpb").write_text('tables { preamble { id: 1 name: "x" alias: "x" } }')
    with pytest.raises(ProgramMismatch, match="no table 'label_table'; it has x"):
        Program.load(tmp_path / "a.json", tmp_path / "a.txtpb")
    (tmp_path / "b.txtpb").write_text("this is no p4info")
    with pytest.raises(ProgramMismatch, match="no p4info"):
        Program.load(tmp_path / "a.json", tmp_path / "b.txtpb")


def test_removing_leaves_other_programs_alone(targets, switches):
    lines: list[str] = []
    assert list(fabric.remove(connected(targets), calling(lines.append)).values()) == [0, 0, 0]
    assert any("s2 does not run this program" in line for line in lines)


def test_descriptions_name_everything():
    rules = small("s1")
    items: list[Item] = [*rules.labels, *rules.groups, *rules.routes]
    text = [str(item) for item in items]
    assert text == [
        "label_table: port 1, label 1 -> forward(port=2)",
        "label_table: port 1, label 2 -> aggregate(slots 0..63, flow=0x1, everyone=0xffffffffffffffff, "
        "next_label=8, partial_label=9, port=2)",
        "label_table: port 2, label 3 -> replicate(group=5)",
        "multicast group 5 -> ports 3, 1",
        f"ipv4_table: 10.0.0.7/32 -> route(mac={MAC}, port=3)",
        f"ipv4_table: 10.1.0.0/16 -> route(mac={MAC}, port=1)",
    ]


def test_install_error_says_how_many_more():
    failure = UpdateFailure(Change(Operation.INSERT, Route("10.0.0.1", 32, MAC, 1)), "INTERNAL", "")
    error = InstallError("s1", [failure] * 20, 30)
    assert "refused 20 of 30" in str(error)
    assert "and 12 more" in str(error)
    assert "no message" in str(error)
