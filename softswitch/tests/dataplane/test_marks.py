"""Marks of congestion (ECN, RFC 3168): what finds too many packets waiting says so to its receiver."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from softswitch import Device, Fabric, InvalidValue, Match, Program
from softswitch.tests.dataplane.programs import json_path, program
from softswitch.tests.dataplane.scenarios import checksum, ethernet, ipv4
from softswitch.tests.dataplane.test_classes import program as classes_program
from softswitch.tests.support.waiting import wait_until as until

NOT_ECT, ECT_1, ECT_0, CE = range(4)
THRESHOLD = 3
SERVICE, CHECKSUM = 15, slice(24, 26)
"""Where the type of service, whose lowest bits are the mark, and the checksum of an IPv4 header are in a frame."""


def datagram(service: int, number: int = 0, options: bytes = b"") -> bytes:
    """Return a frame with an IPv4 packet of this type of service, and of an address that is told apart by a number."""
    packet = bytearray(ipv4(0x0A000001, number, payload=bytes(64), options=options))
    packet[1] = service
    packet[10:12] = bytes(2)
    packet[10:12] = checksum(bytes(packet[: (packet[0] & 15) * 4])).to_bytes(2, "big")
    return ethernet(0, 0, 0x0800) + bytes(packet)


def line(fabric: Fabric, *, queues: int = 1, **shape: float) -> tuple[Device, list[bytes]]:
    """Return a device from whose port 1 all goes to port 2, a slow line, and the list of what has come out of it."""
    first, second = fabric.add_device(1, priority_queues=queues), fabric.add_device(2, priority_queues=queues)
    for device in (first, second):
        device.load(program("links/waits") if queues == 1 else classes_program("qid"))
    fabric.connect((1, 2), (2, 1))
    fabric.shape(1, 2, **{"rate_mbps": 0.1, "queue_packets": 100, "ecn_packets": THRESHOLD, **shape})
    arrived: list[bytes] = []
    second.capture = lambda _, data: arrived.append(data)
    return first, arrived


def sent(frames: list[bytes], **shape: float) -> tuple[list[bytes], int]:
    """Send frames, which have all come before the second one leaves; return what arrives, and how many were marked. The
    numbers that the program writes, in the Ethernet addresses, are as they were."""
    with Fabric() as fabric:
        device, arrived = line(fabric, **shape)
        for frame in frames:
            device.inject(1, frame)
        fabric.start()
        until(lambda: device.port_stats()[2].queued_packets + len(arrived) >= len(frames) - 1)
        fabric.shape(1, 2)  # what waits need not wait for the line any more
        until(lambda: len(arrived) == len(frames))
        return [old[:12] + new[12:] for old, new in zip(frames, arrived, strict=True)], device.port_stats()[2].marked


def expected(frame: bytes) -> bytes:
    """The frame, marked, and with a checksum that is computed anew from all of the header."""
    header = bytearray(frame[14 : 14 + (frame[14] & 15) * 4])
    header[1] |= CE
    header[10:12] = bytes(2)
    header[10:12] = checksum(bytes(header)).to_bytes(2, "big")
    return frame[:14] + bytes(header) + frame[14 + len(header) :]


SERVICES = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1)), min_size=1, max_size=20)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(SERVICES, st.sampled_from([b"", bytes(4), b"\x94\x04\0\0"]))
def test_what_may_be_marked_and_finds_too_many_waiting_is_marked(
    packets: list[tuple[int, int]], options: bytes
) -> None:
    """The first frame is on the line, and does not wait."""
    frames = [datagram(service, number, options) for service, number in packets]
    may = [at > THRESHOLD and service & 3 in (ECT_0, ECT_1) for at, (service, _) in enumerate(packets)]
    arrived, marked = sent(frames)
    assert arrived == [expected(frame) if one else frame for frame, one in zip(frames, may, strict=True)]
    assert marked == sum(may)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from([ECT_0, ECT_1]), st.integers(0, 3))
@example(ECT_0, 0)
def test_a_checksum_is_as_if_computed_anew_where_its_sum_carries(ect: int, wanted: int) -> None:
    """Of headers with each checksum from 0 to 3, of which what the mark adds takes the most."""
    plain = datagram(ect)
    given_sum = int.from_bytes(plain[CHECKSUM], "big")
    # An address whose lower word makes the checksum what is wanted: it is lower by as much as the word is.
    frame = datagram(ect, (given_sum - wanted) % 0xFFFF)
    assert int.from_bytes(frame[CHECKSUM], "big") % 0xFFFF == wanted
    arrived, marked = sent([frame] * (THRESHOLD + 2))
    assert arrived[-1] == expected(frame) and marked == 1


def test_what_is_not_ipv4_is_left_alone() -> None:
    """Nor is it touched when it is too short to be what it says."""
    ect = datagram(ECT_0)
    vlan = ethernet(0, 0, 0x0800, vlan=2) + ect[14:]
    frames = [*[ect] * (THRESHOLD + 1), ethernet(0, 0, 0x0806) + ect[14:], vlan, ect[:33],
              ect[:14] + b"\x65" + ect[15:]]  # fmt: skip
    assert sent(frames) == (frames, 0)


def test_without_a_threshold_nothing_is_marked() -> None:
    frames = [datagram(ECT_0)] * 20
    assert sent(frames, ecn_packets=0) == (frames, 0)


def test_each_queue_is_measured_by_itself(fabric: Fabric) -> None:
    """Of two classes, whose frames' own first number is their class, only the one with a long queue is marked."""
    device, arrived = line(fabric, queues=2)
    for number in (0, 0, 0, 0, 0, 0, 1, 1, 1):
        device.inject(1, number.to_bytes(4, "big") + datagram(ECT_0)[4:])
    fabric.start()
    until(lambda: device.port_stats()[2].queued_packets + len(arrived) >= 8)
    fabric.shape(1, 2)
    until(lambda: len(arrived) == 9)
    found = [(int.from_bytes(frame[:4], "big"), frame[SERVICE]) for frame in arrived]
    # One frame of the first class is on the line; five wait, and the last two of these have found three or more.
    assert [service for one, service in found if one == 0] == [ECT_0] * 4 + [CE] * 2
    assert [service for one, service in found if one == 1] == [ECT_0] * 3
    assert device.port_stats()[2].marked == 2


