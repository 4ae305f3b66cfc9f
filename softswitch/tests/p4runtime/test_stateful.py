"""Meters, action profiles, value sets and idle timeouts over P4Runtime, on the real data plane."""

from __future__ import annotations

import functools
import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import text_format
from google.rpc import code_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softswitch.dataplane.device import Device
from softswitch.dataplane.program import Program
from softswitch.p4runtime import P4RuntimeError
from softswitch.p4runtime.schema import Schema
from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.conformance.control import named
from softswitch.tests.p4runtime.client import Client
from softswitch.tests.p4runtime.conftest import data_plane
from softswitch.tests.support.p4runtime import DELETE, INSERT, MODIFY, Stream, update

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")

PROGRAMS = Path(__file__).parents[1] / "conformance" / "programs"
OK = code_pb2.OK
ROLLBACK = p4rt.WriteRequest.ROLLBACK_ON_ERROR


@functools.cache
def info_of(name: str) -> p4info_pb2.P4Info:
    return text_format.Parse((PROGRAMS / f"{name}.p4info.txtpb").read_text(), p4info_pb2.P4Info())


class Switch:
    """A device with a program, its primary, and the program's objects by name."""

    def __init__(self, device: Device, client: Client) -> None:
        self.device, self.client = device, client
        self.stream: Stream = client.become_primary()
        self.info = p4info_pb2.P4Info()

    def load(self, name: str) -> Switch:
        self.info = info_of(name)
        self.client.set_pipeline((PROGRAMS / f"{name}.json").read_bytes(), self.info)
        return self

    def id(self, kind: str, name: str) -> int:
        return named(getattr(self.info, kind), name, kind).preamble.id

    def codes(self, *updates: p4rt.Update, atomicity: int = p4rt.WriteRequest.CONTINUE_ON_ERROR) -> list[int]:
        return [error.canonical_code for error in self.client.outcomes(*updates, atomicity=atomicity)]

    def code(self, one: p4rt.Update) -> int:
        return self.codes(one)[0]

    def read(self, **query: object) -> list:
        (kind,) = query
        return [getattr(entity, kind) for entity in self.client.read(p4rt.Entity(**query))]  # type: ignore[arg-type]

    def action(self, name: str, *values: int) -> p4rt.Action:
        params = [p4rt.Action.Param(param_id=i, value=bytes([v])) for i, v in enumerate(values, 1)]
        return p4rt.Action(action_id=self.id("actions", name), params=params)

    def entry(self, table: str, key: int, action: p4rt.TableAction | None = None, **more: object) -> p4rt.TableEntry:
        entry = p4rt.TableEntry(table_id=self.id("tables", table), **more)  # type: ignore[arg-type]
        field = named(self.info.tables, table, "table").match_fields[0]
        value = key.to_bytes(4, "big").lstrip(b"\0") or b"\0"
        match = entry.match.add(field_id=field.id)
        if field.match_type == p4info_pb2.MatchField.EXACT:
            match.exact.value = value
        elif field.match_type == p4info_pb2.MatchField.LPM:
            match.lpm.value, match.lpm.prefix_len = value, 32
        else:
            match.ternary.value, match.ternary.mask = value, b"\xff\xff\xff\xff"
            entry.priority = 1
        if action is not None:
            entry.action.CopyFrom(action)
        return entry

    def call(self, name: str, *values: int) -> p4rt.TableAction:
        return p4rt.TableAction(action=self.action(name, *values))

    def member(self, profile: str, member: int, *call: object) -> p4rt.ActionProfileMember:
        entry = p4rt.ActionProfileMember(action_profile_id=self.id("action_profiles", profile), member_id=member)
        if call:
            entry.action.CopyFrom(self.action(*call))  # type: ignore[arg-type]
        return entry

    def group(self, profile: str, group: int, *members: tuple[int, int], max_size: int = 0) -> p4rt.ActionProfileGroup:
        entry = p4rt.ActionProfileGroup(
            action_profile_id=self.id("action_profiles", profile), group_id=group, max_size=max_size
        )
        for member, weight in members:
            entry.members.add(member_id=member, weight=weight)
        return entry

    def one_shot(self, *calls: tuple[p4rt.Action, int]) -> p4rt.TableAction:
        action = p4rt.TableAction(action_profile_action_set=p4rt.ActionProfileActionSet())
        for call, weight in calls:
            action.action_profile_action_set.action_profile_actions.add(action=call, weight=weight)
        return action

    def answer(self, frame: str) -> str:
        ((_, out),) = self.device.process(0, bytes.fromhex(frame))
        return out.hex()


@pytest.fixture(name="running", scope="module")
def _running() -> Iterator[Switch]:
    with data_plane(1) as served:
        yield Switch(served.devices[1], served.client())


# --------------------------------------------------------------------------------------------------------------- meters


@pytest.fixture(name="meters")
def _meters(running: Switch) -> Switch:
    return running.load("meters")


def config(*numbers: int) -> p4rt.MeterConfig:
    cir, cburst, pir, pburst, *rest = numbers
    return p4rt.MeterConfig(cir=cir, cburst=cburst, pir=pir, pburst=pburst, eburst=rest[0] if rest else 0)


