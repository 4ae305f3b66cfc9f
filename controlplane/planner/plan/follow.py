"""Packets followed one by one over links that take one after the other, in the order in which they come: the round
trips of chunks that start at once (`round_trips`), and whole all-reduces, of agents with their buckets and windows
(`follow`).

A switch sends a sum on when the last flow of it has come, a root the result. `slots.round_trip` estimates a round trip
from counts, from above and far faster. An all-reduce that is followed contains what the formula of plan/cost.py leaves
out, packets of several trees that meet on a link; with many packets that counts for little, and following them takes
long.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from controlplane.planner.plan.model import Tree
from controlplane.planner.plan.pacing import wanted
from controlplane.planner.plan.slots import HOSTS, Edge, Level, host_ms, hosts_ms, link_times, round_trip
from controlplane.planner.topology import Topology

CHECK_VALUES, EXPONENT_GROUP = 8, 8
"""Constants of worker_agent/native/numbering.h: the number of words before the exponents, and the number of data
packets after whose exponents comes a further word.
"""
NEARLY = 1e-9
MOST_FLOWS = 20_000
"""Most flows of all trees whose round trips are followed; with more, the estimate has to do."""

Credit = Callable[[Topology, Edge], float]
"""Function that returns the credit of a link: how far (ms) the link may be ahead of its rate, which is the bytes of its
token bucket over that rate. Links of a network have none; the emulation's do (topologies/links.py).
"""


@dataclass(frozen=True)
class Stream:
    """The stream of packets that every worker sends into a tree.

    Attributes:
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
            packet, delay = link_times(self.topology, self.packet_bits)[link]
            self._times[link] = packet / 1e3, delay / 1e3, ahead / 1e3
        packet, delay, ahead = self._times[link]
        schedule = max(now, self._free.get(link, 0.0))
        self._free[link] = schedule + packet
        return max(now, schedule - ahead) + packet * self.stored + delay


@dataclass
class _Chunk:
    """A chunk that is on its way through a tree.

    Attributes:
        missing: By point, how many flows have not come yet.
        children: The return tree, by node the nodes below it.
        done: By point, when its sum was complete (s).
        last: By point, the source of the flow that came last.
        answered: When the last result came (s).
    """

    tree: Tree
    missing: Counter[str]
    children: dict[str, list[str]]
    done: dict[str, float] = field(default_factory=dict)
    last: dict[str, str] = field(default_factory=dict)
    answered: float = 0.0


def round_trips(
    trees: Sequence[Tree], topology: Topology, packet_bits: int, *, stored: bool = True, credit: Credit | None = None
) -> list[list[Level]]:
    """Return the levels of each tree's round trip (ms), where one chunk of each starts at once.

    With `stored`, a packet has arrived when its last bit has; without, when a link begins with it (as softswitch does).
    `credit` gives the links' token buckets, which are full at the beginning: as long as a bucket has tokens, its
    packets go at once.
    """
    if sum(len(tree.assignments) + len(tree.relays) for tree in trees) > MOST_FLOWS:
        return [round_trip(tree, topology, packet_bits) for tree in trees]
    chunks = [_chunk(tree) for tree in trees]
    links = Links(topology, packet_bits, stored, credit)
    events: list[tuple[float, int, int, tuple[str, ...], int]] = []  # time, order, tree, route, where on it

    def go(index: int, route: tuple[str, ...], position: int, now: float) -> None:
        """Send a packet on to the next node of its route; a route of one node ends there."""
        if len(route) == 1:
            heapq.heappush(events, (now, next(order), index, route, 0))
            return
        arrives = links.arrives((route[position], route[position + 1]), now)
        heapq.heappush(events, (arrives, next(order), index, route, position + 1))

    order = count()
    for index, tree in enumerate(trees):
        for a in tree.assignments:
            go(index, a.route, 0, 0.0)
    relays = [{relay.node: relay.route for relay in tree.relays} for tree in trees]
    while events:
        now, _, index, route, position = heapq.heappop(events)
        chunk, node = chunks[index], route[position]
        if position + 1 < len(route):
            go(index, route, position, now)
        elif route[0] == "":  # a result
            chunk.answered = max(chunk.answered, now)
            for child in chunk.children.get(node, ()):
                go(index, ("", node, child), 1, now)
        else:
            chunk.missing[node] -= 1
            if chunk.missing[node]:
                continue
            chunk.done[node], chunk.last[node] = now, route[0]
            if node != chunk.tree.root:
                go(index, relays[index][node], 0, now)
                continue
            for child in chunk.children.get(node, ()):
                go(index, ("", node, child), 1, now)
    return [_levels(chunk, topology) for chunk in chunks]


def _chunk(tree: Tree) -> _Chunk:
    children: dict[str, list[str]] = {}
    for above, child in tree.return_edges:
        children.setdefault(above, []).append(child)
    return _Chunk(tree, tree.ends(), children)


def _levels(chunk: _Chunk, topology: Topology) -> list[Level]:
    tree = chunk.tree
    levels = [Level(tree.root, "workers", 1e3 * (chunk.answered - chunk.done[tree.root]))]
    node = tree.root
    # A root that is a worker, too, is among the senders: where its own gradients came last, the chain begins there.
    while (before := chunk.last[node]) in chunk.done and before != tree.root:
        levels.insert(0, Level(before, node, 1e3 * (chunk.done[node] - chunk.done[before])))
        node = before
    return [Level("workers", node, 1e3 * chunk.done[node]), *levels, Level(HOSTS, "", hosts_ms(tree, topology))]


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
