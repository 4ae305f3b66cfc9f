"""Installing rules over BRI on a server that answers over real gRPC and that fails in the middle."""

from __future__ import annotations

import json

import grpc
import pytest

from controlplane.planner.bridging import bridged
from controlplane.planner.entries import Aggregate, Forward, LabelEntry
from controlplane.planner.rules import Taken
from controlplane.targets import fabric
from controlplane.targets.base import NotPrimary, TargetError, difference, empty
from controlplane.targets.bri import session, target
from controlplane.targets.bri.ports import FIRST_UNKNOWN
from p4src.protocol import VERDICTS
from tests.tofino.conftest import BFRT
from tests.tofino.plans import deployment
from tests.tofino.switch import TofinoSwitch, device_port
from tests.tofino.wire import bri_wire_pb2 as pb
from topologies.ports import free_port


@pytest.fixture
def rules(topology):
    return deployment(topology).rulesets


def beside(rules):
    return {switch: Taken.by(of) for switch, of in rules.items()}


def installed(targets, rules):
    fabric.connect(targets, 5.0)
    return fabric.install(targets, rules)


def test_installs_reads_back_and_removes(targets, switches, rules):
    one, two = installed(targets, rules).values()
    assert one == sum(len(of) for of in (rules["V1"].labels, rules["V1"].groups, rules["V1"].routes)) + 7
    assert two > 0
    for t in targets:
        assert difference(t.read(), rules[t.name]) == []
    assert switches["V1"].count("$PORT") == 7
    assert switches["V1"].count("label_table") == 23
    fabric.remove(targets)
    assert [switch.snapshot() for switch in switches.values()] == [{}, {}]


def test_second_time_changes_nothing(targets, switches, rules):
    installed(targets, rules)
    writes = [switch.writes for switch in switches.values()]
    assert list(fabric.install(targets, rules).values()) == [0, 0]
    assert [switch.writes for switch in switches.values()] == writes


def test_another_plan_beside_and_then_alone(targets, switches, rules, topology):
    """An update works this way: it installs both versions, then only the new one; the switch ends up as if it had only
    seen the new one.
    """
    installed(targets, rules)
    new = deployment(topology, "atp", first_label=100, taken=beside(rules)).rulesets
    both = {
        name: fabric.RuleSet(name, old.labels + new[name].labels, old.groups + new[name].groups, old.routes, old.ports)
        for name, old in rules.items()
    }
    fabric.install(targets, both)
    fabric.install(targets, new)
    after = [switch.snapshot() for switch in switches.values()]
    fabric.remove(targets)
    fabric.install(targets, new)
    assert [switch.snapshot() for switch in switches.values()] == after


@pytest.mark.parametrize("failing", [1, 8, 12, 20, 40])
def test_failure_in_the_middle_leaves_both_switches_as_they_were(targets, switches, rules, topology, failing):
    installed(targets, {name: empty(name) for name in rules})
    before = [switch.snapshot() for switch in switches.values()]
    switches["V1"].faults.fail_updates = {failing}
    with pytest.raises(fabric.FabricError) as failure:
        fabric.install(targets, rules)
    message = str(failure.value)
    assert "switch V1 refused 1 of" in message
    assert "RESOURCE_EXHAUSTED: No space left in the table" in message
    assert "insert " in message
    assert "all switches are as they were before" in message
    assert [switch.snapshot() for switch in switches.values()] == before


def test_failing_change_of_plan_brings_the_old_one_back(targets, switches, rules, topology):
    installed(targets, rules)
    before = [switch.snapshot() for switch in switches.values()]
    new = deployment(topology, "lbmm", first_label=500, taken=beside(rules)).rulesets
    switches["V2"].faults.fail_updates = {switches["V2"].updates + 5}
    with pytest.raises(fabric.FabricError, match="as they were before"):
        fabric.install(targets, new)
    assert [switch.snapshot() for switch in switches.values()] == before


