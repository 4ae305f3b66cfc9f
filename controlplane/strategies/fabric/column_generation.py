"""Column generation over aggregation trees, for where links bind.

The master program chooses rates y_t of trees t (columns) under every capacity of switches, roots and directed links:

    maximise f = sum_t y_t   subject to   sum_t use(t, r) y_t <= capacity(r) for every resource r

(with the split frozen: sum of y_t over the trees of root s = x_s f for each s). A tree is a whole plan for a part of
the model, with single routes, aggregation points (also of partial sums) and a return tree, so a solution of the master
program is a plan as it stands: nothing is rounded. Given the resources' prices, a root's cheapest tree is a facility
location problem (open an aggregation point, pay its way onwards; connect workers and other points) beside a Steiner
tree for the results; both are solved by local search, the first also exactly on small instances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from controlplane.job import Job
from controlplane.plan.model import Assignment, Plan, Relay, Tree
from controlplane.routing import Network, downwards
from controlplane.strategies.common import Split
from controlplane.strategies.fabric.capacity import normalised
from controlplane.strategies.solver import Program

TIE = 1e-6  # what slack resources cost beside the binding ones, so that paths stay short and spread
TOLERANCE = 1e-6
CLOSING_PHASES = 3
EXACT_PRICING = 1000  # workers x switches up to which trees are also priced exactly
SMOOTHING = 0.6
TREES_PER_ROUND = 6
NEARLY = 0.1  # how much too dear a further tree of a round may be
DEARER = 0.5
CLOSED = -2
SAVING = 1e-5  # least saving in a tree's price (which is about 1) for which a point is opened or closed


@dataclass(frozen=True)
class Column:
    """A tree and what a unit of its rate uses, by row of the master program."""

    tree: Tree  # share not meaningful
    rows: np.ndarray
    uses: np.ndarray


def _key(tree: Tree) -> tuple[object, ...]:
    return tree.root, tree.assignments, tree.relays, tree.return_edges


@dataclass
class Prices:
    """Dual prices per unit of rate. Arrays by link, by switch (order of topology.switches), by root."""

    link: np.ndarray
    switch: np.ndarray
    root: np.ndarray
    split: np.ndarray  # what a unit of a tree's rate is worth, by root

    def mixed(self, other: Prices, weight: float) -> Prices:
        """weight of these, the rest of the other's (smoothing: the master's prices jump about)."""
        pairs = (
            (self.link, other.link),
            (self.switch, other.switch),
            (self.root, other.root),
            (self.split, other.split),
        )
        return Prices(*(weight * mine + (1 - weight) * theirs for mine, theirs in pairs))


class Master:
    """The restricted master program, re-solved from its last basis as columns come in."""

    def __init__(self, network: Network, job: Job, scale: float, frozen_split: Split | None) -> None:
        self.network, self.job, self.scale, self.frozen_split = network, job, scale, frozen_split
        topology = network.topology
        self.columns: list[Column] = []
        self.known: set[tuple[object, ...]] = set()
        self.switch_position = {network.index[v]: i for i, v in enumerate(topology.switches)}
        self.root_position = {s: i for i, s in enumerate(job.parameter_servers)}
        self.link_row0 = 0
        self.switch_row0 = len(network.ends)
        self.root_row0 = self.switch_row0 + len(topology.switches)
        self.split_row0 = self.root_row0 + len(job.parameter_servers)
        capacity = [
            *network.capacity,
            *(topology.residual_aggregation_mbps(v) for v in topology.switches),
            *(topology.residual_ingress_mbps(s) for s in job.parameter_servers),
        ]
        self.capacity = np.minimum(np.array(capacity) / scale, 1e6)
        self.program = Program("column generation: the master program", tolerance=1e-9, presolve=False)
        for bound in self.capacity:
            self.program.add_row(upper=float(bound))
        if frozen_split is not None:
            for _ in job.parameter_servers:
                self.program.add_row(lower=0.0, upper=0.0)
            rows = np.arange(self.split_row0, self.split_row0 + len(job.parameter_servers))
            self.program.add_column(-1.0, rows, [-frozen_split.get(s, 0.0) for s in job.parameter_servers])  # f

    def make(self, tree: Tree) -> Column | None:
        """The tree's column; None when it is there already, or uses what has no capacity."""
        if _key(tree) in self.known:
            return None
        network, index = self.network, self.network.index
        uses: dict[int, float] = {}

        def use(row: int) -> None:
            uses[row] = uses.get(row, 0.0) + 1.0

        for flow in tree.flows:
            for u, v in pairwise(flow.route):
                use(network.link[index[u], index[v]])
            if flow.end == tree.root:
                use(self.root_row0 + self.root_position[flow.end])
            else:
                use(self.switch_row0 + self.switch_position[index[flow.end]])
        for u, v in tree.return_edges if network.topology.results_on_links else ():
            use(network.link[index[u], index[v]])
        rows = np.array(list(uses), dtype=np.int32)
        values = np.array(list(uses.values()))
        return None if (self.capacity[rows] <= 0).any() else Column(tree, rows, values)

    def price(self, column: Column, prices: Prices) -> float:
        """What a unit of the column's rate costs."""
        everything = np.concatenate([prices.link, prices.switch, prices.root])
        return float(everything[column.rows] @ column.uses)

    def add(self, column: Column, penalty: float = 0.0) -> None:
        """Puts a column into the program; penalty: of a unit of its rate, in units of f."""
        self.columns.append(column)
        self.known.add(_key(column.tree))
        rows, values, gain = column.rows, column.uses, -1.0
        if self.frozen_split is not None:
            gain = 0.0
            rows = np.append(rows, np.int32(self.split_row0 + self.root_position[column.tree.root]))
            values = np.append(values, 1.0)
        self.program.add_column(gain + penalty, rows, values)

    def dearer(self, prices: Prices, load: np.ndarray) -> Prices:
        """Prices raised by the utilisation that a round's trees would make."""
        loaded = np.maximum(1, np.count_nonzero(load))
        extra = DEARER * load / (self.capacity + 1e-12) / loaded
        grown = np.concatenate([prices.link, prices.switch, prices.root]) * (1 + load) + extra
        return Prices(
            grown[: self.switch_row0], grown[self.switch_row0 : self.root_row0], grown[self.root_row0 :], prices.split
        )

    def solve(self) -> tuple[float, np.ndarray, Prices]:
        """f, the columns' rates (both in units of scale) and the prices."""
        solution = self.program.solve()
        values, duals = solution.values, -solution.duals
        roots = len(self.job.parameter_servers)
        worth = np.ones(roots)
        if self.frozen_split is not None:
            worth = -duals[self.split_row0 :]
            values = values[1:]
        duals = np.maximum(duals, 0.0)
        prices = Prices(
            duals[: self.switch_row0],
            duals[self.switch_row0 : self.root_row0],
            duals[self.root_row0 : self.split_row0],
            worth,
        )
        return -solution.objective, values, prices

    def link_use(self, values: np.ndarray) -> np.ndarray:
        """Utilisation of every link under the columns' rates."""
        load = np.zeros(len(self.capacity))
        for column, value in zip(self.columns, values, strict=False):  # columns since the last solve have none
            if value > 0:
                load[column.rows] += value * column.uses
        links = slice(0, self.switch_row0)
        return np.divide(
            load[links], self.capacity[links], out=np.zeros(self.switch_row0), where=self.capacity[links] > 0
        )


