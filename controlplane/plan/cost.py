"""What an all-reduce costs with a plan: packets, windows, latency, seconds. The one model of it.

The evaluator's rate, what `plan` prints, the simulator and the rules all come from here. For a tensor of so many bytes
(docs/architecture.md section 3, docs/hosts.md, worker_agent/split.py):

- *Packets.* It is cut into packets of N values, which are dealt to the trees in proportion to their shares, whole. A
  tree with D packets of data carries E packets of exponents before them, one value per packet of its data and four that
  check. Each packet has Ethernet, IPv4, UDP and our header (p4src/protocol.py).
- *Windows.* A tree of s slots has no more than s packets under way, so it carries s packets per round trip
  (plan/slots.py). Where that is less than its part of the rate it is what binds, and the rate is lowered; but not for
  a hosts' time that is only assumed: agents would keep to it where they could do better.
- *Latency.* Data waits for its exponents, so their round trip comes first: of all trees' first packets at once. Then D
  packets leave at the tree's rate, and the last one's result takes a round trip of its own:

    seconds = max over trees of   max(E packets at the tree's rate, first round trip) + (D - 1) packets + round trip

Several tensors are added up as if one came after the other; agents let the next one's exponents overtake, so that a
gradient in many buckets takes less.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from controlplane.job import Job
from controlplane.plan.limits import DoesNotFit, held
from controlplane.plan.model import Plan
from controlplane.plan.round_trips import round_trips
from controlplane.plan.slots import HOST_MS, MAXIMUM_SLOTS, Level, hosts_known, place_slots, round_trip_ms, total_ms
from controlplane.topology import Topology
from p4src.protocol import frame_bytes

BYTES_PER_VALUE = 4
CHECK_VALUES = 4
PLENTY = 1 << 24
ENOUGH = 1 - 1e-9


def data_packets(plan: Plan, values_per_packet: int, size: int | None = None) -> list[int]:
    """Packets of gradients per tree: its quota rounded down, the rest to the largest remainders. size: bytes of the
    tensor (None: of the whole model)."""
    values = -(-(plan.job.model_bytes if size is None else size) // BYTES_PER_VALUE)
    total = -(-values // values_per_packet)
    shares = sum(tree.share for tree in plan.trees)
    quotas = [total * tree.share / shares for tree in plan.trees]
    counts = [int(quota) for quota in quotas]
    order = sorted(range(len(counts)), key=lambda i: (counts[i] - quotas[i], i))
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts


def exponent_packets(data: int, values_per_packet: int) -> int:
    """Of a tree with so many packets of data."""
    return -(-(data + CHECK_VALUES) // values_per_packet) if data else 0


def packets(plan: Plan, values_per_packet: int, size: int | None = None) -> list[int]:
    """All packets that a worker sends per tree, exponents included."""
    return [count + exponent_packets(count, values_per_packet) for count in data_packets(plan, values_per_packet, size)]


def packet_seconds(plan: Plan, values_per_packet: int, rate_mbps: float, size: int | None = None) -> float:
    """Time in which the packets leave at the plan's rate: of the tree that takes longest. No latency."""
    bits = 8 * frame_bytes(values_per_packet)
    return max(
        count * bits / (rate_mbps * tree.share * 1e6)
        for count, tree in zip(packets(plan, values_per_packet, size), plan.trees, strict=True)
    )


@dataclass(frozen=True)
class Windows:
    """Per tree: slots, round trip (ms), what they carry (Mbit/s). rate_mbps: the sending rate at which no tree needs
    more; tree: the one that does first; switch: where its slots ran out (None: it has the most that a tree can have).
    assumed: the hosts' part of the round trips is.
    """

    slots: tuple[int, ...]
    round_trips_ms: tuple[float, ...]
    carries_mbps: tuple[float, ...]
    rate_mbps: float
    tree: int
    switch: str | None
    assumed: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "rate_mbps": self.rate_mbps,
            "tree": self.tree,
            "switch": self.switch,
            "assumed": self.assumed,
            "slots": list(self.slots),
            "round_trips_ms": list(self.round_trips_ms),
            "carries_mbps": list(self.carries_mbps),
        }

    def lines(self, rate_mbps: float) -> Iterator[str]:
        """rate_mbps: of the plan, which the windows limit, too."""
        slots, trip = self.slots[self.tree], self.round_trips_ms[self.tree]
        what = f"tree {self.tree} has {slots} slots and a round trip of {trip:.3g} ms"
        if rate_mbps < self.rate_mbps * ENOUGH:
            yield f"windows     carry {self.rate_mbps:.4g} Mbit/s per worker: enough ({what})"
        else:
            where = f"aggregation memory of {self.switch}" if self.switch else "the most slots that a tree can have"
            yield f"windows     carry {self.rate_mbps:.4g} Mbit/s per worker only: {what} ({where})"
            if self.assumed and self.rate_mbps < rate_mbps * ENOUGH:
                yield "            the hosts' part is assumed and lowers no rate: measure it (--host-ms)"


