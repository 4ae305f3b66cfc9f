"""``python -m tests.fuzz.wires``: compare softswitch on interfaces with softswitch frame by frame. Needs root.

On interfaces it has super-frames in and out and several threads. Programs, entries and frames are random, as in
:mod:`tests.fuzz.differential`. What leaves an interface, segmented as the kernel segments it, must be what the program
alone answers to each frame: the same frames in the same order, except for UDP checksums of 0, which a super-frame does
not keep.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import groupby
from types import TracebackType

from softswitch.tests.conformance.control import Controller
from softswitch.tests.conformance.targets import Frames, Softswitch
from softswitch.tests.dataplane.bmv2 import PACKET_AUXDATA, SOL_PACKET, TP_STATUS_VLAN_TPID_VALID, TP_STATUS_VLAN_VALID
from softswitch.tests.dataplane.superframe import (
    UDP,
    Sent,
    cut,
    open_socket,
    pseudo,
    read,
    with_ip_checksum,
    with_udp_checksum,
)
from softswitch.tests.support.switches import run
from softswitch.tests.support.waiting import wait_until
from tests.fuzz import undefined
from tests.fuzz.case import Case
from tests.fuzz.differential import Program, Unusable, configure, on_softswitch, our_programs
from tests.fuzz.packets import Frame

MTU = 9000
PATIENCE = 20.0
HEADERS = 42


class Wires:
    """Veth pairs for as many ports as any case needs."""

    def __init__(self) -> None:
        self._pairs: list[tuple[str, str]] = []
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Wires:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for raw in self._sockets:
            raw.close()
        for near, _ in self._pairs:
            subprocess.run(["ip", "link", "del", near], capture_output=True, check=False, timeout=30)

    def pair(self, number: int) -> tuple[str, socket.socket]:
        """Return the switch's end of a pair, and a socket at the other end."""
        while len(self._pairs) <= number:
            near, far = (f"ifz{os.getpid() % 100000}{len(self._pairs)}{end}" for end in "sh")
            run("ip", "link", "add", near, "mtu", str(MTU), "type", "veth", "peer", "name", far, "mtu", str(MTU))
            self._pairs.append((near, far))
            for name in (near, far):
                run("sysctl", "-q", "-w", f"net.ipv6.conf.{name}.disable_ipv6=1")
                run("ip", "link", "set", name, "up")
            self._sockets.append(open_socket(far))
            self._sockets[-1].setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        return self._pairs[number][0], self._sockets[number]


def received(raw: socket.socket) -> Sent:
    """Receive a frame from the kernel and put back the VLAN tag that the kernel removed."""
    data, ancillary, _, _ = raw.recvmsg(1 << 17, 256)
    for level, kind, extra in ancillary:
        if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
            status, _, _, _, _, tci, tpid = struct.unpack("=IIIHHHH", extra[:20])
            if status & TP_STATUS_VLAN_VALID:
                tag = struct.pack(">HH", tpid if status & TP_STATUS_VLAN_TPID_VALID else 0x8100, tci)
                return read(data[:22] + tag + data[22:])
    return read(data)


def is_datagram(frame: bytes) -> bool:
    """Return whether the frame is one whole UDP datagram over IPv4 without options, and nothing else."""
    return (
        len(frame) > HEADERS and frame[12:15] == b"\x08\x00\x45" and frame[23] == 17
        and int.from_bytes(frame[16:18], "big") == len(frame) - 14
        and int.from_bytes(frame[38:40], "big") == len(frame) - 34
        and int.from_bytes(frame[20:22], "big") & 0x3FFF == 0
    )  # fmt: skip


def as_datagram(frame: bytes, source: random.Random) -> bytes:
    """Return an IPv4 frame that is a whole UDP datagram to the same address."""
    if len(frame) < HEADERS + 1 or frame[12:14] != b"\x08\x00":
        return frame
    ip = struct.pack(">BBHHHBB", 0x45, frame[15], len(frame) - 14, 0, 0x4000, frame[22], 17) + bytes(2) + frame[26:34]
    udp = frame[34:38] + struct.pack(">HH", len(frame) - 34, 0) + frame[HEADERS:]
    ip = with_ip_checksum(ip)
    return frame[:14] + ip + (udp if source.random() < 0.5 else with_udp_checksum(ip, udp))


