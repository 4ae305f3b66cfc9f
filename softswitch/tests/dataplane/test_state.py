"""Registers, counters, groups, sessions, loading and unloading; control calls while frames pass."""

from __future__ import annotations

import logging
import struct
import threading

import pytest

from softswitch import AlreadyExists, Device, Fabric, InvalidValue, Match, NoSuchObject, NotFound, SoftswitchError
from softswitch.tests.dataplane.programs import program
from softswitch.tests.dataplane.scenarios import ethernet, ipv4, matching_frame
from softswitch.tests.support.waiting import wait_until as until

VALUES = 32


def command(operation: int, index: int, numbers: list[int]) -> bytes:
    head = ethernet(1, 2, 0x1234) + struct.pack(">I", operation << 24 | index)
    return head + struct.pack(f">{VALUES}I", *numbers)


def numbers_of(frame: bytes) -> list[int]:
    return list(struct.unpack(f">{VALUES}I", frame[18 : 18 + 4 * VALUES]))


def loaded(fabric: Fabric, name: str, number: int = 1, cpu_port: int | None = None) -> Device:
    device = fabric.add_device(number, cpu_port)
    device.load(program(name))
    return device


def test_registers_hold_the_values_that_packets_and_control_wrote(fabric: Fabric) -> None:
    device = loaded(fabric, "sums")
    device.process(1, command(0, 5, list(range(VALUES))))
    assert device.register_read("MyIngress.sum07", 5) == 7
    device.register_write("MyIngress.sum07", 5, 0xFFFFFFFF)
    ((_, frame),) = device.process(1, command(1, 5, [1] * VALUES))
    expected = [i + 1 for i in range(VALUES)]
    expected[7] = 0
    assert numbers_of(frame) == expected
    everything = device.register_read_all("MyIngress.sum1f")
    assert len(everything) == 1024 and everything[5] == 32 and sum(everything) == 32


def test_the_next_packet_reads_a_flipped_bit(fabric: Fabric) -> None:
    device = loaded(fabric, "sums")
    device.process(1, command(0, 5, list(range(VALUES))))
    device.register_flip("MyIngress.sum07", 5, 4)
    ((_, frame),) = device.process(1, command(1, 5, [1] * VALUES))
    assert numbers_of(frame) == [i + 1 + (16 if i == 7 else 0) for i in range(VALUES)]
    with pytest.raises(InvalidValue, match="bit 32"):
        device.register_flip("MyIngress.sum07", 5, 32)


def test_an_index_beyond_a_register_reads_and_writes_nothing(fabric: Fabric) -> None:
    device = loaded(fabric, "sums")
    ((_, frame),) = device.process(1, command(0, 5000, [9] * VALUES))
    assert numbers_of(frame) == [9] * VALUES
    ((_, frame),) = device.process(1, command(3, 5000, [4] * VALUES))
    assert numbers_of(frame) == [4] * VALUES  # a read out of range leaves its destination unchanged
    assert not any(any(device.register_read_all(f"MyIngress.sum0{i:x}")) for i in range(16))


def test_registers_of_every_width(fabric: Fabric) -> None:
    device = loaded(fabric, "features")
    assert device.program is not None
    for name, info in device.program.registers.items():
        for value in (0, 1, (1 << info.width) - 1):
            device.register_write(name, info.size - 1, value)
            assert device.register_read(name, info.size - 1) == value
        assert device.register_read(name, 0) == 0
        with pytest.raises(InvalidValue):
            device.register_write(name, 0, 1 << info.width)
        with pytest.raises(NoSuchObject):
            device.register_read(name, info.size)


def test_loading_again_starts_fresh(fabric: Fabric) -> None:
    device = loaded(fabric, "matching")
    device.insert("MyIngress.exact_one", [Match("exact", 0)], "MyIngress.answer", [5])
    device.counter_write("MyIngress.hit_counter", 3, 1, 2)
    device.multicast_set(4, [(1, 1)])
    device.load(program("matching"))
    assert device.entries("MyIngress.exact_one") == []
    assert device.counter_read_all("MyIngress.hit_counter") == [(0, 0)] * 8
    with pytest.raises(NotFound):
        device.multicast_delete(4)


def test_without_a_program_frames_are_dropped_and_counted(fabric: Fabric) -> None:
    device = loaded(fabric, "matching")
    assert device.process(1, matching_frame(0, 0, 0, 0, 0))
    device.unload()
    assert device.process(1, matching_frame(0, 0, 0, 0, 0)) == []
    assert device.drop_stats()["no_program"] == 1
    with pytest.raises(NoSuchObject):
        device.entries("MyIngress.exact_one")
    with pytest.raises(NoSuchObject):
        device.register_read("MyIngress.sum00", 0)


def test_groups_and_sessions(fabric: Fabric) -> None:
    device = loaded(fabric, "router")
    everyone = ethernet(0xFFFFFFFFFFFF, 2, 0x0806) + b"who has"
    device.insert("MyIngress.switching", [Match("exact", 0xFFFFFFFFFFFF), Match("exact", 0)], "MyIngress.flood", [6])
    assert device.process(1, everyone) == []
    assert device.drop_stats()["no_such_multicast_group"] == 1
    device.multicast_set(6, [(1, 1), (2, 1), (2, 2)])
    assert sorted(port for port, _ in device.process(1, everyone)) == [1, 2, 2]
    device.multicast_set(6, [(3, 1)])
    assert [port for port, _ in device.process(1, everyone)] == [3]
    device.multicast_delete(6)
    with pytest.raises(NotFound):
        device.multicast_delete(6)
    with pytest.raises(InvalidValue):
        device.multicast_set(0, [(1, 1)])
    with pytest.raises(NotFound):
        device.clone_delete(6)


