"""Who is there: judged by the socket first, and by silence only when that has lasted.

An agent lives in its trainer's process. While that holds Python's interpreter lock (imports, compilers, a busy machine)
its agent says nothing for seconds, and is as well as before. Its kernel still acknowledges what comes, though, and
resets the connection when the process ends. So a host that is dead or cut off is noticed by its kernel's silence, a
process that has ended by the reset, and one that lives and says nothing is given a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

ALIVE_SECONDS = 1.0
"""Agents and coordinators say so often that they are there."""

UNREACHED_SECONDS = 5.0
"""A connection between an agent and its coordinator on which nothing is acknowledged for so long has ended."""

FROZEN_SECONDS = 60.0
"""An agent whose host answers and that says nothing for so long is taken for lost."""


def watch(transport: asyncio.BaseTransport, seconds: float) -> None:
    """The connection ends with an OSError when the other end's kernel answers nothing for so long, also when nothing is
    sent."""
    own: socket.socket | None = transport.get_extra_info("socket")
    if own is None:
        return
    probes = max(1, round(seconds))
    with contextlib.suppress(OSError):  # it has ended already
        for level, name, value in (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000)),
        ):
            own.setsockopt(level, name, value)


class Silence:
    """How long somebody has said nothing, in seconds in which this process could have heard it: while this one stands
    still, what others say waits in its sockets and does not make them silent."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def heard(self) -> None:
        self.seconds = 0.0

    def tick(self) -> None:
        """ALIVE_SECONDS of this process's own loop have gone, however long that took."""
        self.seconds += ALIVE_SECONDS