def with_runs(frames: Sequence[Frame], source: random.Random) -> list[Frame]:
    """Repeat some datagrams with identifications that count up, as a sender's kernel makes them."""
    made: list[Frame] = []
    for port, given in frames:
        frame = given if is_datagram(given) or source.random() < 0.3 else as_datagram(given, source)
        if not is_datagram(frame) or source.random() < 0.3:
            made.append((port, frame))
            continue
        first, payload = source.getrandbits(16), frame[HEADERS:]
        for number in range(source.choice((2, 3, 5, 40))):
            ip = with_ip_checksum(frame[14:18] + struct.pack(">H", (first + number) % 65536) + frame[20:34])
            udp = frame[34:42] + payload
            made.append((port, frame[:14] + ip + (udp if frame[40:42] == b"\0\0" else with_udp_checksum(ip, udp))))
            if source.random() < 0.1:
                payload = payload[:4] + bytes([source.getrandbits(8)]) + payload[5:]
    return made


def together(frames: Sequence[bytes]) -> list[Sent]:
    """Return the same frames, with consecutive datagrams joined to super-frames."""
    sent: list[Sent] = []
    at = 0
    while at < len(frames):
        n = 1
        while at + n < len(frames) and n < 60 and _follows(frames[at], frames[at + n], n):
            n += 1
        sent.append(Sent(frames[at]) if n == 1 else _joined(frames[at : at + n]))
        at += n
    return sent


def _follows(first: bytes, frame: bytes, number: int) -> bool:
    identification = (int.from_bytes(first[18:20], "big") + number) % 65536
    return (
        is_datagram(first) and is_datagram(frame) and len(frame) == len(first)
        and frame[:18] == first[:18] and frame[20:24] == first[20:24] and frame[26:40] == first[26:40]
        and int.from_bytes(frame[18:20], "big") == identification and _right(first) and _right(frame)
        and (first[40:42] == b"\0\0") == (frame[40:42] == b"\0\0")
    )  # fmt: skip


def _right(frame: bytes) -> bool:
    ip, udp = frame[14:34], frame[34:]
    return ip == with_ip_checksum(ip) and (udp[6:8] == b"\0\0" or udp == with_udp_checksum(ip, udp))


def _joined(frames: Sequence[bytes]) -> Sent:
    first, payload = frames[0], b"".join(frame[HEADERS:] for frame in frames)
    ip = with_ip_checksum(first[14:16] + struct.pack(">H", 28 + len(payload)) + first[18:34])
    seed = 0 if first[40:42] == b"\0\0" else pseudo(ip, 17, 8 + len(payload))
    udp = first[34:38] + struct.pack(">HH", 8 + len(payload), seed)
    return Sent(first[:14] + ip + udp + payload, UDP, len(first) - HEADERS, 34)


def carried(frame: bytes) -> bool:
    """Return whether a veth pair carries the frame; after a VLAN tag Linux requires two more bytes."""
    return (20 if frame[12:14] in (b"\x81\x00", b"\x88\xa8") else 14) <= len(frame) <= MTU + 14


def settled(frame: bytes) -> bytes:
    """Return the frame with the checksum that a checksum of 0 becomes in a super-frame."""
    return frame[:34] + with_udp_checksum(frame[14:34], frame[34:])


