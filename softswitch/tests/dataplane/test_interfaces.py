"""Ports on real interfaces: hosts in their namespaces talk through the switch, with the kernel's offloads on."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from softswitch import AlreadyExists, Device, Fabric, Match
from softswitch.tests.dataplane.bmv2 import receive
from softswitch.tests.dataplane.programs import program
from softswitch.tests.dataplane.scenarios import ethernet
from softswitch.tests.support.switches import SOL_PACKET, run, sockets_in
from softswitch.tests.support.waiting import wait_until as until

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces and raw sockets need root"),
]
NUMBERS = itertools.count()
GATEWAY = 0x0200000000FE
PACKET_AUXDATA = 8

SERVER = """
import hashlib, socket, sys
server = socket.create_server((sys.argv[1], 5001))
print("ready", flush=True)
connection, _ = server.accept()
digest, size = hashlib.sha256(), 0
while data := connection.recv(1 << 16):
    digest.update(data)
    size += len(data)
connection.sendall(f"{size} {digest.hexdigest()}".encode())
"""
CLIENT = """
import random, socket, sys
data = random.Random(1).randbytes(int(sys.argv[2]))
with socket.create_connection((sys.argv[1], 5001), timeout=60) as connection:
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
    print(connection.recv(200).decode())
"""


class Hosts:
    """Hosts 1 and 2 (10.0.N.1/24, behind a gateway), each in a namespace; ``switch_side(N)`` is the other end of the
    veth.
    """

    def __init__(self) -> None:
        self.tag = f"{os.getpid() % 10000}{next(NUMBERS)}"
        for n in (1, 2):
            name, inner = self.namespace(n), ("ip", "-n", self.namespace(n))
            run("ip", "netns", "add", name)
            run("ip", "link", "add", self.switch_side(n), "type", "veth", "peer", "name", "eth0", "netns", name)
            self.keep_ipv6_silent(n)
            run("ip", "netns", "exec", name, "sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1")
            run("ip", "link", "set", self.switch_side(n), "up")
            run(*inner, "link", "set", "eth0", "address", f"02:00:00:00:00:0{n}", "up")
            run(*inner, "addr", "add", f"10.0.{n}.1/24", "dev", "eth0")
            run(*inner, "neigh", "add", f"10.0.{n}.254", "lladdr", "02:00:00:00:00:fe", "dev", "eth0")
            run(*inner, "route", "add", "default", "via", f"10.0.{n}.254")

    def namespace(self, n: int) -> str:
        return f"inart-t-if-{self.tag}-{n}"

    def switch_side(self, n: int) -> str:
        return f"isw{self.tag}{n}"

    def keep_ipv6_silent(self, n: int) -> None:
        """Disable IPv6 on the switch's end: the kernel's own frames would arrive at the host between those of a
        test.
        """
        run("sysctl", "-q", "-w", f"net.ipv6.conf.{self.switch_side(n)}.disable_ipv6=1")

    def python(self, n: int, code: str, *arguments: str) -> subprocess.Popen[str]:
        command = ["ip", "netns", "exec", self.namespace(n), sys.executable, "-c", code, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def close(self) -> None:
        for n in (1, 2):
            for command in (["ip", "netns", "del", self.namespace(n)], ["ip", "link", "del", self.switch_side(n)]):
                subprocess.run(command, capture_output=True, check=False, timeout=30)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = Hosts()
    try:
        yield made
    finally:
        made.close()


def route(device: Device) -> None:
    """Route 10.0.N.0/24 to port N and host N's MAC address."""
    device.load(program("router"))
    for n in (1, 2):
        match = [Match("lpm", 0x0A000000 | n << 8, prefix_len=24)]
        device.insert("MyIngress.routes", match, "MyIngress.route", [GATEWAY, 0x020000000000 | n, n])


def transfer(hosts: Hosts, size: int) -> str:
    """Send ``size`` bytes from host 1 to host 2 by TCP; returns what host 2 received."""
    server = hosts.python(2, SERVER, "10.0.2.1")
    client: subprocess.Popen[str] | None = None
    try:
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        client = hosts.python(1, CLIENT, "10.0.2.1", str(size))
        return client.communicate(timeout=90)[0].strip()
    finally:
        for process in (server, client):
            if process is not None:
                process.kill()
                process.communicate()


