"""An all-reduce followed packet by packet: agents with their buckets and windows, links that take one packet after the
other.

It contains what the formula of plan/cost.py leaves out, packets of several trees that meet on a link; with many packets
that counts for little, and following them takes long.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from controlplane.planner.plan.model import Tree
from controlplane.planner.plan.pacing import wanted
from controlplane.planner.plan.round_trips import Credit
from controlplane.planner.plan.slots import Edge, host_ms, packet_ms
from controlplane.planner.topology import Topology

CHECK_VALUES, EXPONENT_GROUP = 8, 8
"""Constants of worker_agent/native/numbering.h: the number of words before the exponents, and the number of data
packets after whose exponents comes a further word.
"""
NEARLY = 1e-9


@dataclass(frozen=True)
class Stream:
    """The stream of packets that every worker sends into a tree.

    Attributes:
        tree: The tree.
        exponents: Packets of exponents.
        data: Packets of data.
        packets_per_second: Their rate.
        bucket: Packets that may go at once.
        slots: The tree's window.
    """

    tree: Tree
    exponents: int
    data: int
    packets_per_second: float
    bucket: float
    slots: int


def exponent_words(data: int) -> int:
    """Return the number of words that the exponents of so many data packets take."""
    return CHECK_VALUES + data + -(-data // EXPONENT_GROUP)


def exponent_place(index: int) -> int:
    """Return the number of the word that has the exponent of data packet `index`."""
    return CHECK_VALUES + index // EXPONENT_GROUP * (EXPONENT_GROUP + 1) + 1 + index % EXPONENT_GROUP


def hops(tree: Tree) -> int:
    """Return the number of links that one chunk of the tree crosses, where each flow counts."""
    return sum(len(flow.route) - 1 for flow in tree.flows) + len(tree.return_edges)


@dataclass
class Links:
    """Links that take packets of `packet_bits` bits one after the other; `stored` and `credit` are those of
    `round_trips`.
    """

    topology: Topology
    packet_bits: int
    stored: bool = True
    credit: Credit | None = None
    _free: dict[Edge, float] = field(default_factory=dict)
    _times: dict[Edge, tuple[float, float, float]] = field(default_factory=dict)

    def arrives(self, link: Edge, now: float) -> float:
        """Return the time (s) at which a packet that enters the link at the time `now` arrives at its end."""
        if link not in self._times:
            ahead = self.credit(self.topology, link) if self.credit else 0.0
            packet, delay = packet_ms(self.topology, link, self.packet_bits), self.topology.delay_ms(*link)
            self._times[link] = packet / 1e3, delay / 1e3, ahead / 1e3
        packet, delay, ahead = self._times[link]
        schedule = max(now, self._free.get(link, 0.0))
        self._free[link] = schedule + packet
        return max(now, schedule - ahead) + packet * self.stored + delay


def follow(streams: Sequence[Stream], links: Links, values: int) -> list[float]:
    """Return the times (s) at which the last worker has the last result of each stream, where all begin at once with
    full buckets and a packet has `values` exponents.
    """
    return _Network(streams, links, values).run()


@dataclass
class _Sending:
    """A worker's part of a tree: its tokens (as they were at the time `seen`), how many packets it has sent, its oldest
    packet without an answer (`base`) and the packets that were answered.
    """

    stream: Stream
    tokens: float
    seen: float = 0.0
    sent: int = 0
    base: int = 0
    answered: set[int] = field(default_factory=set)

    @property
    def done(self) -> bool:
        return self.base == self.stream.exponents + self.stream.data

    def may_send(self, values: int) -> bool:
        """Return whether the next packet is within the window and its exponents are known."""
        exponents = self.stream.exponents
        if self.sent >= min(exponents + self.stream.data, self.base + self.stream.slots):
            return False
        return self.sent < exponents or exponent_place(self.sent - exponents) // values in self.answered

    def ready_at(self, now: float) -> float:
        """Return the time at which there are enough tokens to begin."""
        stream = self.stream
        self.tokens = min(stream.bucket, self.tokens + (now - self.seen) * stream.packets_per_second)
        self.seen = now
        if self.tokens >= wanted(stream.bucket) - NEARLY:
            return now
        return now + (stream.bucket - self.tokens) / stream.packets_per_second


class _Network:
    def __init__(self, streams: Sequence[Stream], links: Links, values: int) -> None:
        self.links, self.values = links, values
        self.streams = streams
        self.ends = [0.0] * len(streams)
        self.now = 0.0
        self.order = count()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.missing: list[dict[tuple[str, int], int]] = [{} for _ in streams]
        self.flows = [s.tree.ends() for s in streams]
        self.routes = [{a.worker: (a.point, a.route) for a in s.tree.assignments} for s in streams]
        self.relays = [{r.node: (r.next, r.route) for r in s.tree.relays} for s in streams]
        self.children: list[dict[str, list[str]]] = []
        for stream in streams:
            below: dict[str, list[str]] = {}
            for above, child in stream.tree.return_edges:
                below.setdefault(above, []).append(child)
            self.children.append(below)
        names = {a.worker for s in streams for a in s.tree.assignments}
        self.workers = {name: [_Sending(s, s.bucket) for s in streams] for name in sorted(names)}
        self.alarm = dict.fromkeys(self.workers, -1.0)
        servers = names | {s.tree.root for s in streams}
        self.host_s = {server: host_ms(links.topology, server) / 1e3 for server in servers}

    def run(self) -> list[float]:
        for worker in self.workers:
            self.wake(worker)
        while self.events:
            self.now, _, action = heapq.heappop(self.events)
            action()
        return self.ends

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.events, (when, next(self.order), action))

    def wake(self, worker: str) -> None:
        """Let the agent send what it may, and sleep until its next bucket is full."""
        due = float("inf")
        for index, sending in enumerate(self.workers[worker]):
            if sending.done or not sending.may_send(self.values):
                continue
            when = sending.ready_at(self.now)
            if when <= self.now:
                while sending.tokens >= 1 - NEARLY and sending.may_send(self.values):
                    sending.tokens -= 1
                    point, route = self.routes[index][worker]
                    self.go(route, 0, partial(self.added, index, point, sending.sent))
                    sending.sent += 1
                if not sending.may_send(self.values):
                    continue
                when = sending.ready_at(self.now)
            due = min(due, when)
        if due < float("inf") and due != self.alarm[worker]:
            self.alarm[worker] = due
            self.at(due, partial(self.rings, worker, due))

    def rings(self, worker: str, due: float) -> None:
        if self.alarm[worker] == due:  # the agent has not been woken since
            self.alarm[worker] = -1.0
            self.wake(worker)

    def go(self, route: Sequence[str], position: int, arrived: Callable[[], None]) -> None:
        """Let a packet go on from this position of its route to the end, and call `arrived` there."""
        if position + 1 == len(route):
            arrived()
            return
        when = self.links.arrives((route[position], route[position + 1]), self.now)
        self.at(when, partial(self.go, route, position + 1, arrived))

    def added(self, index: int, point: str, number: int) -> None:
        left = self.missing[index].get((point, number), self.flows[index][point]) - 1
        self.missing[index][point, number] = left
        if left:
            return
        if point == self.streams[index].tree.root:
            self.at(self.now + self.host_s[point], partial(self.result, index, point, number))
        else:
            next_point, route = self.relays[index][point]
            self.go(route, 0, partial(self.added, index, next_point, number))

    def result(self, index: int, node: str, number: int) -> None:
        if node in self.workers and node in self.routes[index]:
            self.at(self.now + self.host_s[node], partial(self.answer, index, node, number))
        for child in self.children[index].get(node, ()):
            self.go((node, child), 0, partial(self.result, index, child, number))

    def answer(self, index: int, worker: str, number: int) -> None:
        sending = self.workers[worker][index]
        sending.answered.add(number)
        while sending.base in sending.answered:
            sending.base += 1
        self.ends[index] = max(self.ends[index], self.now)
        self.wake(worker)
