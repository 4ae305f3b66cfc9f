"""Conversion of aggregation packets to and from bytes; written from the contract, without the agents' code."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from p4src.protocol import (
    DO_NOT_FRAGMENT,
    ETHERTYPE_IPV4,
    FRAGMENT_MASK,
    GROUP,
    GROUP_MAC,
    HEADER_OFFSET,
    IPV4_BYTES,
    IPV4_OFFSET,
    IPV4_VERSION_AND_WORDS,
    PROTOCOL,
    PROTOCOL_UDP,
    UDP_OFFSET,
    VALUES_OFFSET,
    VERSION,
    Flag,
    HostFlag,
    frame_bytes,
    is_ours,
    udp_port,
)

ETHERNET = struct.Struct(">6s6sH")
IPV4 = struct.Struct(">BBHHHBBHII")
UDP = struct.Struct(">HHHH")
HEADER = struct.Struct(">BBHIIIQ")
SOURCE_MAC = bytes.fromhex("020000000001")
SOURCE = 0x0A000001
SOURCE_PORT = 49152


def internet_checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071) of an even number of bytes; 0 over a header with a right checksum."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def ipv4_header(
    total_length: int,
    *,
    source: int = SOURCE,
    destination: int = int(GROUP),
    protocol: int = PROTOCOL_UDP,
    service: int = 0,
    identification: int = 0,
    fragment: int = DO_NOT_FRAGMENT,
    ttl: int = PROTOCOL.ttl,
) -> bytes:
    """Return an IPv4 header without options, with its checksum."""
    header = bytearray(
        IPV4.pack(
            IPV4_VERSION_AND_WORDS,
            service,
            total_length,
            identification,
            fragment,
            ttl,
            protocol,
            0,
            source,
            destination,
        )
    )
    header[10:12] = struct.pack(">H", internet_checksum(bytes(header)))
    return bytes(header)


@lru_cache(maxsize=256)
def envelope(
    values_per_packet: int,
    *,
    source_mac: bytes = SOURCE_MAC,
    source_port: int = SOURCE_PORT,
    port: int = udp_port(0, 0),
    checksum: int = 0,
    **ip: int,
) -> bytes:
    """Return the headers before the aggregation header: Ethernet, IPv4 (``ip``: as for :func:`ipv4_header`), UDP."""
    udp_length = PROTOCOL.udp_length(values_per_packet)
    return (
        ETHERNET.pack(GROUP_MAC, source_mac, ETHERTYPE_IPV4)
        + ipv4_header(IPV4_BYTES + udp_length, **ip)
        + UDP.pack(source_port, port, udp_length, checksum)
    )


class Packet(NamedTuple):
    """One aggregation packet. ``values``: 32-bit words as unsigned ints; the other fields as on the wire.

    ``outer``: the headers before the aggregation header; empty: ``envelope(len(values))``.
    """

    label: int
    epoch: int
    sequence: int
    bitmap: int
    values: tuple[int, ...]
    flags: int = 0
    job: int = 0
    version: int = VERSION
    outer: bytes = b""

    @property
    def own(self) -> int:
        """Return what a slot's owner is compared with: epoch and sequence as one number."""
        return self.epoch << 32 | self.sequence

    @property
    def resend(self) -> bool:
        return bool(self.flags & Flag.RESEND)

    @property
    def result(self) -> bool:
        return bool(self.flags & Flag.RESULT)

    @property
    def maximum(self) -> bool:
        return bool(self.flags & Flag.MAXIMUM)

    @property
    def scatter(self) -> bool:
        return bool(self.flags & HostFlag.SCATTER)

    @property
    def single(self) -> bool:
        return bool(self.flags & HostFlag.SINGLE)

    @property
    def ask(self) -> bool:
        return bool(self.flags & HostFlag.ASK)

    def encode(self) -> bytes:
        """Return the whole Ethernet frame, without FCS."""
        header = HEADER.pack(self.version, self.flags, self.job, self.label, self.epoch, self.sequence, self.bitmap)
        outer = self.outer or envelope(len(self.values))
        return outer + header + struct.pack(f">{len(self.values)}I", *self.values)

    def without_checksum(self) -> Packet:
        """Return the packet as an aggregation point sends it on: without UDP checksum."""
        return self._replace(outer=self.outer[: HEADER_OFFSET - 2] + b"\0\0") if self.outer else self


def ours(frame: bytes) -> bool:
    """Return whether a frame is for aggregation, well formed or not.

    Such a frame is UDP over IPv4 without options, to the group and a port of the protocol. A fragment, or a packet too
    short for a UDP header, has no port.
    """
    if len(frame) < UDP_OFFSET or int.from_bytes(frame[12:14], "big") != ETHERTYPE_IPV4:
        return False
    first, _, _, _, fragment, _, protocol, _, _, destination = IPV4.unpack_from(frame, IPV4_OFFSET)
    if (first, protocol, destination) != (IPV4_VERSION_AND_WORDS, PROTOCOL_UDP, int(GROUP)):
        return False
    if fragment & FRAGMENT_MASK or len(frame) < HEADER_OFFSET:
        return True
    return is_ours(UDP.unpack_from(frame, UDP_OFFSET)[1])


def decode(frame: bytes, values_per_packet: int) -> Packet | None:
    """Return the packet in ``frame``, or None if a length or the version is wrong. The frame must be :func:`ours`."""
    if len(frame) != frame_bytes(values_per_packet):
        return None
    _, _, total_length, _, fragment, *_ = IPV4.unpack_from(frame, IPV4_OFFSET)
    _, _, udp_length, _ = UDP.unpack_from(frame, UDP_OFFSET)
    if fragment & FRAGMENT_MASK or total_length != PROTOCOL.ipv4_length(values_per_packet):
        return None
    if udp_length != PROTOCOL.udp_length(values_per_packet):
        return None
    version, flags, job, label, epoch, sequence, bitmap = HEADER.unpack_from(frame, HEADER_OFFSET)
    if version != VERSION:
        return None
    values = struct.unpack_from(f">{values_per_packet}I", frame, VALUES_OFFSET)
    outer = b"" if frame.startswith(envelope(values_per_packet)) else frame[:HEADER_OFFSET]
    return Packet(label, epoch, sequence, bitmap, values, flags, job, version, outer)
