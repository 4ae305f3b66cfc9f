"""Links between devices of one process: forwarding, rate, queue, delay, and injected faults."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from softswitch import AlreadyExists, Device, Fabric, InvalidValue, Match, NoSuchObject, NotFound
from softswitch.tests.dataplane.programs import program
from softswitch.tests.dataplane.scenarios import ethernet, ipv4
from softswitch.tests.support.waiting import wait_until as until

SIZE = 1000


def frame(number: int) -> bytes:
    return ethernet(5, 6, 0x1234) + number.to_bytes(4, "big") + bytes(SIZE - 18)


class Line:
    """A line of two devices: 1 --port 2 to port 1--> 2, whose port 3 is captured as (time, number)."""

    def __init__(self, fabric: Fabric, **shape: float) -> None:
        self.fabric = fabric
        self.devices = [fabric.add_device(n) for n in (1, 2)]
        for device, port in zip(self.devices, (2, 3), strict=True):
            device.load(program("router"))
            key = [Match("exact", 5), Match("exact", 0)]
            device.insert("MyIngress.switching", key, "MyIngress.forward", [port])
        fabric.connect((1, 2), (2, 1), **shape)
        self.arrived: list[tuple[float, int]] = []
        self.devices[1].capture = self._capture
        fabric.start()

    def _capture(self, port: int, data: bytes) -> None:
        assert port == 3 and data[18:] == bytes(SIZE - 18)
        self.arrived.append((time.monotonic(), int.from_bytes(data[14:18], "big")))

    def send(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.devices[0].inject(9, frame(number))

    def accounted(self, count: int) -> Callable[[], bool]:
        """Return a check that all ``count`` frames have arrived or been dropped."""

        def check() -> bool:
            drops = sum(self.devices[0].drop_stats().values())
            return len(self.arrived) + drops >= count

        return check

    @property
    def numbers(self) -> list[int]:
        return [number for _, number in self.arrived]


@pytest.mark.parametrize("threads", [1, 2])
def test_an_unshaped_link_keeps_everything_in_order(threads: int) -> None:
    with Fabric(threads=threads) as fabric:
        line = Line(fabric)
        for start in range(0, 5000, 500):
            line.send(start, 500)
            until(lambda n=start + 500: len(line.arrived) >= n)  # type: ignore[misc]
        assert line.numbers == list(range(5000))
        stats = line.devices[0].port_stats()
        assert stats[2].tx_packets == 5000 and stats[2].tx_bytes == 5000 * SIZE
        assert line.devices[1].port_stats()[1].rx_packets == 5000


def test_a_line_is_never_faster_than_its_rate(fabric: Fabric) -> None:
    """200 frames of 8000 bits at 40 Mbit/s take 40 ms from the first to the last, however they are offered."""
    line = Line(fabric, rate_mbps=40, queue_packets=1000)
    begin = time.monotonic()
    line.send(0, 200)
    until(lambda: len(line.arrived) == 200)
    assert line.numbers == list(range(200))
    assert line.arrived[-1][0] - begin >= 199 * SIZE * 8 / 40e6
    assert line.devices[0].drop_stats()["queue_full"] == 0


def test_a_burst_passes_at_once_and_no_more(fabric: Fabric) -> None:
    line = Line(fabric, rate_mbps=1, burst_bytes=10 * SIZE, queue_packets=1000)
    begin = time.monotonic()
    line.send(0, 13)
    until(lambda: len(line.arrived) == 13)
    assert line.arrived[-1][0] - begin >= 2 * SIZE * 8 / 1e6  # eleven frames without waiting, then one per 8 ms


@pytest.mark.parametrize("queue", [{"queue_packets": 20}, {"queue_bytes": 20 * SIZE}])
def test_a_full_queue_drops_the_newest(fabric: Fabric, queue: dict[str, float]) -> None:
    line = Line(fabric, rate_mbps=1, **queue)
    line.fabric.stop()  # All frames are there when the thread continues, so the number that fits is certain.
    line.send(0, 200)
    line.fabric.start()
    until(lambda: line.devices[0].drop_stats()["queue_full"] == 179)
    fabric.shape(1, 2)
    until(lambda: len(line.arrived) == 21)
    assert line.numbers == list(range(21))  # one frame on the line and twenty that wait
    assert line.devices[0].port_stats()[2].drops == {"queue_full": 179}


def test_egress_is_told_how_long_a_frame_will_wait_for_the_line(fabric: Fabric) -> None:
    """At 0.1 Mbit/s a frame of 1,000 bytes takes the line 80 ms, for which each frame waits after all before it."""
    first, second = (fabric.add_device(number) for number in (1, 2))
    for device in (first, second):
        device.load(program("links/waits"))  # what has no link at port 2 leaves at once
    fabric.connect((1, 2), (2, 1), rate_mbps=0.1, queue_packets=100)
    told: list[tuple[float, int]] = []
    second.capture = lambda _, data: told.append((time.monotonic(), int.from_bytes(data[4:8], "big")))
    for number in range(6):
        first.inject(1, number.to_bytes(4, "big") + bytes(SIZE - 4))
    begin = time.monotonic()
    fabric.start()
    until(lambda: len(told) == 6)
    waits = [wait for _, wait in told]
    assert waits[0] == 0 < waits[1]
    assert all(wait <= 80_000 * place for place, wait in enumerate(waits)) and waits == sorted(waits)
    assert all(arrived - begin >= wait / 1e6 for arrived, wait in told)


def test_what_waits_for_the_line_is_told(fabric: Fabric) -> None:
    """A frame takes 4 seconds at this rate: the first one is on the line, and the others wait for it."""
    line = Line(fabric, rate_mbps=0.002, queue_packets=100)
    line.send(0, 3)
    until(lambda: line.devices[0].port_stats()[2].queued_packets == 2)
    assert line.devices[0].port_stats()[2].queued_bytes == 2 * SIZE
    until(lambda: len(line.arrived) == 3)
    stats = line.devices[0].port_stats()[2]
    assert (stats.queued_packets, stats.queued_bytes) == (0, 0)


def test_small_frames_overtake_queued_frames(fabric: Fabric) -> None:
    line = Line(fabric, rate_mbps=1, queue_packets=10, ahead_bytes=64)
    sizes: list[int] = []
    line.devices[1].capture = lambda port, data: sizes.append(len(data))
    begin = time.monotonic()
    line.fabric.stop()  # all frames are there when the thread continues
    line.send(0, 5)
    for size in (64, 65):
        line.devices[0].inject(9, ethernet(5, 6, 0x1234) + bytes(size - 14))
    line.fabric.start()
    until(lambda: len(sizes) == 7)
    # One may be on the line already. Larger frames keep their place, and the line is busy for longer.
    assert sizes.index(64) <= 1 and [size for size in sizes if size != 64] == [SIZE] * 5 + [65]
    assert time.monotonic() - begin >= (5 * SIZE + 64) * 8 / 1e6


def segment(data: int) -> bytes:
    """Return TCP with time stamps over IPv4, with `data` bytes of data."""
    tcp = bytes([0] * 12 + [8 << 4] + [0] * 19) + bytes(data)
    return ethernet(5, 6, 0x0800) + ipv4(1, 2, protocol=6, payload=tcp)


def test_acknowledgements_overtake_queued_frames_and_tcp_data_never_does(fabric: Fabric) -> None:
    line = Line(fabric, rate_mbps=1, queue_packets=10, ahead_bytes=90)
    sizes: list[int] = []
    line.devices[1].capture = lambda port, data: sizes.append(len(data))
    line.fabric.stop()
    line.send(0, 5)
    for data in (24, 0):
        line.devices[0].inject(9, segment(data))
    line.fabric.start()
    until(lambda: len(sizes) == 7)
    assert sizes.index(66) <= 1 and [size for size in sizes if size != 66] == [SIZE] * 5 + [90]


def test_delay(fabric: Fabric) -> None:
    line = Line(fabric, delay_ms=30, jitter_ms=5)
    begin = time.monotonic()
    line.send(0, 50)
    until(lambda: len(line.arrived) == 50)
    assert line.arrived[0][0] - begin >= 0.025
    assert line.numbers == list(range(50))  # jitter keeps the order


def test_loss_and_duplication_have_their_probability(fabric: Fabric) -> None:
    line = Line(fabric, loss=0.1, duplicate=0.05)
    count = 4000

    def lost() -> int:
        return line.devices[0].drop_stats()["injected_loss"]

    for end in range(500, count + 1, 500):
        line.send(end - 500, 500)
        until(lambda n=end: len(set(line.numbers)) + lost() == n)  # type: ignore[misc]
    until(lambda: line.devices[0].port_stats()[2].tx_packets == len(line.arrived))
    twice = len(line.arrived) - len(set(line.numbers))
    assert 300 < lost() < 500  # 400 +- 5 standard deviations
    assert 110 < twice < 250  # 180 +- 5 standard deviations
    assert line.numbers == sorted(line.numbers)


def datagram(number: int, checksum: int = 0x1234) -> bytes:
    """Return UDP over IPv4, of SIZE bytes; the router of these tests forwards it by its MAC address like anything
    else.
    """
    payload = number.to_bytes(4, "big") + bytes(SIZE - 46)
    header = (1).to_bytes(2, "big") * 2 + (len(payload) + 8).to_bytes(2, "big") + checksum.to_bytes(2, "big")
    return ethernet(5, 6, 0x0800) + ipv4(1, 2, protocol=17, payload=header + payload)


def flips_of(line: Line, frames: list[bytes]) -> list[list[int]]:
    """Send the frames; returns, per frame in order, the changed bits, counted from the frame's first."""
    arrived: list[bytes] = []
    line.devices[1].capture = lambda port, data: arrived.append(data)
    for each in frames:
        line.devices[0].inject(9, each)
    until(lambda: len(arrived) == len(frames))
    changed = []
    for sent, got in zip(frames, arrived, strict=True):
        assert len(sent) == len(got)
        difference = int.from_bytes(sent, "big") ^ int.from_bytes(got, "big")
        bits = len(sent) * 8
        changed.append([bits - 1 - i for i in range(bits) if difference >> i & 1])
    return changed


