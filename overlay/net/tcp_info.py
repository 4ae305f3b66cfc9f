"""The statistics of a TCP connection in the kernel (Linux's TCP_INFO): segments sent and lost, round trip, rate."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from overlay.core.tcp import TARGET_UTILISATION, connections_for

BYTES = 168
"""Length of the structure up to and with the delivery rate (Linux 4.9)."""


@dataclass(frozen=True)
class Seen:
    """Statistics of a connection.

    Attributes:
        segments: number of segments that were sent, with the retransmissions.
        again: number of retransmissions.
        rtt_seconds: the least round trip.
        mbps: rate at which data was acknowledged.
        quiet_seconds: time since the last acknowledgement.
        sacked_bytes: bytes that have arrived behind a lost segment, so that they are not acknowledged yet (about).
    """

    segments: int
    again: int
    rtt_seconds: float
    mbps: float
    quiet_seconds: float = 0.0
    sacked_bytes: int = 0


def seen(connection: socket.socket) -> Seen | None:
    """Return the connection's statistics; None where the kernel does not give them."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES)
    except OSError:
        return None
    if len(info) < BYTES:
        return None
    (again,), (segments,) = struct.unpack_from("I", info, 100), struct.unpack_from("I", info, 136)
    (least_us,), (bytes_a_second,) = struct.unpack_from("I", info, 148), struct.unpack_from("Q", info, 160)
    (segment_bytes,), (sacked,) = struct.unpack_from("I", info, 16), struct.unpack_from("I", info, 28)
    (quiet_ms,) = struct.unpack_from("I", info, 56)
    return Seen(segments, again, least_us * 1e-6, bytes_a_second * 8e-6, quiet_ms * 1e-3, sacked * segment_bytes)


def connections_by(what: Sequence[Seen], most: int) -> int:
    """Return how many connections to a peer would fill the link, by the losses of the present ones, but at most `most`;
    1 where nothing was lost.
    """
    segments, again = sum(each.segments for each in what), sum(each.again for each in what)
    rates = [each.mbps for each in what if each.mbps > 0]
    trips = [each.rtt_seconds for each in what if each.rtt_seconds > 0]
    if not again or again >= segments or not rates or not trips:
        return 1
    loss = float(f"{again / segments:.0e}")  # rounded, as the result for each loss is kept and takes milliseconds
    return connections_for(max(rates), min(trips), loss, TARGET_UTILISATION, most)
