"""What a trainer and the agent process on its machine say to each other over a Unix socket.

JSON messages over SOCK_SEQPACKET, one a packet; tensors are in shared memory (memfd) whose descriptor goes along.

    trainer                                          agent
    {"type": "hello", "version": 1, "timeout": s} ->
                                                  <- {"type": "welcome", "workers": W, "node": name, "index": i}
                                                  <- {"type": "refused", "message": ...}      and the connection ends
    {"type": "region", "region": r, "bytes": n} + descriptor ->
    {"type": "allreduce", "id": i, "region": r, "elements": n, "dtype": d, "op": o} ->
                                                  <- {"type": "done", "id": i, "seconds": s}
                                                  <- {"type": "failed", "id": i, "error": class, "message": ...}
    {"type": "bye"} ->                                                                         a trainer that is done
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any

VERSION = 1
MESSAGE_BYTES = 1 << 16
HANG_UP_SECONDS = 1.0
MOST_UNREAD = 1000


class ConnectionLost(Exception):
    """The other side closed the connection."""


class ProtocolViolation(Exception):
    """The other side sent what no correct program sends."""


class Connection:
    """Messages over a socket; `send` may be called from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Raises ConnectionLost."""
        data = json.dumps(message).encode()
        try:
            with self._lock:
                socket.send_fds(self._socket, [data], list(descriptors))
        except OSError as error:
            raise ConnectionLost(str(error)) from None

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """A message and its descriptors (the caller closes them). Raises ConnectionLost, ProtocolViolation."""
        try:
            data, descriptors, flags, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, 1)
        except OSError as error:
            raise ConnectionLost(str(error)) from None
        try:
            if not data:
                raise ConnectionLost("the other side closed the connection")
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ProtocolViolation("a message is too long")
            message = json.loads(data)
            if not isinstance(message, dict) or not isinstance(message.get("type"), str):
                raise ProtocolViolation("a message is not an object with a type")
        except ValueError:
            _close(descriptors)
            raise ProtocolViolation("a message is not JSON") from None
        except BaseException:
            _close(descriptors)
            raise
        return message, list(descriptors)

    def refuse(self, error: str, message: str) -> None:
        """Tell the other side why, and hang up."""
        try:
            self.send({"type": "refused", "error": error, "message": message})
            # With unread messages, close would reset the connection and take the reason away from the other side.
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(HANG_UP_SECONDS)
            for _ in range(MOST_UNREAD):
                _, descriptors = self.receive()
                _close(descriptors)
        except (ConnectionLost, ProtocolViolation, OSError):
            pass
        self.close()

    def close(self) -> None:
        """Also ends a `receive` under way in another thread."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
