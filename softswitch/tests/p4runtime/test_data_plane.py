"""The server over the real data plane: the same entities, and packets that match them."""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Callable, Iterator

import grpc
import pytest

from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.p4runtime.client import (
    ACL,
    COPY,
    EXACT,
    FORWARD,
    KEYLESS,
    LPM,
    REPLICATE,
    ROUTE,
    SIGNED,
    SUMS,
    VERDICTS,
    Client,
    acl_entry,
    action,
    between,
    clone,
    exact_entry,
    group,
    insert,
    lpm,
    optional,
    ternary,
)
from softswitch.tests.p4runtime.conftest import CPU, Served, data_plane
from softswitch.tests.p4runtime.fake import PROGRAM_JSON

# The tests of entities run again here, with this module's `served`, because the data plane decides about entries.
from softswitch.tests.p4runtime.test_batches import *  # noqa: F403
from softswitch.tests.p4runtime.test_externs import test_counters, test_registers  # noqa: F401
from softswitch.tests.p4runtime.test_tables import *  # noqa: F403
from softswitch.tests.support.p4runtime import MODIFY, Stream, update

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")

ETHERNET = bytes.fromhex("000000000002000000000001")
Sent = queue.SimpleQueue


@pytest.fixture(name="served")
def _served() -> Iterator[Served]:
    with data_plane(1, 2) as served:
        yield served


@pytest.fixture
def sent(served: Served) -> Sent:
    """Return frames that leave device 1, as (port, frame)."""
    frames: Sent = queue.SimpleQueue()
    served.devices[1].capture = lambda port, frame: frames.put((port, frame))
    return frames


def demo_frame(address: bytes = b"\x0a\x00\x00\x01", protocol: int = 6, port: int = 80, class_: int = 1) -> bytes:
    return ETHERNET + b"\x88\xb6" + address + protocol.to_bytes(2, "big") + port.to_bytes(2, "big") + bytes([class_])


def counts(client: Client, table_id: int) -> list[tuple[int, int]]:
    entry = p4rt.DirectCounterEntry(table_entry=p4rt.TableEntry(table_id=table_id))
    found = [entity.direct_counter_entry.data for entity in client.read(p4rt.Entity(direct_counter_entry=entry))]
    return [(data.packet_count, data.byte_count) for data in found]


def test_entries_decide_where_frames_go(served: Served, primary: Client, sent: Sent) -> None:
    primary.write(insert(exact_entry()))  # to 00:00:00:00:00:02 from port 1: port 5
    frame = ETHERNET + b"\x12\x34" + b"payload"
    served.devices[1].inject(1, frame)
    assert sent.get(timeout=10) == (5, frame)
    assert counts(primary, EXACT) == [(1, len(frame))]
    primary.write(update(MODIFY, table_entry=exact_entry(action=action(FORWARD, b"\x06"))))
    served.devices[1].inject(1, frame)
    assert sent.get(timeout=10) == (6, frame)
    primary.write(
        insert(
            p4rt.TableEntry(
                table_id=LPM, match=[lpm(b"\x0a\x00\x00\x00", 8)], action=action(ROUTE, b"\x0a\x0b", b"\x08")
            )
        )
    )
    served.devices[1].inject(2, demo_frame())
    assert sent.get(timeout=10) == (8, b"\x00\x00\x00\x00\x0a\x0b" + demo_frame()[6:])


def test_priority_larger_wins_and_every_kind_of_match_counts(served: Served, primary: Client, sent: Sent) -> None:
    matches = [ternary(b"\x06", b"\xff"), between(b"\x50", b"\x01\xbb"), optional(b"\x01")]
    primary.write(
        insert(acl_entry(matches, priority=20, action=action(FORWARD, b"\x07"))),
        insert(acl_entry(priority=10, action=action(FORWARD, b"\x09"))),
    )
    for frame, port in (
        (demo_frame(), 7),
        (demo_frame(protocol=0x106), 7),
        (demo_frame(protocol=7), 9),
        (demo_frame(port=79), 9),
        (demo_frame(port=0x1BB), 7),
        (demo_frame(port=0x1BC), 9),
        (demo_frame(class_=2), 9),
    ):
        served.devices[1].inject(3, frame)
        assert sent.get(timeout=10) == (port, frame)
    assert [packets for packets, _ in counts(primary, ACL)] == [3, 4]


def test_default_action_groups_and_sessions(served: Served, primary: Client, sent: Sent) -> None:
    replicas = [p4rt.Replica(egress_port=port, instance=port) for port in (1, 2, 3)]
    primary.write(
        group(p4rt.Update.INSERT, 4, *replicas),
        insert(acl_entry(action=action(REPLICATE, b"\x04"))),
        clone(p4rt.Update.INSERT, 9, p4rt.Replica(egress_port=12), length=20),
    )
    served.devices[1].inject(5, demo_frame())
    assert sorted(sent.get(timeout=10)[0] for _ in replicas) == [1, 2, 3]
    keyless = p4rt.TableEntry(table_id=KEYLESS, is_default_action=True, action=action(COPY, b"\x09"))
    primary.write(update(MODIFY, table_entry=keyless), group(p4rt.Update.DELETE, 4))
    served.devices[1].inject(5, demo_frame())
    assert sent.get(timeout=10) == (12, demo_frame()[:20])