def test_clones_are_cut_to_the_length_of_their_session(fabric: Fabric) -> None:
    device = loaded(fabric, "router")
    device.insert("MyIngress.switching", [Match("exact", 5), Match("exact", 0)], "MyIngress.forward", [2])
    anything = [Match("ternary", 0, mask=0), Match("ternary", 0, mask=0), Match("range", 0, high=65535),
                Match("optional", 0, mask=0), Match("ternary", 0, mask=0)]  # fmt: skip
    device.insert("MyIngress.acl", anything, "MyIngress.copy_to_cpu", [1], 1)
    device.clone_set(7, [(9, 1)], truncate=20)
    frame = ethernet(5, 6, 0x0800) + ipv4(1, 2, payload=bytes(40))
    assert {(port, len(out)) for port, out in device.process(1, frame)} == {(2, len(frame)), (9, 20)}


def test_packet_in_and_out(fabric: Fabric) -> None:
    device = loaded(fabric, "router", cpu_port=500)
    arrived: list[bytes] = []
    sent: list[tuple[int, bytes]] = []
    device.packet_in = arrived.append
    device.capture = lambda port, frame: sent.append((port, frame))
    fabric.start()
    inner = ethernet(1, 2, 0x0806) + b"from the controller"
    device.packet_out(struct.pack(">H", 3 << 7) + inner)
    until(lambda: bool(sent))
    assert sent == [(3, inner)]
    anything = [Match("ternary", 0, mask=0), Match("ternary", 0, mask=0), Match("range", 0, high=65535),
                Match("optional", 0, mask=0), Match("ternary", 0, mask=0)]  # fmt: skip
    device.insert("MyIngress.acl", anything, "MyIngress.punt", [2], 1)
    device.inject(7, inner)
    until(lambda: bool(arrived))
    assert arrived == [struct.pack(">H", 7 << 7 | 2) + inner]


def test_a_callback_that_fails_stops_nothing(fabric: Fabric, caplog: pytest.LogCaptureFixture) -> None:
    device = loaded(fabric, "matching")
    seen: list[bytes] = []

    def callback(port: int, frame: bytes) -> None:
        seen.append(frame)
        raise ValueError("from the test")

    device.capture = callback
    fabric.start()
    for a in (1, 2):
        device.inject(1, matching_frame(a, 0, 0, 0, 0))
    until(lambda: len(seen) == 2)
    until(lambda: "from the test" in caplog.text)


def test_log_messages_reach_the_log(fabric: Fabric, caplog: pytest.LogCaptureFixture) -> None:
    device = loaded(fabric, "features")
    with caplog.at_level(logging.INFO, "softswitch.dataplane.device"):
        device.process(1, struct.pack(">BBH", 0x30, 7, 1500) + bytes(20))
        until(lambda: "index 8 value 500" in caplog.text)


def test_writes_are_atomic_towards_packets(fabric: Fabric) -> None:
    """An entry changes between two answers, each with two parameters that belong together; packets see whole
    answers.
    """
    device = loaded(fabric, "matching")
    key = [Match("exact", 1)]
    pairs = [(0, 0, 1), ((1 << 128) - 1, 0, 2)]
    device.insert("MyIngress.exact_one", key, "MyIngress.wide", pairs[0])
    done = threading.Event()

    def flip() -> None:
        for i in range(3000):
            device.modify("MyIngress.exact_one", key, "MyIngress.wide", pairs[i % 2])
        done.set()

    writer = threading.Thread(target=flip)
    writer.start()
    seen = set()
    while not done.is_set():
        ((_, frame),) = device.process(1, matching_frame(1, 0, 0, 0, 0))
        number, wide = int.from_bytes(frame[30:32], "big"), int.from_bytes(frame[44:60], "big")
        seen.add((wide, 0, number))
    writer.join()
    assert seen <= set(pairs)


def test_devices_of_a_fabric_are_apart(fabric: Fabric) -> None:
    first, second = loaded(fabric, "sums", 1), loaded(fabric, "sums", 2)
    first.process(1, command(0, 1, [5] * VALUES))
    assert second.register_read("MyIngress.sum00", 1) == 0
    with pytest.raises(AlreadyExists):
        fabric.add_device(1)


def test_a_closed_fabric_refuses_instead_of_crashing() -> None:
    fabric = Fabric()
    device = loaded(fabric, "matching")
    fabric.start()
    fabric.close()
    fabric.close()
    for call in (
        lambda: device.process(1, matching_frame(0, 0, 0, 0, 0)),
        lambda: device.entries("MyIngress.exact_one"),
        lambda: device.inject(1, bytes(20)),
        device.port_stats,
        fabric.start,
        lambda: fabric.add_device(2),
    ):
        with pytest.raises(SoftswitchError, match="closed"):
            call()
