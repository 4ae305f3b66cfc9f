"""What our messages over TCP take beside their values, for plans that are to be kept to the last part."""

from __future__ import annotations

from controlplane.planner.plan.framing import MTU, Framing
from overlay.core.message import HEADER_BYTES

ETHERNET, IPV4, TCP = 14, 20, 32  # TCP's with time stamps, which hosts use unless told otherwise
FRAME_HEADERS = ETHERNET + IPV4 + TCP
"""Bytes of a frame that are not a connection's; and an acknowledgement has nothing else."""

SEGMENTS_AN_ACKNOWLEDGEMENT = 2  # a receiver waits for the second full segment (RFC 5681)


def segment_bytes(mtu: int = MTU) -> int:
    """What a full frame carries of a connection's bytes."""
    return mtu - IPV4 - TCP


def tcp_framing(chunk_values: int, mtu: int = MTU) -> Framing:
    """Of connections that carry one direction, each message a chunk of so many float32 values."""
    values, segment = 4 * chunk_values, segment_bytes(mtu)
    stream = (values + HEADER_BYTES) / values
    frame = segment + FRAME_HEADERS
    return Framing(
        headers=stream * frame / segment - 1,
        acknowledgements=stream * FRAME_HEADERS / (segment * SEGMENTS_AN_ACKNOWLEDGEMENT),
    )
