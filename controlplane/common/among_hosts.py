"""Overhead of collectives among hosts over TCP. The planner uses it to compare them with plans, and agents use it to
choose between both for each operation."""

TCP_PART = 1448 / 1514
"""Fraction of a full Ethernet frame that is TCP's payload."""

MOST_SEGMENT = 1448
"""Bytes of TCP's payload in a full Ethernet frame."""

TURN_SECONDS = 0.5e-3
"""Seconds that a turn of gloo's ring takes in addition to the time of its bytes (`evaluation.collectives`)."""