def test_a_bit_of_each_fourth_frame_flips_and_is_counted(fabric: Fabric) -> None:
    line = Line(fabric, corrupt_every=4)
    changed = flips_of(line, [frame(number) for number in range(400)])
    assert [len(bits) for bits in changed] == [0, 0, 0, 1] * 100
    places = {bits[0] for bits in changed if bits}
    assert len(places) > 80 and max(places) > SIZE * 6, "the flips are anywhere in the frame"
    assert line.devices[0].port_stats()[2].corrupted == 100
    assert line.devices[1].port_stats()[1].corrupted == 0


def test_flips_have_their_probability_and_repeat_with_the_seed() -> None:
    outcomes = []
    for _ in range(2):
        with Fabric(seed=5) as fabric:
            line = Line(fabric, corrupt=0.2)
            outcomes.append(flips_of(line, [frame(number) for number in range(1000)]))
            assert line.devices[0].port_stats()[2].corrupted == sum(map(len, outcomes[-1]))
    assert outcomes[0] == outcomes[1]
    assert 137 < sum(map(len, outcomes[0])) < 263  # 200 +- 5 standard deviations


def test_flips_can_be_in_the_values_of_udp_alone_and_be_switched_on_and_off(fabric: Fabric) -> None:
    line = Line(fabric)
    frames = [datagram(1), frame(2), datagram(3, checksum=0)] * 20
    assert not any(flips_of(line, frames)), "nothing flips unasked"
    fabric.shape(1, 2, corrupt=1.0, corrupt_udp=1, corrupt_from=66, corrupt_until=70)
    for number, bits in enumerate(flips_of(line, frames)):
        assert len(bits) == (number % 3 != 1)
        assert all(66 * 8 <= bit < 70 * 8 for bit in bits)
    fabric.shape(1, 2, corrupt=1.0, corrupt_udp=1, corrupt_from=66, corrupt_hidden=1)
    for bits, sent in zip(flips_of(line, frames), frames, strict=True):
        in_sum = [bit for bit in bits if bit < 66 * 8]
        assert bool(in_sum) == (sent[40:42] == b"\x12\x34"), "a checksum that was there is gone"
        assert all(40 * 8 <= bit < 42 * 8 for bit in in_sum)
        assert len(bits) - len(in_sum) == (sent[12:14] == b"\x08\x00")
    fabric.shape(1, 2)
    assert not any(flips_of(line, frames))
    fabric.shape(1, 2, corrupt=1.0, corrupt_from=SIZE)
    assert not any(flips_of(line, frames)), "they end before the first byte that may be hit"