def test_meters(meters: Switch) -> None:
    meter = meters.id("meters", "by_packets")
    one = p4rt.MeterEntry(meter_id=meter, index=p4rt.Index(index=2), config=config(1, 2, 3, 4))
    assert meters.code(update(MODIFY, meter_entry=one)) == OK
    assert meters.read(meter_entry=p4rt.MeterEntry(meter_id=meter, index=one.index)) == [one]
    found = meters.read(meter_entry=p4rt.MeterEntry(meter_id=meter))
    assert [entry.HasField("config") for entry in found] == [False, False, True, False]
    assert len(meters.read(meter_entry=p4rt.MeterEntry())) == 4 + 300 + 2
    everything = p4rt.MeterEntry(meter_id=meter, config=config(0, 1, 0, 2))
    assert meters.code(update(MODIFY, meter_entry=everything)) == OK
    assert [meters.answer("00" + "00000001" + "aa00")[10:12] for _ in range(3)] == ["00", "01", "02"]
    query = p4rt.MeterEntry(meter_id=meter, index=p4rt.Index(index=1), counter_data=p4rt.MeterCounterData())
    (found,) = meters.read(meter_entry=query)
    counts = found.counter_data
    assert [(c.packet_count, c.byte_count) for c in (counts.green, counts.yellow, counts.red)] == [(1, 7)] * 3
    query.config.CopyFrom(config(0, 1, 0, 2))
    assert meters.code(update(MODIFY, meter_entry=query)) == OK
    query.ClearField("config")
    (found,) = meters.read(meter_entry=query)
    assert found.counter_data.green.packet_count == 0
    assert meters.code(update(MODIFY, meter_entry=p4rt.MeterEntry(meter_id=meter))) == OK  # back to green
    assert [meters.answer("00" + "00000001" + "aa00")[10:12] for _ in range(3)] == ["00", "00", "00"]


def test_meters_refused(meters: Switch) -> None:
    meter = meters.id("meters", "by_packets")
    index = p4rt.Index(index=0)
    busy = p4rt.MeterCounterData(red=p4rt.CounterData(packet_count=1))
    refused = [
        (INSERT, {"config": config(0, 0, 0, 0)}, code_pb2.INVALID_ARGUMENT),
        (DELETE, {}, code_pb2.INVALID_ARGUMENT),
        (MODIFY, {"index": p4rt.Index(index=-1)}, code_pb2.INVALID_ARGUMENT),
        (MODIFY, {"index": p4rt.Index(index=4)}, code_pb2.OUT_OF_RANGE),
        (MODIFY, {"config": config(-1, 0, 0, 0)}, code_pb2.INVALID_ARGUMENT),
        (MODIFY, {"config": config(0, 0, 0, 0, 1)}, code_pb2.INVALID_ARGUMENT),
        (MODIFY, {"config": config(2, 0, 1, 0)}, code_pb2.INVALID_ARGUMENT),
        (MODIFY, {"counter_data": busy}, code_pb2.INVALID_ARGUMENT),
    ]
    for kind, fields, code in refused:
        entry = p4rt.MeterEntry(**{"meter_id": meter, "index": index, **fields})
        assert meters.code(update(kind, meter_entry=entry)) == code, fields
    assert meters.code(update(MODIFY, meter_entry=p4rt.MeterEntry(meter_id=99))) == code_pb2.INVALID_ARGUMENT
    assert not any(entry.HasField("config") for entry in meters.read(meter_entry=p4rt.MeterEntry()))


def test_types_of_meters(running: Switch) -> None:
    info = p4info_pb2.P4Info()
    info.CopyFrom(info_of("meters"))
    by_packets, by_bytes, _ = info.meters
    by_packets.spec.type = p4info_pb2.MeterSpec.SINGLE_RATE_THREE_COLOR
    by_bytes.spec.type = p4info_pb2.MeterSpec.SINGLE_RATE_TWO_COLOR
    running.client.set_pipeline((PROGRAMS / "meters.json").read_bytes(), info)
    running.info = info
    index = p4rt.Index(index=0)

    def code(meter: p4info_pb2.Meter, *numbers: int) -> int:
        entry = p4rt.MeterEntry(meter_id=meter.preamble.id, index=index, config=config(*numbers))
        return running.code(update(MODIFY, meter_entry=entry))

    assert code(by_packets, 0, 1, 1, 1, 2) == code_pb2.INVALID_ARGUMENT
    assert code(by_packets, 0, 1, 0, 1, 2) == OK
    assert [running.answer("00" + "00000000" + "aa00")[10:12] for _ in range(4)] == ["00", "01", "01", "02"]
    (found,) = running.read(meter_entry=p4rt.MeterEntry(meter_id=by_packets.preamble.id, index=index))
    assert found.config == config(0, 1, 0, 1, 2)
    assert code(by_bytes, 0, 7, 0, 7, 1) == code_pb2.INVALID_ARGUMENT
    assert code(by_bytes, 0, 7, 0, 8) == code_pb2.INVALID_ARGUMENT
    assert code(by_bytes, 0, 7, 0, 7) == OK
    assert [running.answer("01" + "00000000" + "aa00")[10:12] for _ in range(2)] == ["00", "02"]


