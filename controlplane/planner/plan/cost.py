"""Cost of an all-reduce with a plan: packets, windows, latency, seconds. This is the only model of it.

The evaluator's rate, what `plan` prints, the simulator and the rules all come from here. For a tensor of so many bytes
(docs/architecture.md section 3, docs/hosts.md, worker_agent/split.py):

- *Packets.* It is cut into packets of N values, which are dealt to the trees so that none is done long after the
  others (controlplane/common/dealing.py). A tree with D packets of data carries E packets of exponents before them (of
  a tensor longer than a window, the later ones between them, which takes as long), one value per packet of its data and
  four that check. Each packet has Ethernet, IPv4, UDP and our header (p4src/protocol.py).
- *Windows.* A tree of s slots has no more than s packets under way, so it carries s packets per round trip
  (plan/slots.py). Where that is less than its part of the rate, its window is the bottleneck and the rate is lowered;
  but not for a hosts' time that is only assumed: agents would keep to it where they could do better.
- *Pacing.* Agents send a tree at its rate r, with a token bucket of B packets that is full at the beginning
  (plan/pacing.py): as many may go at once.
- *Latency.* Data waits for its exponents, so their round trip comes first: that of all trees' first packets at once. At
  T they are back, and there are K tokens, B at most. If the bucket is not full enough then, the agent waits for a full
  one, K = B. K packets go at once, the rest as fast as tokens come, and the last one's result takes a round trip of
  its own:

    T       = first round trip;  K = min(B, B - E + r T);  or T = E / r, K = B
    seconds = max over trees of   T + (D - K) / r + round trip

- *Links.* Links take packets that agents send at once one after the other, except for the b bytes of their own token
  buckets (none, unless `credit` gives them). So no tree is done before each of its links has carried the data of all
  trees:

    seconds >= T + (packets of all trees on the link, but for the last chunk's) / capacity - b / capacity + round trip

For a few hundred bytes agents need no exponents (worker_agent/gathered.py), and take less time than this says.

Where the packets are few they are followed one by one instead (plan/follow.py): packets of several trees that meet on a
link, which the formula leaves out, are then part of the time.

All of that holds for an all-reduce that begins with full buckets, after a pause. Several tensors are added up as if one
came after the other, and no tree carries more than its rate over all of them; agents let the next one's exponents
overtake, so that a gradient in many buckets takes less.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from controlplane.common.dealing import dealt
from controlplane.common.numbers import short
from controlplane.planner.job import Job
from controlplane.planner.plan.follow import Credit, Links, Stream, exponent_words, follow, hops, round_trips
from controlplane.planner.plan.limits import DoesNotFit, switch_limits
from controlplane.planner.plan.model import Plan, Tree
from controlplane.planner.plan.pacing import bucket_packets, wanted
from controlplane.planner.plan.separated import shares_hosts
from controlplane.planner.plan.slots import (
    HOST_MS,
    MAXIMUM_SLOTS,
    Level,
    hosts_known,
    place_slots,
    round_trip_ms,
    total_ms,
)
from controlplane.planner.topology import Topology
from p4src.protocol import data_values, exponents_per_packet, frame_bytes

if TYPE_CHECKING:
    from controlplane.planner.plan.queues import Queues

BYTES_PER_VALUE = 4
PLENTY = 1 << 24
ENOUGH = 1 - 1e-9
MOST_HOPS = 80_000
"""Most packets times links of an all-reduce that is followed packet by packet (which takes some tenths of a second)."""


def data_packets(plan: Plan, values_per_packet: int, size: int | None = None) -> list[int]:
    """Return the packets of gradients of each tree, for a tensor of `size` bytes (None: the whole model)."""
    values = -(-(plan.job.model_bytes if size is None else size) // BYTES_PER_VALUE)
    return dealt(-(-values // data_values(values_per_packet)), [tree.share for tree in plan.trees])


def exponent_packets(data: int, values_per_packet: int) -> int:
    """Return the number of exponent packets of a tree with so many packets of data."""
    return -(-exponent_words(data) // exponents_per_packet(values_per_packet)) if data else 0


def packets(plan: Plan, values_per_packet: int, size: int | None = None) -> list[int]:
    """Return all packets that a worker sends into each tree, exponents included."""
    return [count + exponent_packets(count, values_per_packet) for count in data_packets(plan, values_per_packet, size)]


def packet_seconds(plan: Plan, values_per_packet: int, rate_mbps: float, size: int | None = None) -> float:
    """Return the seconds in which the packets leave at the plan's rate, which are those of the tree that takes longest,
    without latency.
    """
    bits = 8 * frame_bytes(values_per_packet)
    return max(
        count * bits / (rate_mbps * tree.share * 1e6)
        for count, tree in zip(packets(plan, values_per_packet, size), plan.trees, strict=True)
    )


@dataclass(frozen=True)
class Windows:
    """Windows of a plan's trees.

    Attributes:
        carries_mbps: Mbit/s that each tree's window carries.
        rate_mbps: The highest sending rate at which no tree needs a larger window.
        tree: The tree that first needs a larger one.
        switch: The switch where the slots for that tree ran out; None where it has the most that a tree can have.
        assumed: Whether the hosts' part of the round trips is assumed.
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
        """Yield lines that compare the windows with the plan's rate, which they limit, too."""
        slots, trip = self.slots[self.tree], self.round_trips_ms[self.tree]
        what = f"tree {self.tree} has {slots} slots and a round trip of {trip:.3g} ms"
        if rate_mbps < self.rate_mbps * ENOUGH:
            yield f"windows     carry {short(self.rate_mbps)} Mbit/s per worker: enough ({what})"
        else:
            where = f"aggregation memory of {self.switch}" if self.switch else "the most slots that a tree can have"
            yield f"windows     carry {short(self.rate_mbps)} Mbit/s per worker only: {what} ({where})"
            if self.assumed and self.rate_mbps < rate_mbps * ENOUGH:
                yield "            the hosts' part is assumed and lowers no rate: use --measured or host_ms"


