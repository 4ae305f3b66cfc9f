"""The switch: what every target has to do with every frame.

``aggregate`` is the slot algorithm as a pure function (the search uses it alone); ``Switch`` is a whole switch with
tables, counters and registers (the behavioural tests compare targets with it, frame by frame).
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from p4src.protocol import ETHERNET_BYTES, ETHERTYPE_IPV4, GATEWAY_MAC, UDP_OFFSET, Verdict
from tests.model.merge import Values, merger
from tests.model.packet import Packet, decode, internet_checksum, ours

IPV4_END = UDP_OFFSET
"""Bytes of Ethernet and an IPv4 header without options."""


@dataclass(frozen=True)
class Forward:
    """Send out of ``port``, unchanged."""

    port: int


@dataclass(frozen=True)
class Replicate:
    """Send a copy, unchanged, out of every port of multicast group ``group``."""

    group: int


@dataclass(frozen=True)
class Aggregate:
    """Merge into a slot. ``flow``: the bit of this flow among those of its aggregation point, ``everyone``.

    Complete sums leave with ``next_label``, everything else with ``partial_label``.
    """

    slot_base: int
    slot_mask: int
    flow: int
    everyone: int
    next_label: int
    partial_label: int
    port: int


@dataclass(frozen=True)
class Bridge:
    """An entry for frames that are neither for aggregation nor IPv4 to a host.

    It matches frames from ``port`` (None: any) to an address that equals ``address`` where ``mask`` has ones. Addresses
    are ints. ``action`` None: dropped.
    """

    port: int | None
    address: int
    mask: int
    action: Forward | Replicate | None


class Slot(NamedTuple):
    """State of one slot; the defaults are those after a reboot.

    ``bitmap``: the flows that have contributed. ``values`` of an empty or closed slot are never read.
    """

    owner: int = 0
    bitmap: int = 0
    closed: bool = False
    values: Values | None = None


def aggregate(slot: Slot, packet: Packet, action: Aggregate) -> tuple[Slot, Verdict, Packet | None]:
    """Run the slot algorithm (docs/protocol.md); returns new slot state, verdict, and the packet that leaves, if
    any.
    """
    if packet.result:
        return slot, Verdict.REFUSED, None
    passed_on = packet._replace(bitmap=action.flow, label=action.partial_label)
    if packet.epoch != slot.owner >> 32 or packet.own > slot.owner:
        slot = Slot(owner=packet.own)
    if packet.own < slot.owner or slot.closed:
        return slot, Verdict.STALE, passed_on
    if not action.flow & slot.bitmap:
        values = merger(packet.maximum)(slot.values, packet.values) if slot.values is not None else packet.values
        bitmap = slot.bitmap | action.flow
    elif packet.resend:
        assert slot.values is not None
        values, bitmap = slot.values, slot.bitmap
    else:
        return slot, Verdict.DUPLICATE, None
    leaving = passed_on._replace(bitmap=bitmap, values=values)
    closed = Slot(slot.owner, bitmap, True, None)
    if bitmap == action.everyone:
        return closed, Verdict.COMPLETED, leaving._replace(label=action.next_label)
    if packet.resend:
        return closed, Verdict.FLUSHED, leaving
    return Slot(slot.owner, bitmap, False, values), Verdict.ABSORBED, None


@dataclass
class Switch:
    """A switch with its tables and state. Ports and labels are ints; MAC addresses bytes; IPv4 addresses ints.

    ``routes``: (address, prefix length) -> (destination MAC, port). ``bridge``: the first that matches counts.
    Registers are forgotten by :meth:`reboot`, the tables are not (the controller would install them again).
    """

    values_per_packet: int
    slots: int
    labels: dict[tuple[int, int], Forward | Replicate | Aggregate] = field(default_factory=dict)
    groups: dict[int, tuple[int, ...]] = field(default_factory=dict)
    routes: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    label_packets: Counter[tuple[int, int]] = field(default_factory=Counter)
    label_bytes: Counter[tuple[int, int]] = field(default_factory=Counter)
    registers: dict[int, Slot] = field(default_factory=dict)
    bridge: tuple[Bridge, ...] = ()
    other_received: Counter[int] = field(default_factory=Counter)
    other_sent: Counter[int] = field(default_factory=Counter)
    flooded: int = 0

    def reboot(self) -> None:
        """Forget every slot."""
        self.registers.clear()

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Return what leaves, as (port, frame), when ``frame`` arrives on ``port``.

        Order among ports has no meaning.
        """
        if int.from_bytes(frame[12:14], "big") != ETHERTYPE_IPV4 or not ours(frame):
            return self._other(port, frame)
        packet = decode(frame, self.values_per_packet)
        if packet is None:
            self.verdicts[Verdict.MALFORMED] += 1
            return []
        key = (port, packet.label)
        action = self.labels.get(key)
        if action is None:
            self.verdicts[Verdict.UNKNOWN] += 1
            return []
        self.label_packets[key] += 1
        self.label_bytes[key] += len(frame)
        if isinstance(action, Forward):
            self.verdicts[Verdict.FORWARDED] += 1
            return [(action.port, packet.encode())]
        if isinstance(action, Replicate):
            self.verdicts[Verdict.REPLICATED] += 1
            return [(out, packet.encode()) for out in self.groups.get(action.group, ())]
        index = (action.slot_base + (packet.sequence & action.slot_mask)) % self.slots
        slot, verdict, leaving = aggregate(self.registers.get(index, Slot()), packet.without_checksum(), action)
        self.registers[index] = slot
        self.verdicts[verdict] += 1
        return [] if leaving is None else [(action.port, leaving.encode())]

    def _other(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Route or bridge a frame that is none of ours, and count its bytes; what a group gets is not counted."""
        self.other_received[port] += len(frame)
        before = self.flooded
        if int.from_bytes(frame[12:14], "big") != ETHERTYPE_IPV4 or (frame[0] & 1 and len(frame) >= IPV4_END):
            leaving = self._bridge(port, frame)
        else:
            leaving = self._route(frame)
        for out, _ in leaving if self.flooded == before else []:
            self.other_sent[out] += len(frame)
        return leaving

    def _route(self, frame: bytes) -> list[tuple[int, bytes]]:
        """Route IPv4 without options to the longest matching prefix; anything that is not routable is dropped."""
        if len(frame) < IPV4_END or frame[0] & 1 or frame[14] != 0x45 or internet_checksum(frame[14:34]) != 0:
            return []
        ttl = frame[22]
        destination = int.from_bytes(frame[30:34], "big")
        for length in range(32, -1, -1):
            prefix = destination >> (32 - length) << (32 - length)
            route = self.routes.get((prefix, length))
            if route is not None:
                break
        else:
            return []
        if ttl <= 1:
            return []
        mac, port = route
        header = bytearray(frame[14:34])
        header[8] = ttl - 1
        header[10:12] = b"\0\0"
        header[10:12] = struct.pack(">H", internet_checksum(bytes(header)))
        return [(port, mac + GATEWAY_MAC + frame[12:14] + bytes(header) + frame[IPV4_END:])]

    def _bridge(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Send a frame unchanged to where the first matching entry says."""
        if len(frame) < ETHERNET_BYTES:
            return []
        address = int.from_bytes(frame[:6], "big")
        for entry in self.bridge:
            if entry.port in (None, port) and (address ^ entry.address) & entry.mask == 0:
                if isinstance(entry.action, Forward):
                    return [(entry.action.port, frame)]
                if isinstance(entry.action, Replicate):
                    self.flooded += 1
                    return [(out, frame) for out in self.groups.get(entry.action.group, ())]
                break
        return []
