"""Reads and writes classic pcap files, records them from a port, and replays them in place of interfaces."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from softswitch.dataplane.device import Device
from softswitch.errors import InvalidValue

ETHERNET = 1  # link type
HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65536, ETHERNET)  # times in microseconds
_MAGIC = {b"\xd4\xc3\xb2\xa1": ("<", 1e-6), b"\xa1\xb2\xc3\xd4": (">", 1e-6),
          b"\x4d\x3c\xb2\xa1": ("<", 1e-9), b"\xa1\xb2\x3c\x4d": (">", 1e-9)}  # fmt: skip


def read(path: Path) -> list[tuple[float, bytes]]:
    """Return (time in seconds, frame) of each record. Raise ``InvalidValue`` if it is not a pcap file of Ethernet
    frames.
    """
    data = path.read_bytes()
    order, unit = _MAGIC.get(data[:4], ("", 0.0))
    if not order or len(data) < 24:
        raise InvalidValue(f"{path} is not a pcap file (pcapng is not read: convert it with editcap -F pcap)")
    (link,) = struct.unpack_from(order + "I", data, 20)
    if link != ETHERNET:
        raise InvalidValue(f"{path} holds frames of link type {link}, not Ethernet")
    records: list[tuple[float, bytes]] = []
    at = 24
    while at + 16 <= len(data):
        seconds, fraction, captured, original = struct.unpack_from(order + "IIII", data, at)
        at += 16
        if captured < original or at + captured > len(data):
            raise InvalidValue(f"{path}: record {len(records)} is cut short")
        records.append((seconds + fraction * unit, data[at : at + captured]))
        at += captured
    return records


def write(path: Path, frames: Iterable[tuple[float, bytes]]) -> None:
    """Write frames with their times, in microseconds."""
    with path.open("wb") as file:
        file.write(HEADER)
        for time, frame in frames:
            seconds, micros = divmod(round(time * 1e6), 1_000_000)
            file.write(struct.pack("<IIII", seconds, micros, len(frame), len(frame)) + frame)


def record(device: Device, port: int, incoming: Path, outgoing: Path) -> None:
    """Record the frames that come in by a port and those that leave by it in two files from now on, each frame at once.

    Frames are written as the program gets them (of a segmented TCP packet: the segments) and as they leave, after
    shaping. Existing files are overwritten. Recording costs a system call per frame; it ends with the port, or with a
    warning when the disk is full. Raise OSError where a file cannot be made, and ``NotFound`` for a port without
    interface or link.
    """
    files: list[int] = []
    try:
        for path in (incoming, outgoing):
            files.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
            os.write(files[-1], HEADER)
    except OSError:
        for file in files:
            os.close(file)
        raise
    device.record(port, *files)


def replay(device: Device, inputs: Mapping[int, Path], outputs: Path) -> dict[int, Path]:
    """Process the frames of ``inputs`` (a file per port) in the order of their times.

    Return the files written to ``outputs``: ``<port>_out.pcap`` for each port that sent frames. A frame that leaves has
    the time of the frame that caused it.
    """
    arrivals = [(time, port, frame) for port, path in inputs.items() for time, frame in read(path)]
    sent: dict[int, list[tuple[float, bytes]]] = {}
    for time, port, frame in sorted(arrivals, key=lambda a: a[:2]):
        for egress, out in device.process(port, frame):
            sent.setdefault(egress, []).append((time, out))
    files = {port: outputs / f"{port}_out.pcap" for port in sorted(sent)}
    for port, path in files.items():
        write(path, sent[port])
    return files
