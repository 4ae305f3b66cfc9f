"""Super-frames in and out: the frames on the wire stay the same, whatever the kernel combines."""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch import Fabric, Match, PortStats, Program
from softswitch.tests.dataplane.programs import json_path
from softswitch.tests.dataplane.scenarios import ethernet
from softswitch.tests.dataplane.superframe import (
    TCP4,
    TCP6,
    UDP,
    Sent,
    cut,
    open_socket,
    pseudo,
    read,
    total,
    with_ip_checksum,
    with_udp_checksum,
)
from softswitch.tests.support.switches import run
from softswitch.tests.support.waiting import wait_until as until

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.skipif(os.geteuid() != 0, reason="interfaces and raw sockets need root"),
]
NUMBERS = itertools.count()
TARGET, END = 5, 6  # MAC addresses: of the tested frames, and of the frame that marks the end
LAST = ethernet(END, 1, 0x1234) + bytes(46)


class Rig:
    """A switch that sends what comes in on port 1 unchanged out of port 2, and sockets at the far ends of both."""

    def __init__(self, offload: bool = True) -> None:
        tag = f"{os.getpid() % 10000}{next(NUMBERS)}"
        self.near, self.far = (f"iss{tag}a", f"iss{tag}c"), (f"iss{tag}b", f"iss{tag}d")
        self.fabric = Fabric(seed=1)
        self.sockets: list[socket.socket] = []
        try:
            for near, far in zip(self.near, self.far, strict=True):
                run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
                for name in (near, far):
                    run("sysctl", "-q", "-w", f"net.ipv6.conf.{name}.disable_ipv6=1")
                    run("ip", "link", "set", name, "up")
            self.device = self.fabric.add_device(1)
            self.device.load(through())
            for mac in (TARGET, END):
                key = [Match("exact", mac), Match("exact", 0)]
                self.device.insert("MyIngress.switching", key, "MyIngress.forward", [2])
            for port, near in enumerate(self.near, 1):
                self.device.add_port(port, near, offload=offload)
            self.sender, self.receiver = self.sockets = [open_socket(far) for far in self.far]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.fabric.close()
        for each in self.sockets:
            each.close()
        for near in self.near:
            subprocess.run(["ip", "link", "del", near], capture_output=True, check=False, timeout=30)

    def together(self, frames: list[bytes]) -> list[Sent]:
        """Return what leaves when these frames are there at once."""
        self.fabric.stop()
        for frame in [*frames, LAST]:
            self.device.inject(1, frame)
        self.fabric.start()
        return self.received()

    def received(self) -> list[Sent]:
        """Return all frames up to the last one."""
        found: list[Sent] = []
        while True:
            sent = read(self.receiver.recv(1 << 17))
            if sent.frame == LAST:
                return found
            found.append(sent)

    def passed(self, sent: list[Sent]) -> list[Sent]:
        """Return what leaves after these frames came in by the interface."""
        for each in sent:
            self.sender.send(each.bytes())
        self.sender.send(Sent(LAST).bytes())
        return self.received()


def through() -> Program:
    """Return the test router as a program that ignores checksums."""
    root = json.loads(json_path("router").read_text())
    root["checksums"] = []
    return Program.load(json.dumps(root))


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    rig = Rig()
    rig.fabric.start()
    yield rig
    rig.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


# ----------------------------------------------------------------------------------------------------------- frames


@dataclass(frozen=True)
class Datagram:
    """A UDP datagram; ``checksum``: zero, right or wrong."""

    flow: int = 0
    size: int = 100
    identification: int = 0
    checksum: str = "zero"
    ttl: int = 64
    tos: int = 0
    fragment: int = 0x4000
    trailer: int = 0
    broken: bool = False  # a wrong IPv4 checksum

    def frame(self) -> bytes:
        payload = bytes((self.identification + i) % 251 for i in range(self.size))
        lengths = (28 + self.size, self.identification % 65536, self.fragment)
        ip = with_ip_checksum(
            struct.pack(">BBHHHBBHII", 0x45, self.tos, *lengths, self.ttl, 17, 0, 0x0A000001, 0x0A000101 + self.flow)
        )
        udp = struct.pack(">HHHH", 4000, 5000, 8 + self.size, 0) + payload
        if self.checksum != "zero":
            udp = with_udp_checksum(ip, udp)
        if self.checksum == "wrong":
            udp = udp[:6] + struct.pack(">H", int.from_bytes(udp[6:8], "big") % 0xFFFF + 1) + udp[8:]
        if self.broken:
            ip = ip[:10] + struct.pack(">H", int.from_bytes(ip[10:12], "big") ^ 0x0101) + ip[12:]
        return ethernet(TARGET, 1, 0x0800) + ip + udp + bytes(self.trailer)


