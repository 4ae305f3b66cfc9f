"""Messages over TCP: each connection carries one direction, and values are received where they belong in memory.

An agent only sends over the connections that it has opened, and only receives over those that others have opened. So a
full connection stops one sender and nothing else. Connections are opened when the members are known, stay open, and are
opened again when they break; in a job with many agents they are opened when a task needs them.
"""

from __future__ import annotations

import asyncio
import heapq
import socket
import sys
from collections.abc import Callable
from fcntl import ioctl
from itertools import count
from termios import TIOCOUTQ
from typing import Protocol, cast

import numpy as np

from overlay.core.errors import MessageError, OverlayError
from overlay.core.message import HEADER_BYTES, Header, Kind, Values, unpack
from overlay.net.connector import Connector
from overlay.net.tcp_info import Seen, connections_by, seen

CONNECT_SECONDS = 10.0
UNANSWERED_SECONDS = 10.0
"""Seconds without an acknowledgement after which a connection counts as lost; TCP alone would try for 15 minutes."""

NO_ROUND_TRIP = 4000.0
"""Longest round trip, in seconds, that is believed: Linux gives 2^32 - 1 microseconds while it has not seen any."""

RETRY_SECONDS = 0.1
UNSENT_BYTES = 4096, 1 << 19
"""Limits of how many bytes of a connection the kernel may hold that have not left; between them it is half a chunk.
With more, stamps and NetStorm's busy bound would not show the network's state, and urgent messages would wait.
"""

AT_ONCE_BYTES = 1 << 18
"""Bytes of a larger message, or all that are left of it, that must have arrived before they are read (SO_RCVLOWAT):
each read costs a turn of the event loop.
"""

JOINED_BYTES = 1 << 16
"""Most bytes of values that are given to the kernel in one piece with their header: a header alone would become a frame
of its own. For more values the copy costs more than that.
"""

KEPT_CONNECTIONS = 64
"""Most connections that an agent keeps open to all others; in a larger job it opens those that a task needs when the
task is announced.
"""


def kept_open(agents: int, connections: int) -> bool:
    """Return whether each of this many agents keeps its `connections` to each other agent open."""
    return (agents - 1) * connections <= KEPT_CONNECTIONS


async def end_all() -> None:
    """Cancel all other tasks of the running loop, and wait until they have ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Receiver(Protocol):
    """Gets the messages of connections."""

    def buffer_for(self, header: Header) -> Values:
        """Return memory for the `header.values` float32 values of the message that is arriving."""
        ...

    def received(self, header: Header, values: Values) -> None:
        """Handle a whole message that has arrived; `values` is the memory from `buffer_for`."""
        ...

    def connected(self, header: Header, transport: asyncio.BaseTransport) -> None:
        """Handle a connection's first message. Raise MessageError to have the connection closed."""
        ...

    def reversed(self, header: Header, transport: asyncio.BaseTransport) -> None:
        """Take a connection over which this agent is to send to the agent that opened it. Raise MessageError to have it
        closed.
        """
        ...

    def rejected(self, peer: str, error: MessageError) -> None:
        """Take note that a connection was closed because of what arrived over it."""
        ...


