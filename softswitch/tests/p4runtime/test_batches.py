"""Batches: one error per update, atomicity, and reads of several queries (P4Runtime specification, "Write RPC")."""

from __future__ import annotations

import base64
from collections.abc import Iterable

import grpc
import pytest
from google.rpc import code_pb2
from hypothesis import assume, given
from hypothesis import strategies as st

from softswitch.dataplane.device import Device
from softswitch.p4runtime.status import BatchError, P4RuntimeError, batch_status
from softswitch.p4runtime.stubs import p4data_pb2, p4runtime_pb2_grpc
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.p4runtime.client import (
    ACL,
    EXACT,
    FORWARD,
    SUMS,
    VERDICTS,
    Client,
    acl_entry,
    action,
    clone,
    exact_entry,
    group,
    insert,
)
from softswitch.tests.p4runtime.conftest import Served
from softswitch.tests.p4runtime.fake import PROGRAM_JSON
from softswitch.tests.support.p4runtime import DELETE, MODIFY, batch_errors, update

ROLLBACK, ATOMIC = p4rt.WriteRequest.ROLLBACK_ON_ERROR, p4rt.WriteRequest.DATAPLANE_ATOMIC
EVERYTHING = [
    p4rt.Entity(table_entry=p4rt.TableEntry(counter_data=p4rt.CounterData())),
    p4rt.Entity(table_entry=p4rt.TableEntry(table_id=EXACT, is_default_action=True)),
    p4rt.Entity(counter_entry=p4rt.CounterEntry()),
    p4rt.Entity(register_entry=p4rt.RegisterEntry()),
    p4rt.Entity(
        packet_replication_engine_entry=p4rt.PacketReplicationEngineEntry(
            multicast_group_entry=p4rt.MulticastGroupEntry()
        )
    ),
    p4rt.Entity(
        packet_replication_engine_entry=p4rt.PacketReplicationEngineEntry(clone_session_entry=p4rt.CloneSessionEntry())
    ),
]


def replica(port: int) -> p4rt.Replica:
    return p4rt.Replica(egress_port=port, instance=1)


def register(value: bytes, index: int | None = None) -> p4rt.Update:
    entry = p4rt.RegisterEntry(register_id=SUMS, data=p4data_pb2.P4Data(bitstring=value))
    if index is not None:
        entry.index.index = index
    return update(MODIFY, register_entry=entry)


def counter(packets: int, index: int | None = None) -> p4rt.Update:
    entry = p4rt.CounterEntry(counter_id=VERDICTS, data=p4rt.CounterData(packet_count=packets))
    if index is not None:
        entry.index.index = index
    return update(MODIFY, counter_entry=entry)


def sort(entities: list[p4rt.Entity]) -> list[bytes]:
    return sorted(entity.SerializeToString(deterministic=True) for entity in entities)


def test_every_update_has_its_own_error(primary: Client) -> None:
    errors = primary.outcomes(
        insert(exact_entry(b"\x01")),
        insert(exact_entry(b"\x01")),
        update(DELETE, table_entry=exact_entry(b"\x02")),
        insert(exact_entry(b"\x03", action=action(FORWARD, b"\xff\xff"))),
        p4rt.Update(type=MODIFY),
        insert(exact_entry(b"\x04")),
    )
    assert [error.canonical_code for error in errors] == [
        code_pb2.OK,
        code_pb2.ALREADY_EXISTS,
        code_pb2.NOT_FOUND,
        code_pb2.OUT_OF_RANGE,
        code_pb2.INVALID_ARGUMENT,
        code_pb2.OK,
    ]
    assert errors[0] == p4rt.Error()  # OK, and no message
    assert "MyIngress.forward parameter port" in errors[3].message
    found = primary.read(p4rt.Entity(table_entry=p4rt.TableEntry(table_id=EXACT)))
    assert [entity.table_entry.match[0].exact.value for entity in found] == [b"\x01", b"\x04"]


@pytest.mark.parametrize(
    ("entity", "word"),
    [
        ({"extern_entry": p4rt.ExternEntry(extern_id=1)}, "extern"),
    ],
)
def test_unsupported_entities_are_named(primary: Client, entity: dict, word: str) -> None:
    (error,) = primary.outcomes(update(MODIFY, **entity))
    assert error.canonical_code == code_pb2.UNIMPLEMENTED
    assert word in error.message
    with pytest.raises(grpc.RpcError) as caught:
        primary.read(p4rt.Entity(**entity))
    (error,) = batch_errors(caught.value)
    assert error.canonical_code == code_pb2.UNIMPLEMENTED


