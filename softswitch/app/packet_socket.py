"""Carries a device's packets over a socket instead of interfaces, for bmv2's option ``--packet-in ipc://FILE``.

It needs no root: a process of the same user connects, sends frames to any port and gets the frames that leave. The
socket is the one that bmv2 makes with nanomsg, a PAIR over IPC, so that PTF (``--platform nn``) and other clients of
bmv2's connect to it. Nothing of nanomsg is needed here: it is a Unix stream socket. Both sides first send eight bytes
(zero, "SP", zero, 0x0010 for PAIR, zeros); then each message is a byte 1, its length (64 bits, the highest byte first)
and its bytes (the scalability protocols' IPC mapping). A message begins with three 32-bit integers, the lowest byte
first, as bmv2's ``dev_mgr_packet_in.cpp`` has them: type, port, and the length of the frame that follows.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

from softswitch.app.config import MAX_PORT, ConfigError
from softswitch.errors import SoftswitchError

SCHEME = "ipc://"
GREETING = b"\0SP\0\0\x10\0\0"
MESSAGE = struct.Struct(">BQ")  # 1 for a message of a user, and its length
HEADER = struct.Struct("<iii")  # type, port, length of the frame
ANSWER = struct.Struct("<iiii")  # the header of an INFO_REQ with the type INFO_REP, and a status
PACKET_IN, PACKET_OUT, INFO_REQUEST, INFO_ANSWER = 3, 4, 5, 6
NOT_SUPPORTED = 1
MAX_MESSAGE = HEADER.size + (1 << 16)

_log = logging.getLogger(__name__)


class PacketSocket:
    """A socket for the frames of one device. It serves one client at a time; the next one is served when that has gone.

    The caller calls :meth:`send` for frames that leave the device.

    Args:
        address: ``ipc://FILE``.
        inject: called with (port, frame) for each frame that comes from the client.

    Raises:
        ConfigError: the address is of another kind.
        OSError: no socket can be made there.
    """

    def __init__(self, address: str, inject: Callable[[int, bytes], None]) -> None:
        if not address.startswith(SCHEME) or address == SCHEME:
            raise ConfigError(f"--packet-in {address}: give ipc://FILE; this switch has no other kind of socket")
        self.path = Path(address.removeprefix(SCHEME))
        self._inject = inject
        self._client: socket.socket | None = None
        self._lock = threading.Lock()  # guards the client, and that messages are not mixed
        self._listener = _listen(self.path)
        self._thread = threading.Thread(target=self._serve, name="softswitch-packets", daemon=True)
        self._thread.start()

    def send(self, port: int, frame: bytes) -> None:
        """Hand a frame that leaves by a port to the client.

        Without a client it is lost, as on a cable without an end.
        """
        self._send(HEADER.pack(PACKET_OUT, port, len(frame)) + frame)

    def stop(self) -> None:
        """Close the socket and remove its file."""
        self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            if self._client is not None:
                self._client.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _send(self, message: bytes) -> None:
        with self._lock:
            if self._client is None:
                return
            try:
                self._client.sendall(MESSAGE.pack(1, len(message)) + message)
            except OSError:
                _log.debug("the client of %s went away", self.path)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # The socket was stopped.
            with client:
                try:
                    client.sendall(GREETING)
                    if _receive(client, len(GREETING)) != GREETING:
                        _log.warning("%s: a client that is no PAIR of nanomsg was refused", self.path)
                        continue
                    with self._lock:
                        self._client = client
                    while (message := _message(client)) is not None:
                        self._take(message)
                except (OSError, ValueError) as error:
                    _log.warning("%s: its client was closed: %s", self.path, error)
                finally:
                    with self._lock:
                        self._client = None

    def _take(self, message: bytes) -> None:
        """Do as a message asks. Ports need not be added first, and are never down, which is bmv2's default, too."""
        if len(message) < HEADER.size:
            raise ValueError(f"a message of {len(message)} bytes has no header")
        kind, port, more = HEADER.unpack_from(message)
        if kind == PACKET_IN and 0 <= port <= MAX_PORT:
            try:
                self._inject(port, message[HEADER.size :][:more])
            except SoftswitchError as error:
                _log.warning("%s: a frame for port %d was refused: %s", self.path, port, error)
        elif kind == INFO_REQUEST:
            self._send(ANSWER.pack(INFO_ANSWER, port, more, NOT_SUPPORTED))


def _listen(path: Path) -> socket.socket:
    """Return a socket that listens at a path; a socket there that nobody listens at any more is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(os.fspath(path)) == 0:
                    raise ConfigError(f"--packet-in {SCHEME}{path}: another process listens there")
            path.unlink()
        mask = os.umask(0o177)
        try:
            listener.bind(os.fspath(path))
        finally:
            os.umask(mask)
        listener.listen(1)
    except OSError as error:
        listener.close()
        raise ConfigError(f"--packet-in {SCHEME}{path}: {error.strerror or error}") from None
    except ConfigError:
        listener.close()
        raise
    return listener


def _message(client: socket.socket) -> bytes | None:
    """Return the next message; None when the client has gone. Raise ValueError for bytes that are no message."""
    head = _receive(client, MESSAGE.size)
    if head is None:
        return None
    kind, length = MESSAGE.unpack(head)
    if kind != 1 or length > MAX_MESSAGE:
        raise ValueError(f"a message of kind {kind} with {length} bytes: there are kind 1 and {MAX_MESSAGE} bytes")
    return _receive(client, length)


def _receive(client: socket.socket, length: int) -> bytes | None:
    """Return so many bytes; None when the client goes earlier."""
    data = bytearray()
    while len(data) < length:
        part = client.recv(length - len(data))
        if not part:
            return None
        data += part
    return bytes(data)
