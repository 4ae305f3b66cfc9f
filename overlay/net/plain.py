"""Plaintext connections are read and written through their sockets, past the event loop's transport.

A transport has a message's header and values in two calls of the kernel, copies what a socket does not take at once,
and reads into one piece of memory at a time. Here both leave, and arrive, in one call, and nothing is copied. The
transport remains: it says when the connection ends. Records of TLS are the transport's.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable
from typing import ClassVar
from weakref import WeakKeyDictionary

MOST_EVENTS = 64
"""Most sockets that are served before the event loop's other callbacks have their turn."""


class PlainSocket:
    """Another descriptor of a transport's connection.

    Args:
        transport: the transport.
        called: called when there is something to read, or (with `writes`) when the socket takes bytes again after it
            has taken fewer than it was given.
        writes: messages are written to the socket; else they are read from it.

    Attributes:
        socket: the socket.
    """

    def __init__(self, transport: asyncio.BaseTransport, called: Callable[[], None], *, writes: bool = False) -> None:
        own = self.socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        own.setblocking(False)
        self._poll = _Poll.of(asyncio.get_running_loop())
        self._poll.add(own.fileno(), called, select.EPOLLOUT | select.EPOLLET if writes else select.EPOLLIN)

    def close(self) -> None:
        """Close this descriptor; the transport closes its own."""
        if self.socket.fileno() >= 0:
            self._poll.remove(self.socket.fileno())
            self.socket.close()


def is_plain(transport: asyncio.BaseTransport) -> bool:
    """Return whether what travels over the connection is not encrypted."""
    return transport.get_extra_info("sslcontext") is None and transport.get_extra_info("socket") is not None


class _Poll:
    """The plain sockets of one event loop. They have a poll (epoll) of their own, which is one descriptor of the
    loop's: asyncio takes long to begin and to end a wait for a socket, which each message may need.
    """

    _of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, _Poll]] = WeakKeyDictionary()

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _Poll:
        """Return the poll of this loop."""
        return cls._of_loops.get(loop) or cls(loop)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._called: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._ready)
        self._of_loops[loop] = self

    def add(self, descriptor: int, called: Callable[[], None], events: int) -> None:
        """Call back for these events of a descriptor."""
        self._called[descriptor] = called
        self._epoll.register(descriptor, events)

    def remove(self, descriptor: int) -> None:
        """Call back no more for a descriptor. The poll ends with the loop's last one."""
        del self._called[descriptor]
        self._epoll.unregister(descriptor)
        if not self._called:
            del self._of_loops[self._loop]
            if not self._loop.is_closed():
                self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _ready(self) -> None:
        for descriptor, _ in self._epoll.poll(0, MOST_EVENTS):
            called = self._called.get(descriptor)
            try:
                if called is not None:
                    called()
            except Exception as error:  # the others' events are not told again
                self._loop.call_exception_handler({"message": "in a connection's callback", "exception": error})