class Inbound(asyncio.BufferedProtocol):
    """A connection that another agent has opened. With `secure`, the first message must name that agent, and is
    checked.
    """

    def __init__(self, receiver: Receiver, *, secure: bool = False) -> None:
        self._receiver, self._secure = receiver, secure
        self._head = bytearray(HEADER_BYTES)
        self._view = memoryview(self._head)
        self._filled = 0
        self._header: Header | None = None
        self._values: Values | None = None
        self._transport: asyncio.BaseTransport | None = None
        self._socket: socket.socket | None = None
        self._at_once = 1
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if transport.get_extra_info("sslcontext") is None:  # TLS has records of its own, and reads them whole
            self._socket = transport.get_extra_info("socket")

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()

    def close(self) -> None:
        """End the connection; its sender learns that."""
        if self._transport is not None:
            self._transport.abort()  # type: ignore[attr-defined]

    def divert(self, task: int) -> None:
        """Receive the rest of a message of this task that is arriving into other memory: its buffer is not the task's
        any more.
        """
        if self._header is not None and self._header.task == task and self._values is not None:
            self._values = self._values.copy()
            self._view = memoryview(self._values.data).cast("B")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._view):
            self._wait_for(len(self._view) - self._filled)
            return
        self._filled = 0
        try:
            self._full()
        except MessageError as error:
            assert self._transport is not None
            peer = self._transport.get_extra_info("peername")
            self._transport.abort()  # type: ignore[attr-defined]
            self._receiver.rejected(str(peer), error)

    def _wait_for(self, left: int) -> None:
        """Have the event loop wait until so many bytes, at most AT_ONCE_BYTES, have arrived."""
        at_once = min(left, AT_ONCE_BYTES) if len(self._view) > AT_ONCE_BYTES else 1
        if at_once != self._at_once and self._socket is not None:
            self._at_once = at_once
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, at_once)

    def _full(self) -> None:
        if self._header is None:
            header = unpack(self._head)
            if header.kind == Kind.REVERSED:
                assert self._transport is not None
                self._receiver.reversed(header, self._transport)
                return
            if header.kind == Kind.HELLO:
                assert self._transport is not None
                self._receiver.connected(header, self._transport)
                self._secure = False
            elif self._secure:
                raise MessageError("its first message does not say which agent opened it")
            if header.kind in (Kind.DISCARD, Kind.SENT, Kind.FETCH):
                self._receiver.received(header, np.empty(0, np.float32))
            if header.kind in (Kind.HELLO, Kind.DISCARD, Kind.SENT, Kind.FETCH) or header.values == 0:
                return
            self._header, self._values = header, self._receiver.buffer_for(header)
            self._view = memoryview(self._values.data).cast("B")
            self._wait_for(len(self._view))
            return
        header, values = self._header, self._values
        assert values is not None
        self._header = self._values = None
        self._view = memoryview(self._head)
        self._wait_for(len(self._view))
        self._receiver.received(header, values)


class _Outbound(asyncio.Protocol):
    """A connection to a peer.

    Attributes:
        free: whether nothing waits in the connection, so that it takes a message.
    """

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.transport: asyncio.WriteTransport | None = None
        self.socket: socket.socket | None = None
        self.free = False
        self.unsent = 0

    @property
    def takes_messages(self) -> bool:
        """Whether the connection is open and nothing waits in it. A connection that is closing has been lost; its peer
        learns that next.
        """
        return self.free and self.transport is not None and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self.transport = cast(asyncio.WriteTransport, transport)  # uvloop's are of no common class
        try:
            self.peer.check(transport)
        except OverlayError as error:
            transport.abort()
            self.peer.broken(error)
            return
        transport.set_write_buffer_limits(high=1, low=0)  # with high=0 TLS pauses when nothing waits, and never resumes
        own = self.socket = cast(socket.socket, transport.get_extra_info("socket"))
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNANSWERED_SECONDS * 1000))
        transport.write(self.peer.hello)
        self.free = True
        self.peer.flush()

    def limit_unsent(self, unsent: int) -> None:
        """Limit the bytes that the kernel takes before they have left (TCP_NOTSENT_LOWAT), within UNSENT_BYTES."""
        least, most = UNSENT_BYTES
        unsent = min(most, max(least, unsent))
        if self.socket is not None and unsent != self.unsent:
            self.unsent = unsent
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent)

    def under_way(self) -> int:
        """Return the bytes that the kernel has taken and the peer's kernel has not acknowledged."""
        if self.socket is None:
            return 0
        left = bytearray(4)
        ioctl(self.socket.fileno(), TIOCOUTQ, left)
        return int.from_bytes(left, sys.byteorder)

    def seen(self) -> Seen | None:
        """Return the connection's statistics; None where it is not connected, or the kernel does not give them."""
        return None if self.socket is None else seen(self.socket)

    def pause_writing(self) -> None:
        self.free = False

    def resume_writing(self) -> None:
        self.free = True
        self.peer.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.free = False
        self.peer.broken(exc)