def test_registers_and_counters_show_the_effect_of_packets(served: Served, primary: Client, sent: Sent) -> None:
    primary.write(insert(acl_entry(action=action(FORWARD, b"\x01"))))
    for port in (100, 200):
        served.devices[1].inject(5, demo_frame(port=port))
        sent.get(timeout=10)
    register = p4rt.Entity(register_entry=p4rt.RegisterEntry(register_id=SUMS, index=p4rt.Index(index=0)))
    assert [entity.register_entry.data.bitstring for entity in primary.read(register)] == [b"\x01\x2c"]
    signed = p4rt.Entity(register_entry=p4rt.RegisterEntry(register_id=SIGNED))
    assert [entity.register_entry.data.bitstring for entity in primary.read(signed)] == [b"\x00", b"\xff"]  # 0 and -1
    counter = p4rt.Entity(counter_entry=p4rt.CounterEntry(counter_id=VERDICTS, index=p4rt.Index(index=1)))
    (found,) = primary.read(counter)
    assert found.counter_entry.data == p4rt.CounterData(packet_count=2, byte_count=2 * len(demo_frame()))


def test_packet_out_and_packet_in(served: Served, sent: Sent) -> None:
    client = served.client()
    stream = client.become_primary()
    client.set_pipeline(PROGRAM_JSON)
    frame = ETHERNET + b"\x12\x34" + b"payload"
    send(stream, 7, frame)
    assert sent.get(timeout=10) == (7, frame)
    client.write(insert(exact_entry(action=action(FORWARD, b"\xff"))))  # to the CPU port
    served.devices[1].inject(1, frame)
    packet = stream.next().packet
    assert packet.payload == frame
    assert [(one.metadata_id, one.value) for one in packet.metadata] == [(1, b"\x01"), (2, b"\x00")]
    send(stream, CPU, frame)  # out and in again
    assert [one.value for one in stream.next().packet.metadata] == [b"\xff", b"\x00"]


def test_new_pipeline_and_reboot_forget_everything(served: Served, primary: Client, sent: Sent) -> None:
    def is_empty() -> bool:
        tables = primary.read(p4rt.Entity(table_entry=p4rt.TableEntry()))
        return [entity.table_entry.is_const for entity in tables] == [True]

    def fill() -> None:
        primary.write(
            insert(exact_entry()),
            group(p4rt.Update.INSERT, 4, p4rt.Replica(egress_port=1)),
            clone(p4rt.Update.INSERT, 9, p4rt.Replica(egress_port=1)),
        )
        served.devices[1].register_write("MyIngress.sums", 0, 5)
        served.devices[1].counter_write("MyIngress.verdicts", 0, 5, 5)

    def restart() -> None:
        served.server.targets[1].shut()
        assert served.devices[1].program is None
        served.server.targets[1].open()
        primary.become_primary()
        primary.set_pipeline(PROGRAM_JSON)

    steps: list[Callable[[], None]] = [lambda: primary.set_pipeline(PROGRAM_JSON), restart]
    for step in steps:
        fill()
        assert not is_empty()
        step()
        assert is_empty()
        assert served.devices[1].register_read_all("MyIngress.sums") == [0] * 4
        assert set(served.devices[1].counter_read_all("MyIngress.verdicts")) == {(0, 0)}


def send(stream: Stream, port: int, frame: bytes) -> None:
    message = p4rt.StreamMessageRequest(packet=p4rt.PacketOut(payload=frame))
    message.packet.metadata.add(metadata_id=1, value=port.to_bytes(2, "big"))
    message.packet.metadata.add(metadata_id=2, value=b"\x00")
    stream.send(message)


def test_new_pipelines_and_reboots_while_traffic_flows_and_others_work(served: Served, primary: Client) -> None:
    """The neighbour notices nothing; clients of the device get a status that says what happened, and never INTERNAL."""
    allowed = {
        grpc.StatusCode.OK,
        grpc.StatusCode.UNKNOWN,  # an update that met an entry of the previous moment
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
    neighbour = served.client(device_id=2)
    neighbour.become_primary()
    neighbour.set_pipeline(PROGRAM_JSON)
    neighbour.write(insert(exact_entry()))
    done = threading.Event()
    seen: dict[str, set[grpc.StatusCode]] = {"write": set(), "read": set(), "neighbour": set()}
    sent = [0]

    def repeat(name: str, call: Callable[[], object]) -> None:
        while not done.is_set():
            try:
                call()
                seen[name].add(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                seen[name].add(error.code())

    def traffic() -> None:
        while not done.is_set():
            served.devices[1].inject(1, demo_frame())
            sent[0] += 1

    write = served.client()
    entries = p4rt.Entity(table_entry=p4rt.TableEntry(counter_data=p4rt.CounterData()))
    delete = update(p4rt.Update.DELETE, table_entry=exact_entry())
    to_cpu = insert(acl_entry(action=action(FORWARD, b"\xff")))
    threads = [
        threading.Thread(target=repeat, args=("write", lambda: write.write(insert(exact_entry()), to_cpu, delete))),
        threading.Thread(target=repeat, args=("read", lambda: write.read(entries, entries))),
        threading.Thread(target=repeat, args=("neighbour", lambda: neighbour.read(entries))),
        threading.Thread(target=traffic),
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            primary.set_pipeline(PROGRAM_JSON)
            served.server.targets[1].shut()
            served.server.targets[1].open()
            primary.become_primary()
            primary.set_pipeline(PROGRAM_JSON)
    finally:
        done.set()
        for thread in threads:
            thread.join(30)
    assert sent[0] > 0
    assert seen["write"] <= allowed and seen["read"] <= allowed
    assert seen["neighbour"] == {grpc.StatusCode.OK}
