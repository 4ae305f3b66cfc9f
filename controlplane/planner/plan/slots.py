"""Windows of a plan's trees: how long a chunk is under way, how many slots a tree gets for that, and where these are.

A chunk that all workers send at once comes back after the round trip. On its way up, every link takes as many packets
one after the other as the tree has flows on it (they arrive together); then each partial sum goes on, then the result
over the links down. Each link's delay and the hosts' time count, too. A tree asks for twice as many slots as packets
are under way at its rate.

The hosts' time is the topology's `host_ms`, or what agents measured (plan/measured.py), or assumed. A measured time is
the shortest of many, and a busy host takes longer: slots are given out for at least HOST_MS, as far as memory allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from controlplane.planner.plan.limits import MINIMUM_SLOTS, DoesNotFit, Resource, switch_limits
from controlplane.planner.plan.model import Plan, Tree
from controlplane.planner.topology import Topology
from controlplane.planner.topology_checks import HOST_TIMES

DEFAULT_SLOTS, MAXIMUM_SLOTS = 64, 1 << 14
HOST_MS = 2.0
"""Time that is assumed of a server whose `host_ms` is not known, for batching and scheduling. Slots are given out for
it; rates are not lowered for it.
"""

HOSTS = "hosts"

Edge = tuple[str, str]


@dataclass(frozen=True)
class Level:
    """A part of a round trip: from `source` to `end` (a node, "workers" or "hosts") in `ms` milliseconds."""

    source: str
    end: str
    ms: float

    def __str__(self) -> str:
        return f"{self.source} to {self.end} {self.ms:.3g} ms" if self.end else f"{self.source} {self.ms:.3g} ms"


def host_ms(topology: Topology, server: str, assumed: float = HOST_MS, least: float = 0.0) -> float:
    """Return the milliseconds that an agent on the server adds to a round trip: declared, else measured (but `least` at
    least), else `assumed`.
    """
    attributes = topology.graph.nodes[server]
    return float(attributes.get("host_ms", max(least, attributes.get("measured_ms", assumed))))


def host_known(topology: Topology, server: str) -> bool:
    """Return whether the server's time is declared or measured."""
    return any(name in topology.graph.nodes[server] for name in HOST_TIMES)


def hosts_known(plan: Plan, topology: Topology) -> bool:
    """Return whether the times of all the job's servers are declared or measured."""
    return all(host_known(topology, server) for server in (*plan.job.workers, *plan.job.parameter_servers))


def with_host_ms(topology: Topology, ms: float) -> Topology:
    """Return the topology with this time for every server whose time is not known. Raise TopologyError where it is no
    time.
    """
    unknown = [server for server in topology.servers if not host_known(topology, server)]
    return topology.replace(nodes={server: {"host_ms": ms} for server in unknown})


def hosts_ms(tree: Tree, topology: Topology, assumed: float = HOST_MS, least: float = 0.0) -> float:
    """Return the milliseconds that the slowest worker and the parameter server of a tree add together; `assumed` and
    `least` are those of `host_ms`.
    """
    slowest = max(host_ms(topology, worker, assumed, least) for worker in tree.assignments.workers)
    return slowest + host_ms(topology, tree.root, assumed, least)


def round_trip(tree: Tree, topology: Topology, packet_bits: int, assumed: float = HOST_MS) -> list[Level]:
    """Return the levels of a chunk's longest way up and down again; their sum is the round trip in an empty network.
    `assumed` is that of `host_ms`.
    """
    flows, times = tree.crossed(), link_times(topology, packet_bits)

    def way(route: Sequence[str]) -> float:
        time = wait = 0.0
        for pair in pairwise(route):
            packet, delay = times[pair]
            time += packet + delay
            wait = max(
                wait, (flows[pair] - 1) * packet
            )  # waits behind the other flows on the link where that takes longest
        return time + wait

    relays = {relay.node: relay for relay in tree.relays}
    onwards: dict[str, list[Level]] = {tree.root: []}

    def from_point(point: str) -> list[Level]:
        if point not in onwards:
            relay = relays[point]
            onwards[point] = [Level(point, relay.next, way(relay.route)), *from_point(relay.next)]
        return onwards[point]

    starts: dict[str, float] = {}
    for a in tree.assignments:
        starts[a.point] = max(starts.get(a.point, 0.0), way(a.route))
    longest = max(starts, key=lambda point: starts[point] + total_ms(from_point(point)))
    down = {tree.root: 0.0}
    for u, v in tree.return_edges:
        packet, delay = times[u, v]
        down[v] = down[u] + packet + delay
    hosts = hosts_ms(tree, topology, assumed)
    first = Level("workers", longest, starts[longest])
    return [first, *from_point(longest), Level(tree.root, "workers", max(down.values())), Level(HOSTS, "", hosts)]


def packet_ms(topology: Topology, link: Edge, packet_bits: int) -> float:
    """Return a packet's time on a link in ms, without its delay; 0 on a link from a host, which hands its interface all
    it has at once, and at a cable, where nothing waits.
    """
    if topology.kind(link[0]) == "server" or link[0] in topology.cables:
        return 0.0
    return packet_bits / 1e3 / max(topology.bandwidth_mbps(*link), 1e-3)