def test_a_flipped_bit_affects_only_one_copy(fabric: Fabric) -> None:
    """Copies of a multicast share their bytes: only the one on the broken link changes."""
    devices = [fabric.add_device(n) for n in (1, 2)]
    arrived: dict[int, bytes] = {}
    for device in devices:
        device.load(program("router"))
    devices[0].multicast_set(3, [(2, 0), (4, 0)])
    devices[0].insert("MyIngress.switching", [Match("exact", 5), Match("exact", 0)], "MyIngress.flood", [3])
    fabric.connect((1, 2), (2, 1), corrupt=1.0)
    devices[1].insert("MyIngress.switching", [Match("exact", 5), Match("exact", 0)], "MyIngress.forward", [3])
    fabric.shape(1, 2, corrupt=1.0, corrupt_from=100)
    for device in devices:
        device.capture = lambda port, data: arrived.update({port: data})
    fabric.start()
    devices[0].inject(9, frame(7))
    until(lambda: set(arrived) == {3, 4})
    assert arrived[4] == frame(7)
    assert arrived[3] != frame(7) and arrived[3][:100] == frame(7)[:100]


def test_reordered_frames_arrive_late_but_all(fabric: Fabric) -> None:
    line = Line(fabric, reorder=0.2, reorder_ms=5)
    for number in range(300):
        line.send(number, 1)
    until(lambda: len(line.arrived) == 300)
    assert sorted(line.numbers) == list(range(300))
    assert line.numbers != list(range(300))


