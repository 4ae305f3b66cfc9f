"""Packet-in and packet-out, with the controller headers of the P4Info."""

from __future__ import annotations

import pytest
from google.rpc import code_pb2
from hypothesis import given
from hypothesis import strategies as st

from softswitch.bmv2json.model import Field, HeaderType
from softswitch.p4runtime import P4RuntimeError
from softswitch.p4runtime.packetio import ControllerHeader
from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.p4runtime.client import Client, demo_p4info
from softswitch.tests.p4runtime.conftest import Served
from softswitch.tests.p4runtime.fake import PROGRAM_JSON


def packet_out(payload: bytes, *metadata: tuple[int, bytes]) -> p4rt.StreamMessageRequest:
    fields = [p4rt.PacketMetadata(metadata_id=number, value=value) for number, value in metadata]
    return p4rt.StreamMessageRequest(packet=p4rt.PacketOut(payload=payload, metadata=fields))


def send_and_wait(stream: object, message: p4rt.StreamMessageRequest) -> None:
    """Send a message, and return when the server has handled it: it answers arbitration in order."""
    stream.send(message)  # type: ignore[attr-defined]
    stream.arbitrate(1)  # type: ignore[attr-defined]


def test_packet_out_is_packed_before_the_frame(served: Served) -> None:
    client = served.client()
    stream = client.become_primary()
    client.set_pipeline(PROGRAM_JSON)
    send_and_wait(stream, packet_out(b"frame", (2, b"\x05"), (1, b"\x01\x01")))
    assert stream.status()[0] == 0
    # egress_port 0x101 in 9 bits, reason 5 in 7 bits: 1000 0000 1000 0101
    assert served.devices[1].sent == [b"\x80\x85frame"]


def test_packet_in_goes_to_the_primary_only(served: Served) -> None:
    client, backup = served.client(election_id=2), served.client(election_id=1)
    served.devices[1].packet_in(b"\x80\x85before")  # type: ignore[misc]  # nobody is there
    stream = client.become_primary()
    other = backup.stream()
    other.arbitrate(1)
    assert other.status()[0] == code_pb2.ALREADY_EXISTS
    client.set_pipeline(PROGRAM_JSON)
    served.devices[1].packet_in(b"\x80\x85frame")  # type: ignore[misc]
    packet = stream.next().packet
    assert packet.payload == b"frame"
    assert [(one.metadata_id, one.value) for one in packet.metadata] == [(1, b"\x01\x01"), (2, b"\x05")]
    served.devices[1].packet_in(b"\x80")  # type: ignore[misc]  # shorter than the header: counted, not sent
    stats = served.server.targets[1].packets
    assert (stats.packet_in, stats.packet_in_malformed) == (1, 1)
    assert other.quiet()


def test_packet_in_without_anybody_is_counted(served: Served) -> None:
    client = served.client()
    stream = client.become_primary()
    client.set_pipeline(PROGRAM_JSON)
    watcher = served.client(election_id=0).stream()
    watcher.arbitrate(0)
    watcher.status()
    stream.vanish()
    assert watcher.status()[0] == code_pb2.NOT_FOUND
    served.devices[1].packet_in(b"\x80\x85frame")  # type: ignore[misc]
    assert served.server.targets[1].packets.packet_in_no_primary == 1


