"""What TCP carries where links lose packets, each at random: a window that goes up and down.

A window grows by one segment a round trip. Where a segment is lost, the round trip after it carries half of the window
and does not grow it (fast recovery, RFC 6582). Of Reno with selective acknowledgements and RACK (RFC 8985), which finds
what is lost by what comes after it, also where the retransmission is lost: no timeouts. Mathis et al. (1997) take all
windows for equal sawteeth, on a link without a limit; here the windows' distribution is what losses at random make of
it (Padhye et al., 1998, whose rounds these are), and the link cuts off what is above it.
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
"""Of a window after a loss (RFC 5681)."""

FAR, MOST_SEGMENTS = 6.0, 4096
"""Windows above so many times their mean are so rare that they are taken for that; and receivers hold no more than six
megabytes (Linux's `tcp_rmem`)."""

TARGET_UTILISATION = 0.95
"""The part of a link's rate for which there are to be connections."""

MOST_CONNECTIONS = 4
"""By default: each more takes a larger part of a link that others use, too."""

BITS = 8e-6  # Mbit in a byte
LEAST_RTT = 1e-3
"""Seconds, where a topology has no delays."""


def mathis_mbps(rtt_seconds: float, loss: float, segment: int = segment_bytes()) -> float:
    """What a TCP connection reaches at this round trip and loss: MSS / RTT sqrt(3 / 2 p) (Mathis et al., 1997)."""
    return segment * BITS / rtt_seconds * math.sqrt(1.5 / loss)


@lru_cache(maxsize=64)
def window_distribution(loss: float) -> NDArray[np.float64]:
    """[w]: the part of the round trips in which a connection's window is w segments, of which each is lost with the
    probability `loss` (between 0 and 1)."""
    from scipy.sparse import coo_matrix, eye  # agents that lose nothing need none of this
    from scipy.sparse.linalg import spsolve

    if not 0 < loss < 1:
        raise ValueError(f"a loss must be between 0 and 1, got {loss}")
    most = min(MOST_SEGMENTS, max(8, math.ceil(FAR * math.sqrt(1.5 / loss))))
    window = np.arange(most + 1)
    nothing_lost = (1 - loss) ** window
    # States: a window that grows next; and, behind those, one in recovery.
    grows, recovers = window, window + most + 1
    after = np.concatenate([np.minimum(window + 1, most), grows])  # of both, where nothing is lost
    halved = recovers[np.minimum(np.maximum(window // 2, LEAST_SEGMENTS), most)]
    now = np.concatenate([grows, recovers])
    chance = np.concatenate([nothing_lost, nothing_lost])
    count = 2 * (most + 1)
    moves = coo_matrix(
        (np.concatenate([chance, 1 - chance]), (np.concatenate([after, halved, halved]), np.concatenate([now, now]))),
        shape=(count, count),
    )
    # As much comes to each state as leaves it; one of the equations follows from the others, and gives the scale.
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
    """The same of the sum of so many connections' windows."""
    own = window_distribution(loss)
    return own if connections == 1 else np.convolve(_together(loss, connections - 1), own)


def utilisation(mbps: float, rtt_seconds: float, loss: float, connections: int = 1, *, mtu: int = MTU) -> float:
    """The part of a link's rate at which so many TCP connections, which always have something to send, bring it over.

    rtt_seconds: there and back, without frames' own time on the link. A round takes a round trip, or what the link
    needs for all windows of the round where that is longer; a receiver acknowledges every second segment.
    """
    if not loss:
        return 1.0
    total = _together(loss, connections)
    frame = (segment_bytes(mtu) + FRAME_HEADERS) * BITS / mbps  # seconds
    on_the_link = np.arange(len(total)) * frame
    round_trip = max(rtt_seconds, LEAST_RTT) + SEGMENTS_AN_ACKNOWLEDGEMENT * frame
    return (1 - loss) * float(total @ on_the_link) / float(total @ np.maximum(on_the_link, round_trip))


def connections_for(mbps: float, rtt_seconds: float, loss: float, part: float, most: int, *, mtu: int = MTU) -> int:
    """The fewest connections that use this part of a link's rate, at most `most`."""
    enough = (k for k in range(1, most) if utilisation(mbps, rtt_seconds, loss, k, mtu=mtu) >= part)
    return next(enough, most)


class Window:
    """A TCP connection of the simulator's, as it goes: its chunks leave two segments at a time, as many as the window
    lets be under way; each is lost with the probability `loss`.

    links: resources of its way. rtt_seconds: without frames' own time on links. most: segments of the receiver's
    window. queue(): seconds for which a frame that comes to its narrowest link now waits there.
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
        self.flying = 0  # segments past the links, and not acknowledged
        self._full = False  # there was something for all of the window
        self._losing = False  # a loss that the sender does not know of yet
        self._recovering = 0.0  # until then, nothing grows
        self.held = 0.0
        """Nothing that leaves later is taken in before: what came before it is still to come."""
        self._left, self._bits, self._waits = 0, 0.0, False
        self._behind: Callable[[], float] = float
        self._sent: Callable[[], None] = lambda: None

    def send(self, mbit: float, frames: int, behind: Callable[[], float], sent: Callable[[], None]) -> None:
        """A message in so many frames. behind(): frames that wait for it. sent(): its last frame is past the links."""
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
        """Mbit under way that have not left the narrowest link."""
        if not self._left:
            return 0.0
        return self._bits * min(self._left + self._behind(), max(0.0, self.window - self.flying))

    def _lose(self, *, last: bool) -> None:
        """What is lost is known by what comes after it, or, where nothing does, after two round trips (RFC 8985). It
        then waits behind what stands in front of the link."""
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
    """How many TCP connections agents have to each other: `least`, and where packets are lost up to `most`."""

    least: int = 1
    most: int = MOST_CONNECTIONS

    def over(self, mbps: float, rtt_seconds: float, loss: float, *, mtu: int = MTU) -> int:
        if not loss or self.most <= self.least:
            return self.least
        return max(self.least, connections_for(mbps, rtt_seconds, loss, TARGET_UTILISATION, self.most, mtu=mtu))


ONE_OR_MORE = Connections()


def with_tcp_rates(
    topology: Topology, loss: float, connections: Connections = ONE_OR_MORE, *, mtu: int = MTU
) -> Topology:
    """The topology with what TCP carries of each link between switches, which lose this part of all packets: over one
    link each, there and back taking what the links' delays say."""
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
