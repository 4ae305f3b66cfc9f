"""The counters of the worker's engine as Python sees them."""

from __future__ import annotations

from dataclasses import dataclass

from worker_agent.io_options import IoStats


@dataclass(frozen=True)
class TreeStats:
    """The counters of one tree since the last configuration.

    measured_mbps: wire bits of the chunks (each once) over the time in which an operation was in progress (first send
    to last answer). rtt_seconds: the lowest of the last second or so. check_failures: results that were changed on the
    way; they were not used, and requested again.
    """

    tree: int
    root: str
    chunks_sent: int
    resent_gap: int
    resent_timeout: int
    resent_recovery: int
    answers: int
    duplicates: int
    refused: int
    check_failures: int
    busy_seconds: float
    measured_mbps: float
    rtt_seconds: float
    rtt_lowest: float
    oldest_unanswered: int
    next_sequence: int

    @property
    def resent(self) -> int:
        """Packets sent again."""
        return self.resent_gap + self.resent_timeout + self.resent_recovery


@dataclass(frozen=True)
class EngineStats:
    """Counters since the engine was made (`trees`: since the last configuration).

    bytes_*: of whole frames; other_source: packets from addresses that have no part in the job; bytes_reduced: of
    tensors; cpu_seconds: of the I/O threads; io: back end, threads, super-frames, errors.
    """

    packets_sent: int
    packets_received: int
    bytes_sent: int
    bytes_received: int
    malformed: int
    unknown: int
    other_epoch: int
    other_source: int
    send_errors: int
    kernel_drops: int
    operations_done: int
    operations_failed: int
    bytes_reduced: int
    wakeups: int
    cpu_seconds: float
    io: IoStats
    trees: tuple[TreeStats, ...]

    @property
    def resent(self) -> int:
        """Packets sent again, on all trees."""
        return sum(tree.resent for tree in self.trees)

    @property
    def measured_mbps(self) -> float:
        """The sending rate on all trees together, in wire Mbit/s."""
        return sum(tree.measured_mbps for tree in self.trees)
