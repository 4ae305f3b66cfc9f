"""A model of TCP over links that lose packets at random: how much a connection carries.

The model is Reno with selective acknowledgements. A window grows by one segment a round trip. After a lost segment, the
next round trip carries half of the window and does not let it grow (fast recovery, RFC 6582). Losses are found by the
segments that follow, also losses of retransmissions (RACK, RFC 8985), so there are no timeouts. Mathis et al. (1997)
take all windows for equal sawteeth on a link without a limit. Here, the distribution of windows is the stationary one
of these rounds with random losses (Padhye et al., 1998), and the link's rate limits each round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from controlplane.planner.plan.framing import MTU
from controlplane.planner.topology import Topology
from overlay.core.framing import FRAME_HEADERS, SEGMENTS_AN_ACKNOWLEDGEMENT, segment_bytes

if TYPE_CHECKING:
    from controlplane.planner.simulate import Simulator

INITIAL_SEGMENTS = 10  # RFC 6928
LEAST_SEGMENTS = 2
"""Least number of segments in a window after a loss (RFC 5681)."""

FAR, MOST_SEGMENTS = 6.0, 4096
"""The distribution ends at FAR times the mean window, since larger ones are rare, and at MOST_SEGMENTS, since receivers
hold at most six megabytes (Linux's `tcp_rmem`).
"""

TARGET_UTILISATION = 0.95
"""Part of a link's rate for which agents open enough connections."""

MOST_CONNECTIONS = 4
"""The default limit of connections to one neighbour: more of them would take a larger part of links that others use."""

BITS = 8e-6  # Mbit in a byte
LEAST_RTT = 1e-3
"""Round trip, in seconds, that is assumed where a topology has no delays."""


@lru_cache(maxsize=64)
def window_distribution(loss: float) -> NDArray[np.float64]:
    """Return the distribution of a connection's window when each segment is lost with the probability `loss`: element w
    is the part of the round trips in which the window has w segments. Raise ValueError for a loss that is not between 0
    and 1.
    """
    from scipy.sparse import coo_matrix, eye  # imported only here, as agents without losses do not need them
    from scipy.sparse.linalg import spsolve

    if not 0 < loss < 1:
        raise ValueError(f"a loss must be between 0 and 1, got {loss}")
    most = min(MOST_SEGMENTS, max(8, math.ceil(FAR * math.sqrt(1.5 / loss))))
    window = np.arange(most + 1)
    nothing_lost = (1 - loss) ** window
    # States 0 .. most: windows that grow next; behind those, the same windows in recovery.
    grows, recovers = window, window + most + 1
    after = np.concatenate([np.minimum(window + 1, most), grows])  # the next states of both when nothing is lost
    halved = recovers[np.minimum(np.maximum(window // 2, LEAST_SEGMENTS), most)]
    now = np.concatenate([grows, recovers])
    chance = np.concatenate([nothing_lost, nothing_lost])
    count = 2 * (most + 1)
    moves = coo_matrix(
        (np.concatenate([chance, 1 - chance]), (np.concatenate([after, halved, halved]), np.concatenate([now, now]))),
        shape=(count, count),
    )
    # Each state is entered as often as it is left. One of these equations follows from the others: it sets the scale.
    often = min(most, round(math.sqrt(1.5 / loss)) + 1)
    balance = (moves - eye(count)).tolil()
    balance[often, :] = 0.0
    balance[often, often] = 1.0
    one = np.zeros(count)
    one[often] = 1.0
    found = np.maximum(spsolve(balance.tocsc(), one), 0.0)
    both = found[: most + 1] + found[most + 1 :]
    return both / both.sum()


@lru_cache(maxsize=256)
def _together(loss: float, connections: int) -> NDArray[np.float64]:
    """Return the distribution of the sum of this many connections' windows."""
    own = window_distribution(loss)
    return own if connections == 1 else np.convolve(_together(loss, connections - 1), own)


def utilisation(mbps: float, rtt_seconds: float, loss: float, connections: int = 1, *, mtu: int = MTU) -> float:
    """Return the part of a link's rate that TCP connections use when they always have something to send.

    A round takes a round trip, or the time that the link needs for all windows where that is longer; a receiver
    acknowledges every second segment.

    Args:
        mbps: rate of the link.
        rtt_seconds: round trip without the time of frames on the link.
        loss: part of the packets that is lost.
        connections: number of connections.
        mtu: bytes of a packet.
    """
    if not loss:
        return 1.0
    total = _together(loss, connections)
    frame = (segment_bytes(mtu) + FRAME_HEADERS) * BITS / mbps  # seconds
    on_the_link = np.arange(len(total)) * frame
    round_trip = max(rtt_seconds, LEAST_RTT) + SEGMENTS_AN_ACKNOWLEDGEMENT * frame
    return (1 - loss) * float(total @ on_the_link) / float(total @ np.maximum(on_the_link, round_trip))


def connections_for(mbps: float, rtt_seconds: float, loss: float, part: float, most: int, *, mtu: int = MTU) -> int:
    """Return the least number of connections that use the given part of a link's rate, but at most `most`."""
    enough = (k for k in range(1, most) if utilisation(mbps, rtt_seconds, loss, k, mtu=mtu) >= part)
    return next(enough, most)


class Window:
    """A TCP connection on the simulator. Messages leave two segments at a time, within the window; each segment is lost
    with the probability `loss`.

    Args:
        sim: the simulator.
        links: the simulator's resources on the route.
        rtt_seconds: round trip without the time of frames on links.
        loss: probability that a segment is lost.
        random: source of the random losses.
        most: segments of the receiver's window.
        queue: returns the seconds that a frame would wait now at the narrowest link.

    Attributes:
        flying: number of segments that are past the links and not acknowledged.
        held: earliest time at which what leaves now is delivered, since an earlier segment was lost and is still to
            come.
    """

    def __init__(
        self,
        sim: Simulator,
        links: Sequence[int],
        rtt_seconds: float,
        loss: float,
        *,
        random: Random,
        most: float = math.inf,
        queue: Callable[[], float] = float,
    ) -> None:
        self._sim, self._links, self._rtt, self._loss, self._random = sim, links, rtt_seconds, loss, random
        self._most, self._queue = most, queue
        self.window = min(most, float(INITIAL_SEGMENTS))
        self._threshold = math.inf
        self.flying = 0
        self._full = False  # whether the sender had enough frames for the whole window
        self._losing = False  # whether a segment was lost and the sender does not know it yet
        self._recovering = 0.0  # the window does not grow before this time
        self.held = 0.0
        self._left, self._bits, self._waits = 0, 0.0, False
        self._behind: Callable[[], float] = float
        self._sent: Callable[[], None] = lambda: None

    def send(self, mbit: float, frames: int, behind: Callable[[], float], sent: Callable[[], None]) -> None:
        """Send a message.

        Args:
            mbit: size of the message.
            frames: number of frames of the message.
            behind: returns the number of frames of messages that wait for this one.
            sent: called when the last frame is past the links.
        """
        self._left, self._bits, self._behind, self._sent = frames, mbit / frames, behind, sent
        self._go()

    def _go(self) -> None:
        room = int(self.window) - self.flying
        if room <= 0:
            self._waits = True
            return
        self._waits = False
        count = min(self._left, room, SEGMENTS_AN_ACKNOWLEDGEMENT)
        known = self.flying + self._left + self._behind()
        self._full = (2 * known if self.window < self._threshold else known) >= self.window
        self._sim.send(count * self._bits, self._links, partial(self._through, count, self._sim.now))

    def _through(self, count: int, began: float) -> None:
        self.flying += count
        self._left -= count
        lost = [self._random.random() < self._loss for _ in range(count)]
        if any(lost):
            self._lose(last=lost[-1] and not self._left and not self._behind())
        self._sim.after(self._rtt, partial(self._acknowledged, count, count - sum(lost)))
        if self._left:
            self._go()
        else:
            self._sent()

    @property
    def standing(self) -> float:
        """Mbit that stand in front of the narrowest link."""
        if not self._left:
            return 0.0
        return self._bits * min(self._left + self._behind(), max(0.0, self.window - self.flying))

    def _lose(self, *, last: bool) -> None:
        """Handle the loss of a segment. The sender learns of it by the segments that follow, or, where none follows
        (`last`), after two round trips (RFC 8985). The retransmission waits in the narrowest link's queue.
        """
        queue = self._queue()
        known = self._rtt * (2 if last else 1)
        again = known + queue
        while self._random.random() < self._loss:
            again += self._rtt + queue
        self.held = max(self.held, self._sim.now + again)
        if not self._losing:  # the losses of one round trip count as one
            self._losing = True
            self._sim.after(known, partial(self._halve, self._sim.now + again + self._rtt))

    def _halve(self, recovered: float) -> None:
        self._losing = False
        self._threshold = self.window = float(max(self.window // 2, LEAST_SEGMENTS))
        self._recovering = recovered

    def _acknowledged(self, count: int, new: int) -> None:
        self.flying -= count
        if self._full and self._sim.now >= self._recovering:
            grown = new if self.window < self._threshold else new / self.window
            self.window = min(self._most, self.window + grown)
        if self._waits:
            self._go()


@dataclass(frozen=True)
class Connections:
    """Number of TCP connections of an agent to each other agent: `least`, and up to `most` where packets are lost."""

    least: int = 1
    most: int = MOST_CONNECTIONS

    def over(self, mbps: float, rtt_seconds: float, loss: float, *, mtu: int = MTU) -> int:
        """Return the number of connections over a link of this rate, round trip and loss."""
        if not loss or self.most <= self.least:
            return self.least
        return max(self.least, connections_for(mbps, rtt_seconds, loss, TARGET_UTILISATION, self.most, mtu=mtu))


ONE_OR_MORE = Connections()


def with_tcp_rates(
    topology: Topology, loss: float, connections: Connections = ONE_OR_MORE, *, mtu: int = MTU
) -> Topology:
    """Return the topology with the rate that TCP connections reach on each link between switches, when each link loses
    the part `loss` of all packets. Round trips are those of connections over one link.
    """
    if not loss:
        return topology
    links = []
    for u, v, data in topology.graph.edges(data=True):
        if topology.kind(u) == topology.kind(v) == "switch":
            back = topology.delay_ms(v, u) if topology.graph.has_edge(v, u) else topology.delay_ms(u, v)
            rtt = (topology.delay_ms(u, v) + back) / 1000
            mbps = topology.bandwidth_mbps(u, v)
            count = connections.over(mbps, rtt, loss, mtu=mtu)
            data = data | {"bandwidth_mbps": mbps * utilisation(mbps, rtt, loss, count, mtu=mtu)}
        links.append((u, v, data))
    nodes = dict(topology.graph.nodes(data=True))
    return Topology(nodes, links, topology.name, results_on_links=topology.results_on_links)
