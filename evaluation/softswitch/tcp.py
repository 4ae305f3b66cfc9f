"""Measures one TCP connection between two hosts through softswitch, with and without super-frames at its sender."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator

from evaluation.softswitch.bench import Bench
from evaluation.softswitch.figures import Row
from evaluation.softswitch.workloads import Row as Entry
from evaluation.softswitch.workloads import forwarding
from softswitch import Fabric, Match, Program
from topologies.load import process_seconds

REPEAT = 3
RECEIVER = """
import socket, time
server = socket.create_server(("", 5001))
print("ready", flush=True)
connection, _ = server.accept()
begin, size, buffer = time.monotonic(), 0, bytearray(1 << 20)
while n := connection.recv_into(buffer):
    size += n
print(size, time.monotonic() - begin)
"""
SENDER = """
import socket, sys, time
data = bytes(1 << 20)
with socket.create_connection(("10.7.2.1", 5001), timeout=60) as connection:
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        connection.sendall(data)
"""


def _address(namespace: str, number: int) -> None:
    gateway = f"10.7.{number}.254"
    for words in (
        ("link", "set", "eth0", "address", f"02:00:00:00:00:0{number}"),
        ("addr", "replace", f"10.7.{number}.1/24", "dev", "eth0"),
        ("neigh", "replace", gateway, "lladdr", "02:00:00:00:00:fe", "dev", "eth0"),
        ("route", "replace", "default", "via", gateway),
    ):
        subprocess.run(["ip", "-n", namespace, *words], check=True, timeout=30)


def _transfer(bench: Bench, seconds: float, offload: bool) -> tuple[float, float]:
    """Return Mbit/s of one connection, and microseconds of the switch's CPU per megabyte."""
    workload = forwarding(64)
    with Fabric() as fabric:
        device = fabric.add_device(1)
        device.load(Program.load(workload.program.read_bytes()))
        for number, interface in enumerate(bench.interfaces, 1):
            route = Entry("ipv4_table", (Match("lpm", 0x0A070000 | number << 8, prefix_len=24),), "route",
                          (0x020000000000 | number, number))  # fmt: skip
            device.insert(route.table, route.match, route.action, route.params)
            device.add_port(number, interface, offload=offload)
        fabric.start()
        words = [["ip", "netns", "exec", namespace, sys.executable, "-c"] for namespace in bench.namespaces]
        with subprocess.Popen([*words[1], RECEIVER], stdout=subprocess.PIPE, text=True) as receiver:
            assert receiver.stdout is not None and receiver.stdout.readline() == "ready\n"
            before = process_seconds("self")
            subprocess.run([*words[0], SENDER, str(seconds)], check=True, timeout=seconds + 60)
            size, took = map(float, receiver.stdout.readline().split())
            spent = process_seconds("self") - before
    return size * 8e-6 / took, spent / size * 1e12


def tcp(bench: Bench, seconds: float) -> Iterator[Row]:
    """Yield the throughput of a connection and the switch's cost of a megabyte, medians of runs in turns."""
    for number, namespace in enumerate(bench.namespaces, 1):
        _address(namespace, number)
    runs: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for _ in range(REPEAT):
        for offload, found in runs.items():
            found.append(_transfer(bench, seconds, offload))
    for offload, found in runs.items():
        what = "one connection, leaving " + ("in super-frames" if offload else "segment by segment")
        rate, cost = (statistics.median(values) for values in zip(*found, strict=True))
        yield Row("tcp", what, "softswitch", rate, "Mbit/s")
        yield Row("tcp", what, "softswitch", cost, "us of CPU/MB")
