"""The network of the sites as they have measured it, and the topology that plans are made on.

Rates are measured between pairs of sites, first alone and then all at once, because pairs often share links: a site's
uplink carries all that the site sends. Where the round trip of a pair is that of a way over a third site (within
VIA_PART), packets most likely take that way: plans then use the two pairs of that way, and the pair itself is no link
of the topology.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import networkx as nx

from controlplane.planner.job import Job
from controlplane.planner.plan.framing import MTU
from controlplane.planner.plan.model import Plan
from controlplane.planner.strategies.wan.site_rounds import NoLink
from controlplane.planner.strategies.wan.tree_packing.strategy import wan
from controlplane.planner.topology import Topology
from overlay.core.framing import tcp_framing
from overlay.core.reachability import REMEDY, Reachability

Pair = tuple[str, str]
"""(the site that sends, the site that receives)."""

VIA_PART = 0.05
VIA_LEAST_SECONDS = 0.002
"""Least round trip, in seconds, by which a way over a third site is recognised: inside one building all pairs look
alike.
"""

SHARED_PART = 0.85
"""A site whose pairs together carry less than this part of the sum of their rates alone has a limit of its own."""

UNKNOWN_MBPS = 1000.0
"""Rate, in Mbit/s, that is assumed between sites of which nothing has been measured; only ratios matter to a plan whose
rates agents do not keep.
"""

LOSS_LEAST, LOSS_GROWN = 0.02, 2.0
"""The network is measured again when a pair loses at least the part LOSS_LEAST of its packets, and LOSS_GROWN times the
part that it lost when it was measured.
"""

PLAN_WORK = 20_000
"""Most work to improve a plan, in rounds of new trees times sites times links: the coordinator says nothing while it
plans. Where all pairs are links, ten sites get within 0.1 % of the best plan, and 20 within 1 %, in about a second.
"""

MOST_REASONS = 4
"""Maximum number of pairs of sites without a link that an error describes."""

BROKEN_MBPS = 1e-3
INNER_MBPS = 1e7  # between the nodes of one site: never the bottleneck
CHUNK_SECONDS = 0.005
MOST_CHUNK_VALUES = 262_144
CHUNK_PART = 256
"""A chunk has as many values as the fastest tree carries in CHUNK_SECONDS, up to MOST_CHUNK_VALUES (1 MB), and at most
a CHUNK_PARTth of the round's values, so that the way of the last chunk from site to site costs the round little. Large
chunks take a site less processor time, since much of a chunk's cost is the same for each size.
"""

LEAST_WINDOW, LEAST_LARGE = 32, 8
"""Least numbers of chunks of a tree that a site sends ahead of their results: LEAST_WINDOW where a chunk has
`chunk_values` values, LEAST_LARGE where it has many more.
"""

WAYS_A_TREE = 4.0
"""Number of longest round trips that a chunk takes up a tree and its result down again, at most, as plans usually are.
"""


def direct_pairs(round_trips: Mapping[Pair, float]) -> list[Pair]:
    """Return the pairs of sites that are links of their own, sorted, in both directions.

    Args:
        round_trips: seconds, of all pairs.
    """
    trips: dict[frozenset[str], float] = {}
    for pair, seconds in round_trips.items():
        key = frozenset(pair)
        trips[key] = min(seconds, trips.get(key, seconds))
    sites = sorted({site for pair in round_trips for site in pair})

    def composed(a: str, b: str) -> bool:
        own = trips[frozenset((a, b))]
        if own < VIA_LEAST_SECONDS:
            return False
        for via in sites:
            first, second = trips.get(frozenset((a, via)), 0.0), trips.get(frozenset((via, b)), 0.0)
            near = min(first, second) <= VIA_PART * own  # the third site is in the same town as one of the two
            if via not in (a, b) and not near and first + second <= own * (1 + VIA_PART):
                return True
        return False

    found = {pair for pair in round_trips if not composed(*pair)}
    return sorted(found | {(b, a) for a, b in found})


def slots(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Divide the pairs into slots, in each of which a site sends to at most one other and receives from at most one.
    The pairs are taken by the distance of their sites in a circle of all sites, so that the pairs of n sites fit into n
    - 1 slots.
    """
    given = list(pairs)
    place = {site: k for k, site in enumerate(sorted({site for pair in given for site in pair}))}

    def apart(pair: Pair) -> tuple[int, Pair]:
        return (place[pair[1]] - place[pair[0]]) % len(place), pair

    made: list[list[Pair]] = []
    for sender, receiver in sorted(given, key=apart):
        for slot in made:
            if all(sender != a and receiver != b for a, b in slot):
                slot.append((sender, receiver))
                break
        else:
            made.append([(sender, receiver)])
    return made