@dataclass
class Design:
    """A tree under construction: next point of every worker and of every open point. -1 stands for the root."""

    cost: float
    workers: np.ndarray  # position of the facility, or -1
    onwards: dict[int, int] = field(default_factory=dict)


class Pricing:
    """Cheapest trees under given prices."""

    def __init__(self, network: Network, job: Job, single_level: bool = False) -> None:
        self.network, self.job, self.single_level = network, job, single_level
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
        self.usable = np.array([topology.residual_aggregation_mbps(v) > 0 for v in topology.switches])
        # First and last links, as (node at the other end, link); a worker may be linked with a root directly.
        self.up = [[way for way in network.out[leaf] if way[0] in self.position] for leaf in self.leaves]
        self.down = [[way for way in network.into[leaf] if way[0] in self.position] for leaf in self.leaves]
        self.starts = self._starts()

    def _starts(self) -> list[list[tuple[int, int]]]:
        """Per root: its links to switches that reach all workers; none where some worker does not reach the root."""
        position, size, forwards = self.position, len(self.position), self.network.forwards
        graph = csr_matrix((np.ones(len(self.rows)), (self.rows, self.cols)), shape=(size, size))
        reaches = np.isfinite(dijkstra(graph, unweighted=True))  # a root only itself: servers do not forward

        def serves(start: int, root: int, ways: list[tuple[int, int]]) -> bool:
            return any(u == root or (forwards[u] and reaches[position[start], position[u]]) for u, _ in ways)

        starts = []
        for root in self.roots:
            arrives = all(any(reaches[position[v], position[root]] for v, _ in ways) for ways in self.up)
            ways_out = [way for way in self.network.out[root] if arrives and forwards[way[0]]]
            starts.append([way for way in ways_out if all(serves(way[0], root, ways) for ways in self.down)])
        return starts

    @property
    def applies(self) -> bool:
        """Whether all workers and roots reach each other over switches or links of their own."""
        return all(self.starts)

    @property
    def complete(self) -> bool:
        """Whether there are no trees but those over switches (else prices say nothing about a bound)."""
        network = self.network
        return self.applies and all(
            network.forwards[v]
            for node in [*self.leaves, *self.roots]
            for v, _ in [*network.out[node], *network.into[node]]
        )

    def update(self, prices: Prices, utilisation: np.ndarray, tie: float = TIE) -> None:
        """Distances under new prices."""
        typical = 1.0 / (6 * max(1, len(self.leaves)))  # a tree costs about 1 and has about so many links
        self.price = prices.link + tie * typical * (1 + utilisation)
        size = len(self.position)
        graph = csr_matrix((self.price[self.links], (self.rows, self.cols)), shape=(size, size))
        count = len(self.switches)
        self.distance, self.before = dijkstra(graph, indices=np.arange(count), return_predecessors=True)
        here = np.full((len(self.roots), size), np.inf)  # a root is its own end, and of nothing else on the way
        here[np.arange(len(self.roots)), np.arange(count, size)] = 0.0
        self.ahead = np.vstack([self.distance, here])
        self.first: list[np.ndarray] = []  # per worker: the access link of its best way to each node
        from_worker = np.full((len(self.leaves), size), np.inf)
        for i in range(len(self.leaves)):
            chosen = np.full(size, -1)
            for v, e in self.up[i]:
                way = self.price[e] + self.ahead[self.position[v]]
                better = way < from_worker[i]
                from_worker[i] = np.where(better, way, from_worker[i])
                chosen[better] = e
            self.first.append(chosen)
        self.from_worker = from_worker
        self.switch_price = prices.switch + tie * typical
        self.root_price = prices.root
        # Cost of a unit into a facility, from workers and from facilities.
        self.worker_cost = np.where(self.usable, from_worker[:, :count] + self.switch_price, np.inf)
        self.point_cost = np.where(self.usable, self.distance[:, :count] + self.switch_price, np.inf)
        np.fill_diagonal(self.point_cost, np.inf)
        if self.single_level:
            self.point_cost[:] = np.inf

    def design(self, root: int) -> Design:
        """Local search for the cheapest way up to root (position in job.parameter_servers)."""
        target = len(self.switches) + root
        direct = self.from_worker[:, target] + self.root_price[root]
        final = self.distance[:, target] + self.root_price[root]
        search = _Search(self, direct, np.where(self.usable, final, np.inf))
        for phase in range(CLOSING_PHASES):
            search.open_points()
            if phase == CLOSING_PHASES - 1 or not search.close_points():
                break
        search.close_points()
        return search.design()

    def exact_design(self, root: int) -> Design:
        """The cheapest single-level way up to root, as a mixed-integer program of facility location."""
        target = len(self.switches) + root
        direct = self.from_worker[:, target] + self.root_price[root]
        final = np.where(self.usable, self.distance[:, target] + self.root_price[root], np.inf)
        points = [int(f) for f in np.flatnonzero(np.isfinite(final)) if np.isfinite(self.worker_cost[:, f]).all()]
        workers, facilities = len(self.leaves), len(points)
        # Columns: open_f, then per worker direct and one per facility.
        stride = facilities + 1
        cost = np.concatenate([final[points], np.column_stack([direct, self.worker_cost[:, points]]).ravel()])
        program = Program("column generation: a tree", gap=1e-6)
        program.add_columns(cost, 0.0, 1.0, whole=np.arange(len(cost)) < facilities)
        for w in range(workers):
            first = facilities + w * stride
            program.add_row(range(first, first + stride), [1.0] * stride, 1.0, 1.0)
            for f in range(facilities):
                program.add_row([f, first + 1 + f], [-1.0, 1.0], upper=0.0)
        solution = program.solve()
        chosen = solution.values[facilities:].reshape(workers, stride).argmax(axis=1)
        members = np.array([-1 if c == 0 else points[c - 1] for c in chosen])
        onwards = {f: -1 for f in points if (members == f).any()}
        return Design(solution.objective, members, onwards)

    def stars(self, root: int, count: int) -> list[Design]:
        """The cheapest trees with all workers at one switch."""
        target = len(self.switches) + root
        final = np.where(self.usable, self.distance[:, target] + self.root_price[root], np.inf)
        costs = self.worker_cost.sum(axis=0) + final
        order = [int(v) for v in np.argsort(costs, kind="stable")[:count] if np.isfinite(costs[v])]
        return [Design(float(costs[v]), np.full(len(self.leaves), v), {v: -1}) for v in order]

    def results(self, root: int) -> tuple[float, list[int]]:
        """A cheap tree of links from the root to every worker (Takahashi and Matsuyama's heuristic) and its price."""
        network = self.network
        terminals: dict[int, list[int]] = {}
        v, e = min(self.starts[root], key=lambda pair: (self.price[pair[1]], pair))
        start = self.position[v]
        links = [e]
        for ways in self.down:
            u, last = min(ways, key=lambda p: (self._behind(root, start, p[0]) + self.price[p[1]], p))
            if u == self.roots[root]:
                links.append(last)
                continue
            terminals.setdefault(self.position[u], []).append(last)
        joined = {start}
        distance = self.distance[start].copy()
        origin = np.full(len(distance), start)
        missing = set(terminals) - joined
        while missing:
            node = min(missing, key=lambda t: (distance[t], t))
            path = self._walk(int(origin[node]), node)
            for link in path:
                links.append(link)
                new = self.position[network.ends[link][1]]
                joined.add(new)
                better = self.distance[new] < distance
                distance = np.where(better, self.distance[new], distance)
                origin[better] = new
            missing -= joined
        links += [link for group in terminals.values() for link in group]
        if not terminals:
            links.remove(e)
        counted = network.topology.results_on_links
        return float(self.price[links].sum()) if counted else 0.0, links

    def _behind(self, root: int, start: int, node: int) -> float:
        """Price from the start of the root's results to a node before a worker."""
        if self.network.forwards[node]:
            return float(self.distance[start, self.position[node]])
        return 0.0 if node == self.roots[root] else math.inf

    def _walk(self, start: int, end: int) -> list[int]:
        """Links of the cheapest path between two positions."""
        nodes = [end]
        while nodes[-1] != start:
            nodes.append(int(self.before[start, nodes[-1]]))
        names = [*self.switches, *self.roots]
        nodes.reverse()
        return [self.network.link[names[u], names[v]] for u, v in pairwise(nodes)]

    def tree(self, root: int, design: Design, back: list[int]) -> Tree:
        """The design with its cheapest routes."""
        network, names = self.network, self.network.names
        target = len(self.switches) + root
        root_name = self.job.parameter_servers[root]

        def name(facility: int) -> str:
            return root_name if facility < 0 else names[self.switches[facility]]

        def end(facility: int) -> int:
            return target if facility < 0 else facility

        def along(links: list[int]) -> tuple[str, ...]:
            return tuple(names[network.ends[e][1]] for e in links)

        assignments = []
        for i, worker in enumerate(self.job.workers):
            facility = int(design.workers[i])
            first = int(self.first[i][end(facility)])
            start = self.position[network.ends[first][1]]
            links = [first, *self._walk(start, end(facility))]
            assignments.append(Assignment(worker, name(facility), (worker, *along(links))))
        relays = []
        for point, following in design.onwards.items():
            links = self._walk(point, end(following))
            relays.append(Relay(name(point), name(following), (name(point), *along(links))))
        edges = [(names[network.ends[e][0]], names[network.ends[e][1]]) for e in back]
        return Tree(root_name, 1.0, tuple(assignments), tuple(relays), downwards(root_name, edges))


