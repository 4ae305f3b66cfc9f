"""Pacing: the token bucket of each tree, by which an agent may send ahead of its pace
(worker_agent/native/worker/pacing.c).

A tree's bucket is full when an all-reduce begins after a pause, and fills at the tree's rate; a packet takes a token.
It holds the packets of a millisecond, so that a fast tree sends these together. The bucket of a slow tree holds up to 8
packets (else the agent would wake for every packet), but no more than all trees of the worker send in 4 ms, and no more
than a quarter of the window. Every bucket holds at least one packet and at most four super-frames. For a worker whose
host is a parameter server, too, it is 1 ms instead of 4, but 2 packets in any case: such plans fill more links and have
more trees, and the bursts of all workers that met on a link filled its queue. The agent sleeps until a bucket is full;
it sends as soon as the bucket is three quarters full if something else has woken it. (Agents keep further tokens, 3 ms
of their rate, only to make up for waking late, and on hosts of both roles for waiting for the link: these are left out
here.)

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
"""The fraction of a bucket at which an agent that is awake sends."""
SEGMENTS, MESSAGE_BYTES, SPARE_BYTES = 120, 65536, 256
"""Most packets and most bytes of a super-frame, and most of these bytes that the headers of IPv4 and UDP take
(io.h).
"""


def bucket_packets(
    tree_pps: float, worker_pps: float, slots: int, values_per_packet: int, shared: bool = False
) -> float:
    """Return the packets that a tree's bucket holds.

    Args:
        tree_pps: Packets per second of the tree.
        worker_pps: Packets per second of all trees of the worker.
        slots: The tree's window.
        shared: Whether the worker's host is a parameter server, too.
    """
    few = min(worker_pps * (FEW_SECONDS_SHARED if shared else FEW_SECONDS), FEW)
    few = min(max(few, FEW_SHARED) if shared else few, slots / WINDOW_PART)
    payload = PROTOCOL.udp_length(values_per_packet) - UDP_BYTES
    most = BURST_MESSAGES * min(SEGMENTS, (MESSAGE_BYTES - SPARE_BYTES) // payload)
    return min(max(1.0, tree_pps * BURST_SECONDS, few), most)


def wanted(bucket: float) -> float:
    """Return the number of tokens at which an agent begins to send."""
    return max(1.0, READY * bucket)
