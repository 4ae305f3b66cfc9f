"""Foreign traffic in emulated hosts: processes that receive, and one for each flow that sends (`topologies.zygote`)."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

from topologies.zygote import Channel

HERE = "evaluation.beside.flows"
PORT = 5301
BLOCK = 1 << 16
DATAGRAM = 920
"""Payload of a UDP datagram, in bytes, with which headers are the same part of a frame as in TCP's full segments."""
UDP_HEADERS = 42
PACE_SECONDS = 0.001
WAIT_SECONDS = 60.0
STEP_SECONDS = 0.05
"""Least seconds between two samples of what a flow has delivered."""


class _Delivered:
    """Samples of what a flow has delivered so far: (time.monotonic(), bytes), at most one in STEP_SECONDS."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int]] = []
        self._counted, self._written = 0, 0.0

    def add(self, count: int) -> None:
        self._counted += count
        if (now := time.monotonic()) - self._written >= STEP_SECONDS:
            self.samples.append((now, self._counted))
            self._written = now


def _answer_marks(ecn: bool) -> None:
    """Have the TCP of this host's namespace ask for marks and answer them (RFC 3168), or not."""
    Path("/proc/sys/net/ipv4/tcp_ecn").write_text("1" if ecn else "0")


def sink(channel: Channel, *, address: str, flows: int, ecn: bool) -> None:
    """Receive `flows` connections until a message comes. The answer to it has, for each connection, a list of
    (time.monotonic(), bytes received so far).
    """
    seen = [_Delivered() for _ in range(flows)]

    def receive(connection: socket.socket, own: _Delivered) -> None:
        while data := connection.recv(BLOCK):
            own.add(len(data))

    _answer_marks(ecn)
    with socket.create_server((address, PORT), backlog=flows) as server:
        server.settimeout(WAIT_SECONDS)
        channel.send("listening")
        for own in seen:
            connection, _ = server.accept()
            threading.Thread(target=receive, args=(connection, own), daemon=True).start()
        channel.send("connected")
        channel.receive()
    channel.send([list(own.samples) for own in seen])


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


def drain(channel: Channel, *, address: str, senders: list[str]) -> None:
    """Receive datagrams until a message comes. The answer to it is as that of `sink`, with a list for each of the
    senders.
    """
    seen = {sender: _Delivered() for sender in senders}

    def receive(own: socket.socket) -> None:
        while True:
            data, (sender, _) = own.recvfrom(BLOCK)
            seen[sender].add(len(data))

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind((address, PORT))
        threading.Thread(target=receive, args=(own,), daemon=True).start()
        channel.send("listening")
        channel.receive()
        channel.send([list(seen[sender].samples) for sender in senders])


def spray(channel: Channel, *, addresses: list[str], mbps: float) -> None:
    """Send datagrams to these addresses in turns until this process is ended, at a rate of `mbps` (frames, all
    together).
    """
    seconds = (DATAGRAM + UDP_HEADERS) * 8e-6 / mbps
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        began, sent = time.monotonic(), 0
        while True:
            while sent * seconds <= time.monotonic() - began:
                own.sendto(bytes(DATAGRAM), (addresses[sent % len(addresses)], PORT))
                sent += 1
            time.sleep(PACE_SECONDS)
