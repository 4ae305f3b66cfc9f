"""Fixtures: a server over fake devices 1 and 2 or over a real data plane, and clients of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from softswitch.dataplane.fabric import Fabric
from softswitch.p4runtime import P4RuntimeServer
from softswitch.tests.p4runtime.client import Client
from softswitch.tests.p4runtime.fake import PROGRAM_JSON, FakeDevice, FakeProgram

CPU = 255
"""The CPU port of the real data plane's devices."""


@dataclass
class Served:
    """A running server: its address, its devices, and a function that makes clients, which are closed at the end."""

    address: str
    server: P4RuntimeServer
    devices: dict[int, Any]
    client: Callable[..., Client]


@contextmanager
def serving(devices: dict[int, Any], **options: Any) -> Iterator[Served]:
    """Serve these devices, by their numbers."""
    server = P4RuntimeServer(devices.values(), **options)
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


@contextmanager
def data_plane(*numbers: int) -> Iterator[Served]:
    """Serve devices of a running real fabric."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc)")
    with Fabric() as fabric:
        devices = {number: fabric.add_device(number, CPU) for number in numbers}
        fabric.start()
        with serving(devices) as served:
            yield served


@pytest.fixture
def served() -> Iterator[Served]:
    with serving({number: FakeDevice(number) for number in (1, 2)}, load_program=FakeProgram.load) as made:
        yield made


@pytest.fixture
def primary(served: Served) -> Client:
    """Return the primary of device 1, with the demo pipeline installed."""
    client = served.client()
    client.become_primary()
    client.set_pipeline(PROGRAM_JSON)
    return client
