"""Choice of the faster way for an operation: through the network's switches, or torch.distributed's own among the
hosts.

Decided from what is the same on all ranks: the operation, its bytes, the number of workers, the rate that was planned
and what a ring among the hosts would reach over the same links, which the controller computes
(controlplane/planner/plan/host_collectives.py). Nothing is measured, so nothing changes from one step to the next.

gloo's ways (torch 2.13): an all-reduce is a ring, a reduce-scatter an all-reduce, an all-gather W - 1 turns of a ring,
a broadcast a binomial tree.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.among_hosts import TCP_PART, TURN_SECONDS
from p4src.protocol import data_values, frame_bytes
from worker_agent.collectives import Collective, Kind
from worker_agent.gathered import MOST_PACKETS, WORD_BYTES

MESSAGE_SECONDS = 0.3e-3
"""Seconds that a message of gloo's broadcast takes beside the bytes (`evaluation.collectives`)."""
ROUND_SECONDS = 0.4e-3
"""A round trip through the switches; operations that are not small take two."""
CLEARLY = 0.98
"""Most of the time in the network, as a fraction, that the other way may take to be chosen."""


@dataclass(frozen=True)
class Ways:
    """Facts on which the choice depends.

    network_mbps: wire rate at which each worker sends, in all trees together. ring_mbps: wire rate that a ring among
    the hosts reaches; 0: not known, and everything goes through the network. gather_speed: of all-gathers, see
    AgentConfig. beside: gathers run beside reductions in the network, which hosts alone cannot do at the same rate.
    values: of a packet.
    """

    workers: int
    network_mbps: float
    ring_mbps: float
    gather_speed: float = 1.0
    beside: bool = False
    values: int = 256

    @classmethod
    def of(cls, config: AgentConfig) -> Ways:
        trees = config.worker_trees
        return cls(
            len(config.workers),
            math.fsum(tree.rate_mbps for tree in trees),
            config.ring_mbps,
            min((tree.gather_speed for tree in trees), default=1.0),
            any(tree.directions > 1 for tree in trees),
            config.values_per_packet,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def seconds_in_network(self, op: Collective, nbytes: int) -> float:
        """Return the seconds of an operation over so many bytes in all, at the planned rate."""
        words = data_values(self.values) * WORD_BYTES / frame_bytes(self.values)
        mbps = self.network_mbps * (self.gather_speed if op.in_parts and op.raw else 1.0)
        small = nbytes <= MOST_PACKETS * WORD_BYTES * (data_values(self.values) // self.workers)
        return 8e-6 * nbytes / (words * mbps) + (1 if small else 2) * ROUND_SECONDS

    def seconds_outside(self, op: Collective, nbytes: int) -> float:
        """Return the seconds of the same operation over torch.distributed."""
        turns = self.workers - 1
        link = self.ring_mbps * 2 * turns / self.workers * TCP_PART
        if op.kind is not Kind.GATHER:
            return 8e-6 * nbytes / (self.ring_mbps * TCP_PART) + 2 * turns * TURN_SECONDS
        if op.source < 0:
            return turns * (8e-6 * nbytes / self.workers / link + TURN_SECONDS)
        return math.ceil(math.log2(self.workers)) * (8e-6 * nbytes / link + MESSAGE_SECONDS)

    def is_faster_outside(self, op: Collective, nbytes: int) -> bool:
        """Return whether torch.distributed is clearly faster for an operation over so many bytes in all. Not where the
        user asked for fewer bits, or for what only the network does."""
        if self.workers < 2 or not self.ring_mbps > 0 or not 0 < self.network_mbps < math.inf:
            return False
        if op.bits is not None or op.feedback or op.merge or (self.beside and op.in_parts):
            return False
        return self.seconds_outside(op, nbytes) < CLEARLY * self.seconds_in_network(op, nbytes)

    def outside_from(self, op: Collective) -> int | None:
        """The power of two of bytes from which on an operation is faster outside; None: none up to 1 GB is."""
        sizes = [1 << power for power in range(31)]
        if not self.is_faster_outside(op, sizes[-1]):
            return None
        return min(size for size in sizes if all(self.is_faster_outside(op, s) for s in sizes if s >= size))
