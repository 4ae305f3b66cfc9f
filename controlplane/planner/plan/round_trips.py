"""Round trips of chunks that start at once, followed over the links packet by packet.

Links take packets one after the other, in the order in which they come; a switch sends a sum on when the last flow of
it has come, a root the result. `slots.round_trip` estimates the same from counts, from above and far faster.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from controlplane.planner.plan.model import Tree
from controlplane.planner.plan.slots import HOSTS, Edge, Level, hosts_ms, link_times, round_trip
from controlplane.planner.topology import Topology

MOST_FLOWS = 20_000
"""Most flows of all trees that are followed; with more, the estimate has to do."""


Credit = Callable[[Topology, Edge], float]
"""Function that returns the credit of a link: how far (ms) the link may be ahead of its rate, which is the bytes of its
token bucket over that rate. Links of a network have none; the emulation's do (topologies/links.py).
"""


@dataclass
class _Chunk:
    """A chunk that is on its way through a tree.

    Attributes:
        tree: The tree.
        missing: By point, how many flows have not come yet.
        children: The return tree, by node the nodes below it.
        done: By point, when its sum was complete (ms).
        last: By point, the source of the flow that came last.
        answered: When the last result came (ms).
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
    free: dict[Edge, float] = {}
    times: dict[Edge, tuple[float, float, float]] = {}
    known = link_times(topology, packet_bits)
    events: list[tuple[float, int, int, tuple[str, ...], int]] = []  # time, order, tree, route, where on it

    def go(index: int, route: tuple[str, ...], position: int, now: float) -> None:
        """Send a packet on to the next node of its route; a route of one node ends there."""
        if len(route) == 1:
            heapq.heappush(events, (now, next(order), index, route, 0))
            return
        link = route[position], route[position + 1]
        if link not in times:
            ahead = credit(topology, link) if credit else 0.0
            times[link] = *known[link], ahead
        packet, delay, ahead = times[link]
        schedule = max(now, free.get(link, 0.0))
        begins = max(now, schedule - ahead)
        free[link] = schedule + packet
        heapq.heappush(events, (begins + packet * stored + delay, next(order), index, route, position + 1))

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
    levels = [Level(tree.root, "workers", chunk.answered - chunk.done[tree.root])]
    node = tree.root
    # A root that is a worker, too, is among the senders: where its own gradients came last, the chain begins there.
    while (before := chunk.last[node]) in chunk.done and before != tree.root:
        levels.insert(0, Level(before, node, chunk.done[node] - chunk.done[before]))
        node = before
    return [Level("workers", node, chunk.done[node]), *levels, Level(HOSTS, "", hosts_ms(tree, topology))]
