"""Constants of the wire format, read from ``protocol.json``.

Every value on which the P4 programs, the agents (Python and C), the control plane and the tests must agree is in
:data:`PROTOCOL` or derived from it in this module. Offsets are in bytes from the start of the Ethernet frame; fields
are big-endian. A packet consists of Ethernet, IPv4 without options, UDP, the aggregation header, and values.
"""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).resolve().parent
PROTOCOL_FILE = DIRECTORY / "protocol.json"
ETHERNET_BYTES, IPV4_BYTES, UDP_BYTES = 14, 20, 8
IPV4_OFFSET = ETHERNET_BYTES
UDP_OFFSET = IPV4_OFFSET + IPV4_BYTES
HEADER_OFFSET = UDP_OFFSET + UDP_BYTES
ETHERTYPE_IPV4 = 0x0800
IPV4_VERSION_AND_WORDS = 0x45
"""The first byte of an IPv4 header without options."""
PROTOCOL_UDP = 17
DO_NOT_FRAGMENT = 0x4000
COUNT_BITS = 10
"""Width of the count of workers that contributed NaN, +Inf or -Inf, within a sum (worker_agent/fixedpoint.py)."""
FRAGMENT_MASK = 0x3FFF
"""Bits of IPv4's flags and offset: a fragment has at least one of them set ("more fragments", or its offset)."""


class ProtocolError(ValueError):
    """``protocol.json`` cannot be used; the message names the entry."""


@dataclass(frozen=True)
class Field:
    """One field of the aggregation header: its byte offset in the frame, and its width in bits (a whole number of
    bytes)."""

    name: str
    bits: int
    offset: int

    @property
    def size(self) -> int:
        """The width in bytes."""
        return self.bits // 8


@dataclass(frozen=True)
class TargetDefaults:
    """Build options of one target: values per packet, the most flows that its program adds to one sum, slots, table
    sizes (entries) and multicast groups.

    Attributes:
        sources: the folder of the P4 sources, in p4src/.
        program: the file of the compiled program that the control plane reads: bmv2 JSON, or the tables of the Barefoot
            Runtime.
        built: values per packet of the programs that are kept in the repository.
    """

    sources: str
    program: str
    built: tuple[int, ...]
    values_per_packet: int
    flows: int
    slots: int
    label_table_size: int
    route_table_size: int
    multicast_groups: int


@dataclass(frozen=True)
class Protocol:
    """The content of ``protocol.json``, checked. MAC addresses are 6 bytes.

    ``group`` is the IPv4 address of the multicast group to which every packet is sent. A UDP destination port belongs
    to the protocol if its bits under ``udp_port_mask`` are ``udp_port_base``; each job has ``ports_per_job`` of these
    ports.
    """

    version: int
    group: ipaddress.IPv4Address
    udp_port_base: int
    udp_port_mask: int
    ports_per_job: int
    ttl: int
    gateway_mac: bytes
    header: tuple[Field, ...]
    flags: dict[str, int]
    max_workers: int
    value_bits: int
    verdicts: tuple[str, ...]
    targets: dict[str, TargetDefaults]

    @property
    def group_mac(self) -> bytes:
        """The destination MAC address of the group (RFC 1112): 01:00:5e and the group's lowest 23 bits."""
        return bytes((0x01, 0x00, 0x5E, self.group.packed[1] & 0x7F, *self.group.packed[2:]))

    @property
    def header_bytes(self) -> int:
        """The bytes of the aggregation header alone, without the headers before it and the values after it."""
        return sum(field.size for field in self.header)

    @property
    def values_offset(self) -> int:
        """The byte offset of the first value in a frame."""
        return HEADER_OFFSET + self.header_bytes

    @property
    def ports(self) -> range:
        """The UDP destination ports that belong to the protocol."""
        return range(self.udp_port_base, self.udp_port_base + (~self.udp_port_mask & 0xFFFF) + 1)

    def udp_port(self, job_id: int, tree: int) -> int:
        """Return the UDP destination port of all packets of a job's tree: the trees of a job share its ports in
        turn.
        """
        jobs = len(self.ports) // self.ports_per_job
        return self.udp_port_base + self.ports_per_job * (job_id % jobs) + tree % self.ports_per_job

    def udp_length(self, values_per_packet: int) -> int:
        """Return UDP's length field: its own header, the aggregation header and the values."""
        return UDP_BYTES + self.header_bytes + values_per_packet * self.value_bits // 8

    def ipv4_length(self, values_per_packet: int) -> int:
        """Return IPv4's total length field, which is also the MTU that packets need."""
        return IPV4_BYTES + self.udp_length(values_per_packet)

    def frame_bytes(self, values_per_packet: int) -> int:
        """Return the length of a whole frame (without FCS) that carries ``values_per_packet`` values."""
        return self.values_offset + values_per_packet * self.value_bits // 8

    def field(self, name: str) -> Field:
        """Return the header field called ``name``. Raise ProtocolError where there is none."""
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
    """Check the content of ``protocol.json`` and return it. Raise ProtocolError, which names what is missing or
    wrong."""
    try:
        header: list[Field] = []
        offset = HEADER_OFFSET
        for name, bits in data["header"]:
            if bits % 8 or not 0 < bits <= 64:
                raise ProtocolError(f"protocol.json: header field {name!r} must be 8 to 64 whole bits, got {bits}")
            header.append(Field(name, bits, offset))
            offset += bits // 8
        protocol = Protocol(
            version=data["version"],
            group=ipaddress.IPv4Address(data["group"]),
            udp_port_base=int(data["udp_port_base"], 16),
            udp_port_mask=int(data["udp_port_mask"], 16),
            ports_per_job=data["ports_per_job"],
            ttl=data["ttl"],
            gateway_mac=_mac(data["gateway_mac"]),
            header=tuple(header),
            flags=dict(data["flags"]),
            max_workers=data["max_workers"],
            value_bits=data["value_bits"],
            verdicts=tuple(data["verdicts"]),
            targets={
                name: TargetDefaults(**{**options, "built": tuple(options["built"])})
                for name, options in data["targets"].items()
            },
        )
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"protocol.json: {error}") from error
    except ipaddress.AddressValueError as error:
        raise ProtocolError(f"protocol.json: group: {error}") from error
    if not protocol.group.is_multicast:
        raise ProtocolError(f"protocol.json: group must be an IPv4 multicast address, not {protocol.group}")
    others = ~protocol.udp_port_mask & 0xFFFF
    if others & (others + 1) or protocol.udp_port_base & ~protocol.udp_port_mask:
        raise ProtocolError("protocol.json: udp_port_mask and udp_port_base must make an aligned range of ports")
    if not 0 < protocol.ports_per_job <= len(protocol.ports) or len(protocol.ports) % protocol.ports_per_job:
        raise ProtocolError("protocol.json: ports_per_job must divide the range of ports")
    if not 0 < protocol.ttl < 256:
        raise ProtocolError("protocol.json: ttl must be 1 to 255")
    if not 0 < protocol.max_workers < 1 << COUNT_BITS:
        raise ProtocolError(f"protocol.json: max_workers must be 1 to {(1 << COUNT_BITS) - 1}, which counts can reach")
    bits = protocol.field("bitmap").bits
    for name, target in protocol.targets.items():
        if not 2 <= target.flows <= bits:
            raise ProtocolError(f"protocol.json: targets.{name}.flows must be 2 to the width of the bitmap, {bits}")
    return protocol