def test_direct_meters(meters: Switch) -> None:
    call = meters.call("by_packet")
    with_meter = meters.entry("exact_table", 1, call, meter_config=config(0, 1, 0, 2))
    without = meters.entry("exact_table", 2, call)
    assert meters.codes(*(update(INSERT, table_entry=e) for e in (with_meter, without))) == [OK, OK]
    assert [meters.answer("02" + "00000001" + "aa00")[10:12] for _ in range(3)] == ["00", "01", "02"]
    table = with_meter.table_id
    assert not any(e.HasField("meter_config") for e in meters.read(table_entry=p4rt.TableEntry(table_id=table)))
    query = p4rt.TableEntry(table_id=table, meter_config=config(0, 0, 0, 0), meter_counter_data=p4rt.MeterCounterData())
    first, second = meters.read(table_entry=query)
    assert first.meter_config == with_meter.meter_config
    assert first.meter_counter_data.red.packet_count == 1
    assert not second.HasField("meter_config")
    assert second.HasField("meter_counter_data")
    key = meters.entry("exact_table", 1)
    direct = p4rt.DirectMeterEntry(table_entry=key, config=config(0, 5, 0, 5))
    assert meters.code(update(MODIFY, direct_meter_entry=direct)) == OK
    assert meters.read(direct_meter_entry=p4rt.DirectMeterEntry(table_entry=key)) == [direct]
    assert len(meters.read(direct_meter_entry=p4rt.DirectMeterEntry())) == 2
    assert meters.code(update(MODIFY, table_entry=meters.entry("exact_table", 1, call))) == OK  # back to green
    (found,) = meters.read(direct_meter_entry=p4rt.DirectMeterEntry(table_entry=key))
    assert not found.HasField("config")
    refused = [
        update(INSERT, direct_meter_entry=direct),
        update(MODIFY, direct_meter_entry=p4rt.DirectMeterEntry(table_entry=meters.entry("exact_table", 9))),
        update(MODIFY, direct_meter_entry=p4rt.DirectMeterEntry(table_entry=p4rt.TableEntry(
            table_id=table, is_default_action=True))),
        update(INSERT, table_entry=meters.entry("exact_table", 3, call, meter_config=config(2, 0, 1, 0))),
    ]  # fmt: skip
    wanted = [code_pb2.INVALID_ARGUMENT, code_pb2.NOT_FOUND, code_pb2.UNIMPLEMENTED, code_pb2.INVALID_ARGUMENT]
    assert meters.codes(*refused) == wanted


def test_roll_back_of_meters(meters: Switch) -> None:
    call = meters.call("by_packet")
    entry = meters.entry("exact_table", 1, call, meter_config=config(0, 2, 0, 4))
    index = p4rt.MeterEntry(meter_id=meters.id("meters", "by_packets"), config=config(0, 1, 0, 1))
    assert meters.codes(update(INSERT, table_entry=entry), update(MODIFY, meter_entry=index)) == [OK, OK]
    assert [meters.answer("02" + "00000001" + "aa00")[10:12] for _ in range(3)] == ["00", "00", "01"]
    assert meters.answer("00" + "00000001" + "aa00")[10:12] == "00"
    failing = update(DELETE, table_entry=meters.entry("exact_table", 77))
    batch = [
        update(MODIFY, meter_entry=p4rt.MeterEntry(meter_id=index.meter_id)),
        update(DELETE, table_entry=entry),
        failing,
    ]
    assert meters.codes(*batch, atomicity=ROLLBACK)[2] == code_pb2.NOT_FOUND
    assert [meters.answer("02" + "00000001" + "aa00")[10:12] for _ in range(2)] == ["01", "02"]  # tokens and all
    assert meters.answer("00" + "00000001" + "aa00")[10:12] == "02"


# ------------------------------------------------------------------------------------------------------ action profiles


@pytest.fixture(name="profiles")
def _profiles(running: Switch) -> Switch:
    return running.load("profiles")


def member_id(number: int) -> p4rt.TableAction:
    return p4rt.TableAction(action_profile_member_id=number)


def group_id(number: int) -> p4rt.TableAction:
    return p4rt.TableAction(action_profile_group_id=number)


def test_members_and_groups(profiles: Switch) -> None:
    s = profiles
    members = [s.member("shared", n, "set", n) for n in (1, 2, 3)]
    group = s.group("shared", 7, (1, 1), (2, 3))
    group.members[0].watch_port = b"\x05"
    entries = [s.entry("lpm_table", 1, group_id(7)), s.entry("lpm_table", 2, member_id(3))]
    assert s.codes(*(update(INSERT, action_profile_member=m) for m in members)) == [OK] * 3
    assert s.codes(update(INSERT, action_profile_group=group)) == [OK]
    assert s.codes(*(update(INSERT, table_entry=e) for e in entries)) == [OK, OK]
    assert s.read(action_profile_member=p4rt.ActionProfileMember()) == members
    assert s.read(action_profile_member=p4rt.ActionProfileMember(
        action_profile_id=members[0].action_profile_id, member_id=2)) == [members[1]]  # fmt: skip
    assert s.read(action_profile_group=p4rt.ActionProfileGroup()) == [group]
    assert s.read(action_profile_group=p4rt.ActionProfileGroup(
        action_profile_id=group.action_profile_id, group_id=8)) == []  # fmt: skip
    assert s.read(table_entry=p4rt.TableEntry(table_id=entries[0].table_id)) == entries
    assert {s.answer(f"01 00000001 {flow:04x} 0000 00 00")[18:20] for flow in range(30)} == {"02"}  # port 5 is down
    in_use = [
        update(DELETE, action_profile_member=members[0]),
        update(DELETE, action_profile_member=members[2]),
        update(DELETE, action_profile_group=group),
    ]
    assert s.codes(*in_use) == [code_pb2.FAILED_PRECONDITION] * 3
    assert s.codes(update(DELETE, table_entry=entries[0]), in_use[2], in_use[0]) == [OK, OK, OK]