def fill(client: Client, device: Device) -> None:
    client.write(
        insert(exact_entry(b"\x01", metadata=b"m", counter_data=p4rt.CounterData(packet_count=4, byte_count=44))),
        insert(acl_entry(controller_metadata=3)),
        group(p4rt.Update.INSERT, 1, replica(1), replica(2)),
        clone(p4rt.Update.INSERT, 1, replica(3), length=64),
    )
    for index in range(4):
        device.register_write("MyIngress.sums", index, index + 1)
    device.counter_write("MyIngress.verdicts", 2, 9, 99)


CHANGES = [
    insert(exact_entry(b"\x02")),
    update(MODIFY, table_entry=exact_entry(b"\x01", action=action(FORWARD, b"\x08"), metadata=b"new")),
    update(MODIFY, table_entry=exact_entry(b"\x01", counter_data=p4rt.CounterData(packet_count=1))),
    update(DELETE, table_entry=exact_entry(b"\x01")),
    update(DELETE, table_entry=acl_entry()),
    insert(exact_entry(b"\x01", action=action(FORWARD, b"\x07"))),
    update(
        MODIFY, table_entry=p4rt.TableEntry(table_id=EXACT, is_default_action=True, action=action(FORWARD, b"\x02"))
    ),
    group(MODIFY, 1, replica(5)),
    group(DELETE, 1),
    group(p4rt.Update.INSERT, 2, replica(5)),
    clone(MODIFY, 1, replica(6)),
    clone(DELETE, 1),
    register(b"\x07", index=1),
    register(b"\x08"),
    counter(5, index=0),
    counter(6),
]


def test_rollback_restores_everything(served: Served, primary: Client) -> None:
    fill(primary, served.devices[1])
    before = sort(primary.read(*EVERYTHING))
    failing = insert(exact_entry(b"\x02"))  # the batch's first update inserted it
    late = insert(exact_entry(b"\x05"))
    errors = primary.outcomes(*CHANGES, failing, late, atomicity=ROLLBACK)
    codes = [error.canonical_code for error in errors]
    assert codes == [code_pb2.ABORTED] * len(CHANGES) + [code_pb2.ALREADY_EXISTS, code_pb2.ABORTED]
    assert sort(primary.read(*EVERYTHING)) == before


def test_rollback_batch_without_error_is_done(served: Served, primary: Client) -> None:
    fill(primary, served.devices[1])
    primary.write(*CHANGES, atomicity=ROLLBACK)
    after = sort(primary.read(*EVERYTHING))
    other = served.client(device_id=2)
    other.become_primary()
    other.set_pipeline(PROGRAM_JSON)
    fill(other, served.devices[2])
    other.write(*CHANGES)
    assert sort(other.read(*EVERYTHING)) == after


def test_dataplane_atomic_batch_is_all_or_nothing(served: Served, primary: Client) -> None:
    fill(primary, served.devices[1])
    before = sort(primary.read(*EVERYTHING))
    errors = primary.outcomes(*CHANGES, insert(exact_entry(b"\x02")), atomicity=ATOMIC)
    codes = [error.canonical_code for error in errors]
    assert codes == [code_pb2.ABORTED] * len(CHANGES) + [code_pb2.ALREADY_EXISTS]
    assert sort(primary.read(*EVERYTHING)) == before
    primary.write(*CHANGES, atomicity=ATOMIC)
    assert sort(primary.read(*EVERYTHING)) != before


@pytest.mark.parametrize("count", [1, 50, 150, 1000])
def test_errors_reach_clients_with_default_limits(served: Served, primary: Client, count: int) -> None:
    updates = [insert(exact_entry(b"\x01"))] + [update(DELETE, table_entry=exact_entry(b"\x02"))] * count
    request = p4rt.WriteRequest(device_id=1, election_id=p4rt.Uint128(low=1), updates=updates)
    channel = grpc.insecure_channel(served.address, options=[("grpc.use_local_subchannel_pool", 1)])
    with channel, pytest.raises(grpc.RpcError) as caught:
        p4runtime_pb2_grpc.P4RuntimeStub(channel).Write(request, timeout=10)
    assert caught.value.code() == grpc.StatusCode.UNKNOWN
    message = caught.value.details() or ""
    assert message.startswith("update 1: ")
    assert f"({count} of {count + 1} failed)" in message
    errors = batch_errors(caught.value)
    if count <= 150:
        codes = [error.canonical_code for error in errors]
        assert codes == [code_pb2.OK] + [code_pb2.NOT_FOUND] * count
        assert errors[1].message
    else:
        assert message.endswith("; the details are of failures only, with their numbers")
        assert len(errors) > 100
        assert failed(errors) == dict.fromkeys(range(1, count + 1), code_pb2.NOT_FOUND)