def run_of(n: int, first: Datagram = Datagram(), last: int | None = None) -> list[Datagram]:
    """Return ``n`` datagrams, one after the other."""
    made = [replace(first, identification=first.identification + i) for i in range(n)]
    return made if last is None else [*made[:-1], replace(made[-1], size=last)]


def superframe(n: int, size: int, last: int, *, checksum: bool = True, tos: int = 0, v6: bool = False) -> Sent:
    """Return UDP as a sender's kernel hands it over: ``n`` segments, the last of ``last`` bytes."""
    payload = bytes(i % 253 for i in range(size * (n - 1) + last))
    if v6:
        ip = struct.pack(">IHBB", 0x60000000, 8 + len(payload), 17, 64) + bytes(range(32))
    else:
        head = (0x45, tos, 28 + len(payload), 0xFFFE, 0x4000, 64, 17, 0, 0x0A000001, 0x0A000101)
        ip = with_ip_checksum(struct.pack(">BBHHHBBHII", *head))
    seed = pseudo(ip, 17, 8 + len(payload)) if checksum else 0
    udp = struct.pack(">HHHH", 4000, 5000, 8 + len(payload), seed)
    return Sent(ethernet(TARGET, 1, 0x86DD if v6 else 0x0800) + ip + udp + payload, UDP, size, 14 + len(ip))


def tcp(n: int, size: int, last: int, *, flags: int, options: bytes = b"", v6: bool = False) -> Sent:
    """Return a TCP super-frame."""
    payload = bytes(i % 249 for i in range(size * (n - 1) + last))
    length = 20 + len(options) + len(payload)
    if v6:
        ip = struct.pack(">IHBB", 0x60000000, length, 6, 64) + bytes(range(32))
    else:
        head = (0x45, 0, 20 + length, 9, 0x4000, 64, 6, 0, 0x0A000001, 0x0A000101)
        ip = with_ip_checksum(struct.pack(">BBHHHBBHII", *head))
    offset = (5 + len(options) // 4) << 4
    numbers = (4000, 5000, 0xFFFFFF00, 7, offset, flags, 512, pseudo(ip, 6, length), 0)
    header = struct.pack(">HHIIBBHHH", *numbers) + options
    kind = TCP6 if v6 else TCP4
    return Sent(ethernet(TARGET, 1, 0x86DD if v6 else 0x0800) + ip + header + payload, kind, size, 14 + len(ip))


def settled(frame: bytes) -> bytes:
    """Return the frame with the checksum that a UDP checksum of 0 may have become."""
    if len(frame) > 42 and frame[12:15] == b"\x08\x00\x45" and frame[23] == 17 and frame[40:42] == b"\0\0":
        return frame[:34] + with_udp_checksum(frame[14:34], frame[34:])
    return frame


def wire(sent: list[Sent]) -> list[bytes]:
    """Return the frames that a wire would carry; those of super-frames whose checksum was 0 cannot be told from
    others.
    """
    return [frame for each in sent for frame in cut(each)]


def same(found: list[Sent], expected: list[bytes]) -> None:
    """Assert equality frame for frame; in a super-frame, and only there, a checksum of 0 may have become the right
    one.
    """
    at = 0
    for each in found:
        frames = cut(each)
        wanted = expected[at : at + len(frames)]
        if each.kind:
            assert int.from_bytes(each.frame[20:22], "big") & 0x3FFF == 0, "a fragment"
        assert frames == (wanted if each.kind == 0 else [settled(frame) for frame in wanted])
        at += len(frames)
    assert at == len(expected)


# ------------------------------------------------------------------------------------------------------------ tests

SIZES = st.sampled_from([1, 2, 3, 47, 100, 101, 1048, 1400])


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 40),
    size=SIZES,
    last=st.floats(0, 1),
    checksum=st.booleans(),
    tos=st.integers(0, 255),
    v6=st.booleans(),
)
def test_udp_that_comes_in(shared: Rig, *, n: int, size: int, last: float, checksum: bool, tos: int, v6: bool) -> None:
    sent = superframe(n, size, max(1, round(size * last)), checksum=checksum or v6, tos=tos, v6=v6)
    before = shared.device.port_stats().get(1, PortStats(0, 0, 0, 0))
    found = shared.passed([sent])
    same(found, cut(sent))
    after = shared.device.port_stats()[1]
    assert after.rx_superframes - before.rx_superframes == 1
    assert after.rx_packets - before.rx_packets == n + 1


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 40),
    size=SIZES,
    last=st.floats(0, 1),
    flags=st.integers(0, 255),
    v6=st.booleans(),
    options=st.sampled_from([b"", bytes([1, 1, 8, 10]) + bytes(range(8))]),
)
def test_tcp_that_comes_in(
    shared: Rig, *, n: int, size: int, last: float, flags: int, v6: bool, options: bytes
) -> None:
    sent = tcp(n, size, max(1, round(size * last)), flags=flags, options=options, v6=v6)
    assert wire(shared.passed([sent])) == cut(sent)


