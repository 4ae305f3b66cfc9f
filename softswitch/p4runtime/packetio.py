"""Packet-in and packet-out: converts controller metadata to and from the header that the P4 program parses.

The P4Runtime specification describes this in "ControllerPacketMetadata" and "Packet I/O". The fields of the
``@controller_header`` are packed in their order, most significant bit first, before the frame. The header is padded
with zeros to whole bytes, as the server of bmv2 (PI) and older versions of p4c do it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from softswitch.bmv2json.model import HeaderType
from softswitch.p4runtime import bytestring
from softswitch.p4runtime.status import invalid
from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Field:
    """Describes a metadata field. ``as_text``: its values are decimal text (its type is translated to strings)."""

    id: int
    name: str
    width: int
    as_text: bool

    def decode(self, value: bytes) -> int:
        """Return the number in a client's value. Raise INVALID_ARGUMENT or OUT_OF_RANGE if it does not fit."""
        if not self.as_text:
            return bytestring.decode(value, self.width, self.name)
        if not value.isdigit() or len(value) > self.width:
            raise invalid(f"{self.name}: {value!r} is not a decimal number; this field's type is translated to text")
        return bytestring.decode(bytestring.encode(int(value)), self.width, self.name)

    def encode(self, number: int) -> bytes:
        return str(number).encode() if self.as_text else bytestring.encode(number)


class ControllerHeader:
    """The layout of one controller header; it has no fields if the program declares none.

    The widths are those of the header type in the program with these field names, because a type may be translated:
    then the P4Info has the width that clients use, or none.
    """

    def __init__(
        self, declaration: p4info_pb2.ControllerPacketMetadata | None, header_types: Iterable[HeaderType] = ()
    ) -> None:
        self._fields: tuple[_Field, ...] = ()
        self._warned = False
        if declaration is not None:
            self._fields = _fields(declaration, header_types)
        bits = sum(field.width for field in self._fields)
        self.size = (bits + 7) // 8
        self._padding = self.size * 8 - bits

    def pack(self, packet: p4rt.PacketOut) -> bytes:
        """Return the frame to give to the pipeline; fields that are not given are zero, with a warning in the log."""
        values: dict[int, bytes] = {}
        known = {field.id for field in self._fields}
        for metadata in packet.metadata:
            if metadata.metadata_id not in known:
                raise invalid(f"packet-out: unknown metadata id {metadata.metadata_id}")
            if metadata.metadata_id in values:
                raise invalid(f"packet-out: metadata id {metadata.metadata_id} is given twice")
            values[metadata.metadata_id] = metadata.value
        self._warn_of_missing([field for field in self._fields if field.id not in values])
        header = 0
        for field in self._fields:
            header = header << field.width | (field.decode(values[field.id]) if field.id in values else 0)
        return (header << self._padding).to_bytes(self.size, "big") + packet.payload

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
            packet.metadata.add(metadata_id=field.id, value=field.encode(value))
        return packet

    def _warn_of_missing(self, missing: Sequence[_Field]) -> None:
        if missing and not self._warned:
            self._warned = True  # A controller that leaves a field out does so in each packet.
            names = ", ".join(field.name for field in missing)
            _log.warning("packet-out: metadata %s not given; sent as 0 (reported once per pipeline)", names)


def _fields(declaration: p4info_pb2.ControllerPacketMetadata, header_types: Iterable[HeaderType]) -> tuple[_Field, ...]:
    name = declaration.preamble.name
    widths = _program_widths(declaration, header_types)
    fields = tuple(
        _Field(metadata.id, f"{name}.{metadata.name}", width, metadata.bitwidth == 0)
        for metadata, width in zip(declaration.metadata, widths, strict=True)
    )
    for field in fields:
        if field.width <= 0:
            raise invalid(f"{field.name}: no bit width in the P4Info, and no header with these fields in the program")
    if len({field.id for field in fields}) != len(fields):
        raise invalid(f"controller header {name} has two fields with one id")
    return fields


def _program_widths(
    declaration: p4info_pb2.ControllerPacketMetadata, header_types: Iterable[HeaderType]
) -> tuple[int, ...]:
    """Return the fields' widths: those of the header type in the program with these field names.

    Return those of the P4Info if no header type has these names, or if several that fit have different widths. Raise
    INVALID_ARGUMENT if header types have these names, and none fits.
    """
    metadata = declaration.metadata
    described = tuple(one.bitwidth for one in metadata)
    candidates = {widths for header in header_types if (widths := _widths_of(metadata, header)) is not None}
    fitting = [
        widths
        for widths in candidates
        if all(width == one.bitwidth or one.type_name.name for width, one in zip(widths, metadata, strict=True))
    ]
    if candidates and not fitting:
        raise invalid(
            f"controller header {declaration.preamble.name} has fields of {_listed(described)} bits in the P4Info and "
            f"of {_listed(min(candidates))} in the program"
        )
    return fitting[0] if len(fitting) == 1 else described


def _widths_of(
    metadata: Sequence[p4info_pb2.ControllerPacketMetadata.Metadata], header: HeaderType
) -> tuple[int, ...] | None:
    """Return the widths of a header type's fields; None if its names differ. p4c may have added fields of padding."""
    fields, rest = header.fields[: len(metadata)], header.fields[len(metadata) :]
    same = [field.name for field in fields] == [one.name for one in metadata]
    if not same or not all(field.name.startswith("_padding") for field in rest):
        return None
    return tuple(field.width for field in fields)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
