"""Network address translation for TCP in a namespace, on a TUN interface: no iptables or nft is needed.

    python -m tests.support.nat INTERFACE PUBLIC_ADDRESS

The namespace's routes lead packets of hosts inside, and packets for the public address, to the interface. A connection
that begins inside gets a port of the public address. A packet from outside passes only if it belongs to such a
connection; any other one is dropped without a word, as home and cloud gateways do.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from itertools import count

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
FIRST_PORT = 20_000
TCP_CHECKSUM = 16

End = tuple[bytes, int]
"""(address, port)."""


def opened(interface: str) -> int:
    """Return the descriptor of a TUN interface, which this makes."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", interface.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f">{len(data) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def replaced(old: int, before: bytes, after: bytes) -> int:
    """Return a checksum after some of the data that it covers was replaced (RFC 1624)."""
    total = ~old & 0xFFFF
    for was, now in zip(struct.unpack(f">{len(before) // 2}H", before),
                        struct.unpack(f">{len(after) // 2}H", after), strict=True):  # fmt: skip
        total += (~was & 0xFFFF) + now
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Translation:
    """The connections of a gateway with one public address."""

    def __init__(self, public: str) -> None:
        self._public, self._ports = socket.inet_aton(public), count(FIRST_PORT)
        self._outside: dict[tuple[End, End], int] = {}  # public port, by (inside end, outside end)
        self._inside: dict[tuple[int, End], End] = {}  # inside end, by (public port, outside end)

    def translated(self, packet: bytearray) -> bytearray | None:
        """Return the packet to pass on, or None for one that is dropped."""
        if packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
            return None
        at = 4 * (packet[0] & 15)
        sender = bytes(packet[12:16]), int.from_bytes(packet[at : at + 2], "big")
        receiver = bytes(packet[16:20]), int.from_bytes(packet[at + 2 : at + 4], "big")
        if receiver[0] == self._public:
            inside = self._inside.get((receiver[1], sender))
            return None if inside is None else self._rewrite(packet, 16, at + 2, inside)
        port = self._outside.get((sender, receiver))
        if port is None:
            port = self._outside[sender, receiver] = next(self._ports)
            self._inside[port, receiver] = sender
        return self._rewrite(packet, 12, at, (self._public, port))

    @staticmethod
    def _rewrite(packet: bytearray, address_at: int, port_at: int, end: End) -> bytearray:
        at = 4 * (packet[0] & 15)
        before = bytes(packet[address_at : address_at + 4] + packet[port_at : port_at + 2])
        after = end[0] + end[1].to_bytes(2, "big")
        packet[address_at : address_at + 4], packet[port_at : port_at + 2] = after[:4], after[4:]
        packet[10:12] = b"\0\0"
        packet[10:12] = checksum(bytes(packet[:at])).to_bytes(2, "big")
        place = slice(at + TCP_CHECKSUM, at + TCP_CHECKSUM + 2)
        packet[place] = replaced(int.from_bytes(packet[place], "big"), before, after).to_bytes(2, "big")
        return packet


def main() -> None:
    descriptor, translation = opened(sys.argv[1]), Translation(sys.argv[2])
    print("ready", flush=True)
    while True:
        passed = translation.translated(bytearray(os.read(descriptor, 1 << 16)))
        if passed is not None:
            os.write(descriptor, passed)


if __name__ == "__main__":
    main()