def test_profiles_refuse_invalid_members_and_groups(profiles: Switch) -> None:
    s = profiles
    assert s.code(update(INSERT, action_profile_member=s.member("shared", 1, "set", 1))) == OK
    foreign = s.member("shared", 5, "set", 5)
    foreign.action.action_id = 1
    assert s.codes(
        update(INSERT, action_profile_member=s.member("shared", 1, "set", 1)),
        update(INSERT, action_profile_member=s.member("shared", 0, "set", 1)),
        update(INSERT, action_profile_member=s.member("shared", 5)),
        update(INSERT, action_profile_member=foreign),
        update(MODIFY, action_profile_member=s.member("shared", 5, "set", 1)),
        update(DELETE, action_profile_member=s.member("shared", 5)),
        update(INSERT, action_profile_group=s.group("plain", 1)),
        update(INSERT, action_profile_group=s.group("shared", 0)),
        update(INSERT, action_profile_group=s.group("shared", 1, (9, 1))),
        update(INSERT, action_profile_group=s.group("shared", 1, (1, 0))),
        update(INSERT, action_profile_group=s.group("shared", 1, (1, 1), (1, 1))),
        update(INSERT, action_profile_group=s.group("shared", 1, (1, 65))),  # the profile's size is 64
        update(INSERT, action_profile_group=s.group("shared", 1, (1, 3), max_size=2)),
        update(INSERT, action_profile_group=s.group("shared", 1, (1, 1 << 30))),
        update(INSERT, action_profile_group=s.group("small", 1, max_size=5)),
        update(MODIFY, action_profile_group=s.group("shared", 1)),
        update(DELETE, action_profile_group=s.group("shared", 1)),
        update(INSERT, table_entry=s.entry("lpm_table", 1, member_id(9))),
        update(INSERT, table_entry=s.entry("lpm_table", 1, group_id(9))),
        update(INSERT, table_entry=s.entry("lpm_table", 1, member_id(0))),
        update(INSERT, table_entry=s.entry("lpm_table", 1, s.call("set", 1))),
        update(INSERT, table_entry=s.entry("plain_table", 1, group_id(1))),
        update(INSERT, table_entry=s.entry("plain_table", 1, s.one_shot((s.action("set", 1), 1)))),
        update(MODIFY, table_entry=p4rt.TableEntry(table_id=s.id("tables", "lpm_table"), is_default_action=True)),
    ) == [
        code_pb2.ALREADY_EXISTS, code_pb2.INVALID_ARGUMENT, code_pb2.INVALID_ARGUMENT, code_pb2.INVALID_ARGUMENT,
        code_pb2.NOT_FOUND, code_pb2.NOT_FOUND, code_pb2.INVALID_ARGUMENT, code_pb2.INVALID_ARGUMENT,
        code_pb2.NOT_FOUND, code_pb2.INVALID_ARGUMENT, code_pb2.INVALID_ARGUMENT, code_pb2.RESOURCE_EXHAUSTED,
        code_pb2.RESOURCE_EXHAUSTED, code_pb2.RESOURCE_EXHAUSTED, code_pb2.INVALID_ARGUMENT,
        code_pb2.NOT_FOUND, code_pb2.NOT_FOUND, code_pb2.NOT_FOUND, code_pb2.NOT_FOUND, code_pb2.INVALID_ARGUMENT,
        code_pb2.INVALID_ARGUMENT, code_pb2.INVALID_ARGUMENT, code_pb2.INVALID_ARGUMENT, code_pb2.PERMISSION_DENIED,
    ]  # fmt: skip
    assert s.code(update(INSERT, action_profile_group=s.group("shared", 1, (1, 1), max_size=3))) == OK
    assert s.codes(
        update(INSERT, action_profile_group=s.group("shared", 1)),
        update(MODIFY, action_profile_group=s.group("shared", 1, max_size=4)),
    ) == [code_pb2.ALREADY_EXISTS, code_pb2.INVALID_ARGUMENT]
    watched = s.group("shared", 1, (1, 1), max_size=3)
    watched.members[0].watch_port = b"\x02\x00"
    assert s.code(update(MODIFY, action_profile_group=watched)) == code_pb2.OUT_OF_RANGE  # there is no port 512
    plain = [update(INSERT, action_profile_member=s.member("plain", n, "set", 1)) for n in range(1, 10)]
    assert s.codes(*plain) == [OK] * 8 + [code_pb2.RESOURCE_EXHAUSTED]


