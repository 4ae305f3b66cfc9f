"""An upper bound of the sending rate from the links and switches of all parts of a network together, by one small
linear program.

A part is a set of switches with their servers: a rack (an access switch), or in larger networks a pod (`divisions`); a
server with links into several parts is a part of its own. The other switches are the core. For every part r with roots,
let i be the rate of the trees with roots there; x and y the rates of their streams into and out of a part q with W_q of
all W workers; c what they use of its switches' capacity and s the streams that they take away:

    y = W_q i + x - s                        at every part but r,       y >= i where there are workers
    e + y = W_r i + x - s                    at r: e reaches the roots, i <= e <= B_r
    s <= c (1 - 1/n) + (W_q i + x - n i) / n  for a number n of streams that there are in any case: W_q, at r W_r + 1
    x + (sum_q c + c') (1 - 1/m) >= m i      at r, where m workers are elsewhere (only their streams count here)
    sum_q y - s' = sum_q x                   at the core
    s' <= c' (1 - 1/n) + (sum_q y - n i) / n  n: parts with workers, but r
    s <= c (1 - 1/W),  s' <= c' (1 - 1/W)
    sum_r y + [results of the roots there] <= U_out,   sum_r x + [results for the workers there] <= U_in
    sum_r c <= C_q,   sum_r c' <= C'

The own stream of a root that is a worker, too, crosses no link, and the results of the trees of all others come in over
the same link: with D such roots in r, whose trees have no more than i, e + D f - 2 i <= B_r. A host that adds inside of
trees takes no more streams away (h) than come in over its link, beside the results for its worker: with N of them that
are workers, and where none of them is a root, sum_r h + N f <= what their links take in; where there are roots that are
workers, both are one row. Then s <= c (1 - 1/W) + h, and above c is also what these hosts use of their own capacities.

(Let a tree have n + m streams at a place, and K sums there with N inputs in all. Each stream and each sum is an input
once at most, so N <= n + m + K - 1. What is taken away is N - K <= N (1 - 1/n) + m / n, as N / n <= K + m / n.) Parts
that are alike are one, and so are the trees with roots in them: the mean of all ways to exchange such parts is as good
a solution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from controlplane.planner.job import Job
from controlplane.planner.strategies.solver import INFINITY, Program
from controlplane.planner.topology import Topology
from controlplane.planner.topology_hosts import HOST

MOST_PAIRS = 4000  # different parts x parts with roots up to which the program is cheap
FEW_PAIRS = 400  # the same with the rows of m, which have many entries


@dataclass(frozen=True, eq=False)
class Division:
    """A division of a network's switches. `part` has, by switch, the part that it is in, which has the name of one of
    its switches.
    """

    part: Mapping[str, str]


@dataclass(frozen=True)
class Bound:
    """An upper bound of the rate of plans in Mbit/s; `what` names the capacities that it comes from."""

    mbps: float
    what: str


@dataclass(frozen=True)
class Part:
    """A part of a network: counts of the job's servers in it, and capacities in Mbit/s.

    Attributes:
        both: Roots that are workers, too.
        receivers: Workers' hosts that are roots or add.
        aggregation: Capacity of the switches.
        adds: Capacity of hosts that add.
        ingress: Capacity of all roots' links, as far as the roots themselves take it in.
        intake: What all roots take in themselves, whatever their links carry.
        shared: Capacity of the links to all roots and hosts that add.
        out: Capacity of all links out of the part.
        into: Capacity of all links into the part.
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

    def scaled(self, scale: float) -> Part:
        """Return the part with its capacities in units of `scale`, in Mbit/s."""
        names = ("aggregation", "adds", "ingress", "intake", "shared", "out", "into")
        return replace(self, **{name: round(getattr(self, name) / scale, 12) for name in names})


