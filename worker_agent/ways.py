"""Chooses the faster way for an operation: through the network's switches, or torch.distributed's own among the hosts.

The choice depends on facts that are the same on all ranks: the operation, its bytes, the number of workers, the planned
rate, and the rate that a ring among the hosts would reach over the same links, which the controller computes
(controlplane/planner/plan/host_collectives.py). Nothing is measured, so the choice is the same in every step.

gloo (torch 2.13) does it like this. An all-reduce is a ring, whose parts go in two halves, so that one half travels
while the other is waited for; slow links make the time long that a packet takes from host to host, which this does not
hide. A reduce-scatter is an all-reduce, an all-gather W - 1 turns of a ring, and a broadcast a binomial tree.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.among_hosts import MOST_SEGMENT, TCP_PART, TURN_SECONDS
from controlplane.common.dealing import dealt
from p4src.protocol import data_values, frame_bytes
from worker_agent.collectives import GATHER, SCATTER_SUM, Collective, Kind
from worker_agent.gathered import MOST_PACKETS, WORD_BYTES

MESSAGE_SECONDS = 0.3e-3
"""Seconds that a message of gloo's broadcast takes in addition to the time of its bytes (`evaluation.collectives`)."""
LEAST_TURN_SECONDS = 0.6e-3
"""Least seconds of a turn of gloo's all-reduce, however few its bytes are (`evaluation.collectives`)."""
ROUND_SECONDS = 0.2e-3
"""Seconds of a round trip through the switches; operations that are not small take two."""
EVERYBODYS = 1 / 16
"""The fraction of a gather's chunks that all workers get, the owner too (docs/protocol.md, "Everybody's chunks"), with
the fewest slots that a plan gives a tree.
"""
CLEARLY = 0.98
"""The highest fraction of the time in the network that the other way may take to be chosen."""
MOST_REMEMBERED = 4096
"""Most answers that are kept. A kept answer takes 2 us; computing it takes 11 us, and 27 us with 118 trees."""


@dataclass(frozen=True)
class Ways:
    """The facts on which the choice depends.

    Before the data of each tree that has any goes its packet of exponents, and after it comes its last result, one
    tree's after the other's on the same links, which is a large part of the time of a tensor of few packets.

    Attributes:
        workers: number of workers.
        network_mbps: wire rate at which each worker sends, in all trees together.
        ring_mbps: wire rate that a ring among the hosts reaches; 0: not known, and all operations go through the
            network.
        gather_speed: speed of all-gathers, see AgentConfig.
        beside: whether an all-gather and a reduce-scatter run at once in the network, in little more than the time of
            one.
        values: values of a packet.
        tree_mbps: wire rate at which each worker sends in each tree; empty: computed as for one tree.
        ring_hops: number of links that a message of the ring crosses on average; 1 or less: not known.
    """

    workers: int
    network_mbps: float
    ring_mbps: float
    gather_speed: float = 1.0
    beside: bool = False
    values: int = 256
    tree_mbps: tuple[float, ...] = ()
    ring_hops: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree_mbps", tuple(self.tree_mbps))  # of JSON it is a list

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
            tuple(tree.rate_mbps for tree in trees) if all(tree.rate_mbps > 0 for tree in trees) else (),
            config.ring_hops,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def seconds_in_network(self, op: Collective, nbytes: int) -> float:
        """Return the seconds of an operation over so many bytes in all, in the network at the planned rate."""
        payload, frame = data_values(self.values) * WORD_BYTES, frame_bytes(self.values)
        gathers = 1 / ((1 - EVERYBODYS) / self.gather_speed + EVERYBODYS)
        mbps = self.network_mbps * (gathers if op.in_parts and op.raw else 1.0)
        small = nbytes <= MOST_PACKETS * WORD_BYTES * (data_values(self.values) // self.workers)
        sent = frame * nbytes / payload
        if len(self.tree_mbps) > 1 and not small and not op.raw:
            turns = -(-nbytes // payload)
            used = sum(count > 0 for count in dealt(turns, self.tree_mbps))
            sent = frame * (turns + 2 * used)
        return 8e-6 * sent / mbps + (1 if small else 2) * ROUND_SECONDS

    def seconds_outside(self, op: Collective, nbytes: int) -> float:
        """Return the seconds of the same operation over torch.distributed."""
        turns = self.workers - 1
        link = self.ring_mbps * 2 * turns / self.workers * TCP_PART
        if op.kind is not Kind.GATHER:
            # Half a part on its way: over all its links, one packet behind the other.
            half = nbytes / self.workers / 2
            way = 8e-6 * (half + max(0.0, self.ring_hops - 1) * min(half, MOST_SEGMENT)) / link
            return max(8e-6 * nbytes / (self.ring_mbps * TCP_PART), 2 * turns * max(LEAST_TURN_SECONDS, way))
        if op.source < 0:
            return turns * (8e-6 * nbytes / self.workers / link + TURN_SECONDS)
        return math.ceil(math.log2(self.workers)) * (8e-6 * nbytes / link + MESSAGE_SECONDS)

    def is_faster_outside(self, op: Collective, nbytes: int, *, alone: bool = False) -> bool:
        """Return whether torch.distributed is clearly faster for an operation over so many bytes in all.

        It never is where the user asked for fewer bits, or for an operation that only the network does.

        Args:
            op: the operation.
            nbytes: its bytes in all.
            alone: whether the group has had no reduce-scatter. Where it has had one, and the network runs an all-gather
                beside it, the time of both counts: a gather among the hosts would share the workers' links with a
                reduce-scatter through the switches, and both would take longer.
        """
        if self.workers < 2 or not self.ring_mbps > 0 or not 0 < self.network_mbps < math.inf:
            return False
        if op.bits is not None or op.feedback or op.merge:
            return False
        question = (op.kind, op.source >= 0, nbytes, alone)
        if question not in self._remembered:
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[question] = self._is_faster_outside(op, nbytes, alone)
        return self._remembered[question]

    @cached_property
    def _remembered(self) -> dict[tuple[Kind, bool, int, bool], bool]:
        return {}

    def _is_faster_outside(self, op: Collective, nbytes: int, alone: bool) -> bool:
        inside, outside = self.seconds_in_network(op, nbytes), self.seconds_outside(op, nbytes)
        if self.beside and op.in_parts and not alone:
            inside = self.seconds_in_network(SCATTER_SUM, nbytes + nbytes // self.workers)
            outside = self.seconds_outside(SCATTER_SUM, nbytes) + self.seconds_outside(GATHER, nbytes)
        return outside < CLEARLY * inside

    def outside(self, op: Collective, *, alone: bool = False) -> tuple[int, int | None] | None:
        """Return the powers of two of bytes between which an operation is faster outside of the network.

        The second is None where it is faster at all larger ones up to 1 GB, too; the result is None where it is faster
        at none.
        """
        sizes = [1 << power for power in range(31)]
        faster = [self.is_faster_outside(op, size, alone=alone) for size in sizes]
        if not any(faster):
            return None
        last = max(number for number, each in enumerate(faster) if each)
        first = max((number + 1 for number in range(last) if not faster[number]), default=0)
        return sizes[first], None if faster[-1] else sizes[last]
