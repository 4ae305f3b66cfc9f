"""What an agent still has to send of a round is that round's, whatever its trainer does with its tensor meanwhile."""

from __future__ import annotations

import asyncio
import socket
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from controlplane.cli.certificates import Wanted, make
from controlplane.common.rpc.tls import credentials
from controlplane.planner.plan.task import Edge, SumTree, Task
from controlplane.planner.strategies.wan.policy import Rounds
from overlay import Agent, Coordinator
from overlay.core.message import Header, Kind, Values
from overlay.net.dispatcher import Dispatcher
from overlay.net.outbound import PIECE_BYTES, Outbound
from overlay.net.tls import Security

NODES = ("leaf", "site", "root")
CHUNK, CHUNKS = 1 << 18, 24
"""A connection of loopback holds fewer than half of these bytes when its receiver reads nothing."""


class Relayed(Rounds):
    """The leaf gets its results by way of the site, and adds nothing."""

    def __init__(self) -> None:
        super().__init__(NODES)

    def task(self, number: int, values: int, now: float) -> Task:
        down = Edge("root", "site"), Edge("site", "leaf")
        tree = SumTree("root", 0, values, (Edge("site", "root"),), down, ("site", "root"), NODES)
        return Task(number, values, (tree,), chunk_values=CHUNK)


@pytest.mark.parametrize("secure", [False, True])
def test_a_trainer_that_goes_on_changes_nothing_that_waits_for_a_slow_neighbour(secure, tmp_path, monkeypatch):
    if secure:
        make(tmp_path, Wanted(nodes=NODES))
    go, buffer_for = threading.Event(), Dispatcher.buffer_for

    def slow(self: Dispatcher, header: Header) -> Values:
        if header.kind == Kind.DOWN and threading.current_thread().name == "overlay leaf":
            assert go.wait(60)
        return buffer_for(self, header)

    monkeypatch.setattr(Dispatcher, "buffer_for", slow)

    def security(folder: str) -> Security | None:
        return Security.of(credentials(tmp_path / folder)) if secure else None

    def agent(name: str) -> Agent:
        return Agent(coordinator.address, name, listen=("127.0.0.1", 0), security=security(f"nodes/{name}"))

    with Coordinator(Relayed(), security=security("controller")) as coordinator:
        agents = {name: agent(name) for name in NODES}
        own = {name: np.arange(CHUNK * CHUNKS, dtype=np.float32) % 4093 + k for k, name in enumerate(NODES)}
        wanted = (own["site"] + own["root"]) * np.float32(0.5)
        ends = {name: agents[name].synchronise_async(own[name]) for name in NODES}
        try:
            ends["site"].result(60)
            np.testing.assert_array_equal(own["site"], wanted)
            own["site"][:] = np.nan  # its trainer goes on
        finally:
            go.set()
        ends["leaf"].result(60)
        np.testing.assert_array_equal(own["leaf"], wanted)
        for each in agents.values():
            each.close()


class Holding(asyncio.Transport):
    """A transport that holds what it is given, as those of uvloop and of Python 3.12 do, and sends nothing."""

    def __init__(self, own: socket.socket) -> None:
        super().__init__({"socket": own})
        self.given: list[bytes | memoryview] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.given.append(memoryview(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False


def test_the_transport_holds_no_memory_of_the_trainer():
    """Else values that the trainer changes later would be sent."""
    owner = SimpleNamespace(hello=b"", check=lambda transport: None, flush=lambda: None)
    values = np.arange(3 * PIECE_BYTES // 4, dtype=np.float32)
    header = Header(Kind.UP, 1, 1, (0, 1), 1, values=len(values))
    wanted = header.pack() + values.tobytes()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as own:
        transport, outbound = Holding(own), Outbound(owner)
        outbound.connection_made(transport)
        outbound.send(header, values)
        values[:] = np.nan
        assert b"".join(transport.given) == wanted
