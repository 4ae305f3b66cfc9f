"""A connection to another agent, over which messages are sent.

What a connection does not take at once of a chunk stays where it is in memory until the connection takes more: copying
it would cost as much as adding it. A task that ends before says so (`Outbound.detach`), since its memory is its
trainer's.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Protocol, cast

import numpy as np

from overlay.core.errors import OverlayError
from overlay.core.message import Header, Kind, Values
from overlay.net.tcp_info import Seen, seen

UNANSWERED_SECONDS = 10.0
"""Seconds without an acknowledgement after which a connection counts as lost; TCP alone would try for 15 minutes."""

UNSENT_BYTES = 4096, 1 << 19
"""Limits of how many bytes of a connection the kernel may hold that have not left; between them it is half a chunk.
With more, stamps and NetStorm's busy bound would not show the network's state, and urgent messages would wait.
"""

PIECE_BYTES = 1 << 17
"""Most bytes of a message that are given to the transport at a time: a whole number of records of TLS, which have 16
KB. What is copied or encrypted stays in the processor's caches until the kernel has it.
"""

_LENT = Kind.UP, Kind.DOWN
"""Messages whose values do not change while their task runs."""


def _behind(pieces: list[memoryview], taken: int) -> list[memoryview]:
    """Return what is left of these pieces of memory behind so many bytes."""
    for k, each in enumerate(pieces):
        if taken < len(each):
            return [each[taken:], *pieces[k + 1 :]]
        taken -= len(each)
    return []


class Owner(Protocol):
    """Owns connections, and sends over them.

    Attributes:
        hello: first message on each connection.
    """

    hello: bytes

    def check(self, transport: asyncio.BaseTransport) -> None:
        """Check that the other end is the one that it should be; raise OverlayError otherwise."""
        ...

    def flush(self) -> None:
        """Give a connection that takes messages again what waits."""
        ...

    def broken(self, error: Exception | None) -> None:
        """Take note that a connection has ended, with this error or (None) by the other end."""
        ...


class Outbound(asyncio.Protocol):
    """A connection to a peer.

    Attributes:
        free: whether nothing waits in the connection, so that it takes a message.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.transport: asyncio.WriteTransport | None = None
        self.socket: socket.socket | None = None
        self._rest: list[memoryview] = []  # of a message that the transport has not taken whole
        self._task: int | None = None  # whose memory the rest is in
        self._encrypts = self._paused = False
        self.free = False
        self._unsent = 0

    @property
    def takes_messages(self) -> bool:
        """Whether the connection is open and nothing waits in it. A connection that is closing has been lost; its peer
        learns that next.
        """
        return self.free and self.transport is not None and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self.transport = cast(asyncio.WriteTransport, transport)  # uvloop's are of no common class
        try:
            self._owner.check(transport)
        except OverlayError as error:
            transport.abort()
            self._owner.broken(error)
            return
        transport.set_write_buffer_limits(high=1, low=0)  # with high=0 TLS pauses when nothing waits, and never resumes
        self._encrypts = transport.get_extra_info("sslcontext") is not None
        self.socket = cast(socket.socket, transport.get_extra_info("socket"))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNANSWERED_SECONDS * 1000))
        self.free = True
        self._rest = [memoryview(self._owner.hello)]
        self._write()
        self._owner.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        self._owner.broken(exc)

    def close(self) -> None:
        """End the connection."""
        self._release()
        if self.transport is not None:
            self.transport.abort()

    def _release(self) -> None:
        self.free = False
        self._rest = []
        self.socket = None

    # --- messages ---

    def send(self, header: Header, values: Values) -> None:
        """Send a message; the connection takes messages."""
        data = memoryview(values.data).cast("B")
        self._limit_unsent(len(data) // 2)
        self._task = header.task
        self._rest = [memoryview(header.pack()), data]
        self._write()
        if self._rest and header.kind not in _LENT:
            self._rest = [memoryview(bytes(each)) for each in self._rest]

    def detach(self, task: int, tensor: Values) -> None:
        """Copy the rest of a message of this task that is in this tensor, which is its trainer's again."""
        if self._rest and self._task == task and np.may_share_memory(np.frombuffer(self._rest[-1], np.uint8), tensor):
            self._rest = [memoryview(bytes(each)) for each in self._rest]

    def _write(self) -> None:
        """Write as much of the rest as the transport takes now."""
        assert self.transport is not None
        self._paused = False
        while self._rest and not self._paused:
            piece: bytes | memoryview = self._rest[0][:PIECE_BYTES]
            if len(self._rest) > 1:  # a header, which alone would be a packet or a record of its own
                piece = b"".join((piece, self._rest[1][:PIECE_BYTES]))
            elif not self._encrypts:  # the transport may hold what the socket does not take, and the memory may change
                piece = bytes(piece)
            self._rest = _behind(self._rest, len(piece))
            self.transport.write(piece)
        self.free = not self._rest and not self._paused

    # --- pauses of the transport ---

    def pause_writing(self) -> None:
        self._paused, self.free = True, False

    def resume_writing(self) -> None:
        self._write()
        if self.free:
            self._owner.flush()

    # --- the kernel's view of the connection ---

    def under_way(self) -> int:
        """Return the bytes that the kernel has taken and the peer's kernel has not acknowledged."""
        if self.socket is None:
            return 0
        left = bytearray(4)
        ioctl(self.socket.fileno(), TIOCOUTQ, left)
        return int.from_bytes(left, sys.byteorder)

    def not_arrived(self) -> int:
        """Return the bytes of messages given to this connection that have not arrived at the peer's kernel."""
        encrypted = 0 if self.transport is None else self.transport.get_write_buffer_size()
        now = self.seen()
        arrived = 0 if now is None else now.sacked_bytes
        return sum(map(len, self._rest)) + encrypted + max(0, self.under_way() - arrived)

    def seen(self) -> Seen | None:
        """Return the connection's statistics; None where it is not connected, or the kernel does not give them."""
        return None if self.socket is None else seen(self.socket)

    def _limit_unsent(self, unsent: int) -> None:
        """Limit the bytes that the kernel takes before they have left (TCP_NOTSENT_LOWAT), within UNSENT_BYTES."""
        least, most = UNSENT_BYTES
        unsent = min(most, max(least, unsent))
        if self.socket is not None and unsent != self._unsent:
            self._unsent = unsent
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent)