def test_lost_answer_is_undone_too(targets, switches, rules):
    installed(targets, {name: empty(name) for name in rules})
    switches["V2"].faults.lose_answers = {3}
    with pytest.raises(fabric.FabricError, match="the answer was lost"):
        fabric.install(targets, rules)
    assert [switch.snapshot() for switch in switches.values()] == [{}, {}]


def test_entry_that_the_switch_only_claims_to_have_is_noticed(targets, switches, rules):
    installed(targets, {name: empty(name) for name in rules})
    switches["V1"].faults.forget_updates = {15}
    with pytest.raises(fabric.FabricError, match="does not hold what was written"):
        fabric.install(targets, rules)
    assert [switch.snapshot() for switch in switches.values()] == [{}, {}]


@pytest.mark.parametrize("table", ["label_table", "$pre.mgid", "ipv4_table", "$PORT"])
def test_missing_or_changed_entries_on_the_switch_are_repaired(make_target, switches, rules, table):
    """Entries that no rule names are repaired too. Each time another entry of the table is removed."""
    t = make_target(switches["V1"])
    installed([t], {"V1": rules["V1"]})
    whole = switches["V1"].snapshot()
    entries = switches["V1"].tables[switches["V1"].schema.table(table).name]
    for key in list(entries)[::3]:
        del entries[key]
        assert fabric.install([t], {"V1": rules["V1"]}) != {"V1": 0}
        assert switches["V1"].snapshot() == whole


def test_half_an_aggregation_is_removed_too(make_target, switches, rules):
    t = make_target(switches["V1"])
    installed([t], {"V1": rules["V1"]})
    table = switches["V1"].tables[switches["V1"].schema.table("label_table").name]
    for key in list(table)[1::2]:
        del table[key]
    switches["V1"].tables["$pre.mgid"].clear()
    fabric.remove([t])
    assert switches["V1"].snapshot() == {}


# -- ports -------------------------------------------------------------------------------------------------------------


def preset(switch: TofinoSwitch, connector: int, speed: str = "BF_SPEED_100G", fec: str = "BF_FEC_TYP_RS") -> None:
    """Make a port, as another client would have made it."""
    update = pb.Update(type=pb.Update.INSERT)
    entry = update.entity.table_entry
    entry.table_id = switch.schema.table("$PORT").id
    entry.key.fields.add(field_id=1).exact.value = device_port(connector, 0).to_bytes(4, "big")
    entry.data.fields.add(field_id=1, str_val=speed)
    entry.data.fields.add(field_id=2, str_val=fec)
    switch.apply(update)


def test_ports_are_those_of_the_front_panel(make_target, switches, rules):
    t = make_target(switches["V1"])
    installed([t], {"V1": rules["V1"]})
    there = {int.from_bytes(key[-4:], "big") for key in switches["V1"].tables["$PORT"]}
    assert there == {device_port(connector, 0) for connector in (1, 2, 3, 4, 5, 6, 7)}


def test_an_existing_port_is_used_and_stays(make_target, switches, rules):
    preset(switches["V1"], 1)
    preset(switches["V1"], 9)
    before = switches["V1"].snapshot()
    t = make_target(switches["V1"])
    installed([t], {"V1": rules["V1"]})
    assert switches["V1"].count("$PORT") == 8
    assert sum(fabric.install([t], {"V1": rules["V1"]}).values()) == 0
    t.close()
    again = make_target(switches["V1"], panel=False)
    again.connect(5.0)
    fabric.remove([again])
    assert switches["V1"].snapshot() == before


def test_port_that_does_not_suit_is_refused_and_left_alone(make_target, switches, rules):
    preset(switches["V1"], 1, "BF_SPEED_40G")
    before = switches["V1"].snapshot()
    with pytest.raises(
        fabric.FabricError, match=r"port 1/0 \(40G.*configured by somebody else; the topology wants port 1/0 \(100G"
    ):
        installed([make_target(switches["V1"])], {"V1": rules["V1"]})
    assert switches["V1"].snapshot() == before