DATAGRAMS = st.builds(
    Datagram,
    flow=st.integers(0, 1),
    size=st.sampled_from([1, 99, 100, 101, 1400]),
    identification=st.sampled_from([0, 7, 0xFFF0]),
    checksum=st.sampled_from(["zero", "right", "right", "wrong"]),
    ttl=st.sampled_from([64, 64, 64, 1]),
    tos=st.sampled_from([0, 0, 0, 3]),
    fragment=st.sampled_from([0x4000, 0x4000, 0x4000, 0, 0x2000, 1]),
    trailer=st.sampled_from([0, 0, 0, 4]),
    broken=st.sampled_from([False, False, False, True]),
)


@dataclass(frozen=True)
class Segment:
    """A TCP segment with data; ``checksum``: right or wrong. Of a run each has the next number and sequence number."""

    number: int = 0
    size: int = 100
    base: int = 100  # the size of those before it
    sequence: int = 0xFFFFFF00
    flags: int = 0x10
    acknowledged: int = 7
    window: int = 512
    options: int = 12
    checksum: str = "right"

    def frame(self) -> bytes:
        payload = bytes((self.number + i) % 241 for i in range(self.size))
        length = 20 + self.options + self.size
        head = (0x45, 0, 20 + length, (self.number + 0xFFFA) % 65536, 0x4000, 64, 6, 0, 0x0A000001, 0x0A000101)
        ip = with_ip_checksum(struct.pack(">BBHHHBBHII", *head))
        sequence = (self.sequence + self.number * self.base) % (1 << 32)
        offset = (5 + self.options // 4) << 4
        tcp = struct.pack(">HHIIBBHHH", 4000, 5000, sequence, self.acknowledged, offset, self.flags, self.window, 0, 0)
        tcp += bytes([1] * self.options) + payload
        found = ~total(struct.pack(">H", pseudo(ip, 6, length)) + tcp) & 0xFFFF
        found = found if self.checksum == "right" else found ^ 0x0101
        return ethernet(TARGET, 1, 0x0800) + ip + tcp[:16] + struct.pack(">H", found) + tcp[18:]


def stream(n: int, first: Segment = Segment()) -> list[Segment]:
    """Return ``n`` segments, one after the other."""
    return [replace(first, number=first.number + i, base=first.size) for i in range(n)]


SEGMENTS = st.builds(
    Segment,
    size=st.sampled_from([1, 99, 100, 101, 1400]),
    flags=st.sampled_from([0x10, 0x10, 0x18, 0x11, 0x50, 0x90, 0x12, 0x14, 0x30]),
    acknowledged=st.sampled_from([7, 7, 8]),
    window=st.sampled_from([512, 512, 513]),
    options=st.sampled_from([0, 12, 40]),
    checksum=st.sampled_from(["right", "right", "right", "wrong"]),
)
OTHERS = st.sampled_from([ethernet(TARGET, 1, 0x1234) + bytes(n) for n in (0, 1, 28, 46)])


@st.composite
def bursts(draw: st.DrawFn) -> list[bytes]:
    """Draw runs of datagrams, some with one that does not belong, and other frames between them."""
    frames: list[bytes] = []
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.integers(0, 5)) == 0:
            frames.append(draw(OTHERS))
            continue
        kinds: Any = (DATAGRAMS, run_of) if draw(st.booleans()) else (SEGMENTS, stream)
        made = kinds[1](draw(st.integers(1, 12)), draw(kinds[0]))
        if draw(st.booleans()):
            at = draw(st.integers(0, len(made) - 1))
            odd = draw(kinds[0])
            field = draw(st.sampled_from(list(vars(odd))))
            made[at] = replace(made[at], **{field: getattr(odd, field)})
        frames += [each.frame() for each in made]
    return frames