def expected(size: int) -> str:
    return f"{size} {hashlib.sha256(random.Random(1).randbytes(size)).hexdigest()}"


def test_tcp_passes_unharmed_and_in_frames_of_the_mtu(fabric: Fabric, hosts: Hosts) -> None:
    """The sender's kernel leaves checksums and segmentation to the card, but the switch sees what a wire would
    carry.
    """
    device = fabric.add_device(1)
    route(device)
    for n in (1, 2):
        device.add_port(n, hosts.switch_side(n))
    fabric.start()
    size = 20_000_000
    assert transfer(hosts, size) == expected(size)
    stats = device.port_stats()
    assert stats[2].tx_packets >= size / 1460
    assert stats[2].tx_bytes / stats[2].tx_packets <= 1514
    assert device.drop_stats()["bad_offload"] == 0
    assert device.drop_stats()["ingress"] <= 5  # the router drops frames with a wrong header checksum
    assert stats[2].tx_superframes > 0, "what came in as one frame leaves as one"


def test_tcp_over_shaped_links_through_three_switches(fabric: Fabric, hosts: Hosts) -> None:
    devices = [fabric.add_device(n) for n in (1, 2, 3)]
    for device in devices:
        route(device)
    fabric.connect((1, 2), (2, 1), rate_mbps=100, delay_ms=0.2)
    fabric.connect((2, 2), (3, 1), rate_mbps=100, delay_ms=0.2)
    devices[0].add_port(1, hosts.switch_side(1))
    devices[2].add_port(2, hosts.switch_side(2))
    fabric.start()
    size = 2_000_000
    begin = time.monotonic()
    assert transfer(hosts, size) == expected(size)
    assert time.monotonic() - begin >= size * 8 / 100e6
    assert devices[1].port_stats()[2].tx_packets >= size / 1460


def test_tcp_survives_loss(fabric: Fabric, hosts: Hosts) -> None:
    device = fabric.add_device(1)
    route(device)
    device.add_port(1, hosts.switch_side(1))
    device.add_port(2, hosts.switch_side(2), loss=0.02, duplicate=0.02, reorder=0.02)
    fabric.start()
    size = 500_000
    assert transfer(hosts, size) == expected(size)
    assert device.drop_stats()["injected_loss"] > 0


def test_vlan_tags_and_odd_frames_pass_as_they_are(fabric: Fabric, hosts: Hosts) -> None:
    device = fabric.add_device(1)
    device.load(program("router"))
    device.insert("MyIngress.switching", [Match("exact", 5), Match("exact", 1)], "MyIngress.forward", [2])
    device.insert("MyIngress.switching", [Match("exact", 5), Match("exact", 0)], "MyIngress.forward", [2])
    for n in (1, 2):
        device.add_port(n, hosts.switch_side(n))
    fabric.start()
    (sender,) = sockets_in(hosts.namespace(1), ["eth0"])
    (receiver,) = sockets_in(hosts.namespace(2), ["eth0"])
    with sender, receiver:
        receiver.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        receiver.settimeout(20)
        frames = [
            ethernet(5, 6, 0x1234, vlan=0x2ABC) + b"tagged",
            ethernet(5, 6, 0x1234) + bytes(1500),
            ethernet(5, 6, 0x1234),
        ]
        for frame in frames:
            sender.send(frame)
            assert receive(receiver) == frame


