"""TCP connections between agents on the flow-level simulator.

Each message is a flow on the links of its route, one at a time per connection. Connections share links max-min, as TCP
does where nothing is lost, windows are alike and acknowledgements do not wait (topologies/wan/networks.py). Switches
send a frame on when they have all of it: over several links a message arrives later by a frame's time on each link
except the narrowest. Where links lose packets, each connection has a window that goes up and down (core/tcp.py), and
what follows a lost segment waits for it: times are then one draw of many (`seed`). Frames count whole, with their
headers, also where the last one of a message is not full, and acknowledgements take their part of the other direction
(core/framing.py). Where agents do not keep connections open (net/transport.py), a connection is open one round trip
after it is first needed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from random import Random

from controlplane.planner.plan.framing import MTU
from controlplane.planner.plan.task import SumTree
from controlplane.planner.routing import ways
from controlplane.planner.simulate import Simulator
from controlplane.planner.topology import Topology
from overlay.core.framing import FRAME_HEADERS, SEGMENTS_AN_ACKNOWLEDGEMENT, segment_bytes
from overlay.core.tcp import BITS, LEAST_RTT, Connections, Window
from overlay.net.multicast import Carrier
from overlay.net.transport import kept_open
from p4src.protocol import PROTOCOL

CARRIER = Carrier(1, PROTOCOL.targets["v1model"].values_per_packet)
"""The form of the packets that switches copy."""


@dataclass(frozen=True)
class Message:
    """A message on its way from one agent to another.

    Attributes:
        size: bytes, with the message's header.
        began: called when its first byte leaves.
        arrived: called when it has arrived.
        wanted: returns whether the message is still to be sent; called when its turn comes.
        skipped: called when it was not wanted any more.
    """

    size: int
    began: Callable[[], None]
    arrived: Callable[[], None]
    wanted: Callable[[], bool] = lambda: True
    skipped: Callable[[], None] = lambda: None


class _Connection:
    """A TCP connection, which carries one message at a time. It has a `window` where packets are lost."""

    def __init__(self, segment: int, window: Window | None) -> None:
        self.segment, self.window = segment, window
        self.free = False
        self.unfilled = 0  # bytes in an incomplete frame that waits for the next message

    def frames(self, size: int, *, more: bool) -> int:
        """Return the number of frames with which a message of this many bytes leaves. Bytes that fill no frame wait
        only when the next message follows at once (`more`).
        """
        whole, rest = divmod(self.unfilled + size, self.segment)
        self.unfilled = rest if more else 0
        return whole + (rest > self.unfilled)

    @property
    def under_way(self) -> int:
        """Number of segments that are past the links and not acknowledged."""
        return 0 if self.window is None else self.window.flying


class _Channel:
    """All connections from one agent to another.

    Attributes:
        links: links of the route to the other agent.
        back: links of the route back.
        delay: delay of the route, in seconds.
        connections: the connections.
        waiting: messages that wait for one of them, as (priority, order, message).
    """

    def __init__(self, links: list[int], back: list[int], delay: float, connections: list[_Connection]) -> None:
        self.links, self.back, self.delay, self.connections = links, back, delay, connections
        self.waiting: list[tuple[int, int, Message]] = []

    def waiting_frames(self, frames: int) -> float:
        """Return the number of frames that wait for one of the connections, if all messages have `frames` frames."""
        return frames * len(self.waiting) / len(self.connections)


SINGLE = Connections(1, 1)


@dataclass(frozen=True)
class TcpSettings:
    """Settings of agents' TCP connections.

    Attributes:
        connections: number of connections between two agents; where packets are lost, as many as if the agents had
            known the loss from the beginning.
        loss: the part of the packets that each link between switches loses.
        seed: determines which packets are lost.
        window_bytes: window of receivers, where packets are lost.
        mtu: bytes of an IP packet.
    """

    connections: Connections = SINGLE
    loss: float = 0.0
    seed: int = 0
    window_bytes: float = math.inf
    mtu: int = MTU


WITHOUT_LOSS = TcpSettings()


class SimulatedNetwork:
    """The connections between all agents, of which `agents` is the number."""

    def __init__(self, topology: Topology, agents: int, tcp: TcpSettings) -> None:
        self.topology, self._connections, self._loss, self._mtu = topology, tcp.connections, tcp.loss, tcp.mtu
        self._kept_open = kept_open(agents, tcp.connections.least)
        self._segment = segment_bytes(tcp.mtu)
        self.links = {link: k for k, link in enumerate(topology.links)}
        capacities = [topology.residual_bandwidth_mbps(u, v) for u, v in topology.links]
        self.rates = list(capacities)
        self._routes = ways(topology)  # the switches' routes
        self._random, self._window_segments = Random(tcp.seed), tcp.window_bytes / self._segment
        self.sim = Simulator(capacities)
        self._sharing: dict[int, list[Window]] = {}  # link -> windows of the connections whose narrowest link it is
        self._channels: dict[tuple[str, str], _Channel] = {}
        self._order = count()
        self._copied_until: dict[tuple[int, int], float] = {}  # key of `send_copied` -> when its packets have left, s

    def set_rate(self, u: str, v: str, mbps: float) -> None:
        """Set the capacity of a link of the topology, from now on."""
        self.rates[self.links[u, v]] = mbps
        self.sim.set_capacity(self.links[u, v], mbps)

    def route_delay(self, route: tuple[str, ...] | list[str]) -> float:
        """Return the delay of a route, in seconds, without the time of frames on its links."""
        return sum(self.topology.delay_ms(u, v) for u, v in pairwise(route)) / 1000

    def send(self, pair: tuple[str, str], priority: int, message: Message) -> None:
        """Send a message from the first agent of the pair to the second; the lowest priority number goes first."""
        channel = self.connect(pair)
        heapq.heappush(channel.waiting, (priority, next(self._order), message))
        self._flush(channel)

    def send_copied(
        self, key: tuple[int, int], tree: SumTree, values: int, left: Callable[[], None], arrived: Callable[[str], None]
    ) -> None:
        """Send a chunk once over each link of a tree's routes, since switches copy it. Packets leave one by one at the
        tree's rate, after those of earlier chunks with the same key, and each link takes its time for a whole packet.

        Args:
            key: (task, tree), whose chunks leave one after the other.
            tree: the tree, with routes.
            values: number of values of the chunk.
            left: called when all packets have left.
            arrived: called as arrived(receiver) when they have arrived at this receiver.
        """
        packet_seconds = 32e-6 * CARRIER.packet_values / tree.rate_mbps
        packets = CARRIER.packets(values)
        begin = max(self.sim.now, self._copied_until.get(key, 0.0))
        self._copied_until[key] = begin + packets * packet_seconds
        links = [self.links[pair] for pair in dict.fromkeys(pair for route in tree.routes for pair in pairwise(route))]

        def carried() -> None:
            self.sim.after(max(0.0, begin + (packets - 1) * packet_seconds - self.sim.now), all_left)

        def all_left() -> None:
            left()
            for route in tree.routes:
                whole = sorted(CARRIER.bytes(1) * BITS / self.rates[self.links[pair]] for pair in pairwise(route))
                self.sim.after(self.route_delay(route) + sum(whole[:-1]), partial(arrived, route[-1]))

        self.sim.send(CARRIER.bytes(values) * BITS, links, carried)

    def connect(self, pair: tuple[str, str]) -> _Channel:
        """Return the connections from the first agent to the second; open them where they are not open yet."""
        channel = self._channels.get(pair)
        if channel is None:
            links = [self.links[link] for link in pairwise(self._routes[pair])]
            back = [self.links[link] for link in pairwise(self._routes[pair[::-1]])]
            delay = self.route_delay(self._routes[pair])
            round_trip = delay + self.route_delay(self._routes[pair[::-1]])
            channel = _Channel(links, back, delay, self._new_connections(pair, links, round_trip))
            self._channels[pair] = channel
            if self._kept_open:
                self._opened(channel)
            else:
                self.sim.after(round_trip, partial(self._opened, channel))
        return channel

    def _new_connections(self, pair: tuple[str, str], links: list[int], rtt: float) -> list[_Connection]:
        kinds = [self.topology.kind(node) for node in self._routes[pair]]
        lost = 1 - (1 - self._loss) ** sum(a == b == "switch" for a, b in pairwise(kinds))
        if not lost:
            return [_Connection(self._segment, None) for _ in range(self._connections.least)]
        narrowest = min(links, key=self.rates.__getitem__)
        sharing = self._sharing.setdefault(narrowest, [])

        def queue() -> float:
            return sum(each.standing for each in sharing) / self.rates[narrowest]

        number = self._connections.over(self.rates[narrowest], rtt or LEAST_RTT, lost, mtu=self._mtu)
        windows = [
            Window(
                self.sim, links, rtt or LEAST_RTT, lost, random=self._random, most=self._window_segments, queue=queue
            )
            for _ in range(number)
        ]
        sharing += windows
        return [_Connection(self._segment, window) for window in windows]

    def _opened(self, channel: _Channel) -> None:
        for connection in channel.connections:
            connection.free = True
        self._flush(channel)

    def _flush(self, channel: _Channel) -> None:
        """Give messages that wait to the connections that are free."""
        while channel.waiting and (free := [each for each in channel.connections if each.free]):
            _, _, message = heapq.heappop(channel.waiting)
            if not message.wanted():
                message.skipped()
                continue
            connection = min(free, key=lambda each: each.under_way)
            connection.free = False
            message.began()
            frames = connection.frames(message.size, more=bool(channel.waiting))
            mbit = (message.size + FRAME_HEADERS * frames) * BITS
            sent = partial(self._sent, channel, connection, frames, message)
            if connection.window is None:
                self.sim.send(mbit, channel.links, sent)
            else:
                connection.window.send(mbit, max(1, frames), partial(channel.waiting_frames, frames), sent)

    def _store_and_forward(self, channel: _Channel, size: int) -> float:
        """Return the seconds until the last frame of a message of `size` bytes is over all links, after the narrowest
        one has sent it.
        """
        frame = (min(size, self._segment) + FRAME_HEADERS) * BITS
        each = [frame / (self.rates[link] or math.inf) for link in channel.links]
        return sum(each) - max(each)

    def _sent(self, channel: _Channel, connection: _Connection, frames: int, message: Message) -> None:
        """Handle that a message is past the narrowest link: it arrives after the delays, and another message leaves."""
        connection.free = True

        def arrived() -> None:
            self.sim.send(FRAME_HEADERS * BITS * frames / SEGMENTS_AN_ACKNOWLEDGEMENT, channel.back)
            message.arrived()

        held = 0.0 if connection.window is None else max(0.0, connection.window.held - self.sim.now)
        self.sim.after(held + channel.delay + self._store_and_forward(channel, message.size), arrived)
        self._flush(channel)