@settings(max_examples=150, deadline=None)
@given(frames=bursts())
def test_super_frames_carry_the_same_frames_as_single_ones(shared: Rig, frames: list[bytes]) -> None:
    same(shared.together(frames), frames)


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (stream(40, Segment(size=1448)), [40]),
        (stream(50, Segment(size=1448)), [45, 5]),  # 65,535 bytes with headers
        ([*stream(9), Segment(9, 30, flags=0x19)], [10]),  # the last one is shorter, and has PSH and FIN
        ([Segment(flags=0x90), *stream(9, Segment(1))], [10]),  # the first one has CWR
        ([*stream(5), Segment(5, flags=0x18), *stream(4, Segment(6))], [6, 4]),  # a PSH in the middle
        ([*stream(5), *stream(5, Segment(5, acknowledged=8))], [5, 5]),  # other acknowledgements
        ([*stream(5), *stream(5, Segment(6))], [5, 5]),  # one is missing
    ],
    ids=["whole", "long", "short", "reduced", "pushed", "acknowledges", "gap"],
)
def test_one_connection_leaves_as_one_frame(shared: Rig, frames: list[Segment], expected: list[int]) -> None:
    sent = [each.frame() for each in frames]
    found = shared.together(sent)
    assert wire(found) == sent
    assert [len(cut(each)) for each in found] == expected


@settings(max_examples=20, deadline=None)
@given(n=st.integers(2, 30), flags=st.sampled_from([0x10, 0x18, 0x11, 0x90, 0xD8]))
def test_tcp_that_comes_in_as_one_frame_leaves_as_one(shared: Rig, n: int, flags: int) -> None:
    sent = tcp(n, 1400, 17, flags=flags, options=bytes([1] * 12))
    (found,) = shared.passed([sent])
    assert cut(found) == cut(sent)


@pytest.mark.parametrize("checksum", ["zero", "right"])
@pytest.mark.parametrize(
    ("n", "size", "last", "expected"),
    [
        (60, 1048, None, [60]),
        (60, 1048, 17, [60]),
        (70, 1048, None, [62, 8]),  # 65,535 bytes with headers
        (200, 20, None, [128, 72]),  # Linux allows no more segments
    ],
)
def test_one_flow_leaves_as_one_frame(
    shared: Rig, *, checksum: str, n: int, size: int, last: int | None, expected: list[int]
) -> None:
    frames = [each.frame() for each in run_of(n, Datagram(size=size, checksum=checksum), last)]
    found = shared.together(frames)
    assert [len(cut(each)) for each in found] == expected
    same(found, frames)


def test_flows_that_alternate_keep_their_order(shared: Rig) -> None:
    one, other = run_of(20), run_of(20, Datagram(flow=1))
    frames = [each.frame() for pair in zip(one, other, strict=True) for each in pair]
    found = shared.together(frames)
    assert [each.frame for each in found] == frames