class _Search:
    """Facility location by opening and closing points. Arrays by worker and by facility (position of the switch)."""

    def __init__(self, pricing: Pricing, direct: np.ndarray, final: np.ndarray) -> None:
        self.worker_cost, self.point_cost = pricing.worker_cost, pricing.point_cost
        self.direct, self.final = direct, final
        self.workers = np.full(len(direct), -1)
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
        """Opens the point that saves most, as long as one does."""
        points = self.points
        # Per facility: the cheapest way onwards over the open points and the root, and where it leads.
        value, where = self.final.copy(), np.full(len(self.final), -1)
        if len(points):
            best = points[self.point_cost[:, points].argmin(axis=1)]
            over = self.point_cost[np.arange(len(value)), best]
            where = np.where(over < value, best, where)
            value = np.minimum(over, value)
        for _ in range(len(self.final)):
            saving = np.maximum(self.cost[:, None] - self.worker_cost, 0.0).sum(axis=0) - value
            saving += np.maximum(self.paid[points][:, None] - self.point_cost[points], 0.0).sum(axis=0)
            saving[points] = -np.inf
            f = int(np.argmax(saving))
            if not saving[f] > SAVING:
                break
            self.onwards[f], self.paid[f] = where[f], value[f]
            moved = self.worker_cost[:, f] < self.cost
            self.workers[moved] = f
            self.cost = np.where(moved, self.worker_cost[:, f], self.cost)
            ancestors = self.above(f)
            for p in points[self.point_cost[points, f] < self.paid[points]]:
                if int(p) not in ancestors:
                    self.onwards[p], self.paid[p] = f, self.point_cost[p, f]
            points = np.append(points, f)
            better = self.point_cost[:, f] < value
            value = np.where(better, self.point_cost[:, f], value)
            where[better] = f

    def close_points(self) -> bool:
        """Closes points that are not worth their way onwards, the worst first; whether there were any."""
        closed = False
        everyone = np.arange(len(self.cost))
        column = np.zeros(len(self.final) + 1, dtype=np.int64)  # the last: direct
        while len(points := self.points):
            options = np.concatenate([self.direct[:, None], self.worker_cost[:, points]], axis=1)
            column[points] = np.arange(len(points)) + 1
            own = column[self.workers]
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
            self.workers[members] = np.append(-1, points)[choice[members]]
            orphans = points[self.onwards[points] == f]
            self.onwards[orphans], self.paid[orphans] = -1, self.final[orphans]
            self.onwards[f] = CLOSED
            closed = True
        return closed

    def design(self) -> Design:
        """What was found, without points that nothing comes to."""
        while True:
            points = self.points
            unused = np.setdiff1d(points, np.concatenate([self.workers, self.onwards[points]]))
            if not len(unused):
                break
            self.onwards[unused] = CLOSED
        onwards = {int(p): int(self.onwards[p]) for p in points}
        return Design(float(self.cost.sum() + self.paid[points].sum()), self.workers, onwards)


