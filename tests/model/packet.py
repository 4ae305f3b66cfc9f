"""Aggregation packets, to and from bytes; written from the contract, without the agents' code."""

from __future__ import annotations

import struct
from typing import NamedTuple

from p4src.protocol import ETHERTYPE, GROUP_MAC, VALUES_OFFSET, VERSION, Flag, frame_bytes

HEADER = struct.Struct(">BBHIIIQ")
SOURCE_MAC = bytes.fromhex("020000000001")


class Packet(NamedTuple):
    """One aggregation packet. ``values``: 32-bit words as unsigned ints; the other fields as on the wire."""

    label: int
    epoch: int
    sequence: int
    bitmap: int
    values: tuple[int, ...]
    flags: int = 0
    job: int = 0
    version: int = VERSION
    ethernet: bytes = GROUP_MAC + SOURCE_MAC

    @property
    def own(self) -> int:
        """What a slot's owner is compared with: epoch and sequence as one number."""
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

    def encode(self) -> bytes:
        """The whole Ethernet frame, without FCS."""
        header = HEADER.pack(self.version, self.flags, self.job, self.label, self.epoch, self.sequence, self.bitmap)
        return (
            self.ethernet + struct.pack(">H", ETHERTYPE) + header + struct.pack(f">{len(self.values)}I", *self.values)
        )


def decode(frame: bytes, values_per_packet: int) -> Packet | None:
    """The packet in ``frame``, or None when version or length are wrong. The EtherType must be ours."""
    if len(frame) != frame_bytes(values_per_packet):
        return None
    version, flags, job, label, epoch, sequence, bitmap = HEADER.unpack_from(frame, 14)
    if version != VERSION:
        return None
    values = struct.unpack_from(f">{values_per_packet}I", frame, VALUES_OFFSET)
    return Packet(label, epoch, sequence, bitmap, values, flags, job, version, frame[:12])
