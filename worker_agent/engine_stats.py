"""The counters of the worker's engine as Python sees them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.common.agentconfig import AgentConfig, WorkerTree
from p4src.protocol import frame_bytes
from worker_agent import native_worker
from worker_agent.io_options import IoStats
from worker_agent.native_engine import counters
from worker_agent.native_worker import NativeStats, NativeTreeStats


@dataclass(frozen=True)
class TreeStats:
    """The counters of one tree since the last configuration.

    Attributes:
        check_failures: results that were changed on the way; they were not used, and requested again.
        marked: answers that said that a queue on the way is too long (ECN).
        measured_mbps: wire bits of the chunks (each counted once) over the time in which an operation was in progress,
            from its first send to its last answer.
        rtt_seconds: the lowest round-trip time of about the last second.
        numbers_used: sequence numbers of the epoch that are used, of all directions and lanes of the tree.
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
    marked: int
    busy_seconds: float
    measured_mbps: float
    rtt_seconds: float
    rtt_lowest: float
    oldest_unanswered: int
    next_sequence: int
    numbers_used: int

    UNREPORTED = frozenset(
        ("tree", "root", "check_failures", "busy_seconds", "measured_mbps", "rtt_seconds", "rtt_lowest")
    ) | {"oldest_unanswered", "next_sequence", "numbers_used"}
    """Fields that are no counters, or that are in the agent's report by another name; reporter.py sums the others."""

    @classmethod
    def of(cls, tree: WorkerTree, native: NativeTreeStats, frame_bits: int) -> TreeStats:
        """Convert the library's counters for `tree`, whose packets have `frame_bits` bits on the wire."""
        return cls(
            tree=tree.tree,
            root=tree.root,
            busy_seconds=native.busy_ns / 1e9,
            measured_mbps=native.answers * frame_bits / (native.busy_ns / 1e3) if native.busy_ns else 0.0,
            **counters(cls, native),
        )

    @property
    def resent(self) -> int:
        """Number of packets sent again."""
        return self.resent_gap + self.resent_timeout + self.resent_recovery


@dataclass(frozen=True)
class EngineStats:
    """The counters of an engine since it was made, and of its trees since the last configuration.

    Attributes:
        bytes_sent, bytes_received: bytes of whole frames.
        other_source: packets from addresses that have no part in the job.
        bytes_reduced: bytes of the tensors that were reduced.
        cpu_seconds: processor time of the I/O threads.
        io: back end, threads, super-frames and errors of input and output.
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

    @classmethod
    def of(cls, config: AgentConfig, native: NativeStats, io: IoStats, trees: Iterable[NativeTreeStats]) -> EngineStats:
        """Convert the library's counters. `trees` has the same order as the configuration's."""
        frame_bits = 8 * frame_bytes(config.values_per_packet)
        of_trees = zip(config.worker_trees, trees, strict=True)
        return cls(
            **counters(cls, native),
            cpu_seconds=native.cpu_ns / 1e9,
            io=io,
            trees=tuple(TreeStats.of(tree, counted, frame_bits) for tree, counted in of_trees),
        )

    @property
    def resent(self) -> int:
        """Number of packets sent again, on all trees."""
        return sum(tree.resent for tree in self.trees)

    @property
    def numbers_used(self) -> float:
        """The fraction of the epoch's sequence numbers that are used on the tree that has used the most."""
        return max((tree.numbers_used for tree in self.trees), default=0) / native_worker.LAST_NUMBER

    @property
    def measured_mbps(self) -> float:
        """The sending rate on all trees together, in wire Mbit/s."""
        return sum(tree.measured_mbps for tree in self.trees)
