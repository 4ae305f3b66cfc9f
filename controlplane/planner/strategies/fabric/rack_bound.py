"""An upper bound of the sending rate from all racks' links together, by one small linear program.

The cuts of bounds.py look at one set of switches and leave it all that the others could add. Here they share it. A rack
is an access switch with its servers; the other switches are the core. For every rack r with roots, let i be the rate of
the trees with roots there; x and y the rates of their streams into and out of a rack q with W_q of all W workers; c
what they use of its switch's capacity and s the streams that it takes away:

    y = W_q i + x - s                        at every rack but r,       y >= i where there are workers
    e + y = W_r i + x - s                    at r: e reaches the roots, i <= e <= B_r
    s <= c (1 - 1/n) + (W_q i + x - n i) / n  for a number n of streams that there are in any case: W_q, at r W_r + 1
    sum_q y - s' = sum_q x                   at the core
    s' <= c' (1 - 1/n) + (sum_q y - n i) / n  n: racks with workers, but r
    s <= c (1 - 1/W),  s' <= c' (1 - 1/W)
    sum_r y + [results of the roots there] <= U_out,   sum_r x + [results for the workers there] <= U_in
    sum_r c <= C_q,   sum_r c' <= C'

The own stream of a root that is a worker, too, crosses no link, and the results of the trees of all others come in over
the same link: with D such roots in r, whose trees have no more than i, e + D f - 2 i <= B_r. A host that adds inside of
trees takes no more streams away (h) than come in over its link, beside the results for its worker: with N of them that
are workers, and where none of them is a root, sum_r h + N f <= what their links take in; where there are roots that are
workers, both are one row. Then s <= c (1 - 1/W) + h, and above c is also what these hosts use of their own capacities.

(Let a tree have n + m streams at a place, and K sums there with N inputs in all. Each stream and each sum is an input
once at most, so N <= n + m + K - 1. What is taken away is N - K <= N (1 - 1/n) + m / n, as N / n <= K + m / n.) Racks
that are alike are one, and so are the trees with roots in them: the mean of all ways to exchange such racks is as good
a solution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.planner.job import Job
from controlplane.planner.strategies.solver import INFINITY, Program
from controlplane.planner.topology import Topology

MOST_PAIRS = 4000  # different racks x racks with roots up to which the program is cheap


@dataclass(frozen=True)
class Rack:
    """A rack: counts of its servers, and capacities in Mbit/s.

    Attributes:
        workers: Workers.
        roots: Roots.
        both: Roots that are workers, too.
        receivers: Workers' hosts that are roots or add.
        aggregation: Capacity of the switch.
        adds: Capacity of hosts that add.
        ingress: Capacity of all roots' links, as far as the roots themselves take it in.
        intake: What all roots take in themselves, whatever their links carry.
        shared: Capacity of the links to all roots and hosts that add.
        out: Capacity of all links out of the rack.
        into: Capacity of all links into the rack.
    """

    workers: int
    roots: int
    both: int
    receivers: int
    aggregation: float
    adds: float
    ingress: float
    intake: float
    shared: float
    out: float
    into: float


def rack_bound(topology: Topology, job: Job, scale: float, *, ingress_mbps: float = INFINITY) -> float | None:
    """Return the bound in Mbit/s; None where some server of the job does not hang on exactly one switch, or there are
    too many racks.

    `scale` is a known bound in Mbit/s above 0. `ingress_mbps` is the ingress of all roots together, where it is less
    than their sum.
    """
    home: dict[str, str] = {}
    for node in (*job.workers, *job.parameter_servers):
        near = topology.neighbours(node)
        if len(near) != 1 or topology.kind(near[0]) != "switch":
            return None
        home[node] = near[0]
    racks = _racks(topology, job, home, scale)
    rooted = Counter(rack for rack in racks.values() if rack.roots)
    plain = Counter(rack for rack in racks.values() if not rack.roots)
    if (len(rooted) + len(plain)) * len(rooted) > MOST_PAIRS:
        return None
    adding = {s for s in topology.adding_servers if not set(topology.neighbours(s)) & racks.keys()}
    others = [*(v for v in topology.switches if v not in racks), *adding]
    everything = sum(topology.residual_aggregation_mbps(v) for v in others) / scale
    program = _Program(len(job.workers), topology.results_on_links, rooted, plain, everything)
    if ingress_mbps < INFINITY:
        program.row(program.ends, upper=ingress_mbps / scale)
    return program.solve() * scale


def _racks(topology: Topology, job: Job, home: dict[str, str], scale: float) -> dict[str, Rack]:
    """Return the racks by access switch, in units of scale."""
    workers = Counter(home[w] for w in job.workers)
    roots = Counter(home[s] for s in job.parameter_servers)
    both = Counter(home[s] for s in job.both_roles)
    receivers: Counter[str] = Counter()
    ingress, intake, adds, shared = (dict.fromkeys(home.values(), 0.0) for _ in range(4))

    def comes(v: str, server: str) -> float:
        return topology.residual_bandwidth_mbps(v, server) if topology.has_link(v, server) else 0.0

    for root in job.parameter_servers:
        v = home[root]
        ingress[v] += comes(v, root) if root in job.both_roles else topology.residual_ingress_mbps(root)
        intake[v] += topology.residual_intake_mbps(root)
    for server in dict.fromkeys((*job.parameter_servers, *topology.adding_servers)):
        for v in adds.keys() & set(topology.neighbours(server)):
            adds[v] += topology.residual_aggregation_mbps(server)
            shared[v] += comes(v, server)
            receivers[v] += server in job.workers
    found = {}
    for v in dict.fromkeys(home.values()):
        others = [u for u in topology.neighbours(v) if topology.kind(u) == "switch"]
        out = sum(topology.residual_bandwidth_mbps(v, u) for u in others if topology.has_link(v, u))
        into = sum(topology.residual_bandwidth_mbps(u, v) for u in others if topology.has_link(u, v))
        capacities = topology.residual_aggregation_mbps(v), adds[v], ingress[v], intake[v], shared[v], out, into
        counts = workers[v], roots[v], both[v], receivers[v]
        found[v] = Rack(*counts, *(round(mbps / scale, 12) for mbps in capacities))
    return found


class _Program:
    """The rows of the module's text, in units of the scale."""

    def __init__(self, workers: int, results: bool, rooted: Counter[Rack], plain: Counter[Rack], core: float) -> None:
        self.program = Program("the racks' bound")
        self.columns: list[tuple[float, float]] = []  # cost and upper bound of each, to be added at once
        self.ends: list[tuple[int, float]] = []  # what reaches the roots of a rack, and how many such racks there are
        everywhere = 1 - 1 / workers
        racks: list[tuple[Rack, int, int]] = [(rack, many, r) for r, (rack, many) in enumerate(rooted.items())]
        racks += [(rack, many, -1) for rack, many in plain.items()]
        rates = [self.column(-float(many), upper=1.0) for many in rooted.values()]
        everything = [(rate, float(many)) for rate, many in zip(rates, rooted.values(), strict=True)]
        streams: list[list[tuple[int, float]]] = [[] for _ in rooted]  # into the core, of the trees of one rack's roots
        sending = sum(many for rack, many, _ in racks if rack.workers)
        for rack, many, own in racks:
            out, into, used = (list[tuple[int, float]]() for _ in range(3))
            hosts = _Hosts(self, rack)
            for r, (rate, rooting) in enumerate(zip(rates, rooted.values(), strict=True)):
                # (whether the roots are in this rack, of how many racks' roots that is so, for how many racks of these)
                pairs = [(False, rooting, many)] if r != own else [(True, 1, 1), (False, many - 1, many - 1)]
                for here, classes, alike in pairs:
                    if not classes:
                        continue
                    x, y, c, s = (self.column() for _ in range(4))
                    for entries, column in ((out, y), (into, x), (used, c)):
                        entries.append((column, float(classes)))
                    streams[r] += [(y, float(alike)), (x, -float(alike))]
                    taken, capacities = hosts.take(float(classes))
                    self.row([(s, 1.0), (c, -everywhere), *taken], upper=0.0)
                    come = [(rate, float(rack.workers)), (x, 1.0)]
                    for least in {rack.workers, rack.workers + (here and rack.workers < workers)}:
                        self.saves([(s, 1.0)], [c, *capacities], rate, come, least=least)
                        if taken:
                            self.saves([(s, 1.0), *taken], [c], rate, come, least=least)
                    balance = [(y, 1.0), (rate, -float(rack.workers)), (x, -1.0), (s, 1.0)]
                    if here:
                        e = self.column(upper=rack.intake if rack.both else rack.ingress)
                        self.ends.append((e, float(many)))
                        if rack.both:
                            hosts.root(e, rate, results)
                        self.row([*balance, (e, 1.0)], 0.0, 0.0)
                        self.row([(e, 1.0), (rate, -1.0)], lower=0.0)
                        if rack.workers < workers:
                            self.row([(x, 1.0), (rate, -1.0)], lower=0.0)
                            out += [(rate, 1.0)] * results
                    else:
                        self.row(balance, 0.0, 0.0)
                        if rack.workers:
                            self.row([(y, 1.0), (rate, -1.0)], lower=0.0)
                            into += [(rate, float(classes))] * results
            self.row(_merged(out), upper=rack.out)
            self.row(_merged(into), upper=rack.into)
            self.row(used, upper=rack.aggregation)
            hosts.close(everything if results else [])
        added = []
        for rate, (rack, many), entries in zip(rates, rooted.items(), streams, strict=True):
            c, s = (self.column() for _ in range(2))
            added.append((c, float(many)))
            self.row([(s, 1.0), (c, -everywhere)], upper=0.0)
            self.row([*entries, (s, -1.0)], 0.0, 0.0)
            come = [entry for entry in entries if entry[1] > 0]
            self.saves([(s, 1.0)], [c], rate, come, least=sending - bool(rack.workers))
        self.row(added, upper=core)

    def saves(
        self,
        taken: list[tuple[int, float]],
        capacities: Sequence[int],
        rate: int,
        streams: list[tuple[int, float]],
        *,
        least: int,
    ) -> None:
        """Limit the streams (`taken`) that these capacities take away from these streams, of which a tree has at least
        `least`.
        """
        if least:
            entries = [*taken, *((c, 1 / least - 1) for c in capacities)]
            total = [(column, -many / least) for column, many in streams]
            self.row([*entries, *_merged([*total, (rate, 1.0)])], upper=0.0)

    def column(self, cost: float = 0.0, upper: float = INFINITY) -> int:
        self.columns.append((cost, upper))
        return len(self.columns) - 1

    def row(self, entries: list[tuple[int, float]], lower: float = -INFINITY, upper: float = INFINITY) -> None:
        if not entries or (lower == -INFINITY and upper == INFINITY):
            return
        columns, values = zip(*entries, strict=True)
        self.program.add_row(columns, values, lower, upper)

    def solve(self) -> float:
        cost, upper = zip(*self.columns, strict=True)
        self.program.add_columns(cost, 0.0, upper)
        return -self.program.solve().objective


