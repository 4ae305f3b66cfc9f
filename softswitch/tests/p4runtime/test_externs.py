"""Counters, registers, multicast groups and clone sessions."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import code_pb2

from softswitch.p4runtime.stubs import p4data_pb2
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.p4runtime.client import SIGNED, SUMS, VERDICTS, Client, clone, group
from softswitch.tests.p4runtime.conftest import Served
from softswitch.tests.support.p4runtime import DELETE, INSERT, MODIFY, batch_errors, update

INVALID, RANGE = code_pb2.INVALID_ARGUMENT, code_pb2.OUT_OF_RANGE


def counter_entry(index: int | None = None, counter_id: int = VERDICTS, **more: object) -> p4rt.CounterEntry:
    entry = p4rt.CounterEntry(counter_id=counter_id, **more)
    if index is not None:
        entry.index.index = index
    return entry


def register_entry(
    index: int | None = None, bits: bytes | None = None, register_id: int = SUMS, **data: object
) -> p4rt.RegisterEntry:
    entry = p4rt.RegisterEntry(register_id=register_id)
    if bits is not None:
        entry.data.bitstring = bits
    if data:
        entry.data.CopyFrom(p4data_pb2.P4Data(**data))
    if index is not None:
        entry.index.index = index
    return entry


def code(client: Client, one: p4rt.Update) -> int:
    return client.outcomes(one)[0].canonical_code


def read_code(client: Client, query: p4rt.Entity) -> int:
    with pytest.raises(grpc.RpcError) as caught:
        client.read(query)
    return batch_errors(caught.value)[0].canonical_code


def test_counters(served: Served, primary: Client) -> None:
    served.devices[1].counter_write("MyIngress.verdicts", 3, 7, 700)

    def values(entry: p4rt.CounterEntry) -> dict[int, tuple[int, int]]:
        found = [entity.counter_entry for entity in primary.read(p4rt.Entity(counter_entry=entry))]
        return {one.index.index: (one.data.packet_count, one.data.byte_count) for one in found}

    assert values(counter_entry(3)) == {3: (7, 700)}
    assert values(counter_entry(0)) == {0: (0, 0)}
    assert values(counter_entry()) == {index: (7, 700) if index == 3 else (0, 0) for index in range(8)}
    assert values(counter_entry(counter_id=0)) == values(counter_entry())
    data = p4rt.CounterData(packet_count=1, byte_count=2)
    primary.write(update(MODIFY, counter_entry=counter_entry(0, data=data)))
    assert values(counter_entry(0)) == {0: (1, 2)}
    primary.write(update(MODIFY, counter_entry=counter_entry(3)))  # without data there is nothing to do
    assert values(counter_entry(3)) == {3: (7, 700)}
    primary.write(update(MODIFY, counter_entry=counter_entry(data=data)))
    assert set(values(counter_entry()).values()) == {(1, 2)}
    for bad, expected in ((8, RANGE), (-1, INVALID), (1 << 40, RANGE)):
        assert code(primary, update(MODIFY, counter_entry=counter_entry(bad, data=data))) == expected
        assert read_code(primary, p4rt.Entity(counter_entry=counter_entry(bad))) == expected
    for kind in (INSERT, DELETE):
        assert code(primary, update(kind, counter_entry=counter_entry(0, data=data))) == INVALID
    assert code(primary, update(MODIFY, counter_entry=counter_entry(0, counter_id=SUMS, data=data))) == INVALID
    assert read_code(primary, p4rt.Entity(counter_entry=counter_entry(0, counter_id=0))) == INVALID


def test_registers(served: Served, primary: Client) -> None:
    device = served.devices[1]
    for index, number in enumerate([0, 1, 0x1234, 0xFFFFFFFF]):
        device.register_write("MyIngress.sums", index, number)
    for index, number in enumerate([0xFFF, 0x7FF]):
        device.register_write("MyIngress.signed", index, number)

    def values(entry: p4rt.RegisterEntry) -> list[bytes]:
        return [entity.register_entry.data.bitstring for entity in primary.read(p4rt.Entity(register_entry=entry))]

    assert values(register_entry()) == [b"\x00", b"\x01", b"\x12\x34", b"\xff\xff\xff\xff"]
    assert values(register_entry(2)) == [b"\x12\x34"]
    assert values(register_entry(register_id=SIGNED)) == [b"\xff", b"\x07\xff"]  # -1 and 2047
    assert len(values(register_entry(register_id=0))) == 6
    primary.write(
        update(MODIFY, register_entry=register_entry(1, b"\x00\x05")),
        update(MODIFY, register_entry=register_entry(0, b"\xf8\x00", register_id=SIGNED)),
    )
    assert device.register_read("MyIngress.sums", 1) == 5
    assert device.register_read("MyIngress.signed", 0) == 0x800
    primary.write(update(MODIFY, register_entry=register_entry(None, b"\x09")))
    assert device.register_read_all("MyIngress.sums") == [9] * 4
    for entry, expected in (
        (register_entry(4, b"\x01"), RANGE),
        (register_entry(-1, b"\x01"), INVALID),
        (register_entry(0, b"\x01\x00\x00\x00\x00"), RANGE),
        (register_entry(0, b"\x08\x00", register_id=SIGNED), RANGE),
        (register_entry(0, b""), INVALID),
        (register_entry(0, bool=True), INVALID),
        (register_entry(0), INVALID),
        (register_entry(0, b"\x01", register_id=VERDICTS), INVALID),
    ):
        assert code(primary, update(MODIFY, register_entry=entry)) == expected, entry
    assert code(primary, update(INSERT, register_entry=register_entry(0, b"\x01"))) == INVALID
    assert device.register_read_all("MyIngress.sums") == [9] * 4


def replica(port: int, instance: int = 0) -> p4rt.Replica:
    return p4rt.Replica(egress_port=port, instance=instance)


def read_pre(client: Client, **entry: object) -> list[p4rt.PacketReplicationEngineEntry]:
    query = p4rt.Entity(packet_replication_engine_entry=p4rt.PacketReplicationEngineEntry(**entry))
    return [entity.packet_replication_engine_entry for entity in client.read(query)]


def test_multicast_groups(served: Served, primary: Client) -> None:
    groups = served.devices[1].groups
    as_bytes = p4rt.Replica(port=b"\x01\x2c", instance=7)
    first = group(INSERT, 5, replica(1, 1), replica(1, 2), as_bytes, metadata=b"note")
    primary.write(first, group(INSERT, 6))
    assert groups == {5: [(1, 1), (1, 2), (300, 7)], 6: []}
    written = [first.entity.packet_replication_engine_entry]
    assert read_pre(primary, multicast_group_entry=p4rt.MulticastGroupEntry(multicast_group_id=5)) == written
    assert len(read_pre(primary, multicast_group_entry=p4rt.MulticastGroupEntry())) == 2
    assert read_pre(primary, multicast_group_entry=p4rt.MulticastGroupEntry(multicast_group_id=7)) == []
    assert code(primary, group(INSERT, 5)) == code_pb2.ALREADY_EXISTS
    primary.write(group(MODIFY, 5, replica(2)))
    assert groups[5] == [(2, 0)]
    for bad in (
        group(MODIFY, 5, replica(1, 1), replica(1, 1)),
        group(MODIFY, 5, p4rt.Replica(instance=1)),
        group(INSERT, 0, replica(1)),
    ):
        assert code(primary, bad) == INVALID, bad
    for bad in (
        group(MODIFY, 5, replica(512)),
        group(MODIFY, 5, p4rt.Replica(port=b"\x02\x00")),
        group(MODIFY, 5, replica(1, 1 << 16)),
        group(INSERT, 1 << 16, replica(1)),
    ):
        assert code(primary, bad) == RANGE, bad
    assert groups[5] == [(2, 0)]
    primary.write(group(DELETE, 5))
    assert groups == {6: []}
    for kind in (MODIFY, DELETE):
        assert code(primary, group(kind, 5)) == code_pb2.NOT_FOUND


def test_clone_sessions(served: Served, primary: Client) -> None:
    sessions = served.devices[1].sessions
    first = clone(INSERT, 100, replica(255, 1), length=128)
    primary.write(first)
    assert sessions == {100: ([(255, 1)], 128)}
    written = [first.entity.packet_replication_engine_entry]
    assert read_pre(primary, clone_session_entry=p4rt.CloneSessionEntry()) == written
    assert read_pre(primary, clone_session_entry=p4rt.CloneSessionEntry(session_id=100)) == written
    assert code(primary, first) == code_pb2.ALREADY_EXISTS
    for bad in (
        clone(INSERT, 0, replica(1)),
        clone(MODIFY, 100, replica(1), service=1),
        clone(MODIFY, 100, replica(1), length=-1),
        clone(MODIFY, 100, replica(1), replica(1)),
    ):
        assert code(primary, bad) == INVALID, bad
    primary.write(clone(MODIFY, 100, replica(1), replica(2)))
    assert sessions == {100: ([(1, 0), (2, 0)], 0)}
    primary.write(clone(DELETE, 100))
    assert sessions == {}
    assert code(primary, clone(DELETE, 100)) == code_pb2.NOT_FOUND


def test_replication_entry_without_type(primary: Client) -> None:
    """An entry without a type reads all groups and sessions; there may be none."""
    empty = p4rt.PacketReplicationEngineEntry()
    assert code(primary, update(INSERT, packet_replication_engine_entry=empty)) == INVALID
    assert read_pre(primary) == []
    updates = [group(INSERT, 5, replica(1)), clone(INSERT, 100, replica(2))]
    primary.write(*updates)
    assert read_pre(primary) == [one.entity.packet_replication_engine_entry for one in updates]
