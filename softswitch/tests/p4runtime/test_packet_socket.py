"""--packet-in: frames over bmv2's nanomsg socket, from our own client and from nanomsg itself."""

from __future__ import annotations

import ctypes
import ctypes.util
import queue
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from softswitch.app.config import ConfigError
from softswitch.app.packet_socket import ANSWER, GREETING, HEADER, MESSAGE, NOT_SUPPORTED, PacketSocket
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.p4runtime.client import FORWARD, KEYLESS, Client, action
from softswitch.tests.p4runtime.test_command import FRAME, LOCAL, PROGRAM, Process
from softswitch.tests.support.p4runtime import MODIFY, update
from softswitch.tests.support.waiting import PATIENCE_SECONDS, wait_until

PORT_ADD, PACKET_IN, PACKET_OUT, INFO_REQUEST, INFO_ANSWER = 0, 3, 4, 5, 6
AF_SP, NN_PAIR, NN_SOL_SOCKET, NN_RCVTIMEO = 1, 16, 0, 5


class Peer:
    """A client that speaks the socket's protocol byte by byte."""

    def __init__(self, path: Path, greeting: bytes = GREETING) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.socket.connect(str(path))
        self.socket.sendall(greeting)
        assert self.receive(len(GREETING)) == GREETING

    def receive(self, length: int) -> bytes:
        """Return so many bytes, or fewer where the switch closes before."""
        data = b""
        try:
            while len(data) < length and (part := self.socket.recv(length - len(data))):
                data += part
        except ConnectionResetError:  # It closed without reading all that was sent.
            pass
        return data

    def send(self, message: bytes) -> None:
        self.socket.sendall(MESSAGE.pack(1, len(message)) + message)

    def message(self) -> bytes:
        kind, length = MESSAGE.unpack(self.receive(MESSAGE.size))
        assert kind == 1
        return self.receive(length)


Frames = queue.Queue[tuple[int, bytes]]


@pytest.fixture
def frames() -> Frames:
    return queue.Queue()


@pytest.fixture
def packets(tmp_path: Path, frames: Frames) -> Iterator[PacketSocket]:
    made = PacketSocket(f"ipc://{tmp_path}/packets.ipc", lambda port, frame: frames.put((port, frame)))
    yield made
    made.stop()
    assert not made.path.exists()


def packet(port: int, frame: bytes) -> bytes:
    return HEADER.pack(PACKET_IN, port, len(frame)) + frame


def test_frames_come_and_go(packets: PacketSocket, frames: Frames) -> None:
    peer = Peer(packets.path)
    peer.send(HEADER.pack(PORT_ADD, 3, 0))
    peer.send(packet(3, FRAME))
    assert frames.get(timeout=PATIENCE_SECONDS) == (3, FRAME)
    peer.send(packet(600, FRAME))  # there is no such port: not a frame of anybody
    peer.send(HEADER.pack(INFO_REQUEST, 3, 1))
    assert ANSWER.unpack(peer.message()) == (INFO_ANSWER, 3, 1, NOT_SUPPORTED)
    assert frames.empty()
    packets.send(7, FRAME)
    assert peer.message() == HEADER.pack(PACKET_OUT, 7, len(FRAME)) + FRAME
    peer.socket.close()


def test_the_next_client_is_served(packets: PacketSocket, frames: Frames) -> None:
    for port in (1, 2):
        peer = Peer(packets.path)
        peer.send(packet(port, FRAME))
        assert frames.get(timeout=PATIENCE_SECONDS) == (port, FRAME)
        peer.socket.close()


@pytest.mark.parametrize(
    "wrong",
    [
        MESSAGE.pack(1, 2) + b"ab",
        MESSAGE.pack(1, 1 << 40),
        MESSAGE.pack(7, 20) + bytes(20),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["no header", "too long", "another kind", "another protocol"],
)
def test_nonsense_ends_a_client_and_nothing_else(packets: PacketSocket, frames: Frames, wrong: bytes) -> None:
    peer = Peer(packets.path)
    peer.socket.sendall(wrong)
    assert peer.receive(1) == b""
    test_the_next_client_is_served(packets, frames)


def test_another_kind_of_nanomsg_socket_is_refused(packets: PacketSocket, frames: Frames) -> None:
    publisher = Peer(packets.path, b"\0SP\0\0\x20\0\0")
    assert publisher.receive(1) == b""
    test_the_next_client_is_served(packets, frames)


def test_without_a_client_frames_are_lost(packets: PacketSocket, frames: Frames) -> None:
    packets.send(1, FRAME)
    test_the_next_client_is_served(packets, frames)


def test_a_path_in_use_and_a_path_left_behind(packets: PacketSocket, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="another process listens there"):
        PacketSocket(f"ipc://{packets.path}", lambda port, frame: None)
    with pytest.raises(ConfigError, match="No such file"):
        PacketSocket(f"ipc://{tmp_path}/none/packets.ipc", lambda port, frame: None)
    left = tmp_path / "left.ipc"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as old:
        old.bind(str(left))
    PacketSocket(f"ipc://{left}", lambda port, frame: None).stop()


def test_nanomsg_connects(packets: PacketSocket, frames: Frames) -> None:
    name = ctypes.util.find_library("nanomsg")
    if name is None:
        pytest.skip("nanomsg is not installed (Debian: libnanomsg5)")
    nanomsg = ctypes.CDLL(name, use_errno=True)
    client = nanomsg.nn_socket(AF_SP, NN_PAIR)
    assert client >= 0
    try:
        patience = ctypes.c_int(int(PATIENCE_SECONDS * 1000))
        nanomsg.nn_setsockopt(client, NN_SOL_SOCKET, NN_RCVTIMEO, ctypes.byref(patience), ctypes.sizeof(patience))
        assert nanomsg.nn_connect(client, f"ipc://{packets.path}".encode()) >= 0
        message = packet(5, FRAME)
        assert nanomsg.nn_send(client, message, ctypes.c_size_t(len(message)), 0) == len(message)
        assert frames.get(timeout=PATIENCE_SECONDS) == (5, FRAME)
        packets.send(6, FRAME)
        answer = ctypes.create_string_buffer(2048)
        received = nanomsg.nn_recv(client, answer, ctypes.c_size_t(len(answer)), 0)
        assert answer.raw[:received] == HEADER.pack(PACKET_OUT, 6, len(FRAME)) + FRAME
    finally:
        nanomsg.nn_close(client)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")
def test_a_switch_without_interfaces(tmp_path: Path) -> None:
    path = tmp_path / "packets.ipc"
    process = Process(*PROGRAM, "--packet-in", f"ipc://{path}", "--device-id", "1", *LOCAL)
    try:
        client = Client(process.ready["grpc"])
        client.become_primary()
        entry = p4rt.TableEntry(table_id=KEYLESS, is_default_action=True, action=action(FORWARD, b"\x01"))
        client.write(update(MODIFY, table_entry=entry))
        peer = Peer(path)
        peer.send(packet(0, FRAME))
        assert peer.message() == HEADER.pack(PACKET_OUT, 1, len(FRAME)) + FRAME
        peer.socket.close()
        client.close()
        assert process.end() == (0, "")
        wait_until(lambda: not path.exists(), "the socket is removed")
    finally:
        process.end()