PROTOCOL = parse(json.loads(PROTOCOL_FILE.read_text()))

VERSION = PROTOCOL.version
GROUP = PROTOCOL.group
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


class HostFlag(IntFlag):
    """Bits of the flags field that only hosts read; switches pass them on.

    No P4 program knows them, so they are not in ``protocol.json``, of which the programs' constants are made. All
    packets of a chunk have the same bits, except ASK, LATE and CONGESTED.

    Attributes:
        SCATTER: the result goes to the chunk's owner only.
        SINGLE: the packet of one worker is the whole chunk.
        ASK: the packet is from a worker that adds nothing to a SINGLE chunk and lacks its result; with RESULT, it is
            from a parameter server that asks workers to send chunks again.
        LATE: a worker has sent the packet again without being asked, because no answer has come.
        CONGESTED: on a result, a switch has marked a contribution to it (ECN, RFC 3168), because a queue on the way is
            too long.
    """

    SCATTER = 8
    SINGLE = 16
    ASK = 32
    LATE = 64
    CONGESTED = 128


ENCODING = 8
"""Version of the encoding of a packet's values (fixed point, exponents, the check word) between hosts.

Agents with another version are refused when they join. Switches do not depend on it, so it is not in ``protocol.json``,
whose digest is that of the compiled programs.
"""
CHECK_WORDS = 1
"""Values of each packet that are not data: the last one is its check word (worker_agent/native/check.h)."""


class Verdict(IntEnum):
    """A switch's treatment of an aggregation packet, as an index into ``verdict_counter``."""

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


def is_ours(port: int) -> bool:
    """Return whether UDP destination port ``port`` belongs to the protocol."""
    return port & PROTOCOL.udp_port_mask == PROTOCOL.udp_port_base


def udp_port(job_id: int, tree: int) -> int:
    """Return the UDP destination port of all packets of a job's tree."""
    return PROTOCOL.udp_port(job_id, tree)


def frame_bytes(values_per_packet: int) -> int:
    """Return the length of a whole frame (without FCS) that carries ``values_per_packet`` values."""
    return PROTOCOL.frame_bytes(values_per_packet)


def data_values(values_per_packet: int) -> int:
    """Return how many of a packet's values are data; the others are its check word."""
    return values_per_packet - CHECK_WORDS


def exponents_per_packet(values_per_packet: int) -> int:
    """Return how many exponents a packet carries: each is in two of its words (docs/protocol.md, "Every sum is
    checked").
    """
    return data_values(values_per_packet) // 2
