"""Packet-in and packet-out: converts controller metadata to and from the header that the P4 program parses.

The P4Runtime specification describes this in "ControllerPacketMetadata" and "Packet I/O". The fields of the
``@controller_header`` are packed in their order, most significant bit first, before the frame.
"""

from __future__ import annotations

from dataclasses import dataclass

from softswitch.p4runtime import bytestring
from softswitch.p4runtime.status import invalid
from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt


@dataclass(frozen=True)
class _Field:
    id: int
    name: str
    width: int


class ControllerHeader:
    """The layout of one controller header; it has no fields if the program declares none."""

    def __init__(self, declaration: p4info_pb2.ControllerPacketMetadata | None) -> None:
        self._fields: tuple[_Field, ...] = ()
        if declaration is not None:
            name = declaration.preamble.name
            self._fields = tuple(
                _Field(metadata.id, f"{name}.{metadata.name}", metadata.bitwidth) for metadata in declaration.metadata
            )
            for field in self._fields:
                if field.width <= 0:
                    raise invalid(f"{field.name}: controller metadata without a bit width is not supported")
            if len({field.id for field in self._fields}) != len(self._fields):
                raise invalid(f"controller header {name} has two fields with one id")
        bits = sum(field.width for field in self._fields)
        if bits % 8:
            raise invalid(f"controller header {name} has {bits} bits; pad it to whole bytes in the P4 source")
        self.size = bits // 8

    def pack(self, packet: p4rt.PacketOut) -> bytes:
        """Return the frame to give to the pipeline; every field must be given exactly once."""
        values: dict[int, bytes] = {}
        known = {field.id for field in self._fields}
        for metadata in packet.metadata:
            if metadata.metadata_id not in known:
                raise invalid(f"packet-out: unknown metadata id {metadata.metadata_id}")
            if metadata.metadata_id in values:
                raise invalid(f"packet-out: metadata id {metadata.metadata_id} is given twice")
            values[metadata.metadata_id] = metadata.value
        header = 0
        for field in self._fields:
            if field.id not in values:
                raise invalid(f"packet-out: metadata {field.name} (id {field.id}) is missing")
            header = header << field.width | bytestring.decode(values[field.id], field.width, field.name)
        return header.to_bytes(self.size, "big") + packet.payload

    def unpack(self, frame: bytes) -> p4rt.PacketIn | None:
        """Return the packet-in message of a frame from the pipeline; ``None`` if it is shorter than the header."""
        if len(frame) < self.size:
            return None
        packet = p4rt.PacketIn(payload=frame[self.size :])
        header = int.from_bytes(frame[: self.size], "big")
        shift = self.size * 8
        for field in self._fields:
            shift -= field.width
            value = header >> shift & (1 << field.width) - 1
            packet.metadata.add(metadata_id=field.id, value=bytestring.encode(value))
        return packet
