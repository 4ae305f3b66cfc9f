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
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise

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


@dataclass(slots=True)
class Link:
    """A link that takes packets one after the other. All times are in seconds.

    Attributes:
        packet: The time that a packet takes.
        waits: The part of it after which the packet has arrived at the other end, but for the delay: all or nothing.
        ahead: How far the link may be ahead of its rate.
        free: When the link would take the next packet, at its rate.
    """

    packet: float
    waits: float
    delay: float
    ahead: float
    free: float = 0.0

    def arrives(self, now: float) -> float:
        """Return the time at which a packet that enters the link at the time `now` arrives at its end."""
        schedule = max(now, self.free)
        self.free = schedule + self.packet
        return max(now, schedule - self.ahead) + self.waits + self.delay


@dataclass
class Links:
    """Links that take packets of `packet_bits` bits one after the other; `stored` and `credit` are those of
    `round_trips`.
    """

    topology: Topology
    packet_bits: int
    stored: bool = True
    credit: Credit | None = None
    _links: dict[Edge, Link] = field(default_factory=dict)

    def along(self, route: Sequence[str]) -> tuple[Link, ...]:
        """Return the links of a route."""
        return tuple(map(self._link, pairwise(route)))

    def _link(self, edge: Edge) -> Link:
        if edge not in self._links:
            ahead = self.credit(self.topology, edge) if self.credit else 0.0
            packet, delay = link_times(self.topology, self.packet_bits)[edge]
            self._links[edge] = Link(packet / 1e3, packet / 1e3 * self.stored, delay / 1e3, ahead / 1e3)
        return self._links[edge]


class _Events:
    """Events in the order of time; those of the same time, in the order in which they were asked for.

    Attributes:
        now: The time of the event that happens (s).
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._order = count()
        self._coming: list[tuple[float, int, tuple[Link, ...], int, Callable[[], None]]] = []

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._coming, (when, next(self._order), (), 0, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Call this in so many seconds, of which there may be none."""
        if seconds:
            self.at(self.now + seconds, action)
        else:
            action()

    def send(self, links: tuple[Link, ...], arrived: Callable[[], None]) -> None:
        """Send a packet over these links now, and call `arrived` when it is at the end of the last one: at once where
        there is none.
        """
        if links:
            heapq.heappush(self._coming, (links[0].arrives(self.now), next(self._order), links, 1, arrived))
        else:
            arrived()

    def run(self) -> None:
        """Let everything happen."""
        coming, order = self._coming, self._order
        while coming:
            self.now, _, links, crossed, action = heapq.heappop(coming)
            if crossed == len(links):
                action()
            else:
                heapq.heappush(coming, (links[crossed].arrives(self.now), next(order), links, crossed + 1, action))


class _Chunks:
    """Chunks on their way through a tree: up, where each point sends a sum on when the last flow of it has come, and
    back.

    Attributes:
        done: By point, when its last sum was complete (s), and the source of the flow that came last.
        end: When the last result came (s).
    """

    def __init__(self, tree: Tree, links: Links, events: _Events, hosts_s: Mapping[str, float]) -> None:
        """`hosts_s` gives the time of hosts, at the root before the result and at each worker behind it."""
        self.tree = tree
        self.done: dict[str, tuple[float, str]] = {}
        self.end = 0.0
        self._events, self._hosts_s = events, hosts_s
        self._ways = {a.worker: (a.point, links.along(a.route)) for a in tree.assignments}
        self._relays = {r.node: (r.next, links.along(r.route)) for r in tree.relays}
        self._below: dict[str, list[tuple[str, tuple[Link, ...]]]] = {}
        for above, child in tree.return_edges:
            self._below.setdefault(above, []).append((child, links.along((above, child))))
        self._flows = tree.ends()
        self._missing: dict[str, dict[int, int]] = {point: {} for point in self._flows}

    def send(self, worker: str, number: int) -> None:
        """Let a worker send the chunk of this number now."""
        point, links = self._ways[worker]
        self._events.send(links, partial(self._added, point, number, worker))

    def answered(self, worker: str, number: int) -> None:
        """Note that a worker has the result of a chunk."""
        self.end = self._events.now

    def _added(self, point: str, number: int, source: str) -> None:
        missing = self._missing[point]
        left = missing.get(number, self._flows[point]) - 1
        if left:
            missing[number] = left
            return
        missing.pop(number, None)
        self.done[point] = self._events.now, source
        if point == self.tree.root:
            self._events.after(self._hosts_s.get(point, 0.0), partial(self._result, point, number))
        else:
            above, links = self._relays[point]
            self._events.send(links, partial(self._added, above, number, point))

    def _result(self, node: str, number: int) -> None:
        if node in self._ways:
            self._events.after(self._hosts_s.get(node, 0.0), partial(self.answered, node, number))
        for child, links in self._below.get(node, ()):
            self._events.send(links, partial(self._result, child, number))


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
    events, links = _Events(), Links(topology, packet_bits, stored, credit)
    followed = [_Chunks(tree, links, events, {}) for tree in trees]
    for chunks in followed:
        for worker in chunks.tree.assignments.workers:
            chunks.send(worker, 0)
    events.run()
    return [_levels(chunks, topology) for chunks in followed]