def test_missing_metadata_is_zero(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """ONOS's pipelines send only the egress port, and PI, bmv2's server, fills in the rest."""
    client = served.client()
    stream = client.become_primary()
    client.set_pipeline(PROGRAM_JSON)
    for metadata in ([(1, b"\x01\x01")], [(2, b"\x05")], []):
        send_and_wait(stream, packet_out(b"frame", *metadata))
        assert stream.status()[0] == 0
    assert served.devices[1].sent == [b"\x80\x80frame", b"\x00\x05frame", b"\x00\x00frame"]
    warnings = [record.message for record in caplog.records if "packet-out" in record.message]
    assert warnings == ["packet-out: metadata packet_out.reason not given; sent as 0 (reported once per pipeline)"]


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ([(1, b"\x01"), (2, b"\x01"), (7, b"\x01")], code_pb2.INVALID_ARGUMENT),
        ([(1, b"\x01"), (1, b"\x01"), (2, b"\x01")], code_pb2.INVALID_ARGUMENT),
        ([(1, b"\x02\x00"), (2, b"\x01")], code_pb2.OUT_OF_RANGE),
        ([(1, b""), (2, b"\x01")], code_pb2.INVALID_ARGUMENT),
    ],
)
def test_bad_metadata_is_reported_and_dropped(served: Served, metadata: list, code: int) -> None:
    client = served.client()
    stream = client.become_primary()
    client.set_pipeline(PROGRAM_JSON)
    message = packet_out(b"frame", *metadata)
    stream.send(message)
    error = stream.next().error
    assert error.canonical_code == code
    assert error.packet_out.packet_out == message.packet
    assert served.devices[1].sent == []
    send_and_wait(stream, packet_out(b"good", (1, b"\x01"), (2, b"\x01")))  # the stream goes on
    assert stream.status()[0] == 0
    assert len(served.devices[1].sent) == 1


def test_only_the_primary_may_send_packets(served: Served, primary: Client) -> None:
    good = packet_out(b"frame", (1, b"\x01"), (2, b"\x01"))
    backup = served.client(election_id=0).stream()
    backup.send(good)
    assert backup.next().error.canonical_code == code_pb2.PERMISSION_DENIED
    backup.arbitrate(0)
    backup.status()
    backup.send(good)
    assert backup.next().error.canonical_code == code_pb2.PERMISSION_DENIED
    two = served.client(device_id=2)
    stream = two.become_primary()
    stream.send(good)
    assert stream.next().error.canonical_code == code_pb2.FAILED_PRECONDITION  # no pipeline
    two.set_pipeline(PROGRAM_JSON)
    served.devices[2].cpu_port = None
    stream.send(good)
    assert stream.next().error.canonical_code == code_pb2.FAILED_PRECONDITION
    assert served.devices[1].sent == served.devices[2].sent == []


def test_program_without_controller_headers_gets_the_bare_frame(served: Served) -> None:
    client = served.client()
    stream = client.become_primary()
    p4info = demo_p4info()
    del p4info.controller_packet_metadata[:]
    client.set_pipeline(PROGRAM_JSON, p4info=p4info)
    send_and_wait(stream, packet_out(b"frame"))
    assert stream.status()[0] == 0
    served.devices[1].packet_in(b"frame")  # type: ignore[misc]
    assert stream.next().packet == p4rt.PacketIn(payload=b"frame")
    assert served.devices[1].sent == [b"frame"]


def test_acks_of_unknown_digests_and_other_messages_are_refused_without_ending_the_stream(served: Served) -> None:
    client = served.client()
    stream = client.become_primary()
    client.set_pipeline(PROGRAM_JSON)
    message = p4rt.StreamMessageRequest()
    message.digest_ack.digest_id = 4
    stream.send(message)
    error = stream.next().error
    assert error.canonical_code == code_pb2.INVALID_ARGUMENT
    assert error.digest_list_ack.digest_list_ack.digest_id == 4
    message = p4rt.StreamMessageRequest()
    message.other.type_url = "x"
    stream.send(message)
    assert stream.next().error.WhichOneof("details") == "other"


def test_slow_client_loses_packets_and_not_the_server(served: Served) -> None:
    client = served.client()
    stream = client.become_primary()
    client.set_pipeline(PROGRAM_JSON)
    stream.hold()
    stats = served.server.targets[1].packets
    for _ in range(100_000):  # gRPC's own buffers fill first
        served.devices[1].packet_in(b"\x80\x85" + bytes(1400))  # type: ignore[misc]
        if stats.packet_in_slow_client:
            break
    assert stats.packet_in_slow_client == 1
    watcher = served.client(election_id=7).become_primary()  # other clients are served meanwhile
    stream.release()
    while stream.next().WhichOneof("update") != "arbitration":
        pass  # the waiting messages, and then the news that another is primary
    served.devices[1].packet_in(b"\x80\x85frame")  # type: ignore[misc]
    assert watcher.next().packet.payload == b"frame"


