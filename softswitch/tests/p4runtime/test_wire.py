"""The runtime's writes from a request's wire format (runtime/write.c) equal the server's writes one by one.

Two devices with one program get the same requests, one of them with the bytes and the other without. Answers and
contents must be the same, for good entries, for nearly good ones and for bytes that no serialiser writes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch.dataplane.fabric import Fabric
from softswitch.dataplane.program import Program
from softswitch.p4runtime.arbitration import Session
from softswitch.p4runtime.pipeline import Loader, config_of
from softswitch.p4runtime.schema import Schema
from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.target import Target
from softswitch.p4runtime.timer import Timer
from softswitch.p4runtime.wire import WireWriter
from softswitch.tests.p4runtime.programs import program
from softswitch.tests.support.p4runtime import DELETE, INSERT, MODIFY, as_bytes, update

JSON, P4INFO = program("wire")
SMALL, ROUTES, FILTERS, WIDE, RANGES, SOME_BITS, WITH_METER, TIMED = range(0x02000001, 0x02000009)
DROP, REWRITE = 0x01000001, 0x01000003
TABLES = {table.preamble.id: table for table in P4INFO.tables}
ACTIONS = {action.preamble.id: action for action in P4INFO.actions}
FIELD = p4info_pb2.MatchField
KINDS: dict[int, str] = {
    FIELD.EXACT: "exact", FIELD.LPM: "lpm", FIELD.TERNARY: "ternary", FIELD.RANGE: "range", FIELD.OPTIONAL: "optional"
}  # fmt: skip


def zeros(rng: Random, number: int) -> bytes:
    """Return leading zeros, which have no meaning."""
    return rng.choice([b"", b"", b"\0", b"\0" * 30]) + as_bytes(number)


def values(rng: Random, width: int) -> bytes:
    """Return one of few values, so that entries collide."""
    return zeros(rng, rng.choice([1, 0, (1 << width) - 1]))


def matches(rng: Random, table_id: int) -> list[p4rt.FieldMatch]:
    found = []
    for field in TABLES[table_id].match_fields:
        kind, width = KINDS[field.match_type], field.bitwidth
        if kind != "exact" and rng.random() < 0.5:
            continue
        match = p4rt.FieldMatch(field_id=field.id)
        if kind in ("exact", "optional"):
            getattr(match, kind).value = values(rng, width)
        elif kind == "lpm":
            match.lpm.prefix_len = rng.choice([8, width, 1])
            match.lpm.value = zeros(rng, rng.randint(0, 1) << width - match.lpm.prefix_len)
        elif kind == "ternary":
            mask = rng.choice([(1 << width) - 1, 1])
            match.ternary.mask = zeros(rng, mask)
            match.ternary.value = zeros(rng, rng.choice([0, mask]))
        else:
            match.range.low, match.range.high = b"\0", values(rng, width - 1)
        found.append(match)
    return rng.sample(found, len(found))


def calls(rng: Random, table_id: int) -> p4rt.TableAction:
    call = p4rt.TableAction()
    allowed = [ref.id for ref in TABLES[table_id].action_refs if ref.scope != p4info_pb2.ActionRef.DEFAULT_ONLY]
    call.action.action_id = rng.choice(allowed)
    params = ACTIONS[call.action.action_id].params
    made = [p4rt.Action.Param(param_id=param.id, value=values(rng, param.bitwidth)) for param in params]
    call.action.params.extend(rng.sample(made, len(made)))
    return call


def updates(rng: Random) -> p4rt.Update:
    table_id = rng.choice([SMALL, SMALL, ROUTES, FILTERS, FILTERS, WIDE, *TABLES])
    entry = p4rt.TableEntry(table_id=table_id, match=matches(rng, table_id))
    kind = rng.choice([INSERT, INSERT, MODIFY, DELETE])
    if kind != DELETE or rng.random() < 0.5:
        entry.action.CopyFrom(calls(rng, table_id))
    if table_id in (FILTERS, WIDE, RANGES):
        entry.priority = rng.choice([1, 2**31 - 1])
    how = rng.randint(0, 9)
    if how == 0:
        entry.metadata = b"mine"
    elif how < 4:
        rng.choice(WRONG)(rng, entry)
    return update(kind, table_entry=entry)


def some(rng: Random, found: Any) -> Any:
    """Return one of these, or an object that is thrown away."""
    return rng.choice(list(found)) if found else p4rt.TableEntry().match.add()


def other_number(rng: Random, match: p4rt.FieldMatch) -> None:
    """Change a value, mask or prefix to one that the field may not have."""
    kind = match.WhichOneof("field_match_type") or "exact"
    values, bad = getattr(match, kind), [b"", b"\x01" + b"\xff" * 25, b"\x10"]
    if kind == "lpm" and rng.random() < 0.5:
        values.prefix_len = rng.choice([0, -1, 33, 4])
    elif kind == "ternary" and rng.random() < 0.5:
        values.mask = rng.choice([b"\0", b"\x02", *bad])
    elif kind != "range":
        values.value = rng.choice([b"\x03", *bad])


def other_param(rng: Random, params: Any) -> None:
    if params:
        rng.choice(list(params)).value = rng.choice([b"", b"\xff" * 26, b"\x02\0"])


# Things that may be wrong with an entry, or unusual.
WRONG: list[Callable[[Random, p4rt.TableEntry], object]] = [
    lambda rng, entry: setattr(entry, "controller_metadata", 7),
    lambda rng, entry: setattr(entry, "is_const", True),
    lambda rng, entry: setattr(entry, "is_default_action", True),
    lambda rng, entry: setattr(entry, "idle_timeout_ns", 10**9),
    lambda rng, entry: setattr(entry.counter_data, "packet_count", 5),
    lambda rng, entry: setattr(entry.meter_config, "cir", 1),
    lambda rng, entry: entry.time_since_last_hit.SetInParent(),
    lambda rng, entry: setattr(entry, "table_id", rng.choice([0, SMALL, WIDE, 0x02000063])),
    lambda rng, entry: setattr(entry, "priority", rng.choice([0, 1, -1])),
    lambda rng, entry: setattr(entry.action, "action_profile_member_id", 1),
    lambda rng, entry: entry.ClearField("action"),
    lambda rng, entry: setattr(entry.action.action, "action_id", rng.choice([0, 7, DROP, *ACTIONS])),
    lambda rng, entry: setattr(some(rng, entry.match), "field_id", rng.randint(0, 3)),
    lambda rng, entry: entry.match.append(some(rng, entry.match)),
    lambda rng, entry: entry.match.pop() if entry.match else None,
    lambda rng, entry: some(rng, entry.match).exact.SetInParent(),
    *[lambda rng, entry: other_number(rng, some(rng, entry.match))] * 6,
    lambda rng, entry: entry.action.action.params.pop() if entry.action.action.params else None,
    lambda rng, entry: entry.action.action.params.extend(entry.action.action.params[:1]),
    lambda rng, entry: entry.action.action.params.add(param_id=rng.randint(0, 6), value=b"\1"),
    *[lambda rng, entry: other_param(rng, entry.action.action.params)] * 2,
]  # fmt: skip


def spoilt(rng: Random, data: bytes) -> bytes:
    """Return a message as no serialiser writes it: bytes changed, a field twice, unknown ones."""
    at = rng.randrange(len(data))
    how = rng.randint(0, 4)
    if how == 0:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if how == 1:
        return data + data
    if how == 2:
        return data[:at] + data[at + rng.randint(1, 4) :]
    if how == 3:
        return data[:at] + rng.randbytes(rng.randint(1, 4)) + data[at:]
    return data + rng.choice([b"\xf8\x07\x01", b"\x08\x01", b"\x12\x00", b"\x0a\x00", b"\x2d\0\0\0\0"])


def batch(rng: Random) -> bytes:
    parts = [p4rt.WriteRequest(election_id=p4rt.Uint128(low=1)).SerializeToString()]
    strange = rng.randint(0, 30)
    for number in range(12):
        data = updates(rng).SerializeToString()
        if number == strange:
            data = spoilt(rng, data)
        parts.append(b"\x22" + _varint(len(data)) + data)
    if strange == 12:
        extra = rng.choice([b"\x08\x00", b"\xf8\x07\x01", b"\x2d\0\0\0\0"])
        parts.insert(rng.randint(0, len(parts)), extra)
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
    """Return two devices with the same state."""
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


@settings(max_examples=150, deadline=None)
@given(rng=st.randoms(use_true_random=True))
def test_bytes_and_messages_do_the_same(targets: tuple[Target, Target], rng: Random) -> None:
    native, plain = targets
    for target in targets:
        fresh(target)
    for _ in range(4):
        data = batch(rng)
        try:
            request = p4rt.WriteRequest.FromString(data)
        except DecodeError:  # the server refuses the whole request
            continue
        request.ClearField("atomicity")  # other modes do not use this path
        got, wanted = native.write(request, data), plain.write(request)
        assert [one and (one.code, one.message) for one in got] == [one and (one.code, one.message) for one in wanted]
        assert contents(native) == contents(plain)


def test_common_entries_are_all_written_by_the_runtime(fabric: Fabric) -> None:
    """Common entries are written by the runtime; the other test would pass without it."""
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


def test_numbers_with_more_bytes_than_needed_are_left_to_the_server(fabric: Fabric) -> None:
    """No serialiser writes such numbers; the server reads them as protobuf does."""
    device = next(iter(fabric.devices.values()))
    device.load(Program.load(JSON))
    assert device.program is not None
    writer = WireWriter(device, Schema(P4INFO, device.program))
    match = [
        p4rt.FieldMatch(field_id=1, lpm=p4rt.FieldMatch.LPM(value=b"\x0a\0\0\0", prefix_len=8)),
        p4rt.FieldMatch(field_id=2, exact=p4rt.FieldMatch.Exact(value=b"\1")),
    ]
    rewrite = p4rt.TableAction(action=p4rt.Action(action_id=REWRITE))
    for param in ACTIONS[REWRITE].params:
        rewrite.action.params.add(param_id=param.id, value=as_bytes((1 << param.bitwidth) - 1))
    entry = p4rt.TableEntry(table_id=ROUTES, match=match, action=rewrite).SerializeToString()
    good = _varint(ROUTES)
    longer = good[:-1] + bytes([good[-1] | 128, 0])
    for table_id, written in ((longer, 0), (good, 1)):
        strange = b"\x08" + table_id + entry[1 + len(good) :]
        assert p4rt.TableEntry.FromString(strange) == p4rt.TableEntry.FromString(entry)
        entity = b"\x12" + _varint(len(strange)) + strange
        update = b"\x08\x01\x12" + _varint(len(entity)) + entity
        data = b"\x22" + _varint(len(update)) + update
        assert writer.write(data, 0, only_inserts=False) == (written, len(data))