class _Hosts:
    """The rows of a program about one rack's hosts that add inside of trees, or are workers and roots at once: they
    limit what comes in over these hosts' links.
    """

    def __init__(self, program: _Program, rack: Rack) -> None:
        self.program, self.rack = program, rack
        self.links: list[tuple[int, float]] = []
        self.used: list[tuple[int, float]] = []

    def take(self, classes: float) -> tuple[list[tuple[int, float]], list[int]]:
        """Return the entries of a row for the streams that hosts here take away, and the columns of the capacities that
        hosts use, for the trees of so many racks' roots; nothing where no host adds.
        """
        if not self.rack.adds:
            return [], []
        used, taken = self.program.column(), self.program.column()
        self.program.row([(taken, 1.0), (used, -1.0)], upper=0.0)
        self.links.append((taken, classes))
        self.used.append((used, classes))
        return [(taken, -1.0)], [used]

    def root(self, e: int, rate: int, results: bool) -> None:
        """Note the rack's roots, which take in e of their trees' streams: the workers' own ones cross no link, nor do
        the results of their own trees.
        """
        self.links += [(e, 1.0), (rate, -2.0 if results else -1.0)]

    def close(self, results: list[tuple[int, float]]) -> None:
        """Add the rows; `results` are the entries whose sum is f, where results come in over these links, too."""
        if self.links:
            others = [(column, self.rack.receivers * many) for column, many in results]
            self.program.row(_merged([*self.links, *others]), upper=self.rack.shared)
            self.program.row(self.used, upper=self.rack.adds)


def _merged(entries: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the entries with each column once."""
    total: dict[int, float] = {}
    for column, value in entries:
        total[column] = total.get(column, 0.0) + value
    return list(total.items())