def test_groups_as_p4runtime_shell_writes_and_reads_them(profiles: Switch) -> None:
    """p4runtime-shell sets no max_size, and reads with the message that it wrote."""
    s = profiles
    member, group = s.member("small", 1, "set", 1), s.group("small", 1, (1, 4))  # max_group_size is 4
    assert s.codes(update(INSERT, action_profile_member=member), update(INSERT, action_profile_group=group)) == [OK, OK]
    other, larger = s.member("small", 1, "set", 2), s.group("small", 1, (1, 5), max_size=3)
    assert s.read(action_profile_member=member) == s.read(action_profile_member=other) == [member]
    assert s.read(action_profile_group=group) == s.read(action_profile_group=larger) == [group]
    entry = s.entry("small_table", 1, group_id(1))
    assert s.code(update(INSERT, table_entry=entry)) == OK
    assert s.read(table_entry=entry) == s.read(table_entry=p4rt.TableEntry(table_id=entry.table_id)) == [entry]
    for action in (group_id(2), member_id(1), s.one_shot((s.action("set", 1), 1))):
        assert s.read(table_entry=s.entry("small_table", 1, action)) == []
    larger.max_size = 0
    assert s.code(update(MODIFY, action_profile_group=larger)) == code_pb2.RESOURCE_EXHAUSTED
    limited = s.group("small", 2, (1, 1), max_size=1)
    assert s.code(update(INSERT, action_profile_group=limited)) == OK
    limited.max_size = 0  # The limit stays.
    assert s.code(update(MODIFY, action_profile_group=limited)) == OK
    limited.max_size = 1
    assert s.read(action_profile_group=s.group("small", 2)) == [limited]


def test_parts_that_p4c_omits_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    program = Program.load((PROGRAMS / "profiles.json").read_bytes())
    info = p4info_pb2.P4Info()
    info.CopyFrom(info_of("profiles"))
    table = named(info.tables, "plain_table", "table")
    table.initial_default_action.action_id = named(info.actions, "drop", "action").preamble.id
    with caplog.at_level(logging.WARNING):
        Schema(info, program)
    assert "left out its default action" in caplog.text
    table.has_initial_entries = True
    with pytest.raises(P4RuntimeError, match="has entries in the P4Info and none in the program"):
        Schema(info, program)


def test_entries_without_const_can_be_changed(running: Switch) -> None:
    """Only the P4Info tells them from const entries."""
    s, info = running, p4info_pb2.P4Info()
    info.CopyFrom(info_of("tables"))
    table = named(info.tables, "const_table", "table")
    query = p4rt.TableEntry(table_id=table.preamble.id)
    config = (PROGRAMS / "tables.json").read_bytes()
    s.client.set_pipeline(config, info)
    const = s.read(table_entry=query)
    assert const and all(entry.is_const for entry in const)
    const[0].is_const = False
    assert s.code(update(DELETE, table_entry=const[0])) == code_pb2.PERMISSION_DENIED
    table.is_const_table = False
    s.client.set_pipeline(config, info)
    first, *others = entries = s.read(table_entry=query)
    assert entries == const[:1] + [entry for entry in entries[1:] if not entry.is_const]
    first.action.CopyFrom(others[0].action)
    assert s.code(update(MODIFY, table_entry=first)) == OK
    assert s.code(update(INSERT, table_entry=first)) == code_pb2.ALREADY_EXISTS
    assert s.read(table_entry=query) == [first, *others]
    s.client.set_pipeline(config, info, action=p4rt.SetForwardingPipelineConfigRequest.RECONCILE_AND_COMMIT, cookie=1)
    assert s.read(table_entry=query) == [first, *others]
    assert s.code(update(DELETE, table_entry=first)) == OK
    assert s.read(table_entry=query) == others
    assert s.code(update(INSERT, table_entry=first)) == OK


def test_one_shots(profiles: Switch) -> None:
    s = profiles
    actions = s.one_shot((s.action("set", 1), 2), (s.action("both", 2, 3), 1), (s.action("set", 1), 1))
    actions.action_profile_action_set.action_profile_actions[1].watch_port = b"\x01"
    entry = s.entry("lpm_table", 1, actions)
    assert s.code(update(INSERT, table_entry=entry)) == OK
    query = p4rt.TableEntry(table_id=entry.table_id)
    assert s.read(table_entry=query) == [entry]
    assert s.read(action_profile_member=p4rt.ActionProfileMember()) == []
    assert s.read(action_profile_group=p4rt.ActionProfileGroup()) == []
    assert {s.answer(f"01 00000001 {flow:04x} 0000 00 00")[18:20] for flow in range(30)} == {"01"}
    other = s.entry("lpm_table", 1, s.one_shot((s.action("set", 5), 1)))
    assert s.code(update(MODIFY, table_entry=other)) == OK
    assert s.answer("01 00000001 0000 0000 00 00")[18:20] == "05"
    large = s.one_shot((s.action("set", 5), 3), (s.action("set", 5), 2))
    codes = s.codes(
        update(INSERT, action_profile_member=s.member("shared", 1, "set", 1)),
        update(INSERT, table_entry=s.entry("lpm_table", 2, member_id(1))),
        update(INSERT, table_entry=s.entry("lpm_table", 1, actions)),
        update(INSERT, table_entry=s.entry("lpm_table", 2, s.one_shot((s.action("set", 1), 0)))),
        update(INSERT, table_entry=s.entry("small_table", 2, large)),
        update(INSERT, table_entry=s.entry("lpm_table", 2, s.one_shot((s.action("set", 1), 64)))),
        update(INSERT, table_entry=s.entry("lpm_table", 2, s.one_shot())),
    )
    assert codes == [
        code_pb2.INVALID_ARGUMENT, code_pb2.INVALID_ARGUMENT, code_pb2.ALREADY_EXISTS, code_pb2.INVALID_ARGUMENT,
        code_pb2.RESOURCE_EXHAUSTED, code_pb2.RESOURCE_EXHAUSTED, OK,
    ]  # fmt: skip
    for key in (1, 2):
        assert s.code(update(DELETE, table_entry=s.entry("lpm_table", key))) == OK
    # Nothing of them is left: the other style may be used again, and the profile's whole size.
    assert s.code(update(INSERT, action_profile_member=s.member("shared", 1, "set", 1))) == OK
    assert s.code(update(INSERT, action_profile_group=s.group("shared", 1, (1, 64)))) == OK
    assert s.code(update(INSERT, table_entry=entry)) == code_pb2.INVALID_ARGUMENT