def windows(plan: Plan, topology: Topology, rate_mbps: float, assumed_ms: float = HOST_MS) -> Windows | None:
    """Of a plan at this rate; None where the packets' size is not known, or the slots do not fit. assumed_ms: of a host
    whose time is not known (slots are given out for HOST_MS in any case)."""
    limits = held(topology)
    values = limits.values_per_packet
    if values is None or not plan.trees or not rate_mbps > 0:
        return None
    at_rate = Plan(plan.job, plan.strategy, rate_mbps, plan.trees)
    bits = 8 * frame_bytes(values)
    free = {v: [(0, limits.slots.get(v, PLENTY))] for v in topology.switches}
    try:
        slots, _ = place_slots(at_rate, topology, bits, free)
    except DoesNotFit:
        return None
    trips = tuple(round_trip_ms(tree, topology, bits, assumed_ms) for tree in plan.trees)
    carries = tuple(n * bits / (1e3 * trip) if trip else float("inf") for n, trip in zip(slots, trips, strict=True))
    first = min(range(len(slots)), key=lambda i: carries[i] / plan.trees[i].share)
    used: Counter[str] = Counter()
    for tree, n in zip(plan.trees, slots, strict=True):
        for point in tree.points:
            used[point] += n
    full = [v for v in plan.trees[first].points if used[v] + slots[first] > limits.slots.get(v, PLENTY)]
    switch = max(full, key=lambda v: used[v], default=None) if slots[first] < MAXIMUM_SLOTS else None
    rate = carries[first] / plan.trees[first].share
    return Windows(slots, trips, carries, rate, first, switch, not hosts_known(plan, topology))


@dataclass(frozen=True)
class Part:
    """A tree's part of an all-reduce: what is sent at the tree's rate, the time beside that, and both together."""

    mbit: float
    wait_s: float
    seconds: float


@dataclass(frozen=True)
class Cost:
    """What all-reduces with a plan cost.

    rate_mbps: of a worker, the evaluator's. pace: the part of it at which agents send. stored: see round_trips.py.
    """

    plan: Plan
    topology: Topology
    values_per_packet: int
    rate_mbps: float
    windows: Windows | None
    pace: float = 1.0
    stored: bool = True

    @property
    def packet_bits(self) -> int:
        return 8 * frame_bytes(self.values_per_packet)

    @cached_property
    def round_trips_ms(self) -> list[float]:
        """Of each tree's chunks, one at a time."""
        found = [
            round_trips([tree], self.topology, self.packet_bits, stored=self.stored)[0] for tree in self.plan.trees
        ]
        return [total_ms(levels) for levels in found]

    @cached_property
    def _first(self) -> dict[tuple[int, ...], list[list[Level]]]:
        return {}

    def first_round_trips(self, trees: tuple[int, ...]) -> list[list[Level]]:
        """Levels of the round trips of these trees' first packets, which start at once."""
        if trees not in self._first:
            chosen = [self.plan.trees[i] for i in trees]
            self._first[trees] = round_trips(chosen, self.topology, self.packet_bits, stored=self.stored)
        return self._first[trees]

    @property
    def tree_rates_mbps(self) -> list[float]:
        """What agents send into each tree, at their pace or as far as its window goes."""
        carries = [math.inf] * len(self.plan.trees) if self.windows is None else self.windows.carries_mbps
        paced = self.rate_mbps * self.pace
        return [min(paced * tree.share, most) for tree, most in zip(self.plan.trees, carries, strict=True)]

    def tree_parts(self, size: int) -> list[Part]:
        """Of an all-reduce of so many bytes, what each tree carries and how long it only waits."""
        data = data_packets(self.plan, self.values_per_packet, size)
        used = tuple(i for i, count in enumerate(data) if count)
        first = dict(zip(used, map(total_ms, self.first_round_trips(used)), strict=True))
        found = []
        for index, (rate, count, trip) in enumerate(zip(self.tree_rates_mbps, data, self.round_trips_ms, strict=True)):
            if not count:
                found.append(Part(0.0, 0.0, 0.0))
                continue
            mbit = self.packet_bits / 1e6
            exponents = exponent_packets(count, self.values_per_packet) * mbit
            idle = max(0.0, first[index] / 1e3 - exponents / rate)  # until the first exponents are back
            sent = exponents + (count - 1) * mbit
            found.append(Part(sent, idle + trip / 1e3, sent / rate + idle + trip / 1e3))
        return found

    def tree_seconds(self, size: int) -> list[float]:
        """Of an all-reduce of so many bytes, by tree; 0 where it carries nothing."""
        return [part.seconds for part in self.tree_parts(size)]

    def seconds(self, size: int) -> float:
        """Of an all-reduce of so many bytes."""
        return max(self.tree_seconds(size))

    def job_seconds(self) -> float:
        """Of the job's tensors, one after the other."""
        job = self.plan.job
        return sum(self.seconds(size) for size in job.sizes) if job.sizes else self.seconds(job.model_bytes)

    def latency(self, size: int) -> list[Level]:
        """Levels of the longest first round trip of an all-reduce of so many bytes."""
        data = data_packets(self.plan, self.values_per_packet, size)
        return max(self.first_round_trips(tuple(i for i, count in enumerate(data) if count)), key=total_ms)

    def to_json(self, sizes: tuple[int, ...]) -> dict[str, Any]:
        return {
            "pace": self.pace,
            "seconds": [{"bytes": size, "seconds": self.seconds(size)} for size in sizes],
            "latency": [{"from": x.source, "to": x.end, "ms": x.ms} for x in self.latency(max(sizes, default=1))],
        }


def cost_of(plan: Plan, topology: Topology, rate_mbps: float, pace: float = 1.0) -> Cost | None:
    """At the evaluator's rate. None where the packets' size is not known, or nothing is added."""
    values = held(topology).values_per_packet
    if values is None or not plan.trees or not rate_mbps > 0:
        return None
    return Cost(plan, topology, values, rate_mbps, windows(plan, topology, rate_mbps * pace), pace)


def least_seconds(job: Job, rate_mbps: float, values_per_packet: int) -> float:
    """Time of the job's packets that no plan of this rate can undercut: of one tree, without latency."""
    bits = 8 * frame_bytes(values_per_packet)
    total = 0
    for size in job.sizes or (job.model_bytes,):
        data = math.ceil(size / (BYTES_PER_VALUE * values_per_packet))
        total += data + exponent_packets(data, values_per_packet)
    return total * bits / (rate_mbps * 1e6)