def windows(plan: Plan, topology: Topology, rate_mbps: float, assumed_ms: float = HOST_MS) -> Windows | None:
    """Return the windows of a plan at this rate; None where the packets' size is not known, or the slots do not fit.
    `assumed_ms` is the time of a host whose own is not known (slots are given out for HOST_MS in any case).
    """
    limits = switch_limits(topology)
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
    """A tree's part of an all-reduce: the Mbit that are sent at the tree's rate, the seconds beside that, and all
    seconds.
    """

    mbit: float
    wait_s: float
    seconds: float


@dataclass(frozen=True)
class Cost:
    """Cost of all-reduces with a plan.

    Attributes:
        rate_mbps: The rate of a worker that the evaluator computed, in Mbit/s.
        windows: Windows of the trees at that rate, where they are known.
        pace: The fraction of the rate at which agents send.
        stored: Whether a packet has arrived when its last bit has (`round_trips`).
        credit: The token buckets of links (`round_trips`); None for links without any.
    """

    plan: Plan
    topology: Topology
    values_per_packet: int
    rate_mbps: float
    windows: Windows | None
    pace: float = 1.0
    stored: bool = True
    credit: Credit | None = None

    @property
    def packet_bits(self) -> int:
        """The bits of a whole frame."""
        return 8 * frame_bytes(self.values_per_packet)

    @cached_property
    def round_trips_ms(self) -> list[float]:
        """The round trip of a chunk of each tree in ms, when only one is under way."""
        return [total_ms(self._round_trips([tree])[0]) for tree in self.plan.trees]

    @cached_property
    def _first(self) -> dict[tuple[int, ...], list[list[Level]]]:
        return {}

    def first_round_trips(self, trees: tuple[int, ...]) -> list[list[Level]]:
        """Return the levels of the round trips of these trees' first packets, which start at once."""
        if trees not in self._first:
            self._first[trees] = self._round_trips([self.plan.trees[i] for i in trees])
        return self._first[trees]

    def _round_trips(self, trees: list[Tree]) -> list[list[Level]]:
        return round_trips(trees, self.topology, self.packet_bits, stored=self.stored, credit=self.credit)

    @cached_property
    def tree_rates_mbps(self) -> list[float]:
        """The Mbit/s that agents send into each tree, at their pace or as far as its window goes."""
        carries = [math.inf] * len(self.plan.trees) if self.windows is None else self.windows.carries_mbps
        paced = self.rate_mbps * self.pace
        return [min(paced * tree.share, most) for tree, most in zip(self.plan.trees, carries, strict=True)]

    @cached_property
    def buckets(self) -> list[float]:
        """The packets of each tree that may go at once."""
        pps = self.rate_mbps * self.pace * 1e6 / self.packet_bits
        slots = [MAXIMUM_SLOTS] * len(self.plan.trees) if self.windows is None else self.windows.slots
        trees = zip(self.plan.trees, slots, strict=True)
        shared = shares_hosts(self.topology, self.plan.job)
        return [bucket_packets(pps * tree.share, pps, n, self.values_per_packet, shared) for tree, n in trees]

    @property
    def refill_s(self) -> float:
        """The seconds of a pause after which all token buckets are full."""
        mbit = self.packet_bits / 1e6
        return max(bucket * mbit / rate for bucket, rate in zip(self.buckets, self.tree_rates_mbps, strict=True))

    @cached_property
    def _queues(self) -> Queues:
        # Imported here, as it imports numpy and most commands never get here.
        from controlplane.planner.plan.queues import Queues

        return Queues.of(self.plan, self.topology, self.packet_bits, self.credit)

    def estimated_seconds(self, size: int) -> list[float]:
        """Return the seconds of an all-reduce of so many bytes, by tree, from the formula above; 0 where a tree carries
        nothing.
        """
        data = data_packets(self.plan, self.values_per_packet, size)
        used = tuple(i for i, count in enumerate(data) if count)
        first = dict(zip(used, map(total_ms, self.first_round_trips(used)), strict=True))
        queues = self._queues.seconds(data)
        found = [0.0] * len(data)
        for index in used:
            exponents = exponent_packets(data[index], self.values_per_packet)
            pps, known = self.tree_rates_mbps[index] * 1e6 / self.packet_bits, first[index] / 1e3
            sent = _last_leaves(known, exponents, data[index], pps, self.buckets[index])
            found[index] = float(max(sent, known + queues[index])) + self.round_trips_ms[index] / 1e3
        return found

    @cached_property
    def _followed(self) -> dict[int, list[float]]:
        return {}

    def follows(self, size: int) -> bool:
        """Return whether the packets of an all-reduce of so many bytes are few enough to be followed one by one."""
        counts = packets(self.plan, self.values_per_packet, size)
        return sum(count * hops(tree) for count, tree in zip(counts, self.plan.trees, strict=True)) <= MOST_HOPS

    def tree_seconds(self, size: int) -> list[float]:
        """Return the seconds of an all-reduce of so many bytes, by tree; where packets are few, each is followed."""
        if not self.follows(size):
            return self.estimated_seconds(size)
        if size not in self._followed:
            counts = data_packets(self.plan, self.values_per_packet, size)
            exponents = [exponent_packets(count, self.values_per_packet) for count in counts]
            trees = [i for i, count in enumerate(counts) if count]
            slots = None if self.windows is None else self.windows.slots
            streams = [
                Stream(
                    self.plan.trees[i],
                    exponents[i],
                    counts[i],
                    self.rate_mbps * self.pace * self.plan.trees[i].share * 1e6 / self.packet_bits,
                    self.buckets[i],
                    MAXIMUM_SLOTS if slots is None else slots[i],
                )
                for i in trees
            ]
            links = Links(self.topology, self.packet_bits, self.stored, self.credit)
            seconds = follow(streams, links, exponents_per_packet(self.values_per_packet))
            found = dict(zip(trees, seconds, strict=True))
            self._followed[size] = [found.get(i, 0.0) for i in range(len(counts))]
        return self._followed[size]

    def tree_parts(self, size: int) -> list[Part]:
        """Return for each tree the Mbit that it carries of an all-reduce of so many bytes, and for how long it only
        waits.
        """
        data = data_packets(self.plan, self.values_per_packet, size)
        found = []
        for rate, count, seconds in zip(self.tree_rates_mbps, data, self.tree_seconds(size), strict=True):
            packets_sent = exponent_packets(count, self.values_per_packet) + count - 1 if count else 0
            sent = min(packets_sent * self.packet_bits / 1e6, seconds * rate)
            found.append(Part(sent, max(0.0, seconds - sent / rate), seconds))
        return found

    def seconds(self, size: int) -> float:
        """Return the seconds of an all-reduce of so many bytes."""
        return max(self.tree_seconds(size))

    def job_seconds(self, estimated: bool = False) -> float:
        """Return the seconds for the job's tensors, one after the other, of which the first finds full buckets. Where
        the job says when they are ready, return the seconds from the step's beginning to the last result. With
        `estimated`, no packet is followed.
        """
        sizes = self.plan.job.sizes or (self.plan.job.model_bytes,)
        counts = {size: packets(self.plan, self.values_per_packet, size) for size in set(sizes)}
        mbit = self.packet_bits / 1e6
        each = {n: max(self.estimated_seconds(n)) if estimated else self.seconds(n) for n in set(sizes)}

        def seconds_from(number: int) -> float:
            left = Counter(sizes[number:])
            sent = [0] * len(self.plan.trees)
            for size, times in left.items():
                sent = [have + times * more for have, more in zip(sent, counts[size], strict=True)]
            trees = zip(sent, self.buckets, self.tree_rates_mbps, strict=True)
            paced = max((count - bucket) * mbit / rate for count, bucket, rate in trees)
            return max(sum(times * each[size] for size, times in left.items()), paced)

        return self.plan.job.ends_at(seconds_from)

    def latency(self, size: int) -> list[Level]:
        """Return the levels of the longest first round trip of an all-reduce of so many bytes."""
        data = data_packets(self.plan, self.values_per_packet, size)
        return max(self.first_round_trips(tuple(i for i, count in enumerate(data) if count)), key=total_ms)

    def to_json(self, sizes: tuple[int, ...]) -> dict[str, Any]:
        return {
            "pace": self.pace,
            "seconds": [{"bytes": size, "seconds": self.seconds(size)} for size in sizes],
            "latency": [{"from": x.source, "to": x.end, "ms": x.ms} for x in self.latency(max(sizes, default=1))],
        }


