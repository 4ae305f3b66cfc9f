"""Cheapest aggregation trees under given prices, for column generation.

Given the resources' prices, a root's cheapest tree is a facility location problem (open an aggregation point, pay its
way onwards; connect workers and other points) beside a Steiner tree for the results; both are solved by local search
(on small instances also exactly: exact_pricing.py).

Workers that hang on the same switch, and on no other, are one here (`Rack`): their ways differ in nothing but their own
links, which every tree uses once. So some cheapest tree adds them all at the same point, and that tree is searched.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, repeat
from typing import Any

import numpy as np

from controlplane.planner.job import Job
from controlplane.planner.plan.assignments import Assignments, Way
from controlplane.planner.plan.model import Relay, Tree
from controlplane.planner.plan.separated import worker_at
from controlplane.planner.routing import Access, Network, downwards
from controlplane.planner.strategies.deadline import deadline
from controlplane.planner.strategies.fabric.master import Column, Master, Prices

TIE = 1e-6  # price of slack resources relative to full ones, so that paths stay short and spread
LARGE = 300  # switches up to which the ways between all of them are computed under all prices
WAY_WORK = 10.0  # units of work of a search for the ways from one switch, by link
CLOSING_PHASES = 3
CLOSED = -2
SAVING = 1e-5  # least saving in a tree's price (which is about 1) for which a point is opened or closed


@dataclass(frozen=True)
class Rack:
    """Workers that are one to pricing.

    Attributes:
        members: Their positions in job.workers.
        access: Their switch; None for a single worker that hangs on several switches or on a server.
        up: Links from such a worker, as (node at the other end, link).
        down: Links to such a worker, as (node at the other end, link).
    """

    members: tuple[int, ...]
    access: int | None
    up: tuple[tuple[int, int], ...]
    down: tuple[tuple[int, int], ...]


@dataclass
class Design:
    """A tree under construction: its cost, and the next point of every rack and of every open point, where -1 stands
    for the root.
    """

    cost: float
    racks: np.ndarray  # position of the facility, or -1
    onwards: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """A tree of links from a root to all workers, and its price. `links` leaves out those of workers in racks with an
    access switch.
    """

    price: float
    links: list[int]


@dataclass(frozen=True)
class Sketch:
    """A priced tree: the links of each rack's way to its point (for single workers from their own link on, else from
    the access switch on), of each point's way onwards, and of the results' way.
    """

    root: int
    design: Design
    ways: list[list[int]]
    onwards: list[list[int]]
    back: list[int]


def _ways(prices: np.ndarray, rows: Any, columns: Any, size: int, **how: Any) -> Any:
    """Return what SciPy's `dijkstra` returns, with these options, for links from `rows` to `columns` at these
    prices.
    """
    from scipy.sparse import csr_matrix  # takes 0.4 s to import: only code that searches for trees does
    from scipy.sparse.csgraph import dijkstra

    return dijkstra(csr_matrix((prices, (rows, columns)), shape=(size, size)), **how)


class Pricing:
    """Finds cheap trees under given prices."""

    def __init__(self, network: Network, job: Job) -> None:
        self.network, self.job = network, job
        topology = network.topology
        self.roots = [network.index[s] for s in job.parameter_servers]
        self.leaves = [network.index[w] for w in job.workers]
        self.switches = [network.index[v] for v in topology.switches]
        self.position = {node: i for i, node in enumerate([*self.switches, *self.roots])}
        self.inner = [
            (self.position[u], self.position[v], e)
            for e, (u, v) in enumerate(network.ends)
            if network.forwards[u] and v in self.position and network.capacity[e] > 0
        ]
        self.rows = np.array([u for u, _, _ in self.inner], dtype=np.int32)
        self.cols = np.array([v for _, v, _ in self.inner], dtype=np.int32)
        self.links = np.array([e for _, _, e in self.inner], dtype=np.int64)
        self.link_at = {(u, v): e for u, v, e in self.inner}
        self.usable = np.array([topology.residual_aggregation_mbps(v) > 0 for v in topology.switches])
        self.racks = self._racks()
        self.count = np.array([len(rack.members) for rack in self.racks], dtype=float)
        self.rack_of = np.empty(len(self.leaves), dtype=np.int64)
        for r, rack in enumerate(self.racks):
            self.rack_of[list(rack.members)] = r
        place = {worker: i for i, worker in enumerate(job.workers)}
        here = [place.get(worker_at(topology, s) or "") for s in job.parameter_servers]
        self.home = [None if i is None else int(self.rack_of[i]) for i in here]  # rack on the root's own host, by root
        leaves = [[network.access(self.leaves[i]) for i in rack.members] for rack in self.racks]
        self._up = [[access.up for access in accesses if access is not None] for accesses in leaves]
        self._down = [[access.down for access in accesses if access is not None] for accesses in leaves]
        self.starts = self._starts()
        self.sources = self._sources()
        self.thorough = False
        """Whether the results' way is searched for longer."""

    def _racks(self) -> list[Rack]:
        """Return the racks. A worker with links to several switches, or with a root, is a rack of its own."""
        network = self.network
        racks: dict[tuple[int, int], tuple[Access | None, list[int]]] = {}
        for i, leaf in enumerate(self.leaves):
            access = network.access(leaf)
            key = (access.switch, -1) if access is not None else (-1, i)
            racks.setdefault(key, (access, []))[1].append(i)
        result = []
        for access, members in racks.values():
            leaf = self.leaves[members[0]]
            up = tuple(way for way in network.out[leaf] if way[0] in self.position)
            down = tuple(way for way in network.into[leaf] if way[0] in self.position)
            at = None if access is None else self.position[access.switch]
            result.append(Rack(tuple(members), at, up, down))
        return result

    def _starts(self) -> list[list[tuple[int, int]]]:
        """Return, by root, its links to switches that reach all workers; none where some worker does not reach it."""
        position, size, forwards = self.position, len(self.position), self.network.forwards
        hops = _ways(np.ones(len(self.rows)), self.rows, self.cols, size, unweighted=True)
        reaches = np.isfinite(hops)  # a root reaches only itself, as servers do not forward

        def serves(start: int, root: int, ways: tuple[tuple[int, int], ...]) -> bool:
            return any(u == root or (forwards[u] and reaches[position[start], position[u]]) for u, _ in ways)

        starts = []
        for root in self.roots:
            arrives = all(any(reaches[position[v], position[root]] for v, _ in rack.up) for rack in self.racks)
            ways_out = [way for way in self.network.out[root] if arrives and forwards[way[0]]]
            starts.append([way for way in ways_out if all(serves(way[0], root, rack.down) for rack in self.racks)])
        return starts

    def _sources(self) -> np.ndarray:
        """Return the switches from which all ways are computed: all, or in a large network only those from which flows
        begin and at which they can be added.
        """
        count = len(self.switches)
        ends = {rack.access for rack in self.racks if rack.access is not None}
        ends |= {self.position[v] for rack in self.racks for v, _ in rack.up if self.network.forwards[v]}
        ends |= {self.position[v] for ways in self.starts for v, _ in ways}
        few = np.array(
            sorted({end for end in ends if end < count} | set(np.flatnonzero(self.usable).tolist())), dtype=int
        )
        return few if count > LARGE and 2 * len(few) < count else np.arange(count)

    @property
    def applies(self) -> bool:
        """Whether all workers and roots reach each other over switches or links of their own."""
        return all(self.starts)

    @property
    def complete(self) -> bool:
        """Whether all trees lead over switches only (otherwise prices prove no bound)."""
        network = self.network
        return self.applies and all(
            network.forwards[v]
            for node in [*self.leaves, *self.roots]
            for v, _ in [*network.out[node], *network.into[node]]
        )

    @property
    def from_worker(self) -> np.ndarray:
        """The price of each worker's cheapest way to each node, where its own link counts as its rack's average one."""
        return self.from_rack[self.rack_of]

    def update(self, prices: Prices, utilisation: np.ndarray, tie: float = TIE) -> None:
        """Compute distances under new prices."""
        typical = 1.0 / (6 * max(1, len(self.leaves)))  # a tree costs about 1 and has about so many links
        self.price = prices.link + tie * typical * (1 + utilisation)
        size = len(self.position)
        count = len(self.switches)
        from_all = len(self.sources) == count
        deadline().spend(WAY_WORK * len(self.sources) * len(self.links))
        how = {"indices": self.sources, "return_predecessors": True}
        self.distance, self._before = _ways(self.price[self.links], self.rows, self.cols, size, **how)
        if not from_all:
            found, before = self.distance, self._before
            self.distance, self._before = np.full((count, size), np.inf), np.full((count, size), -1, dtype=np.int32)
            self.distance[self.sources], self._before[self.sources] = found, before
        self._steps: dict[int, list[int]] = {}
        self._walks: dict[tuple[int, int], list[int]] = {}
        here = np.full((len(self.roots), size), np.inf)  # a root is only an end of ways, never on one
        here[np.arange(len(self.roots)), np.arange(count, size)] = 0.0
        ahead = np.vstack([self.distance, here])
        self.first: list[np.ndarray | None] = []  # of a single worker: the access link of its best way to each node
        self.from_rack = np.full((len(self.racks), size), np.inf)
        self.down_price = np.zeros(len(self.racks))  # of all links of a rack's workers, where it has an access switch
        for r, rack in enumerate(self.racks):
            if rack.access is not None:
                self.from_rack[r] = self.price[self._up[r]].sum() / len(rack.members) + ahead[rack.access]
                self.down_price[r] = self.price[self._down[r]].sum()
                self.first.append(None)
                continue
            chosen = np.full(size, -1)
            for v, e in rack.up:
                way = self.price[e] + ahead[self.position[v]]
                better = way < self.from_rack[r]
                self.from_rack[r] = np.where(better, way, self.from_rack[r])
                chosen[better] = e
            self.first.append(chosen)
        self.switch_price = prices.switch + tie * typical
        self.root_price = prices.root
        # Cost of all of a rack's flows into a facility, and of a facility's sum.
        self.rack_cost = np.where(
            self.usable, self.count[:, None] * (self.from_rack[:, :count] + self.switch_price), np.inf
        )
        self.point_cost = np.where(self.usable, self.distance[:, :count] + self.switch_price, np.inf)
        np.fill_diagonal(self.point_cost, np.inf)

    def to_root(self, root: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the cost of each rack's flows to the root directly, and of each facility's sum to the root."""
        target = len(self.switches) + root
        direct = self.count * (self.from_rack[:, target] + self.root_price[root])
        final = np.where(self.usable, self.distance[:, target] + self.root_price[root], np.inf)
        return direct, final

    def to_points(self, root: int) -> np.ndarray:
        """Return the cost of each rack's flows into each facility, in a tree of this root. A worker on the root's own
        host goes to the root alone, over no link (separated.py).
        """
        home = self.home[root]
        if home is None:
            return self.rack_cost
        costs = self.rack_cost.copy()
        costs[home] = np.inf
        return costs

    def design(self, root: int) -> Design:
        """Return a cheap way up to root (position in job.parameter_servers), found by local search."""
        search = _Search(self.to_points(root), self.point_cost, *self.to_root(root))
        for phase in range(CLOSING_PHASES):
            search.open_points()
            if phase == CLOSING_PHASES - 1 or not search.close_points():
                break
        search.close_points()
        return search.design()

    def results(self, root: int) -> Results:
        """Return a cheap tree of links from the root to every worker, over one of the root's links."""
        found = min((self._results_over(root, v, e) for v, e in self.starts[root]), key=lambda each: each.price)
        if self.thorough:
            for v, e in self.starts[root]:
                found = min(found, self._by_way_of(root, v, e), key=lambda each: each.price)
        return found if self.network.topology.results_on_links else replace(found, price=0.0)

    def _by_way_of(self, root: int, v: int, e: int) -> Results:
        """Return the tree over the root's link e to v that also leads to switches by which it gets cheaper, which are
        added one at a time.
        """
        best, more = self._results_over(root, v, e), frozenset[int]()
        while True:
            added = [
                more | {k}
                for k in range(len(self.switches))
                if k not in more and self.distance[self.position[v], k] < math.inf
            ]
            tried = [(self._results_over(root, v, e, each), each) for each in added]
            found, better = min(tried, key=lambda pair: pair[0].price, default=(best, more))
            if found.price >= best.price - SAVING:
                return best
            best, more = found, better

    def _results_over(self, root: int, v: int, e: int, more: frozenset[int] = frozenset()) -> Results:
        """Return the tree over the root's link e to v, and to these further switches (Takahashi and Matsuyama's
        heuristic).
        """
        start = self.position[v]
        links: list[int] = [e]
        terminals = {rack.access for rack in self.racks if rack.access is not None}
        alone: dict[int, list[tuple[int, int]]] = {}  # by rack of a worker with several links: node before it, link
        beside: list[int] = []  # links from the root itself to workers
        for r, rack in enumerate(self.racks):
            if rack.access is not None:
                continue
            near = [(self.position[u], last) for u, last in rack.down if self.network.forwards[u]]
            away = min((float(self.distance[start, u] + self.price[last]) for u, last in near), default=math.inf)
            last = min((last for u, last in rack.down if u == self.roots[root]), key=self.price.__getitem__, default=-1)
            if last >= 0 and self.price[last] <= away:
                beside.append(last)
            else:
                alone[r] = near
        reached = _Reached(self, start)
        missing = (terminals | more) - {start}
        while missing or alone:
            distance = reached.distance
            ends = [
                (float(distance[u] + self.price[last]), u, last, r) for r, near in alone.items() for u, last in near
            ]
            if missing:
                left = sorted(missing)
                node = left[int(distance[left].argmin())]
                ends.append((float(distance[node]), node, -1, -1))
            _, node, last, r = min(ends)
            links += reached.join(node)
            if last >= 0:
                links.append(last)
                del alone[r]
            missing -= reached.nodes
        if not terminals and len(links) == 1:
            links = []  # all workers hang on the root itself
        links += beside
        return Results(float(self.price[links].sum() + self.down_price.sum()), links)

    def _walk(self, start: int, end: int) -> list[int]:
        """Return the links of the cheapest path between two positions, in a list that must not change."""
        if start == end:
            return []
        known = self._walks.get((start, end))
        if known is not None:
            return known
        before = self._steps.get(start)
        if before is None:
            before = self._steps[start] = self._before[start].tolist()
        links = []
        node = end
        while node != start:
            previous = before[node]
            links.append(self.link_at[previous, node])
            node = previous
        links.reverse()
        self._walks[start, end] = links
        return links

    def sketch(self, root: int, design: Design, back: list[int]) -> Sketch:
        """Return the design with its cheapest routes."""
        target = len(self.switches) + root
        ways = []
        for rack, first, facility in zip(self.racks, self.first, design.racks.tolist(), strict=True):
            end = target if facility < 0 else facility
            if rack.access is not None:
                ways.append(self._walk(rack.access, end))
            else:
                assert first is not None
                link = int(first[end])
                ways.append([link, *self._walk(self.position[self.network.ends[link][1]], end)])
        onwards = [self._walk(point, target if after < 0 else after) for point, after in design.onwards.items()]
        return Sketch(root, design, ways, onwards, back)

    def column(self, master: Master, sketch: Sketch) -> Column | None:
        """Return the column of the resources that the tree uses; None as for `Master.make`."""
        return master.column(sketch.root, self.use(master, sketch), partial(self.tree, sketch))

    def use(self, master: Master, sketch: Sketch) -> np.ndarray:
        """Return the resources that the tree uses per unit of its rate, by row of the master program."""
        switch_row0, root_row = master.switch_row0, master.root_row0 + sketch.root
        used: list[int] = []
        amounts: list[float] = []
        onwards = zip(repeat(1.0), sketch.onwards, sketch.design.onwards.values())
        racks = zip(self.count.tolist(), sketch.ways, sketch.design.racks.tolist(), strict=True)
        for count, way, facility in chain(racks, onwards):
            used += way
            used.append(root_row if facility < 0 else switch_row0 + facility)
            amounts += [count] * (len(way) + 1)
        if self.network.topology.results_on_links:
            used += sketch.back
            amounts += [1.0] * len(sketch.back)
        use = np.bincount(used, weights=amounts, minlength=master.split_row0)
        use[master.always] += 1
        return use

    def tree(self, sketch: Sketch) -> Tree:
        """Return the tree with a route for each worker."""
        network, names, design = self.network, self.network.names, sketch.design
        root = self.job.parameter_servers[sketch.root]

        def name(facility: int) -> str:
            return root if facility < 0 else names[self.switches[facility]]

        def along(links: list[int]) -> tuple[str, ...]:
            return tuple(names[network.ends[e][1]] for e in links)

        which = array("I", bytes(4 * len(self.leaves)))
        ways: list[Way] = []
        inner, links = [network.topology.links[e] for e in sketch.back], network.topology.links
        outer: list[tuple[str, str]] = []
        chosen = zip(self.racks, self._down, sketch.ways, design.racks.tolist(), strict=True)
        for rack, down, way, facility in chosen:
            tail, point = along(way), name(facility)
            if rack.access is not None:
                tail = (names[self.switches[rack.access]], *tail)
                outer += [links[e] for e in down]
            for i in rack.members:
                which[i] = len(ways)
            ways.append(Way(point, tail))
        relays = [
            Relay(name(point), name(after), (name(point), *along(way)))
            for (point, after), way in zip(design.onwards.items(), sketch.onwards, strict=True)
        ]
        return_edges = (*downwards(root, inner), *outer)
        return Tree(root, 1.0, Assignments(self.job.workers, tuple(ways), which), tuple(relays), return_edges)


class _Reached:
    """A tree of switches that grows, with the price from its nearest node to every node (`distance`)."""

    def __init__(self, pricing: Pricing, start: int) -> None:
        self.pricing, self.nodes = pricing, {start}
        self.by_rows = len(pricing.sources) == len(pricing.switches)
        self.distance = pricing.distance[start].copy()
        self._origin = np.full(len(self.distance), start)
        self._before = pricing._before[start]

    def join(self, node: int) -> list[int]:
        """Add the cheapest path to a node, and return its links."""
        links = self._by_rows(node) if self.by_rows else self._back(node)
        for link in links:
            self._add(self.pricing.position[self.pricing.network.ends[link][1]])
        if links and not self.by_rows:
            self._search()
        return links

    def _by_rows(self, node: int) -> list[int]:
        position, ends = self.pricing.position, self.pricing.network.ends
        way = self.pricing._walk(int(self._origin[node]), node)
        # Prices that differ by more than a float's digits hide that a nearer node of the tree lies on the way.
        inside = [i for i, link in enumerate(way) if position[ends[link][1]] in self.nodes]
        return way[inside[-1] + 1 if inside else 0 :]

    def _back(self, node: int) -> list[int]:
        links = []
        while node not in self.nodes:
            before = int(self._before[node])
            links.append(self.pricing.link_at[before, node])
            node = before
        return links[::-1]

    def _add(self, new: int) -> None:
        self.nodes.add(new)
        if self.by_rows:
            better = self.pricing.distance[new] < self.distance
            self.distance = np.where(better, self.pricing.distance[new], self.distance)
            self._origin[better] = new

    def _search(self) -> None:
        """Compute the distances again: in a large network they are not known from every node."""
        pricing = self.pricing
        how = {"indices": sorted(self.nodes), "min_only": True, "return_predecessors": True}
        deadline().spend(WAY_WORK * len(pricing.links))
        price = pricing.price[pricing.links]
        self.distance, self._before, _ = _ways(price, pricing.rows, pricing.cols, len(pricing.position), **how)


class _Search:
    """Facility location by opening and closing points. Arrays are by rack and by facility, which is a position in
    `kept`, the switches that can be opened (where few switches add, the search is over few).
    """

    def __init__(self, racks: np.ndarray, points: np.ndarray, direct: np.ndarray, final: np.ndarray) -> None:
        """Begin with every rack at the root.

        Args:
            racks: Costs of racks' flows into each facility.
            points: Costs of facilities' sums into each facility.
            direct: Costs of racks' flows to the root.
            final: Costs of facilities' sums to the root.
        """
        self.kept = np.flatnonzero(np.isfinite(final))
        final = final[self.kept]
        self.rack_cost = racks[:, self.kept]
        self.point_cost = points[np.ix_(self.kept, self.kept)]
        self.direct, self.final = direct, final
        self.racks = np.full(len(direct), -1)
        self.cost = direct.copy()
        self.onwards = np.full(len(final), CLOSED)  # where an open point's sum goes: -1 for the root
        self.paid = np.zeros(len(final))  # what an open point's way onwards costs

    @property
    def points(self) -> np.ndarray:
        return np.flatnonzero(self.onwards != CLOSED)

    def above(self, point: int) -> set[int]:
        seen = set()
        while point >= 0:
            seen.add(point)
            point = int(self.onwards[point])
        return seen

    def open_points(self) -> None:
        """Open the point that saves most, as long as one saves anything."""
        points = self.points
        # Per facility: the cheapest way onwards over the open points and the root, and where it leads.
        value, where = self.final.copy(), np.full(len(self.final), -1)
        if len(points):
            best = points[self.point_cost[:, points].argmin(axis=1)]
            over = self.point_cost[np.arange(len(value)), best]
            where = np.where(over < value, best, where)
            value = np.minimum(over, value)
        gain = np.empty_like(self.rack_cost)
        for _ in range(len(self.final)):
            np.subtract(self.cost[:, None], self.rack_cost, out=gain)
            saving = np.maximum(gain, 0.0, out=gain).sum(axis=0) - value
            if len(points):
                saving += np.maximum(self.paid[points][:, None] - self.point_cost[points], 0.0).sum(axis=0)
                saving[points] = -np.inf
            f = int(saving.argmax())
            if not saving[f] > SAVING:
                break
            self.onwards[f], self.paid[f] = where[f], value[f]
            moved = self.rack_cost[:, f] < self.cost
            self.racks[moved] = f
            self.cost = np.where(moved, self.rack_cost[:, f], self.cost)
            ancestors = self.above(f)
            for p in points[self.point_cost[points, f] < self.paid[points]]:
                if int(p) not in ancestors:
                    self.onwards[p], self.paid[p] = f, self.point_cost[p, f]
            points = np.append(points, f)
            better = self.point_cost[:, f] < value
            value = np.where(better, self.point_cost[:, f], value)
            where[better] = f

    def close_points(self) -> bool:
        """Close points that are not worth their way onwards, the worst first, and return whether there were any."""
        closed = False
        everyone = np.arange(len(self.cost))
        column = np.zeros(len(self.final) + 1, dtype=np.int64)  # the last: direct
        while len(points := self.points):
            options = np.concatenate([self.direct[:, None], self.rack_cost[:, points]], axis=1)
            column[points] = np.arange(len(points)) + 1
            own = column[self.racks]
            options[everyone, own] = np.inf
            choice = options.argmin(axis=1)
            extra = options[everyone, choice] - self.cost
            loss = np.bincount(own, weights=extra, minlength=len(points) + 1)[1:] - self.paid[points]
            below = points[self.onwards[points] >= 0]
            np.add.at(loss, column[self.onwards[below]] - 1, self.final[below] - self.paid[below])
            worst = int(loss.argmin())
            if not loss[worst] < -SAVING:
                break
            f = int(points[worst])
            members = own == worst + 1
            self.cost[members] += extra[members]
            to = choice[members]
            self.racks[members] = np.where(to == 0, -1, points[to - 1])
            orphans = points[self.onwards[points] == f]
            self.onwards[orphans], self.paid[orphans] = -1, self.final[orphans]
            self.onwards[f] = CLOSED
            closed = True
        return closed

    def design(self) -> Design:
        """Return the design that was found, without points to which no flow comes."""
        while True:
            points = self.points
            unused = np.setdiff1d(points, np.concatenate([self.racks, self.onwards[points]]))
            if not len(unused):
                break
            self.onwards[unused] = CLOSED
        names = np.append(self.kept, -1)  # the last: the root
        onwards = {int(names[p]): int(names[self.onwards[p]]) for p in points}
        return Design(float(self.cost.sum() + self.paid[points].sum()), names[self.racks], onwards)
