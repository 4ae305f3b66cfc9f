"""Detects agents and coordinators that are gone: by the socket first, and by their silence only when that lasts.

An agent lives in its trainer's process. While that process holds Python's interpreter lock (imports, compilers, a busy
machine), the agent says nothing for seconds although nothing is wrong. But its kernel still acknowledges what arrives,
and resets the connection when the process ends. So a host that is dead or cut off is detected by its kernel's silence,
and a process that has ended by the reset. A process that lives and says nothing has a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Mapping
from typing import Any

ALIVE_SECONDS = 1.0
"""Seconds between two messages of an agent or coordinator that it lives."""

UNREACHED_SECONDS = 5.0
"""Seconds without an acknowledgement after which the connection between agent and coordinator ends."""

QUIET_SECONDS = 5.0
"""Seconds of an agent's silence after which a policy whose time is short is told of it."""

FROZEN_SECONDS = 60.0
"""Seconds of silence after which an agent whose host answers counts as lost."""


def end_when_unreached(transport: asyncio.BaseTransport, seconds: float) -> None:
    """Have the kernel end the connection, with an OSError, when the other end's kernel answers nothing for this long,
    also while nothing is sent (TCP keepalive and TCP_USER_TIMEOUT).
    """
    own: socket.socket | None = transport.get_extra_info("socket")
    if own is None:
        return
    probes = max(1, round(seconds))
    with contextlib.suppress(OSError):  # the connection has ended already
        for level, name, value in (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000)),
        ):
            own.setsockopt(level, name, value)


def alive(message: Mapping[str, Any]) -> bytes:
    """Return the answer to a message "alive"; its `now` is this process's clock, in seconds."""
    return json.dumps({"type": "alive", "at": message.get("at", 0.0), "now": time.monotonic()}).encode() + b"\n"


class Silence:
    """Silence of the other end, in seconds in which this process could have heard it. While this process stands still,
    messages wait in its sockets, and their senders do not count as silent."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def heard(self) -> None:
        """Take note that the other end has said something."""
        self.seconds = 0.0

    def tick(self) -> None:
        """Take note that ALIVE_SECONDS of this process's own loop have passed, however long that took."""
        self.seconds += ALIVE_SECONDS