def test_groups_and_ports_of_others_stay(make_target, switches, rules):
    switch = switches["V1"]
    switch.tables["$pre.node"][switch.key_of("$pre.node", 77)] = (0, {1: b"\0\1", 2: (), 3: (130,)})
    switch.tables["$pre.mgid"][switch.key_of("$pre.mgid", 900)] = (0, {1: (77,), 2: (False,), 3: (0,)})
    preset(switch, 20)
    before = switch.snapshot()
    t = make_target(switch)
    installed([t], {"V1": rules["V1"]})
    fabric.remove([t])
    assert switch.snapshot() == before


def test_unknown_front_panel_port_is_named(make_target, switches, rules, monkeypatch):
    monkeypatch.setattr("tests.tofino.switch.CONNECTORS", 5)
    with pytest.raises(fabric.FabricError, match=r"front-panel port 6/0 cannot be found.*no port 6/0"):
        installed([make_target(switches["V1"])], {"V1": rules["V1"]})


def test_flows_from_another_pipe_meet_through_the_loopback_port(make_target, switches, rules, monkeypatch):
    """Workers 3 and 4 are plugged into another pipe than the loopback port: they have two entries instead of one
    each.
    """
    far = {3: 3 + 5, 4: 4 + 5}
    monkeypatch.setattr(
        "tests.tofino.switch.device_port", lambda connector, channel: far.get(connector, 200 + connector)
    )
    t = make_target(switches["V1"])
    installed([t], {"V1": rules["V1"]})
    aggregations = [e for e in rules["V1"].labels if isinstance(e.action, Aggregate)]
    assert switches["V1"].count("label_table") == 23 + len(aggregations) // 2
    assert difference(t.read(), rules["V1"]) == []
    fabric.remove([t])
    assert switches["V1"].snapshot() == {}


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_no_switch_there(make_target, switches):
    switches["V1"].stop()
    with pytest.raises(TargetError, match=r"nobody answers; is bf_switchd running there.*gave up after 0.3 s"):
        make_target(switches["V1"]).connect(0.3)


def test_waits_for_a_switch_that_starts_late(make_target, until):
    port = free_port()
    late: list[TofinoSwitch] = []

    class Starting:
        address = f"127.0.0.1:{port}"

    t = make_target(Starting)
    with pytest.raises(TargetError):
        t.connect(0.2)
    late.append(TofinoSwitch(BFRT, port=port))
    try:
        t.connect(5.0)
        assert t.alive and t.runs_program()
    finally:
        t.close()
        late[0].stop()


def test_refused_bind(make_target, switches):
    switches["V1"].faults.refuse_bind = grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(TargetError, match="the bind to program inart failed: RESOURCE_EXHAUSTED"):
        make_target(switches["V1"]).connect(0.3)


def test_refused_subscription(make_target, switches):
    switches["V1"].faults.refuse_subscribe = grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(TargetError, match="refused the subscription: RESOURCE_EXHAUSTED: no subscriptions today"):
        make_target(switches["V1"]).connect(0.3)


def test_program_that_another_client_has_is_left_to_it(make_target, switches, monkeypatch):
    monkeypatch.setattr(session, "BIND_GRACE_SECONDS", 0.3)
    first = make_target(switches["V1"])
    first.connect(5.0)
    with pytest.raises(NotPrimary, match=f"Client ID {first.client_id} already owns this P4.*end that one"):
        make_target(switches["V1"]).connect(5.0)
    assert first.alive
    first.close()
    second = make_target(switches["V1"])
    second.connect(5.0)
    assert second.alive


def test_lost_stream_is_noticed(make_target, switches, until):
    t = make_target(switches["V1"])
    reasons: list[str] = []
    t.on_lost = reasons.append
    t.connect(5.0)
    assert t.alive
    switches["V1"].cut_streams()
    until(lambda: reasons, "the loss is reported")
    assert not t.alive
    with pytest.raises(TargetError, match="the connection is closed"):
        t.read()


def test_program_loaded_anew_by_somebody_is_noticed(make_target, switches, until):
    t = make_target(switches["V1"])
    t.connect(5.0)
    switches["V1"].load_again()
    until(lambda: not t.alive, "the notification is seen")


