"""Simulates an all-reduce packet by packet, as a reference for the cost model. It shares no code with the model."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count

from controlplane.planner.plan import Plan
from controlplane.planner.plan.model import Tree
from controlplane.planner.topology import Topology

HEADER_WORDS = 17  # Ethernet, IPv4, UDP and our header have 66 bytes; rounded up to words, with the check word.


class Network:
    """Links that carry packets one after the other (a host's own link at once), with events in order of time (s).

    link_bits: the size of a link's token bucket; as long as it has tokens, a packet begins at once.
    """

    def __init__(self, topology: Topology, packet_bits: int, link_bits: float) -> None:
        self.topology, self.bits, self.link_bits = topology, packet_bits, link_bits
        self.free: dict[tuple[str, str], float] = {}
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = count()
        self.now = 0.0

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.events, (time, next(self.numbers), action))

    def run(self) -> None:
        while self.events:
            self.now, _, action = heapq.heappop(self.events)
            action()

    def hop(self, u: str, v: str, arrived: Callable[[], None]) -> None:
        rate = self.topology.bandwidth_mbps(u, v) * 1e6
        takes = self.bits / rate if self.topology.kind(u) == "switch" else 0.0
        turn = max(self.now, self.free.get((u, v), 0.0))
        start = max(self.now, turn - self.link_bits / rate)
        self.free[u, v] = turn + takes
        self.at(start + takes + self.topology.delay_ms(u, v) / 1e3, arrived)

    def along(self, route: tuple[str, ...], arrived: Callable[[], None]) -> None:
        if len(route) == 1:
            arrived()
        else:
            self.hop(route[0], route[1], partial(self.along, route[1:], arrived))


class Stream:
    """The packets that one worker sends into one tree: exponents, then the data that returned exponents allow, paced
    and windowed.

    The token bucket holds one token per packet: the agent begins when it is three quarters full, and sleeps until it is
    full.
    """

    def __init__(self, exponents: int, data: int, values: int, *, interval: float, slots: int, bucket: float) -> None:
        self.exponents, self.data, self.values = exponents, data, values
        self.interval, self.slots, self.bucket = interval, slots, bucket
        self.sent = 0
        self.answered: set[int] = set()
        self.base = 0
        self.tokens, self.counted_at = bucket, 0.0
        self.wakes_at = -1.0

    def may_send(self) -> bool:
        if self.sent >= self.exponents + self.data or self.sent >= self.base + self.slots:
            return False
        if self.sent < self.exponents:
            return True
        # 8 words need exponents that all workers have agreed on; then data packets carry one word and 8 exponents in
        # turns.
        index = self.sent - self.exponents
        place = 8 + index // 8 * 9 + 1 + index % 8
        return place // self.values in self.answered

    def full_at(self, now: float) -> float:
        """Return the time at which the bucket is full enough; `now` if it is already."""
        self.tokens = min(self.bucket, self.tokens + (now - self.counted_at) / self.interval)
        self.counted_at = now
        enough = self.tokens > max(1.0, 0.75 * self.bucket) - 1e-9
        return now if enough else now + (self.bucket - self.tokens) * self.interval

    def answer(self, number: int) -> None:
        self.answered.add(number)
        while self.base in self.answered:
            self.base += 1


class TreeRun:
    """One tree's packets on the network."""

    def __init__(self, network: Network, tree: Tree, streams: dict[str, Stream], ends: list[float]) -> None:
        self.network, self.tree, self.streams, self.ends = network, tree, streams, ends
        self.expected = Counter(flow.end for flow in tree.flows)
        self.relays = {relay.node: relay for relay in tree.relays}
        self.assignments = {a.worker: a for a in tree.assignments}
        self.children: dict[str, list[str]] = {}
        for u, v in tree.return_edges:
            self.children.setdefault(u, []).append(v)
        self.got: Counter[tuple[str, int]] = Counter()
        # This is replaced by a function that wakes the worker in all trees once they are known.
        self.wake: Callable[[str], None] = self.send

    def send(self, worker: str) -> None:
        stream, network = self.streams[worker], self.network
        if stream.may_send() and stream.full_at(network.now) <= network.now:
            while stream.may_send() and stream.tokens > 1 - 1e-9:
                number = stream.sent
                stream.sent += 1
                stream.tokens -= 1
                a = self.assignments[worker]
                network.along(a.route, partial(self.arrive, a.point, number))
        if stream.may_send():
            wakes_at = stream.full_at(network.now)
            if wakes_at != stream.wakes_at:
                stream.wakes_at = wakes_at
                network.at(wakes_at, lambda: self.wake(worker))

    def arrive(self, point: str, number: int) -> None:
        self.got[point, number] += 1
        if self.got[point, number] < self.expected[point]:
            return
        if point == self.tree.root:
            self.down(point, number)
        else:
            relay = self.relays[point]
            self.network.along(relay.route, partial(self.arrive, relay.next, number))

    def down(self, node: str, number: int) -> None:
        if node in self.streams:
            self.streams[node].answer(number)
            self.ends.append(self.network.now)
            self.wake(node)
        for child in self.children.get(node, ()):
            self.network.hop(node, child, partial(self.down, child, number))


def all_reduce_seconds(
    plan: Plan,
    topology: Topology,
    packet_bits: int,
    packets: list[tuple[int, int]],
    *,
    slots: list[int],
    buckets: list[float],
    link_bytes: float = 0.0,
) -> float:
    """Return the time at which the last worker has the last result; the plan's rates hold.

    packets: (exponents, data) of each tree. buckets: packets that agents may send at once. link_bytes: the token bucket
    of every link.
    """
    network = Network(topology, packet_bits, link_bytes * 8)
    values = packet_bits // 32 - HEADER_WORDS
    ends = [0.0]
    runs = []
    for tree, (exponents, data), window, bucket in zip(plan.trees, packets, slots, buckets, strict=True):
        if data:
            interval = packet_bits / (plan.rate_mbps * tree.share * 1e6)
            streams = {
                w: Stream(exponents, data, values, interval=interval, slots=window, bucket=bucket)
                for w in plan.job.workers
            }
            runs.append(TreeRun(network, tree, streams, ends))

    def wake(worker: str) -> None:
        for run in runs:
            run.send(worker)

    for run in runs:
        run.wake = wake
    for worker in plan.job.workers:
        wake(worker)
    network.run()
    assert all(stream.base == stream.exponents + stream.data for run in runs for stream in run.streams.values())
    return max(ends)