def test_roll_back_of_profiles(profiles: Switch) -> None:
    s = profiles
    assert (
        s.codes(
            *(update(INSERT, action_profile_member=s.member("shared", n, "set", n)) for n in (1, 2, 3)),
            update(INSERT, action_profile_group=s.group("shared", 1, (1, 1), (2, 2))),
            update(INSERT, table_entry=s.entry("lpm_table", 1, group_id(1))),
            update(INSERT, table_entry=s.entry("counted_table", 1, s.one_shot((s.action("set", 7), 1)))),
        )
        == [OK] * 6
    )

    def state() -> tuple:
        return (
            s.read(action_profile_member=p4rt.ActionProfileMember()),
            s.read(action_profile_group=p4rt.ActionProfileGroup()),
            s.read(table_entry=p4rt.TableEntry()),
            [s.answer(f"01 00000001 {flow:04x} 0000 00 00") for flow in range(30)],
        )

    before = state()
    codes = s.codes(
        update(MODIFY, table_entry=s.entry("counted_table", 1, s.one_shot((s.action("set", 8), 4)))),
        update(DELETE, table_entry=s.entry("counted_table", 1)),
        update(DELETE, table_entry=s.entry("lpm_table", 1)),
        update(MODIFY, action_profile_group=s.group("shared", 1, (3, 5))),
        update(MODIFY, action_profile_member=s.member("shared", 3, "both", 3, 4)),
        update(DELETE, action_profile_group=s.group("shared", 1)),
        update(DELETE, action_profile_member=s.member("shared", 1)),
        update(DELETE, action_profile_member=s.member("shared", 9)),
        atomicity=ROLLBACK,
    )
    assert codes == [code_pb2.ABORTED] * 7 + [code_pb2.NOT_FOUND]
    after = state()
    assert sorted(map(str, after[0])) == sorted(map(str, before[0]))
    assert after[1:3] == before[1:3]
    assert {frame[18:20] for frame in after[3]} == {"01", "02"}


# ----------------------------------------------------------------------------------------------------------- value sets


@pytest.fixture(name="sets")
def _sets(running: Switch) -> Switch:
    return running.load("value_sets")


def values(s: Switch, name: str, *members: bytes) -> p4rt.ValueSetEntry:
    entry = p4rt.ValueSetEntry(value_set_id=s.id("value_sets", name))
    for member in members:
        entry.members.add().match.add(field_id=1).exact.value = member
    return entry


def test_value_sets(sets: Switch) -> None:
    s = sets
    entry = values(s, "kinds", b"\x08\x00", b"\x86\xdd")
    assert s.code(update(MODIFY, value_set_entry=entry)) == OK
    assert s.read(value_set_entry=p4rt.ValueSetEntry(value_set_id=entry.value_set_id)) == [entry]
    assert len(s.read(value_set_entry=p4rt.ValueSetEntry())) == 4
    frame = "{} 1234 00 02 00000000000000000001"
    assert s.answer(frame.format("86dd"))[8:10] == "10"
    twice = values(s, "kinds", b"\x01", b"\x00\x01")
    codes = s.codes(
        update(INSERT, value_set_entry=entry),
        update(DELETE, value_set_entry=entry),
        update(MODIFY, value_set_entry=twice),
        update(MODIFY, value_set_entry=values(s, "kinds", *(bytes([n]) for n in range(5)))),
        update(MODIFY, value_set_entry=values(s, "kinds", b"\x01\x00\x00")),
        update(MODIFY, value_set_entry=p4rt.ValueSetEntry(value_set_id=entry.value_set_id, members=[
            p4rt.ValueSetMember()])),
        update(MODIFY, value_set_entry=p4rt.ValueSetEntry(value_set_id=9)),
    )  # fmt: skip
    assert codes == [
        code_pb2.INVALID_ARGUMENT, code_pb2.INVALID_ARGUMENT, code_pb2.ALREADY_EXISTS, code_pb2.RESOURCE_EXHAUSTED,
        code_pb2.OUT_OF_RANGE, code_pb2.INVALID_ARGUMENT, code_pb2.INVALID_ARGUMENT,
    ]  # fmt: skip
    assert s.answer(frame.format("86dd"))[8:10] == "10"
    codes = s.codes(
        update(MODIFY, value_set_entry=values(s, "kinds", b"\x01")),
        update(MODIFY, value_set_entry=twice),
        atomicity=ROLLBACK,
    )
    assert codes == [code_pb2.ABORTED, code_pb2.ALREADY_EXISTS]
    assert s.answer(frame.format("86dd"))[8:10] == "10"


