"""Fixtures: a server over fake devices 1 and 2, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from softswitch.p4runtime import P4RuntimeServer
from softswitch.tests.p4runtime.client import Client
from softswitch.tests.p4runtime.fake import PROGRAM_JSON, FakeDevice, FakeProgram


@dataclass
class Served:
    """A running server: its address, its devices, and a function that makes clients, which are closed at the end."""

    address: str
    server: P4RuntimeServer
    devices: dict[int, FakeDevice]
    client: Callable[..., Client]


@pytest.fixture
def served() -> Iterator[Served]:
    devices = {number: FakeDevice(number) for number in (1, 2)}
    server = P4RuntimeServer(devices.values(), load_program=FakeProgram.load)
    address = server.listen("127.0.0.1:0")
    server.start()
    clients: list[Client] = []

    def connect(device_id: int = 1, election_id: int | None = 1, role: str = "") -> Client:
        clients.append(Client(address, device_id, election_id, role))
        return clients[-1]

    try:
        yield Served(address, server, devices, connect)
    finally:
        for client in clients:
            client.close()
        server.stop(grace=0)


@pytest.fixture
def primary(served: Served) -> Client:
    """Return the primary of device 1, with the demo pipeline installed."""
    client = served.client()
    client.become_primary()
    client.set_pipeline(PROGRAM_JSON)
    return client
