"""Small programs for these tests, compiled, and a server over the real data plane that runs them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.protobuf import text_format

from softswitch.dataplane.fabric import Fabric
from softswitch.p4runtime import P4RuntimeServer
from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.tests.p4runtime.client import Client
from softswitch.tests.p4runtime.conftest import Served

HERE = Path(__file__).parent


def program(name: str) -> tuple[bytes, p4info_pb2.P4Info]:
    """Return bmv2 JSON and P4Info of a program in this folder."""
    text = (HERE / f"{name}.p4info.txtpb").read_text()
    return (HERE / f"{name}.json").read_bytes(), text_format.Parse(text, p4info_pb2.P4Info())


def ids(p4info: p4info_pb2.P4Info) -> dict[str, int]:
    """Return P4Info ids by alias."""
    groups = (p4info.tables, p4info.actions, p4info.digests, p4info.counters)
    return {one.preamble.alias: one.preamble.id for group in groups for one in group}


@contextmanager
def data_plane() -> Iterator[Served]:
    """Start a server over device 1 of a running real fabric."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc)")
    clients: list[Client] = []
    with Fabric() as fabric:
        device = fabric.add_device(1, 255)
        server = P4RuntimeServer([device])
        address = server.listen("127.0.0.1:0")

        def connect(device_id: int = 1, election_id: int | None = 1, role: str = "") -> Client:
            clients.append(Client(address, device_id, election_id, role))
            return clients[-1]

        fabric.start()
        server.start()
        connecting: Callable[..., Client] = connect
        try:
            yield Served(address, server, {1: device}, connecting)  # type: ignore[dict-item]  # a real one
        finally:
            for client in clients:
                client.close()
            server.stop(grace=0)
