"""Random but well-formed requests are answered or refused, whatever their fields contain; no other exception is
raised.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softswitch.dataplane.fabric import Fabric
from softswitch.dataplane.program import Program
from softswitch.p4runtime.arbitration import Session
from softswitch.p4runtime.pipeline import Loader, config_of
from softswitch.p4runtime.status import P4RuntimeError
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.target import Target
from softswitch.p4runtime.timer import Timer
from softswitch.tests.p4runtime.client import (
    ACL,
    CONST,
    COPY,
    DROP,
    EXACT,
    FORWARD,
    KEYLESS,
    LPM,
    NO_ACTION,
    REPLICATE,
    ROUTE,
    SIGNED,
    SUMS,
    VERDICTS,
    demo_p4info,
)
from softswitch.tests.p4runtime.fake import PROGRAM_JSON

# These are ids that exist, ids of other kinds of objects, and numbers at the limits.
IDS = [EXACT, LPM, ACL, CONST, KEYLESS, NO_ACTION, DROP, FORWARD, ROUTE, REPLICATE, COPY, VERDICTS, SUMS, SIGNED]
SMALL = [0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33]
VALUES = st.sampled_from([b"\x00", b"\x01", b"\x05", b"\x01\xff", b"\xff" * 6, b"", b"\x00" * 9, b"\xff" * 9])
NUMBERS = {
    FieldDescriptor.CPPTYPE_INT32: st.sampled_from([*SMALL, -1, 2**31 - 1, -(2**31)]),
    FieldDescriptor.CPPTYPE_UINT32: st.sampled_from([*SMALL, *IDS, *IDS, 2**32 - 1]),
    FieldDescriptor.CPPTYPE_INT64: st.sampled_from([*SMALL, -1, 2**63 - 1, -(2**63)]),
    FieldDescriptor.CPPTYPE_UINT64: st.sampled_from([*SMALL, 2**64 - 1]),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_ENUM: st.integers(-1, 5),
}


@st.composite
def messages(draw: st.DrawFn, kind: type[Message], depth: int = 6) -> Any:
    """Draw a message of this type, each of its fields set or not."""
    message: Any = kind()
    fields: Any = kind.DESCRIPTOR.fields
    for field in fields:
        if not draw(st.booleans()):
            continue
        count = draw(st.integers(1, 4)) if field.is_repeated else 1
        for _ in range(count):
            value: Any
            if field.message_type is not None:
                if depth == 0:
                    continue
                value = draw(messages(GetMessageClass(field.message_type), depth - 1))
                if field.is_repeated:
                    getattr(message, field.name).append(value)
                else:
                    getattr(message, field.name).CopyFrom(value)
                continue
            if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
                value = draw(VALUES) if field.type == FieldDescriptor.TYPE_BYTES else draw(st.sampled_from(["", "x"]))
            else:
                value = draw(NUMBERS[field.cpp_type])
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
    return message


# These are mostly of supported kinds, since the others are refused at once.
SUPPORTED = st.sampled_from(
    ["table_entry", "direct_counter_entry", "counter_entry", "register_entry", "packet_replication_engine_entry"]
)


@st.composite
def entities(draw: st.DrawFn) -> p4rt.Entity:
    if draw(st.integers(0, 9)) == 0:
        return draw(messages(p4rt.Entity))
    name = draw(SUPPORTED)
    kind = GetMessageClass(p4rt.Entity.DESCRIPTOR.fields_by_name[name].message_type)
    return p4rt.Entity(**{name: draw(messages(kind))})


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc)")
    with Fabric() as fabric:
        one = Target(fabric.add_device(1, 255), Loader(Program.load), Timer())
        one.install(config_of(demo_p4info(), PROGRAM_JSON))
        arbitration = p4rt.MasterArbitrationUpdate(election_id=p4rt.Uint128(low=1))
        one.arbiter.update(Session(lambda message: True, lambda error: None), arbitration)
        yield one


UNHURRIED = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@UNHURRIED
@given(
    changes=st.lists(
        st.builds(lambda kind, entity: p4rt.Update(type=kind, entity=entity), st.integers(0, 4), entities())
    ),
    atomicity=st.integers(0, 3),
)
def test_writes(target: Target, changes: list[p4rt.Update], atomicity: int) -> None:
    request = p4rt.WriteRequest(updates=changes, election_id=p4rt.Uint128(low=1))
    request.atomicity = atomicity
    everything = p4rt.ReadRequest(entities=[p4rt.Entity(table_entry=p4rt.TableEntry())])
    before = _contents(target, everything)
    try:
        outcomes = target.write(request)
    except P4RuntimeError:
        assert _contents(target, everything) == before
        return
    assert len(outcomes) == len(changes)
    after = _contents(target, everything)
    if atomicity == p4rt.WriteRequest.ROLLBACK_ON_ERROR and any(outcomes):
        assert after == before


def _contents(target: Target, request: p4rt.ReadRequest) -> list[bytes]:
    answers, outcomes = target.read(request)
    assert not any(outcomes)
    return sorted(entity.SerializeToString(deterministic=True) for answer in answers for entity in answer)


@UNHURRIED
@given(st.lists(entities()))
def test_reads(target: Target, queries: list[p4rt.Entity]) -> None:
    answers, outcomes = target.read(p4rt.ReadRequest(entities=queries))
    assert len(outcomes) == len(queries)
    for answer in answers:
        for entity in answer:
            assert entity.WhichOneof("entity")


@UNHURRIED
@given(messages(p4rt.PacketOut))
def test_packet_out(target: Target, packet: p4rt.PacketOut) -> None:
    ((session, _),) = target.arbiter.primaries()
    try:
        target.packet_out(session, packet)
    except P4RuntimeError:
        pass
