"""Super-frames in Python: their segmentation, and sockets that send and receive them."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
SO_RCVBUFFORCE = 33
NEEDS_CSUM = 1
PLAIN, TCP4, TCP6, UDP = 0, 1, 4, 5
VNET = "=BBHHHH"
ETHERNET = 14


@dataclass(frozen=True)
class Sent:
    """A kernel frame of a ``kind``, with segments of ``size`` bytes of payload if it is a super-frame.

    ``start``: where the checksummed part begins.
    """

    frame: bytes
    kind: int = PLAIN
    size: int = 0
    start: int = 0

    def bytes(self) -> bytes:
        """Return the frame with the offload information that packet sockets expect."""
        if self.kind == PLAIN:
            return bytes(10) + self.frame
        offset = 6 if self.kind == UDP else 16
        header = self.start + (8 if self.kind == UDP else 4 * (self.frame[self.start + 12] >> 4))
        return struct.pack(VNET, NEEDS_CSUM, self.kind, header, self.size, self.start, offset) + self.frame


def read(data: bytes) -> Sent:
    """Return the frame that a packet socket with offload information received."""
    flags, kind, _, size, start, offset = struct.unpack(VNET, data[:10])
    frame = data[10:]
    if kind == PLAIN and flags & NEEDS_CSUM:  # the checksum was left to the network card
        at = start + offset
        frame = frame[:at] + struct.pack(">H", ~total(frame[start:]) & 0xFFFF or 0xFFFF) + frame[at + 2 :]
    return Sent(frame, kind, size, start)


def open_socket(interface: str) -> socket.socket:
    """Return a packet socket that accepts and delivers super-frames.

    It has no protocol until it is bound: with one, it would also receive what other interfaces carried before.
    """
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    raw.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    raw.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    raw.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 25)
    raw.bind((interface, 3))
    raw.settimeout(20)
    return raw


def total(data: bytes) -> int:
    """Return the ones' complement sum of 16-bit numbers (RFC 1071)."""
    data += bytes(len(data) % 2)
    found = sum(struct.unpack(f">{len(data) // 2}H", data))
    while found >> 16:
        found = (found & 0xFFFF) + (found >> 16)
    return found


def with_ip_checksum(ip: bytes) -> bytes:
    """Return an IPv4 header with its checksum."""
    ip = ip[:10] + b"\0\0" + ip[12:]
    return ip[:10] + struct.pack(">H", ~total(ip) & 0xFFFF) + ip[12:]


def pseudo(ip: bytes, protocol: int, length: int) -> int:
    """Return the sum of the pseudo-header of an IPv4 or IPv6 header."""
    return total((ip[12:20] if ip[0] >> 4 == 4 else ip[8:40]) + struct.pack(">HH", protocol, length))


def with_udp_checksum(ip: bytes, udp: bytes) -> bytes:
    """Return a datagram with its checksum."""
    udp = udp[:6] + b"\0\0" + udp[8:]
    found = total(struct.pack(">H", pseudo(ip, 17, len(udp))) + udp)
    return udp[:6] + struct.pack(">H", ~found & 0xFFFF or 0xFFFF) + udp[8:]


def cut(sent: Sent) -> list[bytes]:
    """Return the frames that a wire would carry (a UDP checksum of 0 stays 0)."""
    if sent.kind == PLAIN:
        return [sent.frame]
    frame, l3, l4 = sent.frame, ETHERNET, sent.start
    while frame[l3 - 2 : l3] == b"\x81\x00":
        l3 += 4
    head = l4 + (8 if sent.kind == UDP else 4 * (frame[l4 + 12] >> 4))
    pieces = [frame[at : at + sent.size] for at in range(head, len(frame), sent.size)]
    frames, sequence = [], 0
    for number, piece in enumerate(pieces):
        ip, transport = bytearray(frame[l3:l4]), bytearray(frame[l4:head])
        length = len(transport) + len(piece)
        if ip[0] >> 4 == 4:
            identification = int.from_bytes(ip[4:6], "big") + number
            ip[2:6] = struct.pack(">HH", len(ip) + length, identification & 0xFFFF)
            ip = bytearray(with_ip_checksum(bytes(ip)))
        else:
            ip[4:6] = struct.pack(">H", len(ip) - 40 + length)
        if sent.kind == UDP:
            transport[4:6] = struct.pack(">H", length)
            whole = bytes(transport) + piece
            if transport[6:8] != b"\0\0":
                whole = with_udp_checksum(bytes(ip), whole)
        else:
            begin = int.from_bytes(transport[4:8], "big") + sequence
            transport[4:8] = struct.pack(">I", begin & 0xFFFFFFFF)
            if number + 1 < len(pieces):
                transport[13] &= ~0x09 & 0xFF  # FIN and PSH
            if number:
                transport[13] &= 0x7F  # CWR
            transport[16:18] = b"\0\0"
            whole = bytes(transport) + piece
            found = ~total(struct.pack(">H", pseudo(bytes(ip), 6, length)) + whole) & 0xFFFF
            whole = whole[:16] + struct.pack(">H", found) + whole[18:]
        frames.append(frame[:l3] + bytes(ip) + whole)
        sequence += len(piece)
    return frames
