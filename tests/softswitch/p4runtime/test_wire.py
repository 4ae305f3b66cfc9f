"""What the runtime writes from a request's wire format (runtime/write.c) is what the server writes one by one.

Two devices with one program get the same requests, one of them with the bytes and the other without. Answers and
contents must be the same, for entries that are good, for entries that are nearly good and for bytes that no serialiser
writes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch.fabric import Fabric
from softswitch.p4runtime.arbitration import Session
from softswitch.p4runtime.pipeline import Loader, config_of
from softswitch.p4runtime.schema import Schema
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.target import Target
from softswitch.p4runtime.timer import Timer
from softswitch.p4runtime.wire import WireWriter
from softswitch.program import Program
from tests.softswitch.p4runtime.programs import program
from tests.support.p4runtime import DELETE, INSERT, MODIFY, as_bytes, update

JSON, P4INFO = program("wire")
SMALL, ROUTES, FILTERS, WIDE, RANGES, SOME_BITS, WITH_METER, TIMED = range(0x02000001, 0x02000009)
DROP, FORWARD, REWRITE = 0x01000001, 0x01000002, 0x01000003
TABLES = {table.preamble.id: table for table in P4INFO.tables}
ACTIONS = {action.preamble.id: action for action in P4INFO.actions}


@st.composite
def values(draw: st.DrawFn, width: int) -> bytes:
    """A number that fits, mostly: few different ones, so that entries meet; often with leading zeros."""
    number = draw(st.sampled_from([1, 1, 1, 0, (1 << width) - 1, 1 << (width - 1)]))
    if draw(st.integers(0, 60)) == 0:
        return draw(st.sampled_from([b"", as_bytes(1 << width), b"\xff" * 30]))
    return draw(st.sampled_from([b"", b"", b"\0", b"\0" * 30])) + as_bytes(number)


@st.composite
def prefixes(draw: st.DrawFn, width: int) -> tuple[bytes, int]:
    length = draw(st.sampled_from([8, 8, 8, 1, width - 1, width]))
    if draw(st.integers(0, 30)) == 0:
        length = draw(st.sampled_from([0, width + 1, -1]))
    number = draw(st.integers(0, 1)) << max(0, width - max(length, 0)) & (1 << width) - 1
    return as_bytes(number + (draw(st.integers(0, 30)) == 0)), length


@st.composite
def matches(draw: st.DrawFn, table_id: int) -> list[p4rt.FieldMatch]:
    kinds = {2: "exact", 3: "lpm", 4: "ternary", 5: "range", 6: "optional"}
    found = []
    for field in TABLES[table_id].match_fields:
        kind, width = kinds[field.match_type], field.bitwidth
        if draw(st.integers(0, 40 if kind == "exact" else 4)) == 0:
            continue
        match = p4rt.FieldMatch(field_id=field.id if draw(st.integers(0, 60)) else draw(st.integers(0, 4)))
        if draw(st.integers(0, 60)) == 0:
            kind = draw(st.sampled_from(["exact", "lpm", "ternary", "optional", ""]))
        if kind in ("exact", "optional"):
            getattr(match, kind).value = draw(values(width))
        elif kind == "lpm":
            match.lpm.value, match.lpm.prefix_len = draw(prefixes(width))
        elif kind == "ternary":
            mask = draw(st.sampled_from([(1 << width) - 1, 1, 3, 3])) if draw(st.integers(0, 20)) else 0
            match.ternary.mask = as_bytes(mask)
            number = draw(st.sampled_from([1, 1, 0, (1 << width) - 1]))
            match.ternary.value = as_bytes(number & mask if draw(st.integers(0, 30)) else number)
        elif kind == "range":
            match.range.low, match.range.high = draw(values(width)), draw(values(width))
        found.append(match)
    if found and draw(st.integers(0, 40)) == 0:
        found.append(draw(st.sampled_from(found)))
    return draw(st.permutations(found)) if draw(st.integers(0, 3)) == 0 else found


@st.composite
def calls(draw: st.DrawFn, table_id: int) -> p4rt.TableAction:
    ids = [ref.id for ref in TABLES[table_id].action_refs] + ([DROP, 7] if draw(st.integers(0, 40)) == 0 else [])
    call = p4rt.TableAction()
    call.action.action_id = draw(st.sampled_from(ids))
    params = ACTIONS[call.action.action_id].params if call.action.action_id in ACTIONS else []
    made = [p4rt.Action.Param(param_id=param.id, value=draw(values(param.bitwidth))) for param in params]
    if made and draw(st.integers(0, 40)) == 0:
        made = draw(st.sampled_from([made[1:], [*made, made[0]], [*made, p4rt.Action.Param(param_id=9, value=b"\1")]]))
    call.action.params.extend(draw(st.permutations(made)) if draw(st.integers(0, 3)) == 0 else made)
    return call


@st.composite
def updates(draw: st.DrawFn) -> p4rt.Update:
    table_id = draw(st.sampled_from([SMALL, SMALL, ROUTES, ROUTES, FILTERS, FILTERS, *TABLES]))
    entry = p4rt.TableEntry(table_id=table_id, match=draw(matches(table_id)))
    kind = draw(st.sampled_from([INSERT, INSERT, INSERT, MODIFY, DELETE]))
    if draw(st.integers(0, 30)) != 0 and not (kind == DELETE and draw(st.booleans())):
        entry.action.CopyFrom(draw(calls(table_id)))
    if (table_id in (FILTERS, WIDE, RANGES, SOME_BITS)) != (draw(st.integers(0, 30)) == 0):
        entry.priority = draw(st.sampled_from([1, 1, 1, 2, 2**31 - 1] if draw(st.integers(0, 30)) else [-1, 0]))
    if draw(st.integers(0, 12)) == 0:
        draw(st.sampled_from(ODD))(entry)
    if draw(st.integers(0, 60)) == 0:
        return p4rt.Update(type=draw(st.integers(0, 4)))  # type: ignore[arg-type]
    return update(kind, table_entry=entry)


# What an entry may have besides.
ODD = [
    lambda entry: setattr(entry, "metadata", b"mine"),
    lambda entry: setattr(entry, "controller_metadata", 7),
    lambda entry: setattr(entry, "is_const", True),
    lambda entry: setattr(entry, "is_default_action", True),
    lambda entry: setattr(entry, "idle_timeout_ns", 10**9),
    lambda entry: setattr(entry.counter_data, "packet_count", 5),
    lambda entry: setattr(entry.meter_config, "cir", 1),
    lambda entry: entry.time_since_last_hit.SetInParent(),
    lambda entry: setattr(entry, "table_id", 0x02000063),
    lambda entry: setattr(entry.action, "action_profile_member_id", 1),
]


@st.composite
def spoilt(draw: st.DrawFn, data: bytes) -> bytes:
    """A message written as no serialiser does: bytes changed, a field twice, unknown ones."""
    at = draw(st.integers(0, max(0, len(data) - 1)))
    how = draw(st.integers(0, 4))
    if how == 0 and data:
        return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
    if how == 1:
        return data + data
    if how == 2:
        return data[:at] + data[at + draw(st.integers(1, 4)) :]
    if how == 3:
        return data[:at] + draw(st.binary(min_size=1, max_size=4)) + data[at:]
    return data + draw(st.sampled_from([b"\xf8\x07\x01", b"\x08\x01", b"\x12\x00", b"\x0a\x00", b"\x2d\0\0\0\0"]))


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    parts = [p4rt.WriteRequest(election_id=p4rt.Uint128(low=1)).SerializeToString()]
    for one in draw(st.lists(updates(), max_size=12)):
        data = one.SerializeToString()
        if draw(st.integers(0, 10)) == 0:
            data = draw(spoilt(data))
        parts.append(b"\x22" + _varint(len(data)) + data)
    if draw(st.integers(0, 10)) == 0:
        extra = draw(st.sampled_from([b"\x08\x00", b"\xf8\x07\x01", b"\x2d\0\0\0\0"]))
        parts.insert(draw(st.integers(0, len(parts))), extra)
    return b"".join(parts)


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc)")
    with Fabric() as fabric:
        fabric.add_device(1)
        fabric.add_device(2)
        yield fabric


@pytest.fixture(scope="module")
def targets(fabric: Fabric) -> tuple[Target, Target]:
    """Two devices that begin alike."""
    loader = Loader(Program.load)
    first, second = (Target(device, loader, Timer()) for device in fabric.devices.values())
    return first, second


def fresh(target: Target) -> None:
    target.shut()
    target.open()
    target.install(config_of(P4INFO, JSON))
    hello = p4rt.MasterArbitrationUpdate(election_id=p4rt.Uint128(low=1))
    target.arbiter.update(Session(lambda message: True, lambda error: None), hello)


def contents(target: Target) -> list[p4rt.Entity]:
    everything = p4rt.TableEntry(counter_data=p4rt.CounterData())
    queries = [p4rt.Entity(table_entry=p4rt.TableEntry()), p4rt.Entity(table_entry=everything)]
    queries += [p4rt.Entity(table_entry=p4rt.TableEntry(table_id=one, is_default_action=True)) for one in TABLES]
    answers, outcomes = target.read(p4rt.ReadRequest(entities=queries))
    assert not any(outcomes)
    return [entity for answer in answers for entity in answer]


@settings(max_examples=60, deadline=None)
@given(sequence=st.lists(requests(), min_size=1, max_size=4))
def test_bytes_and_messages_do_the_same(targets: tuple[Target, Target], sequence: list[bytes]) -> None:
    native, plain = targets
    for target in targets:
        fresh(target)
    for data in sequence:
        try:
            request = p4rt.WriteRequest.FromString(data)
        except DecodeError:  # the server refuses the whole of it
            continue
        request.ClearField("atomicity")  # other modes do not come this way
        got, wanted = native.write(request, data), plain.write(request)
        assert [one and (one.code, one.message) for one in got] == [one and (one.code, one.message) for one in wanted]
        assert contents(native) == contents(plain)


def test_common_entries_are_all_written_by_the_runtime(fabric: Fabric) -> None:
    """The other test would pass without it."""
    device = next(iter(fabric.devices.values()))
    device.load(Program.load(JSON))
    rewrite = p4rt.TableAction(action=p4rt.Action(action_id=REWRITE))
    for param in ACTIONS[REWRITE].params:
        rewrite.action.params.add(param_id=param.id, value=as_bytes((1 << param.bitwidth) - 1))
    entries = [
        p4rt.TableEntry(table_id=ROUTES, action=rewrite, match=[
            p4rt.FieldMatch(field_id=1, lpm=p4rt.FieldMatch.LPM(value=b"\x0a\0\0\0", prefix_len=8)),
            p4rt.FieldMatch(field_id=2, exact=p4rt.FieldMatch.Exact(value=b"\1")),
        ]),
        p4rt.TableEntry(table_id=FILTERS, action=rewrite, priority=3, match=[
            p4rt.FieldMatch(field_id=1, ternary=p4rt.FieldMatch.Ternary(value=b"\1", mask=b"\x0f\xff")),
            p4rt.FieldMatch(field_id=2, optional=p4rt.FieldMatch.Optional(value=b"\1")),
        ]),
        p4rt.TableEntry(table_id=WIDE, action=rewrite, priority=3, match=[
            p4rt.FieldMatch(field_id=1, ternary=p4rt.FieldMatch.Ternary(value=b"\1" * 25, mask=b"\xff" * 25)),
            p4rt.FieldMatch(field_id=2, exact=p4rt.FieldMatch.Exact(value=b"\1" * 16)),
        ]),
    ]  # fmt: skip
    batch = [update(kind, table_entry=entry) for kind in (INSERT, MODIFY, DELETE, INSERT) for entry in entries]
    data = p4rt.WriteRequest(device_id=1, election_id=p4rt.Uint128(low=1), updates=batch).SerializeToString()
    assert device.program is not None
    writer = WireWriter(device, Schema(P4INFO, device.program))
    assert writer.write(data, 0, only_inserts=False) == (len(batch), len(data))
    (route,) = device.entries("MyIngress.routes")
    assert route.action == "MyIngress.rewrite"
    assert route.params == tuple((1 << param.bitwidth) - 1 for param in ACTIONS[REWRITE].params)
    assert [match.value for match in device.entries("MyIngress.wide")[0].match] == [
        int.from_bytes(b"\1" * size) for size in (25, 16)
    ]
