"""Counts the bytes that messages over TCP take beside their values, for plans that fill a link to the last byte."""

from __future__ import annotations

from controlplane.planner.plan.framing import MTU, Framing
from overlay.core.message import HEADER_BYTES

ETHERNET, IPV4, TCP = 14, 20, 32  # bytes; TCP's header with time stamps, the default of hosts
FRAME_HEADERS = ETHERNET + IPV4 + TCP
"""Header bytes of a frame. An acknowledgement is a frame with nothing else."""

SEGMENTS_AN_ACKNOWLEDGEMENT = 2  # a receiver waits for the second full segment before it acknowledges (RFC 5681)


def segment_bytes(mtu: int = MTU) -> int:
    """Return the bytes of a connection's stream that fit into a full frame, whose IP packet has `mtu` bytes."""
    return mtu - IPV4 - TCP


def tcp_framing(chunk_values: int, mtu: int = MTU) -> Framing:
    """Return the framing of connections that carry chunks of `chunk_values` float32 values in one direction, in packets
    of `mtu` bytes.
    """
    values, segment = 4 * chunk_values, segment_bytes(mtu)
    stream = (values + HEADER_BYTES) / values
    frame = segment + FRAME_HEADERS
    return Framing(
        headers=stream * frame / segment - 1,
        acknowledgements=stream * FRAME_HEADERS / (segment * SEGMENTS_AN_ACKNOWLEDGEMENT),
    )
