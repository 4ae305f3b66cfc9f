"""Hostile and faulty clients get a status, and the server goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softswitch.p4runtime import P4RuntimeServer
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.p4runtime.client import Client, exact_entry, insert
from softswitch.tests.p4runtime.conftest import Served
from softswitch.tests.p4runtime.fake import PROGRAM_JSON, FakeDevice, FakeProgram

UNARY = ["Write", "SetForwardingPipelineConfig", "GetForwardingPipelineConfig", "Capabilities"]
SERVICE = "/p4.v1.P4Runtime/"


def raw(client: Client, method: str, data: bytes) -> grpc.StatusCode:
    """Send bytes unchanged; returns the status of the answer."""
    channel: Any = client.channel
    try:
        if method in UNARY:
            channel.unary_unary(SERVICE + method)(data, timeout=10)
        elif method == "Read":
            list(channel.unary_stream(SERVICE + method)(data, timeout=10))
        else:
            list(channel.stream_stream(SERVICE + method)(iter([data]), timeout=10))
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("method", [*UNARY, "Read", "StreamChannel"])
def test_bytes_that_are_no_message(served: Served, method: str) -> None:
    client = served.client()
    assert raw(client, method, b"\xff\xff\xff") == grpc.StatusCode.INVALID_ARGUMENT
    served.client().become_primary()


@pytest.mark.parametrize(("method", "field"), [("Write", 6), ("SetForwardingPipelineConfig", 6), ("Read", 3)])
def test_role_that_is_not_utf8(served: Served, method: str, field: int) -> None:
    data = bytes([field << 3 | 2, 2, 0xFF, 0xFE])
    assert raw(served.client(), method, data) == grpc.StatusCode.INVALID_ARGUMENT


def test_empty_stream_message(served: Served) -> None:
    stream = served.client().stream()
    stream.send(p4rt.StreamMessageRequest())
    assert stream.ended() == grpc.StatusCode.INVALID_ARGUMENT


def test_unknown_method(served: Served) -> None:
    channel: Any = served.client().channel
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(SERVICE + "Nonsense")(b"", timeout=10)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_deprecated_role_ids_are_refused(served: Served, primary: Client) -> None:
    request = p4rt.WriteRequest(device_id=1, role_id=3, updates=[insert(exact_entry())])
    request.election_id.low = 1
    with pytest.raises(grpc.RpcError) as caught:
        primary.stub.Write(request, timeout=10)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_defects_do_not_leak(served: Served, primary: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("secret detail")

    served.devices[1].before_write = broken
    with pytest.raises(grpc.RpcError) as caught:
        primary.write(insert(exact_entry()))
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert "secret" not in str(caught.value.details())
    served.devices[1].before_write = lambda: None
    primary.write(insert(exact_entry()))


def test_clients_that_vanish_leave_nothing_behind(served: Served) -> None:
    watcher = served.client(election_id=1000).become_primary()
    client = served.client()
    for number in range(100):
        stream = client.stream()
        stream.arbitrate(number)
        stream.status()
        stream.vanish()
    # An id can be used again as soon as the server has noticed; waiting for the last one is enough.
    for number in range(100):
        for _ in range(1000):
            stream = client.stream()
            stream.arbitrate(number)
            try:
                stream.status()
            except AssertionError:
                continue  # INVALID_ARGUMENT: still in use
            break
        else:
            pytest.fail(f"election id {number} was never given free")
        stream.vanish()
    assert watcher.quiet()


STOPPED_CLIENT = """
import sys
from softswitch.tests.p4runtime.client import Client
stream = Client(sys.argv[1], election_id=9).become_primary()
print("primary", flush=True)
stream.next()
"""


def test_client_that_stops_answering_is_disconnected() -> None:
    server = P4RuntimeServer([FakeDevice(1)], FakeProgram.load, keepalive_s=1)
    address = server.listen("127.0.0.1:0")
    server.start()
    command = [sys.executable, "-c", STOPPED_CLIENT, address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    client = Client(address, election_id=1)
    try:
        assert process.stdout is not None and process.stdout.readline() == "primary\n"
        watcher = client.stream()
        watcher.arbitrate(1)
        assert watcher.status() == (code_pb2.ALREADY_EXISTS, 9)
        process.send_signal(signal.SIGSTOP)  # its connection stays open, but it sends nothing more
        assert watcher.status() == (code_pb2.NOT_FOUND, 9)
    finally:
        process.kill()
        process.communicate()
        client.close()
        server.stop(0)


def test_many_streams_for_a_role_are_refused_in_the_end(served: Served) -> None:
    client = served.client()
    streams = []
    for _ in range(64):
        streams.append(client.stream())
        streams[-1].arbitrate(None)
        streams[-1].status()
    last = client.stream()
    last.arbitrate(None)
    assert last.ended() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_address_in_use_is_an_error() -> None:
    first = P4RuntimeServer([FakeDevice(1)], FakeProgram.load)
    address = first.listen("127.0.0.1:0")
    first.start()
    try:
        with pytest.raises(OSError, match="cannot listen"):
            P4RuntimeServer([FakeDevice(1)], FakeProgram.load).listen(address)
    finally:
        first.stop(0)


def test_unix_socket(tmp_path: object) -> None:
    server = P4RuntimeServer([FakeDevice(1)], FakeProgram.load)
    address = server.listen(f"unix:{tmp_path}/p4rt.sock")
    server.start()
    client = Client(address)
    try:
        client.become_primary()
        client.set_pipeline(PROGRAM_JSON)
    finally:
        client.close()
        server.stop(0)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=60), cut=st.integers(0, 200), method=st.sampled_from([*UNARY, "Read"]))
def test_random_and_mutated_bytes(served: Served, data: bytes, cut: int, method: str) -> None:
    client = served.client()
    request = p4rt.WriteRequest(device_id=1, updates=[insert(exact_entry())])
    request.election_id.low = 1
    good = request.SerializeToString()
    cut %= len(good)
    for payload in (data, good[:cut] + data, good[:cut] + data + good[cut:]):
        assert raw(client, method, payload) not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE)
    client.close()
