"""One port for two kinds of connections: messages between agents, and lines of JSON for the coordinator in an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from controlplane.common.descriptors import HANDSHAKE_SECONDS

LINE_BYTES = 1 << 20

LINES = b"{", b"G"
"""First bytes of lines: of an object of JSON, or of a GET. A connection that begins otherwise has to carry messages,
whose protocol says what is wrong with it.
"""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Front(asyncio.Protocol):
    """A connection of which nothing is known yet: its first byte says which protocol it gets. It is closed if it sends
    none in time.

    Args:
        accept: returns a new protocol for messages between agents.
        serve: serves a connection that carries lines.
    """

    def __init__(self, accept: Callable[[], asyncio.BufferedProtocol], serve: Serve) -> None:
        self._accept, self._serve = accept, serve

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._silent = asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS, transport.close)

    def connection_lost(self, error: Exception | None) -> None:
        self._silent.cancel()

    def data_received(self, data: bytes) -> None:
        self._silent.cancel()
        transport = self._transport
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "set_protocol")
        if data[:1] not in LINES:
            messages = self._accept()
            transport.set_protocol(messages)
            messages.connection_made(transport)
            _feed(messages, data)
            return
        reader = asyncio.StreamReader(LINE_BYTES)
        lines = asyncio.StreamReaderProtocol(reader, self._serve)
        transport.set_protocol(lines)
        lines.connection_made(transport)
        lines.data_received(data)


def _feed(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    """Pass bytes that have arrived already to the protocol, into the buffers that it gives."""
    left = memoryview(data)
    while left:
        room = memoryview(protocol.get_buffer(len(left)))[: len(left)]
        count = len(room)
        room[:] = left[:count]
        left = left[count:]
        protocol.buffer_updated(count)