def generate(
    network: Network,
    job: Job,
    start: list[Plan],
    scale: float,
    *,
    frozen_split: Split | None = None,
    rounds: int = 60,
    gap: float = 1e-3,
    single_level: bool = False,
) -> tuple[Master, np.ndarray] | None:
    """Column generation from the trees of `start`, for at most `rounds` rounds or to an estimated `gap`.

    single_level: partial sums go to the root only (to see what hierarchy is worth).
    Returns the master program and its columns' rates; None where some server hangs on no switch that all reach.
    """
    pricing = Pricing(network, job, single_level)
    if not pricing.applies:
        return None
    master = Master(network, job, scale, frozen_split)
    for plan in start:
        for tree in plan.trees:
            column = master.make(tree)
            if column is not None:
                master.add(column)
    exact = len(job.workers) * len(pricing.switches) <= EXACT_PRICING
    _, values, prices = master.solve()
    smooth = prices
    for _ in range(rounds):
        attempts = [(smooth, False), (prices, False), *([(prices, True)] if exact else [])]
        for used, exactly in attempts:
            pricing.update(used, master.link_use(values))
            added, least = _price_roots(master, pricing, prices, used, exactly)
            if added:
                break
        if not added or (used is prices and least >= 1 - gap and exactly == exact):
            break
        _, values, prices = master.solve()
        smooth = smooth.mixed(prices, SMOOTHING)
    return master, values