def _levels(chunks: _Chunks, topology: Topology) -> list[Level]:
    tree, done = chunks.tree, chunks.done
    levels = [Level(tree.root, "workers", 1e3 * (chunks.end - done[tree.root][0]))]
    node = tree.root
    # A root that is a worker, too, is among the senders: where its own gradients came last, the chain begins there.
    while (before := done[node][1]) in done and before != tree.root:
        levels.insert(0, Level(before, node, 1e3 * (done[node][0] - done[before][0])))
        node = before
    return [Level("workers", node, 1e3 * done[node][0]), *levels, Level(HOSTS, "", hosts_ms(tree, topology))]


def follow(streams: Sequence[Stream], links: Links, values: int) -> list[float]:
    """Return the times (s) at which the last worker has the last result of each stream, where all begin at once with
    full buckets and a packet has `values` exponents.
    """
    events = _Events()
    names = {worker for stream in streams for worker in stream.tree.assignments.workers}
    servers = names | {stream.tree.root for stream in streams}
    hosts_s = {server: host_ms(links.topology, server) / 1e3 for server in servers}
    agents = {name: _Agent(events) for name in sorted(names)}
    followed = [_Followed(stream, links, events, hosts_s, agents=agents, values=values) for stream in streams]
    for agent in agents.values():
        agent.wake()
    events.run()
    return [chunks.end for chunks in followed]


class _Followed(_Chunks):
    """A stream's chunks, whose results let the agents send more."""

    def __init__(
        self,
        stream: Stream,
        links: Links,
        events: _Events,
        hosts_s: Mapping[str, float],
        *,
        agents: Mapping[str, _Agent],
        values: int,
    ) -> None:
        super().__init__(stream.tree, links, events, hosts_s)
        self._agents = agents
        self._sending: dict[str, _Sending] = {}
        for name in stream.tree.assignments.workers:
            self._sending[name] = _Sending(stream, values, partial(self.send, name))
            agents[name].sending.append(self._sending[name])

    def answered(self, worker: str, number: int) -> None:
        super().answered(worker, number)
        self._sending[worker].answered(number)
        self._agents[worker].wake(self._sending[worker])


class _Sending:
    """A worker's part of a tree.

    Attributes:
        tokens: Its tokens at the time `seen`.
        base: Its oldest packet without an answer.
        later: The packets behind that one which were answered.
        begins: When there are enough tokens to send what may be sent; infinite where nothing may.
        full: When the bucket is full, likewise.
    """

    def __init__(self, stream: Stream, values: int, send: Callable[[int], None]) -> None:
        self.stream, self.values = stream, values
        self.all = stream.exponents + stream.data
        self.enough = wanted(stream.bucket) - NEARLY
        self.tokens, self.seen = stream.bucket, 0.0
        self.sent = self.base = 0
        self.later: set[int] = set()
        self.begins = self.full = 0.0
        self._send = send

    def answered(self, number: int) -> None:
        """Note that a packet has been answered."""
        self.later.add(number)
        while self.base in self.later:
            self.later.remove(self.base)
            self.base += 1

    def may_send(self) -> bool:
        """Return whether there is a next packet, it is within the window, and its exponents are known."""
        stream, sent = self.stream, self.sent
        if sent >= self.all or sent >= self.base + stream.slots:
            return False
        if sent < stream.exponents:
            return True
        exponents = exponent_place(sent - stream.exponents) // self.values
        return exponents < self.base or exponents in self.later

    def send(self, now: float) -> None:
        """Send what may be sent, if there are enough tokens to begin."""
        stream, may = self.stream, self.may_send()
        if may:
            self.tokens = min(stream.bucket, self.tokens + (now - self.seen) * stream.packets_per_second)
            self.seen = now
            if self.tokens >= self.enough:
                while self.tokens >= 1 - NEARLY and may:
                    self.tokens -= 1
                    self._send(self.sent)
                    self.sent += 1
                    may = self.may_send()
        self.begins = now + (self.enough - self.tokens) / stream.packets_per_second if may else math.inf
        self.full = now + (stream.bucket - self.tokens) / stream.packets_per_second if may else math.inf


class _Agent:
    """A worker's agent, which sends into all trees. It looks at them when a bucket is full again that it waits for, and
    at each answer.
    """

    def __init__(self, events: _Events) -> None:
        self.sending: list[_Sending] = []
        self._events = events
        self._alarm = self._begins = 0.0

    def wake(self, answered: _Sending | None = None) -> None:
        """Send what may be sent, also into the tree that has an answer, and sleep until the next bucket is full."""
        now = self._events.now
        waits = answered is None or answered.begins < math.inf
        if now < self._begins and waits:
            return
        for sending in self.sending:
            if sending.begins <= now or (sending is answered and not waits):
                sending.send(now)
        self._begins = min(sending.begins for sending in self.sending)
        due = min(sending.full for sending in self.sending)
        if due != self._alarm:
            self._alarm = due
            if due < math.inf:
                self._events.at(due, partial(self._rings, due))

    def _rings(self, due: float) -> None:
        if self._alarm == due:  # the agent has not been woken since
            self._alarm = -1.0
            self.wake()