class LinkTimes(dict[Edge, tuple[float, float]]):
    """By link, a packet's time on it and the link's delay (both in ms), each computed when it is first asked for."""

    def __init__(self, topology: Topology, packet_bits: int) -> None:
        super().__init__()
        self._topology, self._packet_bits = topology, packet_bits

    def __missing__(self, link: Edge) -> tuple[float, float]:
        self[link] = found = packet_ms(self._topology, link, self._packet_bits), self._topology.delay_ms(*link)
        return found


@lru_cache(maxsize=4)  # a topology is frozen, and every plan that is tried asks for the same links
def link_times(topology: Topology, packet_bits: int) -> LinkTimes:
    return LinkTimes(topology, packet_bits)


def total_ms(levels: Iterable[Level]) -> float:
    """Return the round trip over all levels in ms."""
    return sum(level.ms for level in levels)


def round_trip_ms(tree: Tree, topology: Topology, packet_bits: int, assumed: float = HOST_MS) -> float:
    """Return the round trip of a chunk in an empty network, in ms."""
    return total_ms(round_trip(tree, topology, packet_bits, assumed))


def under_way(plan: Plan, topology: Topology, packet_bits: int) -> list[float]:
    """Return, by tree, the number of packets that are under way at its rate."""
    return [
        plan.tree_rate_mbps(index) * 1e3 * round_trip_ms(tree, topology, packet_bits) / packet_bits
        for index, tree in enumerate(plan.trees)
    ]


def place_slots(
    plan: Plan, topology: Topology, packet_bits: int, free: Mapping[str, Sequence[tuple[int, int]]]
) -> tuple[tuple[int, ...], dict[tuple[str, int], int]]:
    """Return the slots of each tree, and the first one by (aggregation point, tree), which is a multiple of the tree's
    slots, as Tofino needs it. Raise DoesNotFit where there are too few slots.

    `free` has the free ranges (first, end) of the aggregation points' memory. A tree's slots are a power of two, from
    16 to 16384, which holds twice the packets that are under way at its rate, and at least 64 where memory allows.
    Where a switch has too few, the tree with the most slots for its need gets half. Where gathers run beside
    reductions, each with half of a tree's slots, trees ask for twice as many. Half of the free memory stays free where
    trees have more than 64, since the next plan is installed beside this one.
    """
    needs = under_way(plan, topology, packet_bits)
    slower = [hosts_ms(tree, topology, least=HOST_MS) - hosts_ms(tree, topology) for tree in plan.trees]
    wanted = [
        need + plan.tree_rate_mbps(index) * 1e3 * more / packet_bits
        for index, (need, more) in enumerate(zip(needs, slower, strict=True))
    ]
    windows = 2 if plan.gathers_beside else 1
    sizes = [
        min(MAXIMUM_SLOTS, windows * max(DEFAULT_SLOTS, 1 << math.ceil(math.log2(max(1.0, 2 * each)))))
        for each in wanted
    ]
    at: dict[str, list[int]] = {}
    for index, tree in enumerate(plan.trees):
        for point in tree.points:
            at.setdefault(point, []).append(index)
    own = switch_limits(topology).slots
    for point, indices in at.items():
        total = sum(end - first for first, end in free[point])
        available = min(total, own.get(point, total))
        while True:
            asked = sum(sizes[i] for i in indices)
            fits = asked <= available and _into(free[point], indices, sizes) is not None
            least = DEFAULT_SLOTS if fits else MINIMUM_SLOTS
            larger = [i for i in indices if sizes[i] > least]
            if fits and (2 * asked <= available or not larger):
                break
            if not larger:
                raise DoesNotFit(point, Resource.SLOTS, MINIMUM_SLOTS * len(indices), available)
            sizes[max(larger, key=lambda i: (sizes[i] / max(needs[i], 1e-9), sizes[i], -i))] //= 2
    places = {point: _into(free[point], indices, sizes) for point, indices in at.items()}
    return tuple(sizes), {(v, i): base for v, bases in places.items() for i, base in (bases or {}).items()}


def _into(gaps: Sequence[tuple[int, int]], indices: Sequence[int], sizes: Sequence[int]) -> dict[int, int] | None:
    """Return aligned places in the gaps for trees of these sizes (powers of two); None where there is no room for all.

    The largest come first, into the first gap that holds them, so that there is at most one gap in front of each.
    """
    bases: dict[int, int] = {}
    free = list(gaps)
    for index in sorted(indices, key=lambda i: (-sizes[i], i)):
        base = aligned(free, sizes[index])
        if base is None:
            return None
        bases[index] = base
    return bases


def aligned(free: list[tuple[int, int]], size: int) -> int | None:
    """Return the first place for a number of slots (a power of two), and take it out of the free ranges; None where
    there is none.
    """
    for number, (first, end) in enumerate(free):
        base = -(-first // size) * size
        if base + size <= end:
            free[number : number + 1] = [gap for gap in ((first, base), (base + size, end)) if gap[0] < gap[1]]
            return base
    return None