@lru_cache(maxsize=4)  # several bounds ask for the same network
def divisions(topology: Topology) -> tuple[Division, ...]:
    """Return the divisions of a network's switches: first its racks, then the larger parts that stay connected once the
    switches farthest from servers are left out (in a fat-tree, pods). Switches on hosts count as servers.
    """
    hosts = {*topology.servers, *topology.switch_on.values()}
    distance = {v: 1 for v in topology.switches if v not in hosts and not hosts.isdisjoint(topology.neighbours(v))}
    queue = list(distance)
    for node in queue:
        for other in topology.neighbours(node):
            if other not in hosts and other not in distance:
                distance[other] = distance[node] + 1
                queue.append(other)
    found = [{v: v for v, level in distance.items() if level == 1}]
    for level in range(1, max(distance.values(), default=0)):
        part: dict[str, str] = {}
        for first, far in distance.items():
            if far > level or first in part:
                continue
            part[first] = first
            queue = [first]
            for node in queue:
                for other in topology.neighbours(node):
                    if distance.get(other, level + 1) <= level and other not in part:
                        part[other] = first
                        queue.append(other)
        if len(set(part.values())) > 1 and part not in found:
            found.append(part)
    return tuple(map(Division, found))


def parts_bound(
    topology: Topology, job: Job, scale: float, division: Division, *, ingress_mbps: float = INFINITY
) -> Bound | None:
    """Return the bound of a division; None where it has too many parts.

    `scale` is a known bound in Mbit/s above 0. `ingress_mbps` is the ingress of all roots together, where it is less
    than their sum.
    """
    found = {name: part.scaled(scale) for name, part in parts(topology, job, division).items()}
    rooted = Counter(part for part in found.values() if part.roots)
    plain = Counter(part for part in found.values() if not part.roots)
    if (len(rooted) + len(plain)) * len(rooted) > MOST_PAIRS:
        return None
    core = [v for v in topology.switches if _home(topology, v, division) not in found]
    everything = sum(topology.residual_aggregation_mbps(v) for v in core) / scale
    program = _Program(len(job.workers), topology.results_on_links, rooted, plain, everything)
    if ingress_mbps < INFINITY:
        program.row(program.ends, upper=ingress_mbps / scale)
    mbps, fullest = program.solve()
    name = next((name for name, part in found.items() if part == fullest), "")
    kind = "rack" if all(v == first for v, first in division.part.items()) else "part around"
    return Bound(mbps * scale, f"links of {kind} {name}, and switches" if name else "switches of all parts")


def _home(topology: Topology, node: str, division: Division) -> str:
    """Return the part in which a node is: that of its switch, or of all links of its host, else the server itself. A
    switch on a host is where its server is.
    """
    host = topology.graph.nodes[node].get(HOST, node)
    own = topology.switch_on.get(host)
    if topology.kind(node) == "switch" and node != own:
        return division.part.get(node) or node
    homes = {division.part.get(v, "") for v in topology.neighbours(own or host) if v != host}
    return homes.pop() or host if len(homes) == 1 else host


@lru_cache(maxsize=8)  # two bounds of each division look at the same parts
def parts(topology: Topology, job: Job, division: Division) -> Mapping[str, Part]:
    """Return the parts with servers of the job by name."""
    used = dict.fromkeys((*job.workers, *job.parameter_servers, *topology.switch_on))
    home = {node: _home(topology, node, division) for node in (*used, *topology.switches)}
    names = dict.fromkeys(home[node] for node in (*job.workers, *job.parameter_servers))
    workers, roots, both = (Counter(home[s] for s in of) for of in (job.workers, job.parameter_servers, job.both_roles))
    receivers: Counter[str] = Counter()
    aggregation, ingress, intake, adds, shared, out, into = (dict.fromkeys(home.values(), 0.0) for _ in range(7))

    on_hosts = set(topology.switch_on.values())
    for v in topology.switches:
        (adds if v in on_hosts else aggregation)[home[v]] += topology.residual_aggregation_mbps(v)
    for root in job.parameter_servers:
        ingress[home[root]] += (
            topology.residual_rates_mbps[root][1] if root in job.both_roles else topology.residual_ingress_mbps(root)
        )
        intake[home[root]] += topology.residual_intake_mbps(root)
    for server in dict.fromkeys((*job.parameter_servers, *topology.switch_on)):
        shared[home[server]] += topology.residual_rates_mbps[server][1]
        receivers[home[server]] += server in job.workers
    for u, v in topology.links:
        if u in home and v in home and home[u] != home[v]:
            out[home[u]] += topology.residual_bandwidth_mbps(u, v)
            into[home[v]] += topology.residual_bandwidth_mbps(u, v)
    capacities = (aggregation, adds, ingress, intake, shared, out, into)
    return {
        name: Part(
            *(count[name] for count in (workers, roots, both, receivers)), *(round(of[name], 12) for of in capacities)
        )
        for name in names
    }


