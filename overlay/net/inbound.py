"""Receives the messages of a connection that another agent has opened, each where its values belong in memory."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import numpy as np

from overlay.core.errors import MessageError
from overlay.core.message import HEADER_BYTES, Header, Kind, Values, unpack


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
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are of no common class

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()

    def close(self) -> None:
        """End the connection; its sender learns that."""
        if self._transport is not None:
            self._transport.abort()

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
        try:
            self._advance(nbytes)
        except MessageError as error:
            self._reject(error)

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
