"""Classes of service: several queues per port, of which the line serves the highest first."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softswitch import Device, Fabric, InvalidValue, Program
from softswitch.tests.dataplane.programs import json_path
from softswitch.tests.support.waiting import wait_until as until

SIZE = 1000
FRAME_MS = SIZE * 8 / 1000
"""What a frame takes at 1 Mbit/s."""


def program(told: str = "deq_timedelta") -> Program:
    """Return the program that adds what egress is told to the frame's second number; the first one is its priority."""
    text = json_path("links/waits").read_text().replace("deq_timedelta", told)
    root = json.loads(text)
    priority = {"type": "field", "value": ["standard_metadata", "priority"]}
    number = {"type": "field", "value": ["told", "number"]}
    forward = next(action for action in root["actions"] if "egress_spec" in json.dumps(action["primitives"]))
    forward["primitives"].append({"op": "assign", "parameters": [priority, number]})
    return Program.load(json.dumps(root))


class Line:
    """A line of 1 Mbit/s from a device to another one, which keeps when what arrives."""

    def __init__(self, fabric: Fabric, queues: int, told: str = "deq_timedelta", **shape: float) -> None:
        self.fabric = fabric
        self.first: Device = fabric.add_device(1, priority_queues=queues)
        second = fabric.add_device(2, priority_queues=8)
        self.first.load(program(told))
        second.load(program(told))  # what has no link at port 2 leaves at once
        fabric.connect((1, 2), (2, 1))
        fabric.shape(1, 2, **{"rate_mbps": 1, "queue_packets": 1000, **shape})
        self.arrived: list[tuple[float, int, int, int]] = []
        second.capture = self._capture

    def _capture(self, port: int, data: bytes) -> None:
        told = [int.from_bytes(data[at : at + 4], "big") for at in (0, 4, 8)]
        self.arrived.append((time.monotonic(), told[0], told[2], told[1]))

    def send(self, classes: Sequence[int]) -> float:
        """Send frames of these classes; all have come in before the first one leaves. Returns when it may leave."""
        for number, one in enumerate(classes):
            data = one.to_bytes(4, "big") + bytes(4) + number.to_bytes(4, "big")
            self.first.inject(1, data + bytes(SIZE - len(data)))
        begin = time.monotonic()
        self.fabric.start()
        return begin

    def order(self) -> list[tuple[int, int]]:
        """Return class and number of what has arrived."""
        return [(one, number) for _, one, number, _ in self.arrived]


def expected(classes: Sequence[int]) -> list[tuple[int, int]]:
    """The line is free when the first one comes; of what waits then it takes the highest class, the oldest first."""
    frames = [(one, number) for number, one in enumerate(classes)]
    return frames[:1] + sorted(frames[1:], key=lambda frame: -frame[0])


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 7), min_size=1, max_size=40))
def test_the_line_serves_the_highest_class_first(classes: list[int]) -> None:
    with Fabric() as fabric:
        line = Line(fabric, 8)
        line.send(classes)
        until(lambda: line.first.port_stats()[2].queued_packets + len(line.arrived) >= len(classes) - 1)
        fabric.shape(1, 2)  # what waits need not wait for the line any more
        until(lambda: len(line.arrived) == len(classes))
        assert line.order() == expected(classes)
        assert line.first.port_stats()[2].queued_packets == line.first.port_stats()[2].queued_bytes == 0


def test_all_classes_together_are_as_fast_as_the_line(fabric: Fabric) -> None:
    line = Line(fabric, 3)
    classes = [0, 0, 2, 1, 2, 1]
    begin = line.send(classes)
    until(lambda: len(line.arrived) == len(classes))
    assert line.order() == expected(classes)
    assert line.arrived[-1][0] - begin >= (len(classes) - 1) * FRAME_MS / 1e3


def test_a_class_is_no_faster_than_its_own_rate(fabric: Fabric) -> None:
    line = Line(fabric, 2, rate_mbps=1000, class1_mbps=1)
    begin = line.send([1, 1, 1, *[0] * 5])
    until(lambda: len(line.arrived) == 8)
    assert [one for one, _ in line.order()] == [1, 0, 0, 0, 0, 0, 1, 1], "the others use what it leaves of the line"
    assert line.arrived[-1][0] - begin >= 2 * FRAME_MS / 1e3