# -------------------------------------------------------------------------------------------------------- idle timeouts

MS = 1_000_000


@pytest.fixture(name="idle")
def _idle(running: Switch) -> Switch:
    switch = running.load("idle")
    switch.device.process(0, bytes(6))  # From here on messages come from this program,
    switch.stream.arbitrate(1)
    while switch.stream.next().WhichOneof("update") != "arbitration":  # and earlier ones have been read.
        pass
    return switch


def notification(s: Switch) -> p4rt.IdleTimeoutNotification:
    while True:
        message = s.stream.next()
        if message.WhichOneof("update") == "idle_timeout_notification":
            return message.idle_timeout_notification


def test_idle_timeouts(idle: Switch) -> None:
    s = idle
    entry = s.entry("ternary_table", 5, s.call("set", 9), idle_timeout_ns=20 * MS, metadata=b"m", controller_metadata=3)
    assert s.code(update(INSERT, action_profile_member=s.member("profile", 1, "set", 1))) == OK
    indirect = s.entry("profile_table", 6, member_id(1), idle_timeout_ns=25 * MS)
    silent = s.entry("exact_table", 7, s.call("set", 1))
    begin = time.time_ns()
    assert s.codes(*(update(INSERT, table_entry=e) for e in (entry, indirect, silent))) == [OK] * 3
    seen: dict[int, p4rt.TableEntry] = {}
    for _ in range(50):  # each message comes again and again
        message = notification(s)
        assert begin <= message.timestamp <= time.time_ns()
        seen.update({one.table_id: one for one in message.table_entry})
        if len(seen) == 2:
            break
    for one in (entry, indirect):
        one.ClearField("action")
        assert seen[one.table_id] == one
    query = p4rt.TableEntry(table_id=entry.table_id)
    query.time_since_last_hit.SetInParent()
    (found,) = s.read(table_entry=query)
    assert (found.idle_timeout_ns, found.metadata) == (20 * MS, b"m")
    assert found.time_since_last_hit.elapsed_ns >= 20 * MS
    s.answer("01 00000005 00")
    (found,) = s.read(table_entry=query)
    assert found.time_since_last_hit.elapsed_ns < time.time_ns() - begin
    (found,) = s.read(table_entry=p4rt.TableEntry(table_id=silent.table_id))
    assert not found.HasField("time_since_last_hit")
    for gone in (entry, indirect, silent):
        assert s.code(update(DELETE, table_entry=gone)) == OK


def test_each_entry_has_its_own_time(idle: Switch) -> None:
    """Also behind entries that wait longer, and whatever the order in which they came."""
    s = idle
    hour = 3600 * 1000
    waits = dict(enumerate([hour, 20, 30, hour, 25, 40, hour, 15, 35], 10))
    entries = [s.entry("exact_table", key, s.call("set", 9), idle_timeout_ns=ms * MS) for key, ms in waits.items()]
    assert s.codes(*(update(INSERT, table_entry=e) for e in entries)) == [OK] * len(entries)
    short = {key for key, ms in waits.items() if ms < hour}
    seen: set[int] = set()
    for _ in range(200):  # Short ones come again and again.
        found = [one.match[0].exact.value for one in notification(s).table_entry if one.table_id == entries[0].table_id]
        seen |= {int.from_bytes(value, "big") for value in found}
        if seen >= short:
            break
    assert seen & set(waits) == short
    assert s.codes(*(update(DELETE, table_entry=e) for e in entries)) == [OK] * len(entries)


def test_hits_put_it_off(idle: Switch) -> None:
    s = idle
    kept, other = (s.entry("exact_table", key, s.call("set", 9), idle_timeout_ns=1500 * MS) for key in (1, 2))
    assert s.codes(*(update(INSERT, table_entry=e) for e in (kept, other))) == [OK, OK]
    end = time.monotonic() + 60
    keys: list[bytes] = []
    while not keys and time.monotonic() < end:
        if s.stream.quiet():
            s.answer("00 00000001 00")
        else:  # there may be others, for entries of an earlier test
            found = notification(s).table_entry
            keys = [match.exact.value for one in found if one.table_id == other.table_id for match in one.match]
    assert keys == [b"\x02"]


def test_idle_timeouts_that_change(idle: Switch) -> None:
    s = idle
    entry = s.entry("exact_table", 1, s.call("set", 9), idle_timeout_ns=20 * MS)
    assert s.code(update(INSERT, table_entry=entry)) == OK
    notification(s)
    entry.idle_timeout_ns = 0
    assert s.code(update(MODIFY, table_entry=entry)) == OK
    entry.idle_timeout_ns = 1 << 62
    changed = s.codes(
        update(MODIFY, table_entry=entry), update(DELETE, table_entry=s.entry("exact_table", 9)), atomicity=ROLLBACK
    )
    assert changed == [code_pb2.ABORTED, code_pb2.NOT_FOUND]
    assert s.read(table_entry=p4rt.TableEntry(table_id=entry.table_id))[0].idle_timeout_ns == 0
    assert s.code(update(MODIFY, table_entry=entry)) == OK
    assert s.read(table_entry=p4rt.TableEntry(table_id=entry.table_id))[0].idle_timeout_ns == 1 << 62


