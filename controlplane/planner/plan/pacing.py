"""Pacing: the token bucket of each tree, by which an agent may send ahead of its pace
(worker_agent/native/worker/pacing.c).

A tree's bucket is full when an all-reduce begins after a pause, and fills at the tree's rate; a packet takes a token.
It holds a millisecond's packets, so that a fast tree sends them together; of slow trees, up to 8, but no more than all
trees of the worker send in 4 ms, and no more than a quarter of the window: or the agent would wake for every packet.
Ever at least one, and never more than four super-frames. For a worker whose host is a parameter server, too, it is 1 ms
instead of 4, but 2 packets in any case: such plans fill more links and have more trees, and the bursts of all workers
that met on a link filled its queue. The agent sleeps until a bucket is full, and sends when it is three quarters full
and something else has woken it. (What agents keep beside that, 3 ms of their rate, only makes up for waking late, and
what they keep beside that on hosts of both roles for waiting for the link: it is left out here.)

`inart_worker_bucket` of the C engine is the same, and a test compares them.
"""

from __future__ import annotations

from p4src.protocol import PROTOCOL, UDP_BYTES

BURST_SECONDS = 0.001
BURST_MESSAGES = 4
FEW, FEW_SECONDS = 8, 0.004
FEW_SHARED, FEW_SECONDS_SHARED = 2, 0.001
WINDOW_PART = 4
READY = 0.75
"""The part of a bucket with which an agent that is awake sends."""
SEGMENTS, MESSAGE_BYTES, SPARE_BYTES = 120, 65536, 256
"""Most packets and bytes of a super-frame, and the most bytes that IPv4's and UDP's headers take of these (io.h)."""


def bucket_packets(
    tree_pps: float, worker_pps: float, slots: int, values_per_packet: int, shared: bool = False
) -> float:
    """Packets that a tree's bucket holds. tree_pps, worker_pps: packets per second of the tree, and of all trees of the
    worker. shared: the worker's host is a parameter server, too."""
    few = min(worker_pps * (FEW_SECONDS_SHARED if shared else FEW_SECONDS), FEW)
    few = min(max(few, FEW_SHARED) if shared else few, slots / WINDOW_PART)
    payload = PROTOCOL.udp_length(values_per_packet) - UDP_BYTES
    most = BURST_MESSAGES * min(SEGMENTS, (MESSAGE_BYTES - SPARE_BYTES) // payload)
    return min(max(1.0, tree_pps * BURST_SECONDS, few), most)


def wanted(bucket: float) -> float:
    """Tokens with which an agent begins to send."""
    return max(1.0, READY * bucket)
