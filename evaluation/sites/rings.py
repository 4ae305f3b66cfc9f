"""Finds the ring over emulated links on which PCCL's all-reduce should be fastest, by the rates and delays of the
links.

A ring of n sites has 2 (n - 1) steps, in each of which every site sends an n-th of the values to the next one, over the
network's own routes. Its time is bounded by the slowest hop (it has to send its part in every step) and by what the
hops of one turn take together. `best` looks for the order with the least bound; rings that share links count with the
part that they get.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from statistics import median

from controlplane.planner.routing import ways
from controlplane.planner.topology import Topology

RESTARTS, RANDOM_RINGS = 24, 99

Link = tuple[str, str]


class Rings:
    """Rings over all servers of a topology, for an all-reduce of `size` bytes."""

    def __init__(self, topology: Topology, size: float) -> None:
        self._sites, self._part = topology.servers, size / len(topology.servers)
        routes = {pair: list(pairwise(route)) for pair, route in ways(topology).items()}
        self._delays = {pair: sum(topology.delay_ms(u, v) for u, v in route) / 1e3 for pair, route in routes.items()}
        self._routes = routes
        self._rates = {link: topology.bandwidth_mbps(*link) * 1e6 / 8 for route in routes.values() for link in route}

    def seconds(self, ring: Sequence[str]) -> float:
        """Return the least seconds of an all-reduce over this ring."""
        hops = list(zip(ring, [*ring[1:], ring[0]], strict=True))
        share = Counter(link for hop in hops for link in self._routes[hop])
        sending = [self._part * max(share[link] / self._rates[link] for link in self._routes[hop]) for hop in hops]
        turn = sum(sending) + sum(self._delays[hop] for hop in hops)
        return 2 * (len(ring) - 1) * max(*sending, turn / len(ring))

    def drawn(self, seed: int) -> list[str]:
        """Return a ring in random order."""
        ring = list(self._sites)
        random.Random(seed).shuffle(ring)
        return ring

    def usual(self) -> float:
        """Return the median of random rings' times, in seconds."""
        return median(self.seconds(self.drawn(seed)) for seed in range(RANDOM_RINGS))

    def best(self) -> list[str]:
        """Return the best ring found from RESTARTS random ones, by turning parts of it around and by moving single
        sites.
        """
        found = [self._improved(self.drawn(seed)) for seed in range(RESTARTS)]
        return min(found, key=self.seconds)

    def _improved(self, ring: list[str]) -> list[str]:
        best, least = ring, self.seconds(ring)
        while True:
            near = min(_near(best), key=self.seconds)
            if (seconds := self.seconds(near)) >= least:
                return best
            best, least = near, seconds


def _near(ring: list[str]) -> Iterator[list[str]]:
    for first, end in combinations(range(len(ring) + 1), 2):
        yield ring[:first] + ring[first:end][::-1] + ring[end:]
    for site in ring:
        rest = [other for other in ring if other != site]
        for place in range(len(rest)):
            yield [*rest[:place], site, *rest[place:]]