def _last_leaves(first_s: float, exponents: int, data: int, pps: float, bucket: float) -> float:
    """Return the time (s) at which a tree's last packet of data leaves, where its exponents are back at `first_s`."""
    tokens = min(bucket, bucket - exponents + pps * first_s)
    begins = first_s
    if tokens < wanted(bucket) * ENOUGH:  # the agent sleeps until the bucket is full
        begins, tokens = max(first_s, exponents / pps), bucket
    whole, left = math.floor(bucket + 1e-9), data - math.floor(tokens + 1e-9)
    return begins + (-(-left // whole) * whole / pps if left > 0 else 0.0)


def cost_of(plan: Plan, topology: Topology, rate_mbps: float, pace: float = 1.0) -> Cost | None:
    """Return the cost of a plan at the evaluator's rate; None where the packets' size is not known, or the plan has no
    trees.
    """
    values = switch_limits(topology).values_per_packet
    if values is None or not plan.trees or not rate_mbps > 0:
        return None
    return Cost(plan, topology, values, rate_mbps, windows(plan, topology, rate_mbps * pace), pace)


def least_seconds(job: Job, rate_mbps: float, values_per_packet: int) -> float:
    """Return the seconds that no plan of this rate can undercut: those of the job's packets in one tree, without
    latency.
    """
    bits = 8 * frame_bytes(values_per_packet)
    sent = []
    for size in job.sizes or (job.model_bytes,):
        data = math.ceil(size / (BYTES_PER_VALUE * data_values(values_per_packet)))
        sent.append(data + exponent_packets(data, values_per_packet))
    return job.ends_at(lambda number: sum(sent[number:]) * bits / (rate_mbps * 1e6))
