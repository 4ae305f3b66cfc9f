"""A packet socket that sends and receives single frames, although the kernel delivers super-frames whole."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections import deque

from p4src.protocol import (
    ETHERTYPE_IPV4,
    GROUP,
    HEADER_OFFSET,
    IPV4_BYTES,
    IPV4_OFFSET,
    PROTOCOL_UDP,
    UDP_BYTES,
    UDP_OFFSET,
)

_VNET_HEADER = struct.Struct("=BBHHHH")  # struct virtio_net_hdr
_GSO_UDP = 5
_SOL_PACKET, _PACKET_VNET_HDR = 263, 15


def checksum(data: bytes) -> int:
    """Return the checksum of IPv4's header."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class RawSocket:
    """Sends any frame; receives UDP to our group, frame by frame.

    It is in the network namespace of the calling thread.
    """

    def __init__(self, interface: str, timeout: float) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        self._socket.bind((interface, ETHERTYPE_IPV4))
        self._timeout = timeout
        self._frames: deque[bytes] = deque()

    def send(self, frame: bytes) -> None:
        """Send one frame as it is."""
        self._socket.send(bytes(_VNET_HEADER.size) + frame)

    def send_super(self, frame: bytes, segment: int) -> None:
        """Send a super-frame, which the kernel takes for packets of `segment` bytes each."""
        pseudo = bytearray(frame)
        length = len(frame) - UDP_OFFSET
        total = PROTOCOL_UDP + length + sum(struct.unpack_from(">4H", frame, IPV4_OFFSET + 12))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        struct.pack_into(">H", pseudo, UDP_OFFSET + 6, total)
        # These are flags (the checksum is to be completed), the headers' length, and where the checksum starts and is
        # stored.
        offload = _VNET_HEADER.pack(1, _GSO_UDP, HEADER_OFFSET, segment, UDP_OFFSET, 6)
        self._socket.send(offload + bytes(pseudo))

    def recv(self) -> bytes:
        """Return the next frame. Raises TimeoutError."""
        frame = self._next(self._timeout)
        assert frame is not None
        return frame

    def recv_waiting(self) -> bytes | None:
        """Return the next frame if one has arrived."""
        try:
            return self._next(0)
        except BlockingIOError:
            return None

    def _next(self, timeout: float) -> bytes | None:
        while not self._frames:
            self._socket.settimeout(timeout)
            data = self._socket.recv(1 << 17)
            kind, size = _VNET_HEADER.unpack_from(data)[1], _VNET_HEADER.unpack_from(data)[3]
            frame = data[_VNET_HEADER.size :]
            if not self._is_ours(frame):
                continue
            self._frames += self._split(frame, size) if kind == _GSO_UDP else [frame]
        return self._frames.popleft()

    @staticmethod
    def _is_ours(frame: bytes) -> bool:
        address = frame[IPV4_OFFSET + 16 : IPV4_OFFSET + 20]
        return (
            len(frame) >= HEADER_OFFSET
            and frame[IPV4_OFFSET + 9] == PROTOCOL_UDP
            and ipaddress.IPv4Address(address) == GROUP
        )

    @staticmethod
    def _split(frame: bytes, size: int) -> list[bytes]:
        """Return its packets as the kernel would put them on the wire: each with its own lengths and checksums (UDP:
        none).
        """
        frames = []
        for first in range(HEADER_OFFSET, len(frame), size):
            payload = frame[first : first + size]
            ip = bytearray(frame[IPV4_OFFSET:UDP_OFFSET])
            struct.pack_into(">H", ip, 2, IPV4_BYTES + UDP_BYTES + len(payload))
            struct.pack_into(">H", ip, 10, 0)
            struct.pack_into(">H", ip, 10, checksum(bytes(ip)))
            udp = frame[UDP_OFFSET : UDP_OFFSET + 4] + struct.pack(">HH", UDP_BYTES + len(payload), 0)
            frames.append(frame[:IPV4_OFFSET] + bytes(ip) + udp + payload)
        return frames

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> RawSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
