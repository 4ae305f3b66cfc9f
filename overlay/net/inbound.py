"""Receives the messages of a connection that another agent has opened, each where its values belong in memory."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Protocol, cast

import numpy as np

from overlay.core.errors import MessageError
from overlay.core.message import HEADER_BYTES, Header, Kind, Values, unpack
from overlay.net.plain import PlainSocket, is_plain

AT_ONCE_BYTES = 1 << 18
"""Bytes of a larger message, or all that are left of it, that must have arrived before they are read (SO_RCVLOWAT):
each read costs a turn of the event loop.
"""


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
        self._head = memoryview(bytearray(HEADER_BYTES))
        self._view = self._head  # what arrives next: a header, or the values of the one that has arrived
        self._filled = 0
        self._header: Header | None = None
        self._values: Values | None = None
        self._transport: asyncio.Transport | None = None
        self._plain: PlainSocket | None = None  # the connection's, where this protocol reads it by itself
        self._at_once = 1
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._transport = cast(asyncio.Transport, transport)  # uvloop's are of no common class
        if is_plain(transport):
            transport.pause_reading()
            self._plain = PlainSocket(transport, self._readable)

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        self.ended.set()

    def close(self) -> None:
        """End the connection; its sender learns that."""
        self._release()
        if self._transport is not None:
            self._transport.abort()

    def _release(self) -> None:
        if self._plain is not None:
            self._plain.close()
            self._plain = None

    def divert(self, task: int) -> None:
        """Receive the rest of a message of this task that is arriving into other memory: its buffer is not the task's
        any more.
        """
        if self._header is not None and self._header.task == task and self._values is not None:
            self._values = self._values.copy()
            self._view = memoryview(self._values.data).cast("B")

    # --- what the transport reads ---

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._advance(nbytes)
        except MessageError as error:
            self._reject(error)

    # --- what this protocol reads ---

    def _readable(self) -> None:
        """Read what has arrived: a header and, behind it, values; or values and, behind them, the next header. Then
        other connections have their turn.
        """
        try:
            if self._header is None and not self._read(self._view[self._filled :]):
                return
            if self._header is not None:
                self._read(self._view[self._filled :], self._head)
        except MessageError as error:
            self._reject(error)
        self._wait()

    def _read(self, *pieces: memoryview) -> bool:
        """Read into these pieces of memory: what is expected next, and the header behind it. Return whether there may
        be more to read.
        """
        if self._plain is None:
            return False
        try:
            count = os.readv(self._plain.socket.fileno(), pieces)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            count = 0
        if not count:
            self.close()
            return False
        past = count - len(pieces[0])
        self._advance(min(count, len(pieces[0])))
        if past > 0 and self._plain is not None:
            self._advance(past)
        return True

    def _wait(self) -> None:
        """Have the kernel tell of the next bytes when all that are left, at most AT_ONCE_BYTES, have arrived."""
        at_once = min(len(self._view) - self._filled, AT_ONCE_BYTES) if len(self._view) > AT_ONCE_BYTES else 1
        if at_once != self._at_once and self._plain is not None:
            self._at_once = at_once
            self._plain.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, at_once)

    # --- messages ---

    def _advance(self, count: int) -> None:
        """Go on after so many bytes have arrived where they are expected. Raise MessageError for a wrong message."""
        self._filled += count
        if self._filled == len(self._view):
            self._filled = 0
            if self._header is None:
                self._begun(unpack(self._head))
            else:
                self._whole(self._header)

    def _begun(self, header: Header) -> None:
        """Take a header that has arrived. Raise MessageError for a wrong one."""
        if header.kind == Kind.REVERSED:
            assert self._transport is not None
            self._receiver.reversed(header, self._transport)
            if self._plain is not None:
                self._release()
                self._transport.resume_reading()  # whoever sends over it from now on learns from it of the end
        elif header.kind == Kind.HELLO:
            assert self._transport is not None
            self._receiver.connected(header, self._transport)
            self._secure = False
        elif self._secure:
            raise MessageError("its first message does not say which agent opened it")
        elif header.kind in (Kind.DISCARD, Kind.SENT, Kind.FETCH, Kind.THROUGH):
            self._receiver.received(header, np.empty(0, np.float32))
        elif header.values:
            self._header, self._values = header, self._receiver.buffer_for(header)
            self._view = memoryview(self._values.data).cast("B")

    def _whole(self, header: Header) -> None:
        """Hand on a message whose values have arrived, too."""
        values = self._values
        assert values is not None
        self._header = self._values = None
        self._view = self._head
        self._receiver.received(header, values)

    def _reject(self, error: MessageError) -> None:
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        self.close()
        self._receiver.rejected(str(peer), error)