def on_wires(case: Case, expected: Frames, wires: Wires, threads: int) -> tuple[Frames, int]:
    """Return what leaves by port, with the checksums of ``expected`` where they may differ, and the number of
    super-frames.

    The frames of one port go in together, those of the next port when the switch has taken them.
    """
    switch = Softswitch(case.artifacts.config, (), threads=threads)
    try:
        controller = Controller(switch.address, case.artifacts.info, case.artifacts.config)
        try:
            configure(controller, case.statements)
        finally:
            controller.close()
        device, fabric = switch.device, switch.fabric
        found: Frames = {}
        ports = sorted({port for port, _ in case.frames} | set(expected))
        raw = {}
        for number, port in enumerate(ports):
            near, raw[port] = wires.pair(number)
            device.add_port(port, near)
        fabric.start()
        taken = dict.fromkeys(ports, 0)
        for port, group in groupby(case.frames, key=lambda frame: frame[0]):
            frames = [frame for _, frame in group]
            for sent in together(frames):
                raw[port].send(sent.bytes())
            taken[port] += len(frames)
            wait_until(lambda port=port: device.port_stats()[port].rx_packets >= taken[port], "all is taken", PATIENCE)
        supers = 0
        for port in ports:
            wanted = expected.get(port, [])
            got = found.setdefault(port, [])
            raw[port].settimeout(PATIENCE)
            while len(got) < len(wanted):
                sent = received(raw[port])
                for frame in cut(sent):
                    same = wanted[len(got)] if len(got) < len(wanted) else b""
                    got.append(same if sent.kind and same[40:42] == b"\0\0" and settled(same) == frame else frame)
                supers += sent.kind != 0
            fabric.stop()
            raw[port].settimeout(0)
            try:
                while True:
                    got += cut(received(raw[port]))
            except BlockingIOError:
                pass
            fabric.start()
        return {port: frames for port, frames in found.items() if frames}, supers
    finally:
        switch.close()


def difference(case: Case, source: random.Random, wires: Wires, threads: int) -> tuple[str, int, int]:
    """Return what differs in a line (empty when nothing does), how many frames left, and how many of them were
    super-frames.
    """
    frames = [(port, frame) for port, frame in case.frames if carried(frame)]
    case = case.with_frames(with_runs(frames, source))
    answers = on_softswitch(case, counting=False).frames
    expected = {
        port: kept
        for port, left in answers.items()
        if port < 511 and (kept := [frame for frame in left if carried(frame)])
    }
    try:
        found, supers = on_wires(case, expected, wires, threads)
    except (AssertionError, BlockingIOError) as error:
        return f"frames are missing: {error}", 0, 0
    for port in sorted({*expected, *found}):
        for number, (a, b) in enumerate(zip(expected.get(port, []), found.get(port, []), strict=False)):
            if a != b:
                return f"port {port}, frame {number}: {b.hex()} instead of {a.hex()}", 0, 0
        if len(expected.get(port, [])) != len(found.get(port, [])):
            return f"port {port}: {len(found.get(port, []))} frames instead of {len(expected.get(port, []))}", 0, 0
    return "", sum(map(len, found.values())), supers


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.wires", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the run (60)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of programs, with * and ?")
    parser.add_argument("--packets", type=int, default=60, help="frames per round, before some are multiplied (60)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is random (1)")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("interfaces and raw sockets need root", file=sys.stderr)
        return 2
    programs = [Program(path, options.seed) for path in our_programs(options.only)]
    end = time.monotonic() + options.seconds
    rounds = left = supers = 0
    differences: list[str] = []
    with undefined.counted(), Wires() as wires:
        number = 0
        while time.monotonic() < end and not differences:
            for program in programs:
                if time.monotonic() > end:
                    break
                try:
                    case = program.case(number, options.packets)
                except Unusable:
                    continue
                source = random.Random(f"{program.artifacts.path}/{options.seed}/{number}")
                what, frames, joined = difference(case, source, wires, 1 + 2 * (number % 2))
                rounds, left, supers = rounds + 1, left + frames, supers + joined
                if what:
                    differences.append(f"{program.artifacts.path}, round {number}: {what}")
            number += 1
    for line in differences:
        print(line)
    print(f"{len(programs)} programs, {rounds} rounds, {left} frames left, some of them in {supers} super-frames: "
          f"{len(differences)} differences")  # fmt: skip
    return 1 if differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
