"""What collectives among hosts over TCP take beside their bytes: known to the planner, which compares them with plans,
and to agents, which choose between both for each operation."""

TCP_PART = 1448 / 1514
"""Of the bits of a full Ethernet frame, those that are TCP's payload."""

TURN_SECONDS = 0.5e-3
"""What a turn of gloo's ring takes beside the bytes (`evaluation.collectives`)."""
