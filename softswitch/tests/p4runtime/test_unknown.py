"""Fields of later versions of P4Runtime: each is supported, or refused by its name; none is ignored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import grpc
import pytest
from google.protobuf import text_format
from google.protobuf.message import Message
from google.rpc import code_pb2

from softswitch.app.config import ConfigError
from softswitch.app.switches import read_p4info
from softswitch.p4runtime import unknown
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.p4runtime.client import Client, clone, demo_p4info, exact_entry, group, insert
from softswitch.tests.p4runtime.conftest import CPU, Served, data_plane, serving
from softswitch.tests.p4runtime.fake import PROGRAM_JSON, FakeDevice, FakeProgram
from softswitch.tests.p4runtime.programs import HERE
from softswitch.tests.support.p4runtime import INSERT, batch_errors, update

NEW = b"\xba\x3e\x02hi"  # field 999, which no version has
BACKUP = b"\x22\x03\x0a\x01\x02"  # Replica.backup_replicas: {port: 2}
UNIMPLEMENTED = code_pb2.UNIMPLEMENTED


def extended(message: Message, data: bytes = NEW) -> Message:
    """Return the message with a further field, in this encoding."""
    message.MergeFromString(data)
    return message


@pytest.fixture(name="served", params=["fake", "real"])
def _served(request: pytest.FixtureRequest) -> Iterator[Served]:
    if request.param == "fake":
        yield request.getfixturevalue("fake_served")
        return
    with data_plane(1, 2) as served:
        yield served


@pytest.fixture(name="fake_served")
def _fake_served() -> Iterator[Served]:
    devices = {number: FakeDevice(number, CPU) for number in (1, 2)}
    with serving(devices, load_program=FakeProgram.load) as served:
        yield served


def test_unknown_fields_of_updates_and_queries(served: Served, primary: Client) -> None:
    inner = insert(exact_entry(b"\x01"))
    extended(inner.entity.table_entry.match[0].exact)
    outer = extended(insert(exact_entry(b"\x02")))
    good = insert(exact_entry(b"\x03"))
    errors = primary.outcomes(good, inner, outer)  # type: ignore[arg-type]
    assert [error.canonical_code for error in errors] == [code_pb2.OK, UNIMPLEMENTED, UNIMPLEMENTED]
    assert errors[1].message.startswith("p4.v1.FieldMatch.Exact: the field number 999 is not supported")
    errors = primary.outcomes(inner, atomicity=p4rt.WriteRequest.ROLLBACK_ON_ERROR)
    assert [error.canonical_code for error in errors] == [UNIMPLEMENTED]
    found = primary.read(p4rt.Entity(table_entry=p4rt.TableEntry(table_id=inner.entity.table_entry.table_id)))
    assert [entity.table_entry.match[0].exact.value for entity in found] == [b"\x03"]
    with pytest.raises(grpc.RpcError) as caught:
        primary.read(extended(p4rt.Entity(table_entry=p4rt.TableEntry())))  # type: ignore[arg-type]
    assert [error.canonical_code for error in batch_errors(caught.value)] == [UNIMPLEMENTED]


def test_unknown_fields_of_requests(served: Served, primary: Client) -> None:
    election = p4rt.Uint128(low=1)
    requests = {
        "Write": extended(p4rt.WriteRequest(device_id=1, election_id=election)),
        "SetForwardingPipelineConfig": extended(
            p4rt.SetForwardingPipelineConfigRequest(device_id=1, election_id=election, action=1)
        ),
        "GetForwardingPipelineConfig": extended(p4rt.GetForwardingPipelineConfigRequest(device_id=1)),
    }
    for method, request in requests.items():
        with pytest.raises(grpc.RpcError) as caught:
            getattr(primary.stub, method)(request, timeout=10)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert "the field number 999" in (caught.value.details() or "")


def test_unknown_fields_of_p4info(served: Served, tmp_path: Path) -> None:
    client = served.client()
    client.become_primary()
    p4info = demo_p4info()
    extended(p4info.tables[0])
    with pytest.raises(grpc.RpcError) as caught:
        client.set_pipeline(PROGRAM_JSON, p4info)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    binary, text = tmp_path / "binary", tmp_path / "text"
    binary.write_bytes(p4info.SerializeToString())
    with pytest.raises(ConfigError, match=r"p4\.config\.v1\.Table: the field number 999 is not supported"):
        read_p4info(binary)
    text.write_text((HERE / "demo.p4info.txtpb").read_text() + "later_field: 1\n")
    with pytest.raises(ConfigError, match=rf"P4Runtime {re.escape(unknown.API_VERSION)}: .*later_field"):
        read_p4info(text)
    text.write_text(text_format.MessageToString(demo_p4info()))
    assert read_p4info(text) == demo_p4info()


def test_unknown_fields_on_streams(served: Served, primary: Client) -> None:
    stream = served.client(election_id=2).become_primary()
    message = p4rt.StreamMessageRequest(packet=p4rt.PacketOut(payload=b"frame"))
    extended(message.packet)
    stream.send(message)
    error = stream.next().error
    assert error.canonical_code == UNIMPLEMENTED
    assert "p4.v1.PacketOut: the field number 999" in error.message
    request = p4rt.StreamMessageRequest(arbitration=p4rt.MasterArbitrationUpdate(device_id=1))
    stream.send(extended(request))  # type: ignore[arg-type]
    assert stream.ended() == grpc.StatusCode.UNIMPLEMENTED


def test_backup_replicas_and_group_actions_are_named(served: Served, primary: Client) -> None:
    """These fields of P4Runtime 1.5 and 1.6 are named, whether the installed package knows them or not."""
    replica = extended(p4rt.Replica(egress_port=1), BACKUP)
    for one in (group(INSERT, 5, replica), clone(INSERT, 5, replica)):  # type: ignore[arg-type]
        (error,) = primary.outcomes(one)
        assert error.canonical_code == UNIMPLEMENTED
        assert "backup_replicas" in error.message
    profile_group = extended(p4rt.ActionProfileGroup(action_profile_id=1, group_id=1), b"\x2a\x02\x08\x01")
    (error,) = primary.outcomes(update(INSERT, action_profile_group=profile_group))
    assert error.canonical_code in (UNIMPLEMENTED, code_pb2.INVALID_ARGUMENT)  # The profile does not exist.


def test_capabilities(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    client = served.client()
    answer = client.stub.Capabilities(p4rt.CapabilitiesRequest(), timeout=10)
    assert answer.p4runtime_api_version == unknown.API_VERSION
    assert unknown.API_VERSION.startswith(".".join(metadata.version("p4runtime").split(".")[:2]))
    request = p4rt.CapabilitiesRequest.FromString(b"\x08\x01")  # device_id 1, of P4Runtime 1.5
    assert client.stub.Capabilities(request, timeout=10) == answer
    with pytest.raises(grpc.RpcError) as caught:
        client.stub.Capabilities(p4rt.CapabilitiesRequest.FromString(b"\x08\x07"), timeout=10)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    for installed, served_version in (("1.5.0rc4", "1.5.0"), ("1.6", "1.6.0"), ("2.0.1", "1.6.0")):
        monkeypatch.setattr(metadata, "version", lambda name, version=installed: version)
        assert unknown.api_version() == served_version