_Message = tuple[int, int, Header, Values, Callable[[], None], Callable[[], bool], Callable[[], None]]
"""(priority, order, header, values, sent, wanted, dropped); the last three are callables (see `Peer.send`)."""


class Peer:
    """Sends messages to one other agent over several connections; those with the lowest priority number go first.

    Args:
        name: name of the other agent.
        address: (host, port) at which it listens.
        hello: first message on each connection.
        connections: number of connections.
        clock: returns the time with which messages are stamped.
        on_lost: called once, as on_lost(reason), when the peer cannot be reached any more.
        connector: opens connections.
        awaits: the other agent opens the connections, since this one cannot connect to it; else they are opened at
            once.

    Attributes:
        used: whether a task or a message has needed the peer.
        lines: the connections.
    """

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        hello: bytes,
        *,
        connections: int,
        clock: Callable[[], float],
        on_lost: Callable[[str], None],
        connector: Connector,
        awaits: bool = False,
    ) -> None:
        self.name, self.address = name, address
        self.hello, self._clock, self._on_lost, self._connector = hello, clock, on_lost, connector
        self.lines = [_Outbound(self) for _ in range(connections)]
        self._queue: list[_Message] = []
        self._order = count()
        self._closed = False
        self.used = False
        self._give_up_at = asyncio.get_running_loop().time() + CONNECT_SECONDS
        self._awaits = awaits
        opening = [self._awaited(self.lines[0])] if awaits else [self._open(line) for line in self.lines]
        self._opening = [asyncio.ensure_future(each) for each in opening]
        self.bytes_sent = 0

    @property
    def waiting(self) -> int:
        """Number of messages that no connection has taken yet."""
        return len(self._queue)

    def expect(self) -> None:
        """Take note that a task will need the peer. If that is the first time, the peer has CONNECT_SECONDS from now on
        to answer.
        """
        if not self.used:
            self.used = True
            self._give_up_at = asyncio.get_running_loop().time() + CONNECT_SECONDS

    def send(
        self,
        priority: int,
        header: Header,
        values: Values,
        sent: Callable[[], None] = lambda: None,
        wanted: Callable[[], bool] = lambda: True,
        *,
        dropped: Callable[[], None] = lambda: None,
    ) -> None:
        """Queue a message.

        Args:
            priority: messages with the lowest number go first.
            header: the message's header.
            values: its values.
            sent: called when a connection has taken the message, or its turn came and it was not wanted any more.
            wanted: returns whether the message is still to be sent; called when its turn comes.
            dropped: called instead of `sent` when the peer is given up before that.
        """
        if self._closed:
            dropped()
            return
        self.expect()
        heapq.heappush(self._queue, (priority, next(self._order), header, values, sent, wanted, dropped))
        self.flush()

    def flush(self) -> None:
        """Give connections the messages that they take now, the most urgent first. Each message goes to the connection
        with the fewest bytes under way: where a packet is lost, everything behind it on its connection waits.
        """
        while self._queue:
            free = [line for line in self.lines if line.takes_messages]
            if not free:
                return
            _, _, header, values, sent, wanted, _ = heapq.heappop(self._queue)
            if not wanted():
                sent()
                continue
            line = free[0] if len(self.lines) == 1 else min(free, key=_Outbound.under_way)
            assert line.transport is not None
            data = memoryview(values.data).cast("B")
            line.limit_unsent(len(data) // 2)
            head = header.stamped(self._clock()).pack()
            self.bytes_sent += HEADER_BYTES + len(
                data
            )  # counted before the receiver can have it, and read the counters
            if len(data) <= JOINED_BYTES:
                line.transport.write(b"".join((head, data)))
            else:
                line.transport.write(head)
                line.transport.write(data)
            sent()

    def detach(self, task: int, tensor: Values) -> None:
        """Copy the values of this task's messages that wait and are in this tensor, which is its trainer's again."""
        for k, (priority, order, header, values, sent, wanted, dropped) in enumerate(self._queue):
            if header.task == task and np.may_share_memory(values, tensor):
                self._queue[k] = priority, order, header, values.copy(), sent, wanted, dropped

    def adapt(self, most: int) -> None:
        """Open more connections, up to `most`, where the present ones lose so many packets that they cannot fill the
        link: each loss halves a connection's window.
        """
        if self._awaits:
            return
        now = [each for line in self.lines if (each := line.seen()) is not None]
        wanted = connections_by(now, most)
        while not self._closed and len(self.lines) < wanted:
            self.lines.append(line := _Outbound(self))
            self._opening.append(asyncio.ensure_future(self._open(line, needed=False)))

    def acknowledged(self) -> int:
        """Return how many of the bytes that were sent have arrived at the peer's kernel."""
        waiting = sum(line.under_way() + line.transport.get_write_buffer_size()
                      for line in self.lines if line.transport is not None)  # fmt: skip
        return max(0, self.bytes_sent - waiting)

    def round_trip(self) -> float | None:
        """Return the least round trip of the connections, in seconds; None where none is open yet, or nothing was
        acknowledged.
        """
        trips = [each.rtt_seconds for line in self.lines if (each := line.seen()) is not None]
        return min((trip for trip in trips if 0 < trip < NO_ROUND_TRIP), default=None)

    def sent_again(self) -> tuple[int, int]:
        """Return how many segments the present connections have sent again, of how many in all."""
        now = [each for line in self.lines if (each := line.seen()) is not None]
        return sum(each.again for each in now), sum(each.segments for each in now)

    @property
    def connections(self) -> int:
        """Number of connections that are open or being opened."""
        return len(self.lines)

    def check(self, transport: asyncio.BaseTransport) -> None:
        """Check that the certificate at the other end is the peer's; raise OverlayError otherwise."""
        if self._connector.security is not None:
            self._connector.security.check(transport, "node", self.name)

    def close(self) -> None:
        """End all connections, and drop the messages that wait."""
        self._closed = True
        queue, self._queue = self._queue, []
        for *_, dropped in queue:
            dropped()
        for task in self._opening:
            task.cancel()
        for line in self.lines:
            if line.transport is not None:
                line.transport.abort()

    def broken(self, error: Exception | None) -> None:
        """Give the peer up, since a connection to it has ended, with this error or (None) by the other end."""
        if not self._closed:
            self.close()
            if isinstance(error, TimeoutError):  # the kernel's: see UNANSWERED_SECONDS
                self._connector.unanswered(self.address)
            self._on_lost(f"the connection to {self.name} ended" + (f": {error}" if error else ""))

    def take(self, transport: asyncio.Transport) -> None:
        """Take a connection that the peer has opened for this agent to send over."""
        line = self.lines[0]
        if line.transport is not None:
            self.lines.append(line := _Outbound(self))
        transport.set_protocol(line)
        line.connection_made(transport)

    async def _awaited(self, line: _Outbound) -> None:
        """Give the peer up when it is needed and has opened no connection in time."""
        loop = asyncio.get_running_loop()
        while line.transport is None:
            if loop.time() >= self._give_up_at:
                self.broken(OSError(f"it has no port that others reach, and opens no connection for "
                                    f"{CONNECT_SECONDS:.0f} s"))  # fmt: skip
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _open(self, line: _Outbound, *, needed: bool = True) -> None:
        """Open a connection. With `needed`, the peer is given up when that does not succeed in time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + CONNECT_SECONDS
        host, port = self.address
        while True:
            try:
                left = max(0.01, (self._give_up_at if needed else end) - loop.time())
                await self._connector.open(line, self.address, seconds=left)
                return
            except (OSError, TimeoutError) as error:
                if not needed and loop.time() >= end:
                    self.lines.remove(line)
                    return
                if needed and loop.time() >= self._give_up_at:
                    words = str(error) or "no answer"
                    self.broken(OSError(f"{host}:{port} cannot be reached within {CONNECT_SECONDS:.0f} s: {words}"))
                    return
                await asyncio.sleep(RETRY_SECONDS)