def alike() -> Program:
    """Return the router without egress: then copies of a multicast are alike, and share their bytes."""
    root = json.loads(json_path("router").read_text())
    next(one for one in root["pipelines"] if one["name"] == "egress")["init_table"] = None
    return Program.load(json.dumps(root))


@pytest.mark.parametrize("router", [alike(), program("router")], ids=["alike", "of their own"])
def test_copies_on_other_links_are_not_marked(fabric: Fabric, router: Program) -> None:
    """Only the copy on the link with a long queue is, and what fills that queue is not marked either."""
    devices = [fabric.add_device(number) for number in (1, 2)]
    arrived: dict[int, list[bytes]] = {3: [], 4: [], 6: []}
    for device in devices:
        device.load(router)
        device.capture = lambda port, data: arrived[port].append(data)
    key = [Match("exact", 5), Match("exact", 0)]
    devices[0].multicast_set(3, [(4, 0), (2, 0), (6, 0)])
    devices[0].insert("MyIngress.switching", key, "MyIngress.flood", [3])
    devices[1].insert("MyIngress.switching", key, "MyIngress.forward", [3])
    fabric.connect((1, 2), (2, 1), rate_mbps=0.1, queue_packets=100, ecn_packets=1)
    frame = ethernet(5, 0, 0x0800) + datagram(ECT_0)[14:]
    for _ in range(3):
        devices[0].inject(9, frame)
    fabric.start()
    until(lambda: all(len(one) == 3 for one in arrived.values()))
    assert arrived[4] == arrived[6] == [frame] * 3
    assert arrived[3] == [frame, frame, expected(frame)], "the second one has found none that wait"


def test_a_threshold_is_not_negative(fabric: Fabric) -> None:
    with pytest.raises(InvalidValue, match="ecn_packets"):
        line(fabric, ecn_packets=-1)