def test_faults_repeat_with_the_seed() -> None:
    outcomes = []
    for _ in range(2):
        with Fabric(seed=99) as fabric:
            line = Line(fabric, loss=0.3)
            line.send(0, 400)
            until(line.accounted(400))
            until(lambda: len(line.arrived) + line.devices[0].drop_stats()["injected_loss"] == 400)  # noqa: B023
            outcomes.append(line.numbers)
    assert outcomes[0] == outcomes[1]


def test_shaping_can_be_taken_off_again(fabric: Fabric) -> None:
    line = Line(fabric, loss=1.0)
    line.send(0, 10)
    until(lambda: line.devices[0].drop_stats()["injected_loss"] == 10)
    fabric.shape(1, 2)
    line.send(10, 10)
    until(lambda: len(line.arrived) == 10)
    assert line.numbers == list(range(10, 20))


def test_a_loop_of_links_does_not_stop_the_switch(fabric: Fabric) -> None:
    """Two devices send a frame back and forth for ever; control calls and other frames still get through."""
    for number in (1, 2):
        device = fabric.add_device(number)
        device.load(program("router"))
        key = [Match("exact", 5), Match("exact", 0)]
        device.insert("MyIngress.switching", key, "MyIngress.forward", [2])
    fabric.connect((1, 2), (2, 2))
    fabric.start()
    fabric.devices[1].inject(9, frame(1))
    until(lambda: fabric.devices[1].port_stats()[2].tx_packets > 1000)
    sent: list[int] = []
    fabric.devices[1].capture = lambda port, _: sent.append(port)
    fabric.devices[1].insert("MyIngress.switching", [Match("exact", 8), Match("exact", 0)], "MyIngress.forward", [7])
    fabric.devices[1].inject(9, ethernet(8, 1, 0x1234) + bytes(20))
    until(lambda: sent == [7])
    fabric.devices[2].unload()
    until(lambda: fabric.devices[2].drop_stats()["no_program"] == 1)


def test_links_and_ports_that_cannot_be(fabric: Fabric) -> None:
    for number in (1, 2):
        fabric.add_device(number)
    fabric.connect((1, 1), (2, 1))
    with pytest.raises(AlreadyExists):
        fabric.connect((1, 1), (2, 2))
    with pytest.raises(NoSuchObject):
        fabric.connect((1, 3), (9, 1))
    with pytest.raises(InvalidValue):
        fabric.connect((1, 511), (2, 3))
    with pytest.raises(InvalidValue, match="probability"):
        fabric.shape(1, 1, loss=1.5)
    with pytest.raises(InvalidValue, match="unknown link property"):
        fabric.shape(1, 1, speed=3)
    with pytest.raises(InvalidValue, match="no interface"):
        fabric.devices[1].add_port(4, "inart-t-none")
    device: Device = fabric.devices[1]
    device.remove_port(1)
    with pytest.raises(NotFound):
        device.remove_port(1)
    fabric.connect((1, 1), (2, 1))
