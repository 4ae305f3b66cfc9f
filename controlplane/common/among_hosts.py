"""Overhead of collectives among hosts over TCP: known to the planner, which compares them with plans, and to agents,
which choose between both for each operation."""

TCP_PART = 1448 / 1514
"""Fraction of a full Ethernet frame that is TCP's payload."""

MOST_SEGMENT = 1448
"""Bytes of TCP's payload in a full Ethernet frame."""

TURN_SECONDS = 0.5e-3
"""Seconds that a turn of gloo's ring takes beside the bytes (`evaluation.collectives`)."""