class _Program:
    """The rows of the module's text, in units of the scale."""

    def __init__(self, workers: int, results: bool, rooted: Counter[Part], plain: Counter[Part], core: float) -> None:
        self.program = Program("the parts' bound")
        self.columns: list[tuple[float, float]] = []  # cost and upper bound of each, to be added at once
        self.ends: list[tuple[int, float]] = []  # what reaches the roots of a part, and how many such parts there are
        self.links_of: dict[int, Part] = {}  # by row about the links of a part
        everywhere = 1 - 1 / workers
        parts = [(*each, r) for r, each in enumerate(rooted.items())] + [(*each, -1) for each in plain.items()]
        self.rates = [self.column(-float(many), upper=1.0) for many in rooted.values()]
        everything = [(rate, float(many)) for rate, many in zip(self.rates, rooted.values(), strict=True)]
        # Of the trees of one part's roots: the streams into the core, and what they use of other parts' capacities.
        self.streams, self.outside = ([list[tuple[int, float]]() for _ in rooted] for _ in range(2))
        self.entering: list[int] = []  # streams into the part of the roots
        sending = sum(many for part, many, _ in parts if part.workers)
        for part, many, own in parts:
            out, into, used = (list[tuple[int, float]]() for _ in range(3))
            hosts = _Hosts(self, part)
            for r, (rate, rooting) in enumerate(zip(self.rates, rooted.values(), strict=True)):
                # (whether the roots are in this part, of how many parts' roots that is so, for how many parts of these)
                pairs = [(False, rooting, many)] if r != own else [(True, 1, 1), (False, many - 1, many - 1)]
                for here, classes, alike in pairs:
                    if not classes:
                        continue
                    x, y, c, s = (self.column() for _ in range(4))
                    for entries, column in ((out, y), (into, x), (used, c)):
                        entries.append((column, float(classes)))
                    self.streams[r] += [(y, float(alike)), (x, -float(alike))]
                    taken, capacities = hosts.take(float(classes))
                    if here:
                        self.entering.append(x)
                    else:
                        self.outside[r] += [(column, float(alike)) for column in (c, *capacities)]
                    self.row([(s, 1.0), (c, -everywhere), *taken], upper=0.0)
                    come = [(rate, float(part.workers)), (x, 1.0)]
                    by_switches = [([(s, 1.0), *taken], [c])] if taken else []
                    for least in {part.workers, part.workers + (here and part.workers < workers)}:
                        for saved, by in (([(s, 1.0)], [c, *capacities]), *by_switches):
                            self.saves(saved, by, rate, come, least=least)
                    balance = [(y, 1.0), (rate, -float(part.workers)), (x, -1.0), (s, 1.0)]
                    if here:
                        e = self.column(upper=part.intake if part.both else part.ingress)
                        self.ends.append((e, float(many)))
                        if part.both:
                            hosts.root(e, rate, results)
                        self.row([*balance, (e, 1.0)], 0.0, 0.0)
                        self.row([(e, 1.0), (rate, -1.0)], lower=0.0)
                        if part.workers < workers:
                            self.row([(x, 1.0), (rate, -1.0)], lower=0.0)
                            out += [(rate, 1.0)] * results
                    else:
                        self.row(balance, 0.0, 0.0)
                        if part.workers:
                            self.row([(y, 1.0), (rate, -1.0)], lower=0.0)
                            into += [(rate, float(classes))] * results
            for crossed, most in ((out, part.out), (into, part.into)):
                if crossed and most < INFINITY:
                    self.links_of[self.program.rows] = part
                self.row(_merged(crossed), upper=most)
            self.row(used, upper=part.aggregation)
            hosts.close(everything if results else [])
        self.add_core(workers, rooted, sending, core, few=len(parts) * len(rooted) <= FEW_PAIRS)

    def add_core(self, workers: int, rooted: Counter[Part], sending: int, core: float, *, few: bool) -> None:
        """Add the rows of the core, which adds `core`, and, where there are `few` pairs of parts, those of m."""
        added = []
        for rate, (part, many), streams, outside, x in zip(
            self.rates, rooted.items(), self.streams, self.outside, self.entering, strict=True
        ):
            c, s = (self.column() for _ in range(2))
            added.append((c, float(many)))
            self.row([(s, 1.0), (c, 1 / workers - 1)], upper=0.0)
            self.row([*streams, (s, -1.0)], 0.0, 0.0)
            come = [entry for entry in streams if entry[1] > 0]
            self.saves([(s, 1.0)], [c], rate, come, least=sending - bool(part.workers))
            if few and (elsewhere := workers - part.workers) > 0:
                used = [(column, (1 - 1 / elsewhere) * alike) for column, alike in (*outside, (c, 1.0))]
                self.row([(x, 1.0), *used, (rate, -float(elsewhere))], lower=0.0)
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

    def solve(self) -> tuple[float, Part | None]:
        """Return the bound, and the part whose links limit it most; None where no links do."""
        cost, upper = zip(*self.columns, strict=True)
        self.program.add_columns(cost, 0.0, upper)
        found = self.program.solve()
        most = max(self.links_of, key=lambda row: -found.duals[row], default=None)
        return -found.objective, self.links_of[most] if most is not None and found.duals[most] < 0 else None


