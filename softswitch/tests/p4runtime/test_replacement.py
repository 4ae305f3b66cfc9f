"""Pipelines and batches take effect between two packets, while packets pass."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import grpc
import pytest
from google.rpc import code_pb2

from softswitch.dataplane.device import Device
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.p4runtime.client import Client, action, exact, group, insert
from softswitch.tests.p4runtime.conftest import Served, data_plane
from softswitch.tests.p4runtime.programs import ids, program
from softswitch.tests.support.p4runtime import INSERT, MODIFY, update
from softswitch.tests.support.waiting import wait_until as until

SET = p4rt.SetForwardingPipelineConfigRequest
ATOMIC = p4rt.WriteRequest.DATAPLANE_ATOMIC
OLD, NEW = program("pair1"), program("pair2")
IDS = ids(NEW[1])
EVERYTHING = p4rt.Entity(table_entry=p4rt.TableEntry())


def entry(table: str, value: int, key: int = 0) -> p4rt.TableEntry:
    call = action(IDS["set_one" if table == "one" else "set_two"], bytes([value]))
    return p4rt.TableEntry(table_id=IDS[table], match=[exact(1, bytes([key]))], action=call)


def both(kind: int, value: int) -> list[p4rt.Update]:
    return [update(kind, table_entry=entry(table, value)) for table in ("one", "two")]


def send(served: Served, key: int = 0) -> tuple[int, ...]:
    """Return what a frame shows: value of table one, of table two, version of ingress, version of egress."""
    ((_, frame),) = served.devices[1].process(1, bytes([key, 0, 0, 0, 0]))
    return tuple(frame[1:])


@contextmanager
def traffic(device: Device) -> Iterator[set[tuple[int, ...]]]:
    """Send frames one after the other meanwhile, and collect what they showed. They are lost only without a program."""
    shown: set[tuple[int, ...]] = set()
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            ((_, frame),) = device.process(1, bytes(5))
            shown.add(tuple(frame[1:]))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield shown
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def served() -> Iterator[Served]:
    with data_plane(1) as one:
        yield one


@pytest.fixture
def client(served: Served) -> Client:
    one = served.client()
    one.become_primary()
    one.set_pipeline(OLD[0], OLD[1])
    return one


def test_dataplane_atomic_batch_is_one_step(served: Served, client: Client) -> None:
    client.write(*both(INSERT, 0), atomicity=ATOMIC)
    with traffic(served.devices[1]) as shown:  # type: ignore[arg-type]
        for value in range(1, 60):
            client.write(*both(MODIFY, value), atomicity=ATOMIC)
            until(partial(shown.__contains__, (value, value, 1, 1)))
    assert {one == two for one, two, _, _ in shown} == {True}


def test_dataplane_atomic_batch_is_all_or_nothing(served: Served, client: Client) -> None:
    client.write(*both(INSERT, 1))
    errors = client.outcomes(*both(MODIFY, 2), insert(entry("one", 3)), atomicity=ATOMIC)
    assert [one.canonical_code for one in errors] == [code_pb2.ABORTED, code_pb2.ABORTED, code_pb2.ALREADY_EXISTS]
    assert send(served) == (1, 1, 1, 1)
    client.write(*both(MODIFY, 4), atomicity=ATOMIC)  # the device goes on
    assert send(served) == (4, 4, 1, 1)


def test_no_packet_runs_through_two_programs_or_none(served: Served, client: Client) -> None:
    with traffic(served.devices[1]) as shown:  # type: ignore[arg-type]
        for _ in range(20):
            for number, (device_config, p4info) in ((2, NEW), (1, OLD)):
                client.set_pipeline(device_config, p4info)
                client.write(*both(INSERT, number))
                until(partial(shown.__contains__, (number, number, number, number)))
    assert {(first, last) for _, _, first, last in shown} == {(1, 1), (2, 2)}
    assert {max(one, two) for one, two, first, _ in shown if first == 1} == {0, 1}
    assert served.devices[1].drop_stats()["no_program"] == 0


def test_saved_pipeline_takes_writes_and_runs_when_committed(served: Served, client: Client) -> None:
    client.write(*both(INSERT, 1))
    client.set_pipeline(NEW[0], NEW[1], SET.VERIFY_AND_SAVE)
    assert client.read(EVERYTHING) == []  # reads and writes refer to the saved one
    client.write(*both(INSERT, 2), insert(entry("three", 3)), group(INSERT, 7))
    assert client.outcomes(insert(entry("three", 3)))[0].canonical_code == code_pb2.ALREADY_EXISTS
    assert len(client.read(EVERYTHING)) == 3
    assert send(served) == (1, 1, 1, 1)
    assert client.get_pipeline().config.p4_device_config == OLD[0]
    client.set_pipeline(None, action=SET.COMMIT)
    assert send(served) == (2, 3, 2, 2)
    assert client.get_pipeline().config.p4_device_config == NEW[0]
    client.write(update(MODIFY, table_entry=entry("three", 4)))
    assert send(served) == (2, 4, 2, 2)
    assert len(client.read(EVERYTHING)) == 3
    with pytest.raises(grpc.RpcError) as caught:
        client.set_pipeline(None, action=SET.COMMIT)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_saved_pipeline_is_dropped_when_another_replaces_it(served: Served, client: Client) -> None:
    client.set_pipeline(NEW[0], NEW[1], SET.VERIFY_AND_SAVE)
    client.write(*both(INSERT, 2))
    client.set_pipeline(NEW[0], NEW[1], SET.VERIFY_AND_SAVE)
    assert client.read(EVERYTHING) == []
    client.write(*both(INSERT, 2))
    client.set_pipeline(OLD[0], OLD[1], SET.VERIFY_AND_COMMIT)
    assert client.read(EVERYTHING) == []
    assert send(served) == (0, 0, 1, 1)
    with pytest.raises(grpc.RpcError) as caught:
        client.set_pipeline(None, action=SET.COMMIT)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_reconcile_keeps_the_state(served: Served, client: Client) -> None:
    default = p4rt.TableEntry(table_id=IDS["two"], is_default_action=True, action=action(IDS["set_two"], b"\x09"))
    client.write(insert(entry("one", 5)), update(MODIFY, table_entry=default), group(INSERT, 3, metadata=b"mine"))
    groups = p4rt.PacketReplicationEngineEntry(multicast_group_entry=p4rt.MulticastGroupEntry())
    queries = (EVERYTHING, p4rt.Entity(packet_replication_engine_entry=groups))
    before = client.read(*queries)
    with traffic(served.devices[1]) as shown:  # type: ignore[arg-type]
        client.set_pipeline(NEW[0], NEW[1], SET.RECONCILE_AND_COMMIT)
        until(partial(shown.__contains__, (5, 9, 2, 2)))
    assert shown <= {(5, 9, 1, 1), (5, 9, 2, 2)}
    assert client.read(*queries) == before
    client.write(insert(entry("three", 6, key=1)))
    with pytest.raises(grpc.RpcError) as caught:  # the old program has no table for this entry
        client.set_pipeline(OLD[0], OLD[1], SET.RECONCILE_AND_COMMIT)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "cannot hold" in (caught.value.details() or "")
    assert send(served, key=1) == (0, 6, 2, 2)
    assert len(client.read(EVERYTHING)) == 2