def test_idle_timeouts_refused(idle: Switch) -> None:
    s = idle
    call, hit = s.call("set", 1), p4rt.TableEntry.IdleTimeout()
    table = s.id("tables", "exact_table")
    default = p4rt.TableEntry(table_id=table, is_default_action=True, action=call)
    default.idle_timeout_ns = 5
    assert (
        s.codes(
            update(INSERT, table_entry=s.entry("without_table", 1, call, idle_timeout_ns=5)),
            update(INSERT, table_entry=s.entry("without_table", 1, call, time_since_last_hit=hit)),
            update(INSERT, table_entry=s.entry("exact_table", 1, call, time_since_last_hit=hit)),
            update(INSERT, table_entry=s.entry("exact_table", 1, call, idle_timeout_ns=-5)),
            update(MODIFY, table_entry=default),
        )
        == [code_pb2.INVALID_ARGUMENT] * 5
    )
    for query in (
        p4rt.TableEntry(table_id=s.id("tables", "without_table"), time_since_last_hit=hit),
        p4rt.TableEntry(table_id=table, is_default_action=True, time_since_last_hit=hit),
    ):
        with pytest.raises(Exception, match="idle timeout"):
            s.read(table_entry=query)
    assert s.read(table_entry=p4rt.TableEntry(time_since_last_hit=hit)) == []


# ------------------------------------------------------------------------------------------------------- hostile writes

NUMBERS = st.one_of(st.integers(0, 9), st.integers(-(1 << 31), (1 << 31) - 1))
BYTES = st.one_of(st.binary(max_size=3), st.just(b"\x01"))


@st.composite
def updates(draw: st.DrawFn) -> p4rt.Update:
    """Draw any of the entities here, with ids and numbers that may be valid or not."""
    info = info_of("profiles")
    u32 = NUMBERS.map(lambda n: n & 0xFFFFFFFF)
    profile = draw(st.one_of(st.sampled_from([p.preamble.id for p in info.action_profiles]), u32))
    action = p4rt.Action(action_id=draw(st.one_of(st.sampled_from([a.preamble.id for a in info.actions]), u32)))
    for param in range(draw(st.integers(0, 2))):
        action.params.add(param_id=param + 1, value=draw(BYTES))
    one = p4rt.Update(type=draw(st.sampled_from([INSERT, MODIFY, DELETE])))
    kind = draw(st.sampled_from(["member", "group", "entry", "one shot", "other"]))
    if kind == "member":
        one.entity.action_profile_member.MergeFrom(
            p4rt.ActionProfileMember(action_profile_id=profile, member_id=draw(u32), action=action)
        )
    elif kind == "group":
        group = one.entity.action_profile_group
        group.action_profile_id, group.group_id, group.max_size = profile, draw(u32), draw(NUMBERS)
        for _ in range(draw(st.integers(0, 4))):
            group.members.add(member_id=draw(u32), weight=draw(NUMBERS), watch_port=draw(BYTES))
    elif kind == "other":
        one.entity.MergeFrom(draw(st.sampled_from([
            p4rt.Entity(meter_entry=p4rt.MeterEntry(meter_id=1)),
            p4rt.Entity(direct_meter_entry=p4rt.DirectMeterEntry()),
            p4rt.Entity(value_set_entry=p4rt.ValueSetEntry(value_set_id=1)),
        ])))  # fmt: skip
    else:
        entry = one.entity.table_entry
        entry.table_id = draw(st.one_of(st.sampled_from([t.preamble.id for t in info.tables]), u32))
        entry.match.add(field_id=1).exact.value = draw(BYTES)
        if kind == "entry":
            entry.action.CopyFrom(draw(st.sampled_from([member_id, group_id]))(draw(u32)))
        else:
            for _ in range(draw(st.integers(0, 3))):
                entry.action.action_profile_action_set.action_profile_actions.add(
                    action=action, weight=draw(NUMBERS), watch=draw(NUMBERS)
                )
        entry.idle_timeout_ns = draw(st.sampled_from([0, 0, 0, -1, 5]))
    return one


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(updates(), min_size=1, max_size=12), st.booleans(), st.lists(st.binary(max_size=20), max_size=4))
def test_hostile_writes(profiles: Switch, batch: list[p4rt.Update], atomic: bool, frames: list[bytes]) -> None:
    s = profiles
    for code in s.codes(*batch, atomicity=ROLLBACK if atomic else p4rt.WriteRequest.CONTINUE_ON_ERROR):
        assert code not in (code_pb2.INTERNAL, code_pb2.UNKNOWN)
    for frame in frames:
        s.device.process(0, frame)
    entries = s.read(table_entry=p4rt.TableEntry())
    s.read(action_profile_group=p4rt.ActionProfileGroup())
    s.read(action_profile_member=p4rt.ActionProfileMember())
    assert s.codes(*(update(DELETE, table_entry=entry) for entry in entries), update(MODIFY))[:-1] == [OK] * len(
        entries
    )
