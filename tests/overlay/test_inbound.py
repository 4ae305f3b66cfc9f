"""Messages arrive whole over a real connection, in whatever pieces they are sent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.core.errors import MessageError
from overlay.core.message import Header, Kind, Values
from overlay.net.inbound import Inbound, Receiver
from tests.support.examples import examples

MOST = 1 << 18  # values


class Arrived(Receiver):
    """Receiver that keeps what has arrived, and says when it was as much as it waits for."""

    def __init__(self, count: int) -> None:
        self.count, self.values, self.all = count, list[Values](), asyncio.Event()

    def buffer_for(self, header: Header) -> Values:
        return np.empty(header.values, np.float32)

    def received(self, header: Header, values: Values) -> None:
        self.values.append(values)
        if len(self.values) == self.count:
            self.all.set()

    def connected(self, header: Header, transport: asyncio.BaseTransport) -> None:
        raise AssertionError("nobody says hello here")

    reversed = connected

    def rejected(self, peer: str, error: MessageError) -> None:
        raise error


async def arrive(messages: Sequence[Values], cuts: Sequence[int]) -> list[Values]:
    """Return what arrives when these messages are sent, cut into pieces at these bytes."""
    loop, arrived = asyncio.get_running_loop(), Arrived(len(messages))
    server = await loop.create_server(lambda: Inbound(arrived), "127.0.0.1", 0)
    data = b"".join(Header(Kind.DOWN, 1, 1, (0, 1), 1, values=len(m)).pack() + m.tobytes() for m in messages)
    ends = [*sorted(cut % len(data) for cut in cuts), len(data)]
    async with server:
        with socket.create_connection(server.sockets[0].getsockname()) as sender:
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for begin, end in zip([0, *ends], ends, strict=False):
                await loop.run_in_executor(None, sender.sendall, data[begin:end])
            await asyncio.wait_for(arrived.all.wait(), 60.0)
    return arrived.values


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(1, MOST), min_size=1, max_size=4), st.lists(st.integers(0, 1 << 24), max_size=8))
def test_messages_of_any_size_arrive_whole_in_any_pieces(sizes: list[int], cuts: list[int]) -> None:
    messages = [np.arange(size, dtype=np.float32) for size in sizes]
    for sent, got in zip(messages, asyncio.run(arrive(messages, cuts)), strict=True):
        np.testing.assert_array_equal(sent, got)