class SiteNetwork:
    """Rates and round trips between sites, by name, and plans for any set of them. Not thread-safe.

    Args:
        chunk_values: least number of values in a task's chunks (`chunks`).
        mtu: bytes of the network's packets.

    Attributes:
        version: number that changes whenever plans would.
        pairs: rate of each measured pair alone, in Mbit/s of payload.
        out, into: Mbit/s of all that a site sends, or receives, where that is less than the sum of its pairs'
            rates.
        round_trips: seconds, of each pair.
        reachability: which sites can connect to which; where neither of two can, they have no link between them.
        losses: part of each pair's packets that is lost, in the sites' latest reports.
        known: pairs whose rates a file has declared; they are never measured.
    """

    def __init__(self, chunk_values: int, mtu: int = MTU) -> None:
        self.chunk_values, self.mtu = chunk_values, mtu
        self.version = 0
        self.pairs: dict[Pair, float] = {}
        self.out: dict[str, float] = {}
        self.into: dict[str, float] = {}
        self.round_trips: dict[Pair, float] = {}
        self.reachability = Reachability()
        self.losses: dict[Pair, float] = {}
        self._losses_then: dict[Pair, float] = {}  # losses at the time when the rates were measured
        self.known: set[Pair] = set()  # rates that a file declares are never measured
        self._broken: set[Pair] = set()  # pairs of sites that cannot reach each other, as far as is known
        self._plans: dict[tuple[str, ...], tuple[int, Plan, Topology]] = {}

    def surveyed(
        self, alone: Mapping[Pair, float], together: Mapping[Pair, float], trips: Mapping[Pair, float]
    ) -> None:
        """Take the rates of pairs (Mbit/s of payload), measured alone and then all at once, and their round trips
        (seconds). Older values of other pairs stay.
        """
        self.version += 1
        self._losses_then = dict(self.losses)
        self.pairs |= alone
        self._broken.difference_update(alone)
        self.round_trips |= trips
        both = {pair for pair in together if pair in alone}
        for end, limits in ((0, self.out), (1, self.into)):
            for site in {pair[end] for pair in both}:
                limits.pop(site, None)

        def shared(end: int, site: str) -> tuple[float, float]:
            """Return the part of the sum of their rates alone that the site's pairs carry together, and that in Mbit/s.
            The part is 1 for a site with one pair.
            """
            own = [pair for pair in both if pair[end] == site]
            now, before = sum(together[pair] for pair in own), sum(alone[pair] for pair in own)
            return (now / before if len(own) > 1 else 1.0), now

        # The site that holds its pairs back most explains their rates; other sites may hold back the remaining pairs.
        while both:
            ends = sorted({(end, pair[end]) for pair in both for end in (0, 1)})
            end, site = min(ends, key=lambda each: shared(*each)[0])
            part, mbps = shared(end, site)
            if part >= SHARED_PART:
                break
            (self.out, self.into)[end][site] = mbps
            both = {pair for pair in both if pair[end] != site}

    def lost(self, sender: str, receiver: str, part: float) -> bool:
        """Take note of the part of a pair's packets that is lost now. Return whether that is much more than when rates
        were measured: these are the rates of TCP at the loss of that time.
        """
        self.losses[sender, receiver] = part
        before = self._losses_then.setdefault((sender, receiver), part)
        return part > max(LOSS_LEAST, LOSS_GROWN * before)

    def told(self, sender: str, receiver: str, mbps: float) -> None:
        """Set the rate of a pair (Mbit/s), which a file declares."""
        self.version += 1
        self.pairs[sender, receiver] = mbps

    def broken(self, site: str, other: str) -> None:
        """Note that these two sites cannot reach each other: plans avoid the pair until it is measured again, or until
        one of the two sites is another process (`restarted`).
        """
        self.version += 1
        self._broken |= {(site, other), (other, site)}

    def restarted(self, site: str) -> None:
        """Note that a site's process is a new one: what others could not reach was the one before. They notice the end
        of a process as soon as the coordinator does, and may report it before that.
        """
        whole = {pair for pair in self._broken if site in pair}
        if whole:
            self.version += 1
            self._broken -= whole

    def none_broken(self) -> None:
        """Forget which pairs were broken: another coordinator acts from now on, which would be told."""
        self.version += 1
        self._broken.clear()

    def rate(self, sender: str, receiver: str) -> float:
        """Return the rate of a pair as in `rates`; 0 where it was not measured."""
        mbps = self.pairs.get((sender, receiver), 0.0)
        return min(mbps, BROKEN_MBPS) if (sender, receiver) in self._broken else mbps

    def rates(self) -> dict[Pair, float]:
        """Return the rate of each pair, in Mbit/s of payload; that of a broken one is at most BROKEN_MBPS."""
        return {pair: self.rate(*pair) for pair in self.pairs}

    def to_json(self) -> dict[str, Any]:
        """Return the measured rates and round trips as an object of JSON, for the next coordinator."""
        pairs = [[*pair, mbps] for pair, mbps in self.pairs.items()]
        trips = [[*pair, seconds] for pair, seconds in self.round_trips.items()]
        return {"pairs": pairs, "round_trips": trips, "out": self.out, "into": self.into}

    def status(self) -> dict[str, Any]:
        """Return rates, round trips and losses for people, as an object of JSON."""
        links = [
            {"from": a, "to": b, "mbps": mbps, "round_trip_ms": 1000 * self.round_trips.get((a, b), 0.0),
             "loss": self.losses.get((a, b), 0.0)}
            for (a, b), mbps in sorted(self.rates().items())
        ]  # fmt: skip
        return {"links": links, "sends_at_most_mbps": dict(self.out), "receives_at_most_mbps": dict(self.into)}

    def adopt(self, given: Mapping[str, Any]) -> None:
        """Take the rates that an earlier coordinator has measured (`to_json`). Rates of a file stay."""
        self.version += 1
        for sender, receiver, mbps in given["pairs"]:
            if (sender, receiver) not in self.known:
                self.pairs[str(sender), str(receiver)] = float(mbps)
        self.round_trips |= {(str(a), str(b)): float(seconds) for a, b, seconds in given["round_trips"]}
        self.out |= {str(site): float(mbps) for site, mbps in given["out"].items()}
        self.into |= {str(site): float(mbps) for site, mbps in given["into"].items()}

    def linked(self, site: str, other: str) -> bool:
        """Return whether at least one of these two sites can connect to the other one."""
        return self.reachability.linked(site, other)

    def unlinked(self, sites: Collection[str]) -> set[Pair]:
        """Return the pairs of these sites that have no link, each once."""
        return {(a, b) for a in sites for b in sites if a < b and not self.linked(a, b)}

    def reached(self, reachability: Reachability) -> None:
        """Take which sites can connect to which. A pair that has a link again is not broken any more."""
        if reachability != self.reachability:
            before, self.reachability = self.reachability, reachability
            self._broken -= {pair for pair in self._broken if not before.linked(*pair) and self.linked(*pair)}
            self.version += 1

    def links(self, sites: Sequence[str]) -> dict[Pair, float]:
        """Return the rate of each link of the topology for these sites, in Mbit/s of payload. Sites of which neither
        can connect to the other have no link. Where the measured links do not lead from each site to each other one,
        the missing links get the median of the known rates. A limit on all that a site sends or receives is divided
        among its links in the ratio of their rates: a plan may then use all of them at once. (In a full mesh of sites
        with equal limits this is optimal: every link is used, and each site sends n / 2 (n - 1) of the limit, as in a
        ring.)
        """
        known = {
            pair: mbps for pair, mbps in self.rates().items()
            if pair[0] in sites and pair[1] in sites and self.linked(*pair)
        }  # fmt: skip
        usual = median(known.values()) if known else UNKNOWN_MBPS
        group = {site: k for k, part in enumerate(_connected(sites, known)) for site in part}
        for pair in ((a, b) for a in sites for b in sites if group[a] != group[b] and self.linked(a, b)):
            known.setdefault(pair, min(usual, BROKEN_MBPS) if pair in self._broken else usual)
        parts = {
            end: {site: min(1.0, limits[site] / sum(mbps for pair, mbps in known.items() if pair[end] == site))
                  for site in limits if site in sites and len(sites) > 1}
            for end, limits in ((0, self.out), (1, self.into))
        }  # fmt: skip
        return {(a, b): mbps * min(parts[0].get(a, 1.0), parts[1].get(b, 1.0)) for (a, b), mbps in known.items()}

    def topology(self, sites: Sequence[str]) -> Topology:
        """Return the topology for these sites: each is a switch with a worker, under the site's name, and a parameter
        server.
        """
        raw = 1 + tcp_framing(self.chunk_values, self.mtu).headers  # bytes on a link for each byte of payload
        nodes: dict[str, dict[str, str]] = {}
        links: list[tuple[str, str, dict[str, float]]] = []
        for site in sites:
            switch = f"site:{site}"
            nodes[switch] = {"kind": "switch"}
            for name, role in ((site, "worker"), (f"server:{site}", "parameter_server")):
                nodes[name] = {"kind": "server", "role": role}
                for link in ((switch, name), (name, switch)):
                    links.append((*link, {"bandwidth_mbps": INNER_MBPS}))
        for (sender, receiver), mbps in self.links(sites).items():
            trip = self.round_trips.get((sender, receiver), 0.0)
            about = {"bandwidth_mbps": raw * mbps, "delay_ms": 500.0 * trip}
            links.append((f"site:{sender}", f"site:{receiver}", about))
        return Topology(nodes, links, "sites")

    def plan(self, sites: Sequence[str]) -> tuple[Plan, Topology]:
        """Return the plan of the strategy `wan` for these sites (two or more), and the topology that it is for. Raise
        NoLink where no links lead from some site to some other one, and as the strategy does.
        """
        key = tuple(sites)
        known = self._plans.get(key)
        if known is not None and known[0] == self.version:
            return known[1], known[2]
        self._check_connected(sites)
        topology = self.topology(sites)
        job = Job("sites", key, tuple(f"server:{site}" for site in key), 4_000_000)
        rounds = max(1, PLAN_WORK // (len(key) * len(self.links(key))))
        plan = wan(topology, job, framing=tcp_framing(self.chunk_values, self.mtu), rounds=rounds)
        self._plans = {k: v for k, v in self._plans.items() if v[0] == self.version}
        self._plans[key] = self.version, plan, topology
        return plan, topology

    def _check_connected(self, sites: Sequence[str]) -> None:
        """Raise NoLink where no links lead from some of these sites to some others."""
        parts = _connected(sites, self.links(sites))
        if len(parts) < 2:
            return
        first = sorted(parts[0])
        apart = [(a, b) for a in first for b in sorted(set(sites) - parts[0])]
        words = "; ".join(self.reachability.why_unlinked(*pair) for pair in apart[:MOST_REASONS])
        declared = all(pair[0] in self.reachability.hidden and pair[1] in self.reachability.hidden for pair in apart)
        others = ", ".join(sorted(set(sites) - parts[0]))
        raise NoLink(f"no link leads from {', '.join(first)} to {others}: {words}; {REMEDY}", lasting=declared)

    def chunks(self, sites: Sequence[str], values: int) -> tuple[int, int]:
        """Return the values of a chunk in a round of `values` values (see CHUNK_PART; at least `chunk_values`), and the
        number of chunks of a tree that a site sends ahead of their results: so many as the fastest tree carries while a
        chunk climbs it and its result comes back, so that long links are full.
        """
        plan, _ = self.plan(sites)
        trips = [seconds for (a, b), seconds in self.round_trips.items() if a in sites and b in sites]
        fastest = plan.rate_mbps * max(tree.share for tree in plan.trees)
        most = min(fastest * CHUNK_SECONDS / 32e-6, values / CHUNK_PART, MOST_CHUNK_VALUES)
        chunk = self.chunk_values
        while 2 * chunk <= most:
            chunk *= 2
        under_way = fastest * WAYS_A_TREE * max(trips, default=0.0) / (chunk * 32e-6)
        return chunk, max(LEAST_LARGE, LEAST_WINDOW * self.chunk_values // chunk) + math.ceil(under_way)

    def expected_seconds(self, sites: Sequence[str], values: int) -> float:
        """Return the seconds that a round of so many values should take by the plan; 0 for a site alone."""
        if len(sites) < 2:
            return 0.0
        trips = [seconds for (a, b), seconds in self.round_trips.items() if a in sites and b in sites]
        return values * 32e-6 / self.plan(sites)[0].rate_mbps + WAYS_A_TREE * max(trips, default=0.0)


def _connected(sites: Iterable[str], links: Iterable[Pair]) -> list[set[str]]:
    """Return the sites in groups, in each of which links lead from each site to each other one."""
    graph = nx.DiGraph()
    graph.add_nodes_from(sites)
    graph.add_edges_from(links)
    return list(nx.strongly_connected_components(graph))