@pytest.mark.parametrize("short", [0, 1, 4, 8])
def test_a_shorter_one_is_the_last_of_its_frame(shared: Rig, short: int) -> None:
    datagrams = run_of(9)
    datagrams[short] = replace(datagrams[short], size=40)
    found = shared.together([each.frame() for each in datagrams])
    assert [len(cut(each)) for each in found] == ([1, 8] if short == 0 else [n for n in (short + 1, 8 - short) if n])
    same(found, [each.frame() for each in datagrams])


def test_wrong_checksums_stay_wrong(shared: Rig) -> None:
    frames = [each.frame() for each in run_of(10, Datagram(checksum="wrong"))]
    assert [each.frame for each in shared.together(frames)] == frames


def test_without_offload_each_frame_leaves_as_it_is() -> None:
    rig = Rig(offload=False)
    try:
        frames = [each.frame() for each in run_of(20)]
        assert [each.frame for each in rig.together(frames)] == frames
    finally:
        rig.close()


@pytest.mark.parametrize("feature", ["tx", "tx-udp-segmentation"])
def test_an_interface_that_takes_no_superframes_gets_frames(rig: Rig, feature: str) -> None:
    done = subprocess.run(["ethtool", "-K", rig.near[1], feature, "off"], capture_output=True, check=False, timeout=30)
    if done.returncode:
        pytest.skip(f"this kernel's veth cannot switch {feature} off")
    frames = [each.frame() for each in run_of(20)]
    for _ in range(2):
        assert [each.frame for each in rig.together(frames)] == frames
    assert rig.device.port_stats()[2].tx_superframes == 0
    assert rig.device.port_stats()[2].drops == {}


def test_segments_above_the_mtu_are_refused_one_by_one(rig: Rig) -> None:
    run("ip", "link", "set", rig.near[1], "mtu", "1000")
    fits, too_long = run_of(5, Datagram(size=972)), run_of(5, Datagram(size=973))
    found = rig.together([each.frame() for each in (*too_long, *fits)])
    same(found, [each.frame() for each in fits])
    until(lambda: rig.device.port_stats()[2].drops == {"transmit_error": 5})
    assert rig.device.port_stats()[2].tx_packets == 6


def test_an_interface_that_is_down_costs_each_frame(rig: Rig) -> None:
    rig.fabric.start()
    run("ip", "link", "set", rig.near[1], "down")
    rig.fabric.stop()
    for each in run_of(10):
        rig.device.inject(1, each.frame())
    rig.fabric.start()
    until(lambda: rig.device.drop_stats()["transmit_error"] == 10)
    assert rig.device.port_stats()[2].tx_packets == 0


@pytest.mark.parametrize(
    "vnet",
    [
        struct.pack("=BBHHHH", 1, UDP, 42, 1, 34, 6),
        struct.pack("=BBHHHH", 1, UDP, 42, 60000, 34, 6),
    ],
)
def test_extreme_sizes(shared: Rig, vnet: bytes) -> None:
    sent = superframe(2, 40, 40)
    shared.sender.send(vnet + sent.frame)
    shared.sender.send(Sent(LAST).bytes())
    size = struct.unpack("=BBHHHH", vnet)[3]
    frames = cut(replace(sent, size=size))
    same(shared.received(), [settled(frame) for frame in frames])


def test_the_reference_agrees_with_the_kernel(rig: Rig) -> None:
    """The reference agrees with the kernel, which segments for a socket and an interface without offload."""
    run("ethtool", "-K", rig.far[1], "tx", "off")
    sent = superframe(5, 300, 11)
    apart = open_socket(rig.near[1])
    with apart:
        rig.receiver.send(sent.bytes())
        assert [read(apart.recv(1 << 17)).frame for _ in range(5)] == cut(sent)


def test_the_sum_of_the_reference() -> None:
    assert total(b"\x00\x01\xf2\x03\xf4\xf5\xf6\xf7") == 0xDDF2  # RFC 1071's example
