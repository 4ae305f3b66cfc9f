"""The overlay on the flow-level simulator: the same policies and executions as over TCP, on simulated links."""