def test_slow_switch_runs_into_the_deadline_and_nothing_is_left(make_target, switches, rules, monkeypatch, until):
    t = make_target(switches["V1"])
    fabric.connect([t], 5.0)
    monkeypatch.setattr(session, "RPC_SECONDS", 0.3)
    switches["V1"].faults.hang_seconds = 0.6
    with pytest.raises(fabric.FabricError, match=r"DEADLINE_EXCEEDED.*it did not answer in time"):
        fabric.install([t], {"V1": rules["V1"]})
    until(lambda: switches["V1"].pending == 0, "the switch is done with what it was late with")
    switches["V1"].faults.hang_seconds = 0.0
    monkeypatch.setattr(session, "RPC_SECONDS", 20.0)
    fabric.remove([t])
    assert switches["V1"].snapshot() == {}


def test_every_write_tells_the_switch_how_long_it_has(make_target, switches, rules):
    installed([make_target(switches["V1"])], {"V1": rules["V1"]})
    assert switches["V1"].deadlines
    assert all(one == {"deadline_sec": "19", "deadline_nsec": "999999999"} for one in switches["V1"].deadlines)


def test_other_program_is_left_alone(make_target):
    switch = TofinoSwitch(BFRT, program="switch")
    try:
        t = make_target(switch)
        t.connect(5.0)
        assert not t.runs_program()
        assert list(fabric.remove([t]).values()) == [0]
        with pytest.raises(fabric.FabricError, match=r"runs switch, not inart: start bf_switchd with it.*-p inart"):
            fabric.install([t], {})
    finally:
        t.close()
        switch.stop()


def test_another_build_of_the_program_is_refused(make_target, tmp_path):
    description = json.loads(BFRT.read_text())
    next(table for table in description["tables"] if table["name"].endswith("label_table"))["size"] = 512
    smaller = tmp_path / "bf-rt.json"
    smaller.write_text(json.dumps(description))
    switch = TofinoSwitch(smaller)
    try:
        t = make_target(switch)
        t.connect(5.0)
        assert not t.runs_program()
        with pytest.raises(fabric.FabricError, match=r"another build of inart.*label_table has other keys"):
            fabric.install([t], {})
    finally:
        t.close()
        switch.stop()


def test_counters(make_target, switches, rules):
    t = make_target(switches["V1"])
    installed([t], {"V1": rules["V1"]})
    counters = t.read_counters()
    assert counters.verdicts == {name: 100 + index for index, name in enumerate(VERDICTS)}
    plain = [e for e in rules["V1"].labels if isinstance(e.action, Forward)]
    assert all(counters.labels[e.ingress_port, e.label] == (7, 7) for e in plain)


def test_large_rule_set_goes_in_batches(make_target, switches, rules, monkeypatch):
    monkeypatch.setattr(target, "BATCH", 16)
    many = tuple(LabelEntry(1, label, Forward(2)) for label in range(1000, 1040))
    t = make_target(switches["V1"])
    fabric.connect([t], 5.0)
    fabric.install([t], {"V1": fabric.RuleSet("V1", many, (), (), rules["V1"].ports)})
    assert switches["V1"].count("label_table") == 40
    assert switches["V1"].writes == 1 + 3


def test_bridging_entries_are_written_read_back_and_removed(targets, switches, rules, topology):
    """These entries have ternary keys with priorities, floods by port, and the CPU's port, which no topology has."""
    wanted = bridged(topology, rules, FIRST_UNKNOWN + 320)
    installed(targets, wanted)
    for t in targets:
        assert difference(t.read(), wanted[t.name]) == []
    assert switches["V1"].count("bridge_table") == len(wanted["V1"].bridge) == 1 + 8 + 6
    assert list(fabric.install(targets, wanted).values()) == [0, 0]
    fabric.install(targets, rules)
    assert switches["V1"].count("bridge_table") == 0
    fabric.remove(targets)
    assert [switch.snapshot() for switch in switches.values()] == [{}, {}]