def test_each_queue_has_the_ports_limit(fabric: Fabric) -> None:
    line = Line(fabric, 2, queue_packets=2)
    line.send([0] * 6 + [1] * 6)
    until(lambda: line.first.drop_stats()["queue_full"] == 3 + 4)  # one frame is on the line
    until(lambda: len(line.arrived) == 5)
    assert line.order() == [(0, 0), (1, 6), (1, 7), (0, 1), (0, 2)]


def test_egress_is_told_how_long_a_frame_of_its_class_will_wait(fabric: Fabric) -> None:
    line = Line(fabric, 2)
    line.send([0, 0, 0, 1, 0])
    until(lambda: len(line.arrived) == 5)
    waits = {number: wait for _, _, number, wait in line.arrived}
    frame = FRAME_MS * 1000
    assert waits[0] == 0
    assert 0 < waits[3] <= frame < waits[2] <= 2 * frame, "only the frame on the line is before one of the higher class"
    assert waits[2] < waits[4] <= 4 * frame, "a frame of the lower class waits for all"


def test_egress_is_told_its_queue(fabric: Fabric) -> None:
    line = Line(fabric, 8, told="qid")
    line.send([3, 0, 7])
    fabric.shape(1, 2)
    until(lambda: len(line.arrived) == 3)
    # Each of the two devices adds the queue.
    assert {(one, told) for _, one, _, told in line.arrived} == {(3, 6), (0, 0), (7, 14)}


def ipv4(dscp: int, number: int) -> bytes:
    """An IPv4 packet without meaning but its DSCP; the program reads 0, its priority, from the first four bytes."""
    head = bytes(8) + number.to_bytes(4, "big") + b"\x08\x00\x45" + bytes([dscp << 2])
    return head + bytes(SIZE - len(head))


def test_a_port_that_trusts_the_dscp_has_classes_without_a_program(fabric: Fabric) -> None:
    line = Line(fabric, 1, dscp_classes=1)
    for number, dscp in enumerate([0, 0, 32, 46, 39, 63, 7]):
        line.first.inject(1, ipv4(dscp, number))
    fabric.start()
    until(lambda: len(line.arrived) == 7)
    assert [number for _, number in line.order()] == [0, 5, 3, 2, 4, 1, 6], "the line was free when the first one came"


def test_a_class_by_the_dscp_is_held_to_its_rate_and_has_it(fabric: Fabric) -> None:
    line = Line(fabric, 1, rate_mbps=2, dscp_classes=1, class4_mbps=1)
    for number in range(40):
        line.first.inject(1, ipv4(32 if number % 2 else 0, number))
    fabric.start()
    until(lambda: len(line.arrived) == 40)
    order = [number % 2 for _, number in line.order()]
    assert all(8 <= sum(order[at : at + 20]) <= 12 for at in range(20)), "half of the line each, all the time"


def test_a_class_loses_nothing_of_its_rate_while_the_line_sends_others_frames(fabric: Fabric) -> None:
    """Each fifth frame of this line begins when one of the class may leave; the next ones find it in the middle of
    another frame. Counted from when it left, the class had a third of the line instead of its two fifths."""
    line = Line(fabric, 1, rate_mbps=2, dscp_classes=1, class4_mbps=0.8)
    for number in range(100):
        line.first.inject(1, ipv4(32 if number % 2 else 0, number))
    fabric.start()
    until(lambda: len(line.arrived) >= 50)
    assert sum(number % 2 for _, number in line.order()[:50]) in (20, 21)


def test_what_waits_for_a_dscps_queue_is_not_lost_with_it(fabric: Fabric) -> None:
    line = Line(fabric, 1, rate_mbps=0.01, dscp_classes=1)
    for number in range(5):
        line.first.inject(1, ipv4(32, number))
    fabric.start()
    until(lambda: line.first.port_stats()[2].queued_packets == 4)
    fabric.shape(1, 2, rate_mbps=1000, queue_packets=1000)
    until(lambda: len(line.arrived) == 5)
    assert [number for _, number in line.order()] == [0, 1, 2, 3, 4]


def test_what_waits_is_freed_with_the_port(fabric: Fabric) -> None:
    line = Line(fabric, 8, rate_mbps=0.01)
    line.send([1, 2, 3, 4])
    until(lambda: line.first.port_stats()[2].queued_packets == 3)
    line.first.remove_port(2)
    assert 2 not in line.first.port_stats() or line.first.port_stats()[2].queued_packets == 0


def test_there_are_as_many_queues_as_priorities(fabric: Fabric) -> None:
    with pytest.raises(InvalidValue, match="1 to 8"):
        fabric.add_device(1, priority_queues=9)
