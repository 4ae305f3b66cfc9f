"""Constants of the wire format, read from ``protocol.json``.

Everything that has to agree between the P4 programs, the agents (Python and C), the control plane and the tests is a
value of :data:`PROTOCOL` or derived from it here. Offsets are in bytes from the start of the Ethernet frame; fields
are big-endian.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).resolve().parent
PROTOCOL_FILE = DIRECTORY / "protocol.json"
ETHERNET_BYTES = 14


class ProtocolError(ValueError):
    """``protocol.json`` is not usable; the message names the entry."""


@dataclass(frozen=True)
class Field:
    """One field of the aggregation header: byte offset in the frame and width in bits (a whole number of bytes)."""

    name: str
    bits: int
    offset: int

    @property
    def size(self) -> int:
        """Width in bytes."""
        return self.bits // 8


@dataclass(frozen=True)
class TargetDefaults:
    """Build options of one target: values in a packet, slots, and table sizes (entries)."""

    values_per_packet: int
    slots: int
    label_table_size: int
    route_table_size: int
    multicast_groups: int


@dataclass(frozen=True)
class Protocol:
    """``protocol.json``, checked. MAC addresses are 6 bytes."""

    version: int
    ethertype: int
    group_mac: bytes
    gateway_mac: bytes
    header: tuple[Field, ...]
    flags: dict[str, int]
    max_workers: int
    value_bits: int
    verdicts: tuple[str, ...]
    targets: dict[str, TargetDefaults]

    @property
    def header_bytes(self) -> int:
        """Bytes of the aggregation header, without Ethernet and values."""
        return sum(field.size for field in self.header)

    @property
    def values_offset(self) -> int:
        """Byte offset of the first value in a frame."""
        return ETHERNET_BYTES + self.header_bytes

    def frame_bytes(self, values_per_packet: int) -> int:
        """Length of a whole frame (without FCS) that carries ``values_per_packet`` values."""
        return self.values_offset + values_per_packet * self.value_bits // 8

    def field(self, name: str) -> Field:
        """The header field called ``name``; raises ProtocolError."""
        for field in self.header:
            if field.name == name:
                return field
        raise ProtocolError(f"the header has no field {name!r}: {[field.name for field in self.header]}")


def _mac(text: str) -> bytes:
    octets = bytes.fromhex(text.replace(":", ""))
    if len(octets) != 6:
        raise ProtocolError(f"protocol.json: {text!r} is not a MAC address")
    return octets


def parse(data: dict[str, Any]) -> Protocol:
    """Check the content of ``protocol.json``; raises ProtocolError that names what is missing or wrong."""
    try:
        header: list[Field] = []
        offset = ETHERNET_BYTES
        for name, bits in data["header"]:
            if bits % 8 or not 0 < bits <= 64:
                raise ProtocolError(f"protocol.json: header field {name!r} must be 8 to 64 whole bits, got {bits}")
            header.append(Field(name, bits, offset))
            offset += bits // 8
        protocol = Protocol(
            version=data["version"],
            ethertype=int(data["ethertype"], 16),
            group_mac=_mac(data["group_mac"]),
            gateway_mac=_mac(data["gateway_mac"]),
            header=tuple(header),
            flags=dict(data["flags"]),
            max_workers=data["max_workers"],
            value_bits=data["value_bits"],
            verdicts=tuple(data["verdicts"]),
            targets={name: TargetDefaults(**options) for name, options in data["targets"].items()},
        )
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"protocol.json: {error}") from error
    if not protocol.group_mac[0] & 1:
        raise ProtocolError("protocol.json: group_mac must be a group address (lowest bit of its first byte set)")
    if protocol.max_workers != protocol.field("bitmap").bits:
        raise ProtocolError("protocol.json: max_workers must be the width of the bitmap")
    return protocol


PROTOCOL = parse(json.loads(PROTOCOL_FILE.read_text()))

VERSION = PROTOCOL.version
ETHERTYPE = PROTOCOL.ethertype
GROUP_MAC = PROTOCOL.group_mac
GATEWAY_MAC = PROTOCOL.gateway_mac
HEADER_BYTES = PROTOCOL.header_bytes
VALUES_OFFSET = PROTOCOL.values_offset
MAX_WORKERS = PROTOCOL.max_workers
VERDICTS = PROTOCOL.verdicts


class Flag(IntFlag):
    """Bits of the header's flags field."""

    RESEND = PROTOCOL.flags["resend"]
    RESULT = PROTOCOL.flags["result"]
    MAXIMUM = PROTOCOL.flags["maximum"]


class Verdict(IntEnum):
    """What a switch did with an aggregation packet: the index into ``verdict_counter``."""

    FORWARDED = VERDICTS.index("forwarded")
    REPLICATED = VERDICTS.index("replicated")
    ABSORBED = VERDICTS.index("absorbed")
    COMPLETED = VERDICTS.index("completed")
    DUPLICATE = VERDICTS.index("duplicate")
    STALE = VERDICTS.index("stale")
    FLUSHED = VERDICTS.index("flushed")
    REFUSED = VERDICTS.index("refused")
    MALFORMED = VERDICTS.index("malformed")
    UNKNOWN = VERDICTS.index("unknown")


def frame_bytes(values_per_packet: int) -> int:
    """Length of a whole frame (without FCS) that carries ``values_per_packet`` values."""
    return PROTOCOL.frame_bytes(values_per_packet)