def _price_roots(master: Master, pricing: Pricing, prices: Prices, used: Prices, exactly: bool) -> tuple[bool, float]:
    """Adds each root's cheap trees under the prices `used`; whether one gains under `prices`, and the least price.

    After every tree, what it uses becomes dearer by what its part of the rate would take up, so that the trees of one
    round lie beside each other instead of on top of each other.
    """
    added, least = False, 1.0
    roots = [
        i
        for i, name in enumerate(master.job.parameter_servers)
        if master.frozen_split is None or master.frozen_split.get(name, 0.0) > 0
    ]
    repeats = 1 if exactly else TREES_PER_ROUND
    part = 1.0 / (repeats * len(roots))
    load = np.zeros(len(master.capacity))
    for repeat in range(repeats):
        for root in roots:
            if repeat:
                pricing.update(master.dearer(used, load), load[: master.switch_row0])
            price, back = pricing.results(root)
            if exactly:
                designs = [pricing.exact_design(root)]
            else:
                designs = [pricing.design(root), *(pricing.stars(root, 4) if not repeat else [])]
            worth = used.split[root]
            if worth > 0 and not repeat:
                least = min(least, (min(design.cost for design in designs) + price) / worth)
            for design in designs:
                column = master.make(pricing.tree(root, design, back))
                if column is None:
                    continue
                cost = master.price(column, prices) / prices.split[root] if prices.split[root] > 0 else np.inf
                if cost < (1 - TOLERANCE if not repeat else 1 + NEARLY):
                    master.add(column)
                    added |= cost < 1 - TOLERANCE
                    load[column.rows] += part * column.uses / master.capacity[column.rows]
    return added, least


def to_trees(master: Master, values: np.ndarray, least_share: float = 1e-6) -> list[Tree]:
    """The trees with a rate, their shares normalised (per root where the split is frozen)."""
    total = values.sum()
    kept = [(c.tree, float(x)) for c, x in zip(master.columns, values, strict=False) if x > least_share * total]
    shares = normalised([(tree.root, x) for tree, x in kept], master.frozen_split)
    return [
        Tree(tree.root, share, tree.assignments, tree.relays, tree.return_edges)
        for (tree, _), share in zip(kept, shares, strict=True)
    ]
