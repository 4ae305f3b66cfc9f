"""One device on several threads: a packet is atomic for all others, and each port's frames keep their order."""

from __future__ import annotations

import itertools
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator

import pytest

from softswitch import Device, Fabric
from softswitch.tests.dataplane.programs import program
from softswitch.tests.dataplane.scenarios import ethernet
from softswitch.tests.dataplane.superframe import Sent, open_socket, read
from softswitch.tests.support.switches import run
from softswitch.tests.support.waiting import wait_until as until

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.skipif(os.geteuid() != 0, reason="interfaces and raw sockets need root"),
]
NUMBERS = itertools.count()
VALUES = 32
ADD = ethernet(1, 2, 0x1234) + struct.pack(">I", 1 << 24 | 7) + struct.pack(f">{VALUES}I", *[1] * VALUES)
PORTS = (1, 2, 3)


@pytest.fixture
def pairs() -> Iterator[dict[int, tuple[str, str]]]:
    """Make a veth pair for each port: the switch's end, the host's end."""
    tag = f"{os.getpid() % 10000}{next(NUMBERS)}"
    made = {port: (f"ist{tag}{port}s", f"ist{tag}{port}h") for port in PORTS}
    try:
        for near, far in made.values():
            run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
            for name in (near, far):
                run("sysctl", "-q", "-w", f"net.ipv6.conf.{name}.disable_ipv6=1")
                run("ip", "link", "set", name, "up")
        yield made
    finally:
        for near, _ in made.values():
            subprocess.run(["ip", "link", "del", near], capture_output=True, check=False, timeout=30)


def adder(fabric: Fabric, pairs: dict[int, tuple[str, str]]) -> Device:
    """Return a switch that adds to registers and sends the sums back where the frame came from."""
    device = fabric.add_device(1)
    device.load(program("sums"))
    for port, (near, _) in pairs.items():
        device.add_port(port, near)
    return device


def sums(raw: socket.socket, n: int) -> list[int]:
    """Return the sum in each of ``n`` answers; those of all registers must be the same."""
    found = []
    for _ in range(n):
        values = set(struct.unpack(f">{VALUES}I", read(raw.recv(1 << 17)).frame[18 : 18 + 4 * VALUES]))
        assert len(values) == 1, "another packet came between the registers of one"
        found += values
    return found


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_every_packet_is_one_step(pairs: dict[int, tuple[str, str]], threads: int) -> None:
    n = 3000
    with Fabric(threads=threads) as fabric:
        adder(fabric, pairs)
        sockets = {port: open_socket(far) for port, (_, far) in pairs.items()}
        frame = Sent(ADD).bytes()

        def send(raw: socket.socket) -> None:
            for _ in range(n):
                raw.send(frame)

        senders = [threading.Thread(target=send, args=(raw,)) for raw in sockets.values()]
        fabric.start()
        for sender in senders:
            sender.start()
        answers = [sums(raw, n) for raw in sockets.values()]
        for sender in senders:
            sender.join()
        for raw in sockets.values():
            raw.close()
    for each in answers:
        assert each == sorted(each), "answers of one port in another order than its frames"
    assert sorted(value for each in answers for value in each) == list(range(1, 3 * n + 1))


def test_a_shaped_port_of_another_thread_sends_in_time(pairs: dict[int, tuple[str, str]]) -> None:
    """A thread that sends to a shaped port wakes the thread that has the device's timers."""
    with Fabric(threads=4) as fabric:
        device = adder(fabric, pairs)
        fabric.start()
        for port, (_, far) in pairs.items():
            fabric.shape(1, port, delay_ms=2)
            with open_socket(far) as raw:
                for expected in (1, 2):
                    raw.send(Sent(ADD).bytes())
                    assert sums(raw, 1) == [2 * (port - 1) + expected]
        assert device.port_stats()[3].tx_packets == 2


def test_ports_come_and_go_under_traffic(pairs: dict[int, tuple[str, str]]) -> None:
    with Fabric(threads=4) as fabric:
        device = adder(fabric, pairs)
        fabric.start()
        going = True
        sockets = {port: open_socket(far) for port, (_, far) in pairs.items()}
        frame = Sent(ADD).bytes()

        def send(raw: socket.socket) -> None:
            while going:
                raw.send(frame)

        senders = [threading.Thread(target=send, args=(raw,)) for raw in sockets.values()]
        for sender in senders:
            sender.start()
        try:
            for _ in range(2):
                for port, (near, _) in pairs.items():
                    device.remove_port(port)
                    before = device.port_stats()[port].rx_packets
                    device.add_port(port, near)
                    until(lambda port=port, before=before: device.port_stats()[port].rx_packets > before)
        finally:
            going = False
            for sender in senders:
                sender.join()
            for raw in sockets.values():
                raw.close()
        fabric.stop()  # between two packets
        received = sum(stats.rx_packets for stats in device.port_stats().values())
        assert device.register_read_all("MyIngress.sum00")[7] == received
