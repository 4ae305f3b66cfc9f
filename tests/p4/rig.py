"""A switch configuration with every kind of entry, and packets that take every path through it."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from p4src.protocol import (
    DO_NOT_FRAGMENT,
    ETHERTYPE_IPV4,
    GATEWAY_MAC,
    GROUP,
    GROUP_MAC,
    HEADER_OFFSET,
    IPV4_OFFSET,
    PROTOCOL,
    PROTOCOL_UDP,
    UDP_OFFSET,
    VERSION,
    Flag,
)
from tests.model.packet import ETHERNET, Packet, envelope, internet_checksum
from tests.model.switch import Aggregate, Bridge, Forward, Replicate, Switch

PORTS = (1, 2, 3, 4, 5, 6)
SLOTS = 2048
TOP_BIT = 1 << 63
EDGE_VALUES = (0, 1, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF)
SEQUENCES = (0, 1, 2, 3, 4, 5, 7, 8, 0x7FFFFFFF, 0xFFFFFFFF)

LABELS: dict[tuple[int, int], Forward | Replicate | Aggregate] = {
    # Four workers use four slots.
    (1, 10): Aggregate(0, 3, 0b0001, 0b1111, 100, 100, 5),
    (2, 11): Aggregate(0, 3, 0b0010, 0b1111, 100, 100, 5),
    (3, 12): Aggregate(0, 3, 0b0100, 0b1111, 100, 100, 5),
    (4, 13): Aggregate(0, 3, 0b1000, 0b1111, 100, 100, 5),
    # Three flows use two slots, whose complete sums have another label than the rest.
    (1, 20): Aggregate(4, 1, 0b001, 0b111, 101, 201, 6),
    (2, 21): Aggregate(4, 1, 0b010, 0b111, 101, 201, 6),
    (3, 22): Aggregate(4, 1, 0b100, 0b111, 101, 201, 6),
    # The last slot has the first and the last flow; its sum leaves by the port of one of them.
    (1, 30): Aggregate(SLOTS - 1, 0, 1, TOP_BIT | 1, 102, 202, 1),
    (2, 31): Aggregate(SLOTS - 1, 0, TOP_BIT, TOP_BIT | 1, 102, 202, 1),
    # This slot has a single flow.
    (3, 32): Aggregate(16, 7, 1 << 40, 1 << 40, 0xFFFFFFFF, 0x80000000, 4),
    # The same label on another port is another flow.
    (5, 10): Forward(6),
    (4, 40): Forward(1),
    (4, 41): Forward(4),
    (6, 50): Replicate(1),
    (5, 51): Replicate(2),
    (6, 52): Replicate(3),
}
GROUPS = {1: (1, 2, 3, 4), 2: (6,), 3: (5, 6)}


def ipv4(text: str) -> int:
    """Return the number of a dotted quad."""
    return int.from_bytes(bytes(int(part) for part in text.split(".")), "big")


ROUTES = {
    (ipv4("10.0.0.0"), 8): (bytes.fromhex("020000000001"), 1),
    (ipv4("10.1.0.0"), 16): (bytes.fromhex("020000000002"), 2),
    (ipv4("10.1.1.1"), 32): (bytes.fromhex("020000000003"), 3),
}


WHOLE = (1 << 48) - 1
GROUP_BIT = 1 << 40
BRIDGE = (
    Bridge(None, 0x0180C2000000, WHOLE - 15, None),
    Bridge(1, int.from_bytes(GATEWAY_MAC, "big"), WHOLE, Forward(2)),
    Bridge(None, WHOLE, WHOLE, Replicate(3)),
    Bridge(5, int.from_bytes(GROUP_MAC, "big"), WHOLE, Forward(6)),
    Bridge(None, int.from_bytes(GROUP_MAC, "big"), WHOLE, None),
    Bridge(3, 0, 0, Forward(4)),
    Bridge(None, GROUP_BIT, GROUP_BIT, Replicate(1)),
    Bridge(6, 0, 0, Replicate(2)),
)
"""Bridge entries, first match first; they cover neither all ports nor all addresses."""


def switch(values_per_packet: int) -> Switch:
    """Return the reference model in this configuration."""
    return Switch(values_per_packet, SLOTS, dict(LABELS), dict(GROUPS), dict(ROUTES), bridge=BRIDGE)


@dataclass(frozen=True)
class Arrival:
    """A frame and the port on which it arrives."""

    port: int
    frame: bytes


class Traffic:
    """Random packets, drawn from ``source``. Epochs begin at ``epoch`` and advance now and then."""

    def __init__(self, source: random.Random, values_per_packet: int, epoch: int) -> None:
        self.random, self.values_per_packet, self.epoch = source, values_per_packet, epoch

    def arrival(self) -> Arrival:
        """Return one frame; seven of ten are for aggregation."""
        if not self.random.randrange(25):
            self.epoch += 1
        kind = self.random.randrange(22)
        if kind < 14:
            port, packet = self.for_aggregation()
            return Arrival(port, packet.encode())
        if kind == 14:
            port, label = self.random.choice([key for key, action in LABELS.items() if not is_aggregate(action)])
            return Arrival(port, self.packet(label).encode())
        if kind == 15:
            return self.misdirected()
        if kind in (16, 17):
            return self.malformed()
        if kind == 18:
            return Arrival(self.random.choice(PORTS), self.noise())
        if kind == 19:
            return Arrival(self.random.choice(PORTS), self.beside())
        return Arrival(self.random.choice(PORTS), self.ipv4_frame())

    def packet(self, label: int) -> Packet:
        """Return a well-formed packet with any flags (unknown ones too) and any bitmap."""
        choose = self.random.choice
        flags = choose(
            (0, 0, 0, 0, Flag.RESEND, Flag.RESEND, Flag.MAXIMUM, Flag.RESEND | Flag.MAXIMUM, Flag.RESULT, 0xF9)
        )
        bitmap = choose((0, 1, 2, 3, 4, 0b11, 0b1100, 0b0111, 0b11111, 0b100000, TOP_BIT, (1 << 64) - 1))
        epoch = choose((self.epoch,) * 18 + (self.epoch - 1, self.epoch + 1, 0xFFFFFFFF))
        return Packet(
            label,
            epoch,
            choose(SEQUENCES),
            bitmap,
            self.values(),
            int(flags),
            job=self.random.randrange(65536),
            outer=self.outer(),
        )

    def outer(self) -> bytes:
        """Return headers of any sender to any of our ports; sometimes with a wrong IPv4 checksum, which switches
        ignore.
        """
        if self.random.randrange(3):
            return b""
        made = bytearray(
            envelope(
                self.values_per_packet,
                source_mac=bytes((2, *self.random.randbytes(5))),
                source_port=self.random.randrange(65536),
                port=self.random.choice((PROTOCOL.ports[0], self.random.choice(PROTOCOL.ports), PROTOCOL.ports[-1])),
                checksum=self.random.choice((0, 1, 0xFFFF, self.random.randrange(65536))),
                service=self.random.randrange(256),
                source=self.random.getrandbits(32),
                identification=self.random.randrange(65536),
                fragment=self.random.choice((0, DO_NOT_FRAGMENT, 0x8000)),
                ttl=self.random.choice((0, 1, 64, 255)),
            )
        )
        if not self.random.randrange(4):
            made[0:6] = self.random.choice((GATEWAY_MAC, b"\xff" * 6))
        if not self.random.randrange(4):
            made[24] ^= 1 << self.random.randrange(8)
        return bytes(made)

    def values(self) -> tuple[int, ...]:
        """Return random words, most often at the limits of the number range. Long packets repeat a few of them."""
        few = [self.random.choice(EDGE_VALUES) ^ self.random.randrange(4) for _ in range(4)]
        return tuple((few[i % 4] + i // 4 * 0x01010101) & 0xFFFFFFFF for i in range(self.values_per_packet))

    def for_aggregation(self) -> tuple[int, Packet]:
        """Return a packet of a flow that is aggregated here, most often a correct one."""
        port, label = self.random.choice([key for key, action in LABELS.items() if is_aggregate(action)])
        packet = self.packet(label)
        if self.random.randrange(8):
            flags = packet.flags & ~Flag.RESULT
            packet = packet._replace(sequence=self.random.choice((0, 1, 4)), flags=int(flags))
        return port, packet

    def misdirected(self) -> Arrival:
        """Return a packet with a label that does not exist, or exists on another port."""
        port = self.random.choice(PORTS)
        label = self.random.choice([label for _, label in LABELS] + [0, 99, 0xFFFFFFFF])
        return Arrival(port, self.packet(label).encode())

    def malformed(self) -> Arrival:
        """Return a malformed packet for an existing flow.

        It is too short, too long, a fragment, of another version, or has a wrong length field.
        """
        port, packet = self.for_aggregation()
        frame = packet.encode()
        how = self.random.randrange(7)
        if how == 0:
            return Arrival(port, packet._replace(version=self.random.choice((0, 1, VERSION + 1, 255))).encode())
        if how == 1:
            return Arrival(port, frame[: self.random.randrange(14, len(frame))])
        if how == 2:
            return Arrival(port, frame + bytes(self.random.choice((1, 4, 100))))
        if how == 3:
            return Arrival(port, frame[: -self.random.choice((1, 4))])
        if how == 4:
            fragment = self.random.choice((0x2000, 1, 0x1FFF, 0x6000, self.random.randrange(65536)))
            return Arrival(port, packet._replace(outer=envelope(self.values_per_packet, fragment=fragment)).encode())
        values = self.values_per_packet + self.random.choice((-1, 1, 64))
        other = envelope(values)  # the lengths of another number of values
        if how == 5:
            return Arrival(port, other + frame[HEADER_OFFSET:])
        outer = envelope(self.values_per_packet)
        halves = self.random.choice(((other, outer), (outer, other)))
        return Arrival(port, halves[0][:UDP_OFFSET] + halves[1][UDP_OFFSET:] + frame[HEADER_OFFSET:])

    def beside(self) -> bytes:
        """Return a frame that is nearly ours, with a whole packet in it: another port, protocol, group, EtherType, or
        options.
        """
        choose = self.random.choice
        _, packet = self.for_aggregation()
        frame = bytearray(packet._replace(outer=envelope(self.values_per_packet)).encode())
        frame[0:6] = choose((GROUP_MAC, GATEWAY_MAC, GATEWAY_MAC))
        how = self.random.randrange(6)
        if how == 0:
            port = choose((PROTOCOL.ports[0] - 1, PROTOCOL.ports[-1] + 1, 0, 53, PROTOCOL.ports[0] ^ 0x8000))
            frame[UDP_OFFSET + 2 : UDP_OFFSET + 4] = struct.pack(">H", port)
            if not self.random.randrange(4):
                del frame[self.random.randrange(UDP_OFFSET, len(frame)) :]
        elif how == 1:
            frame[IPV4_OFFSET + 9] = choose((0, 1, 6, 16, 18, 255))
        elif how == 2:
            frame[IPV4_OFFSET + 16 + self.random.randrange(4)] ^= 1 << self.random.randrange(8)
        elif how == 3:
            frame[IPV4_OFFSET + 16 : IPV4_OFFSET + 20] = struct.pack(">I", ipv4(choose(("10.1.1.1", "10.1.0.9"))))
        elif how == 4:
            frame[IPV4_OFFSET] = choose((0x46, 0x44, 0x55, 0x65, 0x05))
        else:
            frame[12:14] = struct.pack(">H", choose((0x0806, 0x86DD, 0x8100, 0x88B5)))
        frame[IPV4_OFFSET + 10 : IPV4_OFFSET + 12] = b"\0\0"
        checksum = internet_checksum(bytes(frame[IPV4_OFFSET:UDP_OFFSET]))
        frame[IPV4_OFFSET + 10 : IPV4_OFFSET + 12] = struct.pack(">H", checksum)
        return bytes(frame)

    def noise(self) -> bytes:
        """Return random bytes, most often after a header that makes them ours, IPv4, or unknown to a switch."""
        length = self.random.choice((0, 1, 20, 23, 24, 25, 40, 24 + 4 * self.values_per_packet))
        body = self.random.randbytes(length)
        ethertype = self.random.choice((None, None, ETHERTYPE_IPV4, 0x0806, 0x88B6))
        if ethertype is not None:
            return ETHERNET.pack(GATEWAY_MAC, bytes.fromhex("020000000009"), ethertype) + body
        return envelope(self.values_per_packet) + body

    def ipv4_frame(self) -> bytes:
        """Return an IPv4 packet; sometimes with a wrong checksum, with options, at the end of its TTL, or without a
        route.
        """
        choose = self.random.choice
        destination = choose(("10.0.0.9", "10.1.0.9", "10.1.1.1", "10.1.1.2", "11.0.0.1", "224.0.0.251", str(GROUP)))
        words = choose((0x45, 0x45, 0x45, 0x45, 0x45, 0x46, 0x65))
        ttl = choose((64, 64, 64, 2, 1, 0, 255))
        payload = bytes(range(choose((0, 8, 26, 200))))
        options = bytes(4) if words == 0x46 else b""
        source = ipv4("10.0.0.7")
        total = 20 + len(options) + len(payload)
        header = bytearray(
            struct.pack(">BBHHHBBHII", words, 0, total, 7, 0x4000, ttl, PROTOCOL_UDP, 0, source, ipv4(destination))
        )
        checksum = internet_checksum(bytes(header) + options)
        if not self.random.randrange(8):
            checksum ^= 1 << self.random.randrange(16)
        header[10:12] = struct.pack(">H", checksum)
        mac = choose((GATEWAY_MAC, GATEWAY_MAC, GATEWAY_MAC, bytes.fromhex("ffffffffffff")))
        frame = ETHERNET.pack(mac, bytes.fromhex("020000000007"), ETHERTYPE_IPV4) + bytes(header) + options + payload
        if not self.random.randrange(10):
            frame = frame[: self.random.randrange(14, 34)]
        return frame


def is_aggregate(action: Forward | Replicate | Aggregate) -> bool:
    """Return whether an entry's action merges packets."""
    return isinstance(action, Aggregate)