def failed(errors: Iterable[p4rt.Error]) -> dict[int, int]:
    """Return the code of each failed element, by its number, from details of failures only."""
    found: dict[int, int] = {}
    for error in errors:
        head, _, rest = error.message.partition(":")
        if head != "also failed":
            found[int(head[1:])] = error.canonical_code
            continue
        for part in rest.split(";"):
            name, _, numbers = part.strip().partition(" ")
            for run in numbers.split(", "):
                first, _, last = run.partition("-")
                found |= dict.fromkeys(range(int(first), int(last or first) + 1), code_pb2.Code.Value(name))
    return found


OUTCOMES = st.sampled_from(
    [None, None, P4RuntimeError(code_pb2.NOT_FOUND, "no such entry"), P4RuntimeError(code_pb2.ABORTED, "x" * 300)]
)


@given(
    runs=st.lists(st.tuples(OUTCOMES, st.integers(1, 200)), min_size=1, max_size=20), size=st.integers(3000, 1 << 16)
)
def test_a_status_within_its_size_has_all_failures(runs: list[tuple[P4RuntimeError | None, int]], size: int) -> None:
    outcomes = [outcome for outcome, times in runs for _ in range(times)]
    expected = {index: outcome.code for index, outcome in enumerate(outcomes) if outcome is not None}
    assume(expected)
    status = batch_status(BatchError(outcomes, "update"), size)
    assert len(base64.b64encode(status.SerializeToString())) + len(status.message.encode()) <= size
    errors = []
    for detail in status.details:
        errors.append(p4rt.Error())
        assert detail.Unpack(errors[-1])
    if "failures only" in status.message:
        assert failed(errors) == expected
    else:
        assert [error.canonical_code for error in errors] == [0 if one is None else one.code for one in outcomes]


def test_the_summary_is_of_the_update_that_failed(primary: Client) -> None:
    """Not of one before it that is not done because of it."""
    updates = [insert(exact_entry(bytes([number]))) for number in range(1, 10)]
    with pytest.raises(grpc.RpcError) as caught:
        primary.write(*updates, insert(exact_entry(b"\x01")), atomicity=ROLLBACK)
    assert (caught.value.details() or "").startswith("update 9: ")
    assert [error.canonical_code for error in batch_errors(caught.value)] == [code_pb2.ABORTED] * 9 + [
        code_pb2.ALREADY_EXISTS
    ]


def test_failures_that_no_status_has_room_for_are_counted() -> None:
    outcomes = [P4RuntimeError(code_pb2.NOT_FOUND, "x") if index % 2 else None for index in range(20_000)]
    status = batch_status(BatchError(outcomes, "update"))
    assert len(status.SerializeToString()) * 4 // 3 + len(status.message) <= 7500
    last = p4rt.Error()
    assert status.details[-1].Unpack(last)
    assert last.message.startswith("also failed: NOT_FOUND ")
    assert last.message.endswith(f" … ({10_000 - len(status.details) + 1} in all)")


def test_server_that_may_send_longer_statuses() -> None:
    outcomes = [P4RuntimeError(code_pb2.NOT_FOUND, "x" * 100)] * 1000
    status = batch_status(BatchError(outcomes, "update"), 1 << 20)
    assert len(status.details) == 1000
    assert "only" not in status.message


def test_reads_answer_the_good_queries_and_name_the_bad(primary: Client) -> None:
    primary.write(insert(exact_entry()), insert(acl_entry()))
    queries = [
        p4rt.Entity(table_entry=p4rt.TableEntry(table_id=EXACT)),
        p4rt.Entity(table_entry=p4rt.TableEntry(table_id=12345)),
        p4rt.Entity(table_entry=p4rt.TableEntry(table_id=ACL)),
        p4rt.Entity(),
    ]
    call = primary.stub.Read(p4rt.ReadRequest(device_id=1, entities=queries), timeout=10)
    found = []
    with pytest.raises(grpc.RpcError) as caught:
        for response in call:
            found.extend(response.entities)
    assert [entity.table_entry.table_id for entity in found] == [EXACT, ACL]
    codes = [error.canonical_code for error in batch_errors(caught.value)]
    assert codes == [code_pb2.OK, code_pb2.INVALID_ARGUMENT, code_pb2.OK, code_pb2.INVALID_ARGUMENT]


def test_empty_batches_are_fine(primary: Client) -> None:
    primary.write()
    assert primary.read() == []