class _Hosts:
    """The rows of a program about one part's hosts that add inside of trees, or are workers and roots at once: they
    limit what comes in over these hosts' links.
    """

    def __init__(self, program: _Program, part: Part) -> None:
        self.program, self.part = program, part
        self.links: list[tuple[int, float]] = []
        self.used: list[tuple[int, float]] = []

    def take(self, classes: float) -> tuple[list[tuple[int, float]], list[int]]:
        """Return the entries of a row for the streams that hosts here take away, and the columns of the capacities that
        hosts use, for the trees of so many parts' roots; nothing where no host adds.
        """
        if not self.part.adds:
            return [], []
        used, taken = self.program.column(), self.program.column()
        self.program.row([(taken, 1.0), (used, -1.0)], upper=0.0)
        self.links.append((taken, classes))
        self.used.append((used, classes))
        return [(taken, -1.0)], [used]

    def root(self, e: int, rate: int, results: bool) -> None:
        """Note the part's roots, which take in e of their trees' streams: the workers' own ones cross no link, nor do
        the results of their own trees.
        """
        self.links += [(e, 1.0), (rate, -2.0 if results else -1.0)]

    def close(self, results: list[tuple[int, float]]) -> None:
        """Add the rows; `results` are the entries whose sum is f, where results come in over these links, too."""
        if self.links:
            others = [(column, self.part.receivers * many) for column, many in results]
            self.program.row(_merged([*self.links, *others]), upper=self.part.shared)
            self.program.row(self.used, upper=self.part.adds)


def _merged(entries: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the entries with each column once."""
    total: dict[int, float] = {}
    for column, value in entries:
        total[column] = total.get(column, 0.0) + value
    return list(total.items())
