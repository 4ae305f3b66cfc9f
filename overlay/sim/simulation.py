"""The same policies and the same executions on the flow-level simulator instead of sockets.

Each chunk is a flow on the links of its hop, one at a time per connection; connections share links max-min, as TCP does
where nothing is lost, windows are alike and acknowledgements do not wait (topologies/wan/networks.py). Switches send a
frame on when they have all of it: over several links a chunk comes later by a frame's time on each but the narrowest.
Where links lose packets, each connection has a window that goes up and down (core/tcp.py), and what follows a lost
segment waits for it: times are then one draw of many (`seed`). Of TCP, besides: whole frames with their headers, also
where the last of a chunk is not full; acknowledgements, which take their part of the other direction
(overlay/core/framing.py); where agents do not keep connections open (net/transport.py), one is open a round trip after
it is first needed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, pairwise
from random import Random
from typing import Any

import numpy as np

from controlplane.planner.plan.framing import MTU
from controlplane.planner.plan.task import Edge, Task
from controlplane.planner.routing import ways
from controlplane.planner.simulate import Simulator
from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.policy import (
    Back,
    ContinueAlone,
    DefaultSplit,
    Drop,
    Event,
    Finished,
    Measured,
    Mend,
    Order,
    Pace,
    Policy,
    Progress,
    Ready,
    Reject,
    Release,
    Start,
)
from controlplane.planner.topology import Topology
from overlay.core.execution import Execution, SendRequest, Values
from overlay.core.framing import FRAME_HEADERS, SEGMENTS_AN_ACKNOWLEDGEMENT, segment_bytes
from overlay.core.measurement import ThroughputEstimator
from overlay.core.message import HEADER_BYTES, Kind
from overlay.core.path_selector import PathSelector
from overlay.core.scatter import EAGER_PRIORITY, Scatter
from overlay.core.tcp import BITS, LEAST_RTT, Connections, Window
from overlay.net.multicast import Carrier
from overlay.net.transport import kept_open
from p4src.protocol import PROTOCOL

SEGMENT_BYTES = segment_bytes()
CARRIER = Carrier(1, PROTOCOL.targets["v1model"].values_per_packet)
"""Of what switches copy."""


class _Connection:
    """One at a time. window: where packets are lost."""

    def __init__(self, segment: int, window: Window | None) -> None:
        self.segment, self.window = segment, window
        self.free = False
        self.unfilled = 0  # bytes in a frame that waits for what follows

    def frames(self, data: int, *, more: bool) -> int:
        """With which so many bytes more leave. What fills no frame waits only for what follows at once."""
        whole, rest = divmod(self.unfilled + data, self.segment)
        self.unfilled = rest if more else 0
        return whole + (rest > self.unfilled)


class _Line:
    """From one agent to the next: what waits, and the connections."""

    def __init__(self, links: list[int], back: list[int], delay: float, connections: list[_Connection]) -> None:
        self.links, self.back, self.delay, self.connections = links, back, delay, connections
        self.throughput = ThroughputEstimator()
        self.waiting: list[tuple[int, int, _Moving | _EagerChunk, Callable[[], None], Callable[[], None]]] = []


@dataclass(frozen=True)
class _Moving:
    """A chunk on its path. data: bytes, with the header. through(): it is past the first hop."""

    task: Task
    path: tuple[str, ...]
    data: int
    post: SendRequest
    through: Callable[[], None]
    execution: Execution | None = None

    @property
    def wanted(self) -> bool:
        assert self.post.edge is not None
        return self.execution is None or self.execution.closed or self.execution.sends_to(self.post.edge.receiver)


@dataclass(frozen=True)
class _EagerChunk:
    """A chunk whose task is not known yet."""

    data: int
    wants: Callable[[], bool]

    @property
    def wanted(self) -> bool:
        return self.wants()

    def through(self) -> None:
        """Nobody waits for that."""


class Simulation:
    """Training of a policy's nodes on a topology whose servers they are.

    compute(node) -> seconds of its next step. connections, most_connections: TCP connections from an agent to each
    other; where packets are lost, as many as if it had known that from the beginning. loss: the part of packets that
    each link between switches loses; seed: of which. window_bytes: of receivers, there. mtu: bytes of an IP packet on
    links. finished(task, seconds) as for the coordinator.
    """

    def __init__(
        self,
        policy: Policy,
        topology: Topology,
        values: int,
        *,
        compute: Callable[[str], float] = lambda node: 0.0,
        connections: int = 1,
        most_connections: int = 1,
        loss: float = 0.0,
        seed: int = 0,
        window_bytes: float = math.inf,
        mtu: int = MTU,
        probe_values: int | None = None,
        finished: Callable[[Task, float], None] = lambda task, seconds: None,
    ) -> None:
        self.policy, self.topology, self.values, self.compute = policy, topology, values, compute
        self.connections, self.loss, self.mtu = Connections(connections, most_connections), loss, mtu
        self.probe_values, self.on_finished = probe_values, finished
        self.segment = segment_bytes(mtu)
        self.links = {link: k for k, link in enumerate(topology.links)}
        capacities = [topology.residual_bandwidth_mbps(u, v) for u, v in topology.links]
        self.rates = list(capacities)
        self.routes = ways(topology)  # as the switches are told
        self.random, self.window_segments = Random(seed), window_bytes / self.segment
        self.sim = Simulator(capacities)
        self._sharing: dict[int, list[Window]] = {}  # whose narrowest link it is
        self.ways = {node: PathSelector(node) for node in topology.servers}
        self.scatters: dict[str, Scatter[Values]] = {node: Scatter(node) for node in topology.servers}
        self.defaults: dict[int, DefaultSplit] = {}
        self._turns = count(1)
        self._lines: dict[tuple[str, str], _Line] = {}
        self.tasks: dict[int, tuple[Task, dict[str, Execution], set[str], float]] = {}
        self._ends: dict[int, float] = {}  # task -> when the last so far had all of it
        self._order = count()
        self.rounds = 0
        self.most = 0
        self._sent_until: dict[tuple[int, int], float] = {}  # of each tree that switches copy

    def _delay(self, pair: tuple[str, str]) -> float:
        return sum(self.topology.delay_ms(u, v) for u, v in pairwise(self.routes[pair])) / 1000

    def run(self, rounds: int, seconds: float = math.inf) -> float:
        """Until so many tasks are finished, or so much time is over; returns the time, s."""
        self.most = rounds
        for node in self.policy.nodes:
            self.carry_out(self.policy.handle(Back(node), self.sim.now))
        for node in self.policy.nodes:
            self._train(node)
        if math.isinf(seconds):
            self.sim.run()
        else:
            self.sim.run(seconds)
        return self.sim.now

    def _train(self, node: str) -> None:
        self.sim.after(self.compute(node), partial(self._ready, node))

    def _ready(self, node: str) -> None:
        turn = next(self._turns)
        if self.values in self.defaults:
            default = self.defaults[self.values]
            for owner, chunk in self.scatters[node].begin(turn, default.blocks, default.chunk_values):
                self._send_eagerly(node, turn, owner, chunk)
        self.carry_out(self.policy.handle(Ready(node, self.values, turn), self.sim.now))

    def _send_eagerly(self, node: str, turn: int, owner: str, chunk: int) -> None:
        scatter, size = self.scatters[node], self.defaults[self.values].chunk_values
        values = min(size, self.values - chunk * size)
        line = self._line((node, owner))

        def arrived() -> None:
            tasks = [task for task, *_ in self.tasks.values()]
            found = self.scatters[owner].came(node, turn, chunk, np.zeros(1, np.float32), tasks)
            if found is not None:
                task, tree, own = found
                there = self.tasks[task.number][1][owner]
                there.partial(tree, own, 1 << task.trees[tree].contributors.index(node), np.zeros(1, np.float32))

        early = _EagerChunk(4 * values + HEADER_BYTES, partial(scatter.wants, turn))

        def begin() -> None:
            scatter.sent(turn, owner, chunk)

        heapq.heappush(line.waiting, (EAGER_PRIORITY, next(self._order), early, begin, arrived))
        self._flush(line)

    def _line(self, pair: tuple[str, str]) -> _Line:
        """The connections between two agents."""
        line = self._lines.get(pair)
        if line is None:
            links = [self.links[link] for link in pairwise(self.routes[pair])]
            back = [self.links[link] for link in pairwise(self.routes[pair[::-1]])]
            delay, there_and_back = self._delay(pair), self._delay(pair) + self._delay(pair[::-1])
            connections = self._connect(pair, links, there_and_back)
            line = self._lines[pair] = _Line(links, back, delay, connections)
            if kept_open(len(self.policy.nodes), self.connections.least):
                self._opened(line)
            else:
                self.sim.after(there_and_back, partial(self._opened, line))
        return line

    def _connect(self, pair: tuple[str, str], links: list[int], rtt: float) -> list[_Connection]:
        kinds = [self.topology.kind(node) for node in self.routes[pair]]
        lost = 1 - (1 - self.loss) ** sum(a == b == "switch" for a, b in pairwise(kinds))
        if not lost:
            return [_Connection(self.segment, None) for _ in range(self.connections.least)]
        narrowest = min(links, key=self.rates.__getitem__)
        sharing = self._sharing.setdefault(narrowest, [])

        def queue() -> float:
            return sum(each.standing for each in sharing) / self.rates[narrowest]

        count = self.connections.over(self.rates[narrowest], rtt or LEAST_RTT, lost, mtu=self.mtu)
        windows = [
            Window(self.sim, links, rtt or LEAST_RTT, lost, random=self.random, most=self.window_segments, queue=queue)
            for _ in range(count)
        ]
        sharing += windows
        return [_Connection(self.segment, window) for window in windows]

    def _opened(self, line: _Line) -> None:
        for connection in line.connections:
            connection.free = True
        self._flush(line)

    def set_rate(self, u: str, v: str, mbps: float) -> None:
        """The capacity of a link of the topology, from now on."""
        self.rates[self.links[u, v]] = mbps
        self.sim.set_capacity(self.links[u, v], mbps)

    def carry_out(self, orders: Sequence[Order]) -> None:
        """What the policy says, now."""
        for order in orders:
            if isinstance(order, Start):
                self._begin(order.task)
            elif isinstance(order, DefaultSplit):
                self.defaults[order.values] = order
            elif isinstance(order, Release | ContinueAlone):
                self._train(order.node)
            elif isinstance(order, Reject):
                raise WanError(order.reason)  # a figure without the rounds that could not be had would be wrong
            elif isinstance(order, Mend):
                if order.task.number in self.tasks:
                    self._mend(order.task)
            elif order.task not in self.tasks:
                continue
            elif isinstance(order, Drop):
                task, executions, waiting, began = self.tasks[order.task]
                executions[task.trees[0].root].drop(order.nodes)
                self.tasks[order.task] = task.without(order.nodes), executions, waiting, began
                for node in order.nodes:
                    executions[node].close()
                self._without(task, order.nodes)
            elif isinstance(order, Pace):
                task, executions, _, _ = self.tasks[order.task]
                executions[task.trees[0].root].pace(order.mbps / task.chunk_values)
                self.tasks[order.task] = task.at_rate(order.mbps), executions, *self.tasks[order.task][2:]
            else:
                _, executions, waiting, _ = self.tasks.pop(order.task)
                self._ends.pop(order.task, None)
                for execution in executions.values():
                    execution.close()
                for node in waiting:
                    if order.again:
                        self._ready(node)
                    else:
                        self._train(node)

    def _begin(self, task: Task) -> None:
        small = _small(task)
        executions: dict[str, Execution] = {}
        for node in task.nodes:
            executions[node] = self._execution(task, small, node)
        self.tasks[task.number] = (task, executions, set(task.awaited), self.sim.now)
        for pair in task.hops():
            self._line(pair)
        for node in task.participants:
            executions[node].start(np.zeros(small.values, np.float32))
        for node in task.nodes:
            for index, chunk, bit, values in self.scatters[node].collect(task):
                executions[node].partial(index, chunk, bit, values)

    def _execution(self, task: Task, small: Task, node: str) -> Execution:
        return Execution(
            small,
            node,
            skip=self.scatters[node].settle(task),
            post=partial(self._post, task, node),
            finished=partial(self._finished, task, node),
            clock=lambda: self.sim.now,
            later=self.sim.after,
            progress=partial(self._progress, task, node),
        )

    def _mend(self, task: Task) -> None:
        _, executions, waiting, began = self.tasks[task.number]
        self.tasks[task.number] = task, executions, waiting, began
        small = _small(task)
        for node in task.nodes:
            if node in executions:
                executions[node].mend(small)
            else:
                executions[node] = self._execution(task, small, node)
        for node in executions.keys() - task.nodes:
            executions[node].close()

    def _finished(self, task: Task, node: str) -> None:
        if node not in task.awaited:
            return  # the sender of a copy
        self._ends[task.number] = self.sim.now
        self._without(task, (node,))
        self.carry_out(self.policy.handle(Finished(node, task.number), self.sim.now))
        if task.op != "copy":
            self._train(node)

    def _without(self, task: Task, nodes: Iterable[str]) -> None:
        """Nobody waits for these any more."""
        _, _, waiting, began = self.tasks[task.number]
        waiting.difference_update(nodes)
        if not waiting:
            del self.tasks[task.number]
            self.rounds += 1
            self.on_finished(task, self._ends.pop(task.number, began) - began)
            if self.rounds >= self.most:
                self.sim.stop()

    def _progress(self, task: Task, node: str, receiver: str, left: float) -> None:
        self.carry_out(self.policy.handle(Progress(node, task.number, receiver, left), self.sim.now))

    def tell(self, event: Event) -> None:
        """Something that the policy is to hear from outside."""
        self.carry_out(self.policy.handle(event, self.sim.now))

    # --- chunks under way ---

    def _post(self, task: Task, node: str, post: SendRequest) -> None:
        execution = None
        if task.number in self.tasks:
            task, executions, _, _ = self.tasks[task.number]  # it may have been mended since
            execution = executions[node]
        start, end = task.chunk(post.tree, post.chunk)
        data = 4 * (end - start) + HEADER_BYTES
        if post.edge is None:
            self._cast(task, post, end - start, execution)
            return

        def go(way: Edge, through: Callable[[], None]) -> None:
            def gone() -> None:
                through()
                if execution is not None:
                    execution.sent(post)

            self._hop(_Moving(task, way.path, data, post, gone, execution), 0)

        self.ways[node].send(task, post.edge, go)

    def _cast(self, task: Task, post: SendRequest, values: int, execution: Execution | None) -> None:
        """Once over each link of the routes, which switches copy it onto. Packets leave one by one at the tree's rate,
        and each link takes its time for a whole one."""
        tree = task.trees[post.tree]
        each = 32e-6 * CARRIER.packet_values / tree.rate_mbps
        packets = CARRIER.packets(values)
        begin = max(self.sim.now, self._sent_until.get((task.number, post.tree), 0.0))
        self._sent_until[task.number, post.tree] = begin + packets * each
        links = [self.links[link] for link in dict.fromkeys(pair for route in tree.routes for pair in pairwise(route))]

        def carried() -> None:
            self.sim.after(max(0.0, begin + (packets - 1) * each - self.sim.now), arrived)

        def arrived() -> None:
            if execution is not None:
                execution.sent(post)
            for route in tree.routes:
                delay = sum(self.topology.delay_ms(u, v) for u, v in pairwise(route)) / 1000
                whole = sorted(CARRIER.bytes(1) * BITS / self.rates[self.links[link]] for link in pairwise(route))
                own = replace(post, edge=Edge(tree.root, route[-1]))
                self.sim.after(delay + sum(whole[:-1]), partial(self._arrive, task, own))

        self.sim.send(CARRIER.bytes(values) * BITS, links, carried)

    def _hop(self, chunk: _Moving, hop: int) -> None:
        if hop == len(chunk.path) - 1:
            self._arrive(chunk.task, chunk.post)
            return
        pair = (chunk.path[hop], chunk.path[hop + 1])
        line = self._line(pair)
        began = [0.0]

        def begin() -> None:
            began[0] = self.sim.now

        def arrived() -> None:
            if hop == 0:
                chunk.through()
            mbps = line.throughput.arrived(began[0], self.sim.now, chunk.data * BITS)
            if mbps is not None and self.probe_values is not None and chunk.data >= 4 * self.probe_values:
                self.carry_out(self.policy.handle(Measured(*pair, mbps), self.sim.now))
            self._hop(chunk, hop + 1)

        heapq.heappush(line.waiting, (chunk.task.priority, next(self._order), chunk, begin, arrived))
        self._flush(line)

    def _flush(self, line: _Line) -> None:
        while line.waiting and (free := [each for each in line.connections if each.free]):
            _, _, chunk, begin, arrived = heapq.heappop(line.waiting)
            if not chunk.wanted:
                chunk.through()
                continue
            connection = min(free, key=_under_way)
            connection.free = False
            begin()
            frames = connection.frames(chunk.data, more=bool(line.waiting))
            size = (chunk.data + FRAME_HEADERS * frames) * BITS
            sent = partial(self._sent, line, connection, (frames, chunk.data), arrived)
            if connection.window is None:
                self.sim.send(size, line.links, sent)
            else:
                connection.window.send(size, max(1, frames), partial(_behind, line, frames), sent)

    def _stored(self, line: _Line, data: int) -> float:
        """Seconds until the last frame of so many bytes is over all links, the narrowest having sent it."""
        frame = (min(data, self.segment) + FRAME_HEADERS) * BITS
        each = [frame / (self.rates[link] or math.inf) for link in line.links]
        return sum(each) - max(each)

    def _sent(self, line: _Line, connection: _Connection, size: tuple[int, int], arrived: Callable[[], None]) -> None:
        """size: frames, and bytes in them."""
        frames, data = size
        connection.free = True

        def there() -> None:
            self.sim.send(FRAME_HEADERS * BITS * frames / SEGMENTS_AN_ACKNOWLEDGEMENT, line.back)
            arrived()

        held = 0.0 if connection.window is None else max(0.0, connection.window.held - self.sim.now)
        self.sim.after(held + line.delay + self._stored(line, data), there)
        self._flush(line)

    def _arrive(self, task: Task, post: SendRequest) -> None:
        if task.number not in self.tasks:
            # The last results of a task may still be on their way to agents that only pass on.
            return
        assert post.edge is not None
        there = self.tasks[task.number][1][post.edge.receiver]
        if there.closed or not there.takes(post.tree, post.chunk, 1):
            return
        if post.kind == Kind.STATE:
            there.kept(post.tree, post.chunk, post.values.copy())
        elif post.kind == Kind.UP:
            there.partial(post.tree, post.chunk, post.contributors, post.values.copy())
        else:
            there.result(post.tree, post.chunk, post.values)


def _under_way(connection: _Connection) -> int:
    return 0 if connection.window is None else connection.window.flying


def _behind(line: _Line, frames: int) -> float:
    """What waits for one of the connections, if all chunks have so many frames."""
    return frames * len(line.waiting) / len(line.connections)


def _small(task: Task) -> Task:
    """One value a chunk: what an execution decides depends on how many chunks there are, not on what is in them."""
    first, trees = 0, []
    for index, tree in enumerate(task.trees):
        chunks = task.chunks(index)
        begin = 0 if task.op == "mix" else first
        rates = tuple(rate / task.chunk_values for rate in tree.rates_mbps)
        rate = tree.rate_mbps / task.chunk_values
        trees.append(replace(tree, first=begin, count=chunks, rate_mbps=rate, rates_mbps=rates))
        first += chunks
    return replace(task, trees=tuple(trees), values=max(t.first + t.count for t in trees), chunk_values=1)


def seconds_of(policy: Policy, topology: Topology, values: int, rounds: int = 1, **options: Any) -> list[float]:
    """Seconds of each of the first tasks, all nodes being ready at once."""
    found: list[float] = []
    Simulation(policy, topology, values, finished=lambda task, s: found.append(s), **options).run(rounds)
    return found