def declaration(*fields: tuple[str, int, str]) -> p4info_pb2.ControllerPacketMetadata:
    """Return a controller header of fields with name, width and type name."""
    header = p4info_pb2.ControllerPacketMetadata()
    header.preamble.name = "packet_out"
    for number, (name, width, type_name) in enumerate(fields, 1):
        metadata = header.metadata.add(id=number, name=name, bitwidth=width)
        if type_name:
            metadata.type_name.name = type_name
    return header


def header_type(name: str, **widths: int) -> HeaderType:
    fields, offset = [], 0
    for field, width in widths.items():
        fields.append(Field(field, width, False, offset))
        offset += width
    return HeaderType(name, tuple(fields))


@given(values=st.lists(st.tuples(st.integers(1, 40), st.integers(0)), min_size=1, max_size=5), payload=st.binary())
def test_headers_that_are_not_whole_bytes_are_padded(values: list[tuple[int, int]], payload: bytes) -> None:
    """PI pads after the last field, as p4c did in programs of that time (ONOS's p4-tutorial: one field of 9 bits)."""
    header = ControllerHeader(declaration(*((f"f{i}", width, "") for i, (width, _) in enumerate(values))))
    numbers = [number % (1 << width) for width, number in values]
    metadata = [
        p4rt.PacketMetadata(metadata_id=i, value=number.to_bytes(5, "big")) for i, number in enumerate(numbers, 1)
    ]
    frame = header.pack(p4rt.PacketOut(payload=payload, metadata=reversed(metadata)))
    bits = "".join(f"{number:0{width}b}" for (width, _), number in zip(values, numbers, strict=True))
    padded = bits + "0" * (-len(bits) % 8)
    assert frame == int(padded, 2).to_bytes(len(padded) // 8, "big") + payload
    packet = header.unpack(frame)
    assert packet is not None
    assert packet.payload == payload
    assert [int.from_bytes(one.value, "big") for one in packet.metadata] == numbers


def test_translated_metadata_have_the_width_of_the_program() -> None:
    """SAI's ports are strings in the P4Info; Stratum's have 32 bits there. The header in the frame has 9 bits."""
    types = (header_type("ethernet", source=48), header_type("out_t", egress_port=9, submit=1, pad=6))
    text = declaration(("egress_port", 0, "port_id_t"), ("submit", 1, ""), ("pad", 6, ""))
    wide = declaration(("egress_port", 32, "port_id_t"), ("submit", 1, ""), ("pad", 6, ""))
    for header, value in ((ControllerHeader(text, types), b"257"), (ControllerHeader(wide, types), b"\x01\x01")):
        fields = [p4rt.PacketMetadata(metadata_id=1, value=value), p4rt.PacketMetadata(metadata_id=2, value=b"\x01")]
        frame = header.pack(p4rt.PacketOut(payload=b"frame", metadata=fields))
        assert frame == b"\x80\xc0frame"
        packet = header.unpack(frame)
        assert packet is not None
        assert packet.metadata[0].value == value
    for bad in (b"Ethernet0", b"", b"512", b"9" * 5000, "\u0661".encode()):
        with pytest.raises(P4RuntimeError):
            ControllerHeader(text, types).pack(p4rt.PacketOut(metadata=[p4rt.PacketMetadata(metadata_id=1, value=bad)]))
    with pytest.raises(P4RuntimeError, match=r"packet_out\.egress_port: no bit width in the P4Info"):
        ControllerHeader(text, types[:1])