def test_ports_come_and_go_while_traffic_flows(fabric: Fabric, hosts: Hosts) -> None:
    device = fabric.add_device(1)
    route(device)
    fabric.start()
    device.add_port(1, hosts.switch_side(1))
    with pytest.raises(AlreadyExists):
        device.add_port(1, hosts.switch_side(2))
    (sender,) = sockets_in(hosts.namespace(1), ["eth0"])
    with sender:
        for _ in range(20):
            sender.send(ethernet(GATEWAY, 1, 0x0806) + bytes(46))
        until(lambda: device.port_stats()[1].rx_packets >= 20)
        device.remove_port(1)
        count = device.port_stats()[1].rx_packets
        sender.send(ethernet(GATEWAY, 1, 0x0806) + bytes(46))
        device.add_port(1, hosts.switch_side(1))
        sender.send(ethernet(GATEWAY, 1, 0x0806) + bytes(46))
        until(lambda: device.port_stats()[1].rx_packets == count + 1)


def test_an_interface_that_goes_down_costs_frames_not_the_switch(fabric: Fabric, hosts: Hosts) -> None:
    device = fabric.add_device(1)
    device.load(program("router"))
    device.insert("MyIngress.switching", [Match("exact", 5), Match("exact", 0)], "MyIngress.forward", [1])
    device.add_port(1, hosts.switch_side(1))
    fabric.start()
    run("ip", "link", "set", hosts.switch_side(1), "down")
    device.inject(2, ethernet(5, 6, 0x1234) + bytes(46))
    until(lambda: device.drop_stats()["transmit_error"] == 1)
    run("ip", "link", "set", hosts.switch_side(1), "up")
    (receiver,) = sockets_in(hosts.namespace(1), ["eth0"])
    with receiver:
        receiver.settimeout(20)
        device.inject(2, ethernet(5, 6, 0x1234) + bytes(46))
        assert receiver.recv(2000) == ethernet(5, 6, 0x1234) + bytes(46)


def test_an_interface_that_is_made_again_is_the_ports_again(fabric: Fabric, hosts: Hosts) -> None:
    """The interface has another name first, as some tools make it.

    The port keeps its counters, and both directions work.
    """
    device = fabric.add_device(1)
    device.load(program("router"))
    device.insert("MyIngress.switching", [Match("exact", 5), Match("exact", 0)], "MyIngress.forward", [1])
    device.add_port(1, hosts.switch_side(1))
    fabric.start()
    frame = ethernet(5, 6, 0x1234) + bytes(46)
    (before,) = sockets_in(hosts.namespace(1), ["eth0"])
    with before:
        before.send(ethernet(GATEWAY, 1, 0x0806) + bytes(46))
        until(lambda: device.port_stats()[1].rx_packets == 1)
    run("ip", "link", "delete", hosts.switch_side(1))
    until(lambda: not device.port_is_up(1))
    device.inject(2, frame)
    until(lambda: device.drop_stats()["transmit_error"] == 1)
    run("ip", "link", "add", "itmp0", "type", "veth", "peer", "name", "eth0", "netns", hosts.namespace(1))
    run("ip", "link", "set", "itmp0", "name", hosts.switch_side(1))
    hosts.keep_ipv6_silent(1)
    run("ip", "link", "set", hosts.switch_side(1), "up")
    run("ip", "-n", hosts.namespace(1), "link", "set", "eth0", "up")
    until(lambda: device.port_is_up(1))
    (after,) = sockets_in(hosts.namespace(1), ["eth0"])
    with after:
        after.settimeout(20)
        after.send(ethernet(GATEWAY, 1, 0x0806) + bytes(46))
        until(lambda: device.port_stats()[1].rx_packets == 2)
        device.inject(2, frame)
        assert after.recv(2000) == frame


def test_an_idle_switch_uses_no_cpu(fabric: Fabric, hosts: Hosts) -> None:
    device = fabric.add_device(1)
    route(device)
    device.add_port(1, hosts.switch_side(1), rate_mbps=10)
    fabric.start()

    def threads() -> list[Path]:
        return [t for t in Path("/proc/self/task").iterdir() if (t / "comm").read_text() == "softswitch\n"]

    until(lambda: bool(threads()))
    (thread,) = threads()

    def wakeups() -> int:
        text = (thread / "status").read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if "ctxt_switches" in line)

    until(lambda: wakeups() > 0)
    before = wakeups()
    time.sleep(0.5)  # The test measures that nothing happens in this time.
    assert wakeups() - before <= 5
