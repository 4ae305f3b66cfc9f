"""Foreign TCP in emulated hosts: one process that receives, and one for each flow that sends (`topologies.zygote`)."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

from topologies.zygote import Channel

HERE = "evaluation.beside.flows"
PORT = 5301
BLOCK = 1 << 16
WAIT_SECONDS = 60.0
STEP_SECONDS = 0.05
"""Seconds after which a receiver again writes down what has come."""


def _answer_marks(ecn: bool) -> None:
    """Have the TCP of this host's namespace ask for marks and answer them (RFC 3168), or not."""
    Path("/proc/sys/net/ipv4/tcp_ecn").write_text("1" if ecn else "0")


def sink(channel: Channel, *, address: str, flows: int, ecn: bool) -> None:
    """Receive so many connections until a message comes, which is answered with what each has received: a list for each
    of (time.monotonic(), bytes so far)."""
    seen: list[list[tuple[float, int]]] = [[] for _ in range(flows)]

    def receive(connection: socket.socket, own: list[tuple[float, int]]) -> None:
        counted, written = 0, 0.0
        while data := connection.recv(BLOCK):
            counted += len(data)
            if (now := time.monotonic()) - written >= STEP_SECONDS:
                own.append((now, counted))
                written = now

    _answer_marks(ecn)
    with socket.create_server((address, PORT), backlog=flows) as server:
        server.settimeout(WAIT_SECONDS)
        channel.send("listening")
        for own in seen:
            connection, _ = server.accept()
            threading.Thread(target=receive, args=(connection, own), daemon=True).start()
        channel.send("connected")
        channel.receive()
    channel.send([list(own) for own in seen])


def source(channel: Channel, *, address: str, congestion: str, ecn: bool) -> None:
    """Send to a sink until this process is ended, as fast as the kernel's congestion control (`congestion`) lets it."""
    _answer_marks(ecn)
    with socket.create_connection((address, PORT), timeout=WAIT_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        connection.settimeout(None)
        channel.send("connected")
        block = bytes(BLOCK)
        while True:
            connection.sendall(block)
