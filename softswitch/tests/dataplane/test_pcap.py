"""Frames are read from pcap files, and recorded in them."""

from __future__ import annotations

import os
import resource
import struct
import time
from pathlib import Path

import pytest

from softswitch import Device, Fabric, InvalidValue, Match, NotFound
from softswitch.dataplane import pcap
from softswitch.tests.dataplane.programs import program
from softswitch.tests.dataplane.scenarios import ethernet
from softswitch.tests.support.waiting import wait_until as until


def test_replay_takes_frames_in_the_order_of_their_times(fabric: Fabric, tmp_path: Path) -> None:
    device = fabric.add_device(1)
    device.load(program("router"))
    for mac, port in ((5, 2), (6, 3)):
        match = [Match("exact", mac), Match("exact", 0)]
        device.insert("MyIngress.switching", match, "MyIngress.forward", [port])
    frames = [ethernet(mac, n, 0x1234) + bytes([n]) for n, mac in enumerate((5, 6, 5, 5))]
    pcap.write(tmp_path / "a", [(1.5, frames[0]), (3.25, frames[2])])
    pcap.write(tmp_path / "b", [(2.0, frames[1]), (3.0, frames[3])])
    files = pcap.replay(device, {1: tmp_path / "a", 4: tmp_path / "b"}, tmp_path)
    assert pcap.read(files[2]) == [(1.5, frames[0]), (3.0, frames[3]), (3.25, frames[2])]
    assert pcap.read(files[3]) == [(2.0, frames[1])]


FRAME = ethernet(5, 6, 0x1234) + b"payload"


def linked(fabric: Fabric) -> Device:
    """Return a device that forwards what comes in to its port 2, a link to another device."""
    device, other = (fabric.add_device(number) for number in (1, 2))
    device.load(program("router"))
    device.insert("MyIngress.switching", [Match("exact", 5), Match("exact", 0)], "MyIngress.forward", [2])
    fabric.connect((1, 2), (2, 1))
    other.load(program("router"))
    fabric.start()
    return device


def test_frames_of_a_port_are_recorded(fabric: Fabric, tmp_path: Path) -> None:
    device = linked(fabric)
    begin = time.time()
    pcap.record(device, 2, tmp_path / "in", tmp_path / "out")
    pcap.record(fabric.devices[2], 1, tmp_path / "other-in", tmp_path / "other-out")
    frames = [FRAME + bytes([n]) for n in range(100)]
    for frame in frames:
        device.inject(9, frame)
    until(lambda: fabric.devices[2].port_stats()[1].rx_packets == len(frames))
    for name in ("out", "other-in"):
        recorded = pcap.read(tmp_path / name)
        assert [frame for _, frame in recorded] == frames
        assert begin - 0.001 <= recorded[0][0] <= recorded[-1][0] <= time.time()
    assert pcap.read(tmp_path / "in") == pcap.read(tmp_path / "other-out") == []
    pcap.record(device, 2, tmp_path / "in", tmp_path / "out")
    assert pcap.read(tmp_path / "out") == []
    with pytest.raises(NotFound):
        pcap.record(device, 5, tmp_path / "in", tmp_path / "out")
    with pytest.raises(OSError, match="No space"):
        pcap.record(device, 2, tmp_path / "in", Path("/dev/full"))


def test_a_full_disk_ends_a_record_whole(fabric: Fabric, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    device = linked(fabric)
    pcap.record(device, 2, tmp_path / "in", tmp_path / "out")
    limit = 64 << 20  # larger than any file written meanwhile
    record = 16 + len(FRAME)
    files = [os.open(tmp_path / name, os.O_RDWR) for name in ("in", "out")]
    os.lseek(files[1], limit - record - 10, os.SEEK_SET)  # one record fits, the second is cut
    device.record(2, *files)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        for _ in range(3):
            device.inject(9, FRAME)
        until(lambda: "recording port 2 ended" in caplog.text)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    until(lambda: device.port_stats()[2].tx_packets == 3)  # the traffic continues
    assert (tmp_path / "out").stat().st_size == limit - 10
    with (tmp_path / "out").open("rb") as file:
        file.seek(limit - 10 - len(FRAME))
        assert file.read() == FRAME
    assert caplog.text.count("ended") == 1


def test_both_byte_orders_and_resolutions(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for order, magic, fraction in ((">", 0xA1B2C3D4, 500_000), ("<", 0xA1B23C4D, 500_000_000)):
        head = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65536, 1)
        path.write_bytes(head + struct.pack(order + "IIII", 7, fraction, 3, 3) + b"abc")
        assert pcap.read(path) == [(7.5, b"abc")]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a pcap file at all, really",
        struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65536, 101),
        struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65536, 1) + struct.pack("<IIII", 0, 0, 50, 50) + b"short",
    ],
)
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(InvalidValue):
        pcap.read(path)
