"""Frames from pcap files and into them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from softswitch import Fabric, InvalidValue, Match, pcap
from tests.softswitch.dataplane.programs import program
from tests.softswitch.dataplane.scenarios import ethernet


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
