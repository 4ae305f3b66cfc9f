"""Collectives among hosts, without switches that add: the rows that every comparison needs, over the same links.

Rates are those of plans: f, at which the gradient of each worker is reduced, wire Mbit/s over the real links; an
all-reduce of so many bytes takes bytes x 8 / f. Links are shared by CHANNELS equal parts of the model, each routed on
its own over least-loaded shortest paths, as collective libraries do with their channels.

- `host-ring`: workers in a ring that follows the network, rack after rack; each hop carries 2 (W - 1) / W of the model.
- `reduce-scatter+all-gather`: every worker sends each other its part, and gets the sums: 2 / W of the model per pair.
- `host-trees`: the best that any trees can do in which only workers add and copy (ForestColl's optimum, arXiv
  2402.06787): a reduction along trees towards roots, a broadcast along trees away from them. Let x_w be the workers'
  shares of the roots (sum f), b and c what broadcast and reduction may use of each link (b + c <= capacity, at each
  switch as much in as out). By Edmonds' theorem, with switches split off, trees exist where every worker can receive f
  from all roots over b, and send f to them over c: each set of nodes with a worker inside needs
  b(into it) + x(of it) >= f. The sets are found as minimum cuts (`_Forest`).

A host that has an `ingress_mbps` takes in no more than that for its sums, as in plans: every input of a sum counts, its
own gradients included. (The program does not tell how much of a host's own gradients are inputs of sums. `host-trees`
is the best of two sufficient conditions and of the other rows then.)

`all_reduce_bound` (fabric/bounds.py) is a bound that none of these can beat, nor any plan with any parameter servers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from controlplane.common.among_hosts import TCP_PART, TURN_SECONDS
from controlplane.planner.job import Job
from controlplane.planner.plan.cost import cost_of
from controlplane.planner.plan.model import Plan
from controlplane.planner.routing import Network, Router, Unreachable, walk
from controlplane.planner.strategies.deadline import SECOND, deadline, limited_work
from controlplane.planner.strategies.fabric.bounds import UNITS, all_reduce_bound, senders_side
from controlplane.planner.strategies.fabric.equivalent import merge_equivalent
from controlplane.planner.strategies.fabric.parts_bound import Bound
from controlplane.planner.strategies.solver import NotInTime, Program
from controlplane.planner.topology import Topology

NOTABLY = 1.001
"""Factor by which another collective has to be faster than a plan to be mentioned."""

MORE_SERVERS = "more parameter servers, or others, may beat it (`plan place`)"
MOST_IN_RING = 64  # most workers for which agents get a ring's rate, which takes 0.1 s to compute
MOST_WORKERS = 160  # most workers for `host-trees`, which takes 1 s with 120, minutes with 1,000
TREES_WORK = 5 * SECOND  # for `host-trees`; networks of hundreds of switches would take minutes
FLOW_WORK = 100.0  # units of work of a maximum flow, by link
CHANNELS = 16
ROUNDS = 100
TOLERANCE = 1e-5
SPARE = 1e-5
SAME = 1e-9


@dataclass(frozen=True)
class HostRow:
    """Result of one collective among all hosts: its name, its rate in Mbit/s, and the bottleneck, a link or a host that
    takes in no more ("" where it is no single one).
    """

    strategy: str
    rate_mbps: float
    bottleneck: str = ""

    def seconds(self, job: Job, *, whole: bool = False) -> float:
        """Return the seconds for all-reduces of the job's tensors, one after the other.

        With `whole`, count TCP's headers and the time that messages take beside their bytes, too: a host sends 2 (W -
        1) of them, as many as a ring has turns, also where each worker is a root and gets all others' parts. That is to
        be compared with a plan whose packets' size is known.
        """
        sizes, turns = job.sizes or (job.model_bytes,), 2 * (len(job.workers) - 1)

        def seconds_from(number: int) -> float:
            sent = sum(sizes[number:]) * 8 / (self.rate_mbps * 1e6)
            return sent / TCP_PART + turns * (len(sizes) - number) * TURN_SECONDS if whole else sent

        return job.ends_at(seconds_from)


def host_rows(topology: Topology, job: Job) -> list[HostRow]:
    """Return every collective of the module's text that is possible here (`host-trees` up to MOST_WORKERS); none for a
    job of one worker.
    """
    if len(job.workers) < 2:
        return []
    network = Network(topology)
    rows: list[HostRow] = []
    for make in (_ring, _exchange):
        try:
            rows.append(make(network, job))
        except Unreachable:
            continue
    rate = best_host_trees(topology, job) if len(job.workers) <= MOST_WORKERS else None
    if rate is not None:
        rows.append(HostRow("host-trees", max(rate, *(row.rate_mbps for row in rows), 0.0)))  # all are trees of hosts
    return [row for row in rows if row.rate_mbps > 0]


def faster_rows(rows: list[HostRow], rate_mbps: float) -> list[HostRow]:
    """Return the rows that are clearly faster than a plan of this rate, the fastest first."""
    return sorted((row for row in rows if row.rate_mbps > rate_mbps * NOTABLY), key=lambda row: -row.rate_mbps)


def faster_than(
    plan: Plan, topology: Topology, rate_mbps: float, most_workers: int = MOST_WORKERS
) -> tuple[HostRow, ...]:
    """Return the collectives among hosts alone that are faster than the plan at this rate, the fastest first. Where the
    sizes of the job's tensors and of packets are known, they must also take less time at these sizes, as a ring's many
    turns may count for more than its rate.

    They are not evaluated where nothing can be faster, where results do not load links (the plan is then of another
    model, so that rates cannot be compared), and for jobs of more workers than `most_workers`.
    """
    job = plan.job
    if plan.multicasts or not topology.results_on_links or len(job.workers) > most_workers:
        return ()
    if rate_mbps * NOTABLY >= all_reduce_bound(topology, job).mbps:
        return ()
    rows = faster_rows(host_rows(topology, job), rate_mbps)
    cost = cost_of(plan, topology, rate_mbps) if rows and job.sizes else None
    most = math.inf if cost is None else cost.job_seconds()
    return tuple(row for row in rows if row.seconds(job, whole=True) < most)


def _ring(network: Network, job: Job) -> HostRow:
    """Return the ring of the workers in the order in which a walk over the network meets them."""
    workers = len(job.workers)
    wanted = {network.index[w] for w in job.workers}
    order = [node for node in walk(network, network.index[job.workers[0]]) if node in wanted]
    if len(order) < workers:
        missing = next(iter(wanted - set(order)))
        raise Unreachable(network.topology, job.workers[0], network.names[missing])
    return _around(network, order)


def _around(network: Network, order: list[int]) -> HostRow:
    """Return the ring of these nodes in this order."""
    router = Router(network)
    part = 2 * (len(order) - 1) / len(order) / CHANNELS
    for _ in range(CHANNELS):
        for here, there in zip(order, [*order[1:], order[0]], strict=True):
            router.route(here, there, part)
    # In W - 1 of its turns, a host adds what comes in to its own.
    return _rated("host-ring", router, order, part * CHANNELS)


@lru_cache(maxsize=16)
def gloo_ring_mbps(topology: Topology, workers: tuple[str, ...]) -> float:
    """Return the Mbit/s that a ring of the workers reaches in this order, which is that of torch.distributed's ranks; 0
    where it is not known.

    It is not evaluated where results do not load links, nor for more than MOST_IN_RING workers.
    """
    if not 2 <= len(workers) <= MOST_IN_RING or not topology.results_on_links:
        return 0.0
    network = Network(topology)
    try:
        rate = _around(network, [network.index[worker] for worker in workers]).rate_mbps
    except Unreachable:
        return 0.0
    return rate if math.isfinite(rate) else 0.0


@lru_cache(maxsize=16)
def gloo_ring_hops(topology: Topology, workers: tuple[str, ...]) -> float:
    """Return how many links lie between a worker and the next in this order, on average; 0 where `gloo_ring_mbps` is
    not known."""
    if gloo_ring_mbps(topology, workers) <= 0:
        return 0.0
    network = Network(topology)
    ring = [network.index[worker] for worker in workers]
    return sum(network.distances_to(there)[here] for here, there in zip(ring, [*ring[1:], ring[0]], strict=True)) / len(
        ring
    )


def _exchange(network: Network, job: Job) -> HostRow:
    """Return the exchange of each pair of workers; the pairs of two racks have the same routes."""
    workers = len(job.workers)
    router = Router(network)
    homes: Counter[int] = Counter()
    for worker in job.workers:
        node = network.index[worker]
        access = network.access(node)
        homes[node if access is None else access.switch] += 1
        if access is not None:
            for link in (access.up, access.down):
                router.load[link] += 2 * (workers - 1) / workers
    for target, many in homes.items():
        for source, count in homes.items():
            if source != target:
                for _ in range(CHANNELS):
                    router.route(source, target, 2 * many * count / workers / CHANNELS)
    return _rated("reduce-scatter+all-gather", router, [network.index[worker] for worker in job.workers], 1.0)


def _rated(name: str, router: Router, hosts: Sequence[int], inputs: float) -> HostRow:
    """Return the row of routed flows, where each of the hosts has so many inputs of sums per unit of f."""
    network = router.network
    rate, link = min(
        (capacity / load, e)
        for e, (capacity, load) in enumerate(zip(network.capacity, router.load, strict=True))
        if load > 0
    )
    taken, host = min((network.topology.residual_intake_mbps(network.names[node]) / inputs, node) for node in hosts)
    if taken < rate * (1 - SAME):
        return HostRow(name, taken, network.names[host])
    u, v = network.ends[link]
    return HostRow(name, rate, f"{network.names[u]}->{network.names[v]}")


def best_host_trees(topology: Topology, job: Job) -> float | None:
    """Return the Mbit/s that the best trees among workers reach, where switches only forward; None where the time limit
    or TREES_WORK ends the search before it is known, 0 where some worker cannot be reached.
    """
    merged = merge_equivalent(topology)
    network = Network(topology if merged is None else merged.topology)
    limited = any(math.isfinite(topology.residual_intake_mbps(worker)) for worker in job.workers)
    with limited_work(TREES_WORK):
        found = [_Forest(network, job, own_is_rate=each).rate() for each in ((False, True) if limited else (False,))]
    return None if None in found else max(rate for rate in found if rate is not None)


class _Forest:
    """The linear program of the module's text. Its columns are f, x of every worker, b of every link, c of every
    link. A host's own gradients are inputs of its sums at no more than the rate at which others' come in, or, with
    `own_is_rate`, than f.
    """

    def __init__(self, network: Network, job: Job, *, own_is_rate: bool = False) -> None:
        self.network = network
        self.workers = [network.index[w] for w in job.workers]
        mine = set(self.workers)
        usable = [e for e, ends in enumerate(network.ends) if network.capacity[e] > 0 and self._carries(ends, mine)]
        self.ends = [network.ends[e] for e in usable]
        capacity = np.array([network.capacity[e] for e in usable])
        self.scale = all_reduce_bound(network.topology, job).mbps if len(capacity) else 0.0
        self.first_b = 1 + len(self.workers)
        self.first_c = self.first_b + len(self.ends)
        if not self.scale > 0:
            return
        self.program = Program("the best trees of hosts", presolve=False)
        columns = self.first_c + len(self.ends)
        spare = np.full(columns, -SPARE / len(self.ends))  # spare capacity is used up, so that few cuts are missing
        spare[: self.first_b] = 0.0
        spare[0] = -1.0
        self.program.add_columns(spare)
        for e, mbps in enumerate(np.minimum(capacity / self.scale, 2.0)):  # a tree needs each link twice at most
            self.program.add_row([self.first_b + e, self.first_c + e], [1.0, 1.0], upper=float(mbps))
        xs = list(range(1, self.first_b))
        self.program.add_row([*xs, 0], [1.0] * len(xs) + [-1.0], 0.0, 0.0)
        self.into: dict[int, list[int]] = {}
        self.out: dict[int, list[int]] = {}
        for e, (u, v) in enumerate(self.ends):
            self.out.setdefault(u, []).append(e)
            self.into.setdefault(v, []).append(e)
        for node in self.into.keys() | self.out.keys():
            if node not in mine:
                for first in (self.first_b, self.first_c):
                    into, out = ([first + e for e in side.get(node, [])] for side in (self.into, self.out))
                    self.program.add_row([*into, *out], [1.0] * len(into) + [-1.0] * len(out), 0.0, 0.0)
        for i, worker in enumerate(self.workers):
            for edges, first in ((self.into, self.first_b), (self.out, self.first_c)):
                self._require([1 + i], [first + e for e in edges.get(worker, [])])
            for edges, first in (
                (self.out, self.first_b),
                (self.into, self.first_c),
            ):  # its own part leaves over its link
                members = [first + e for e in edges.get(worker, [])]
                self.program.add_row([*members, 1 + i], [1.0] * len(members) + [-1.0], lower=0.0)
            intake = network.topology.residual_intake_mbps(network.names[worker]) / self.scale
            if math.isfinite(intake):
                comes = [self.first_c + e for e in self.into.get(worker, [])]
                own = ([0], [1.0]) if own_is_rate else ([], [])
                amounts = [1.0 if own_is_rate else 2.0] * len(comes)
                self.program.add_row([*comes, *own[0]], [*amounts, *own[1]], upper=intake)

    def _carries(self, ends: tuple[int, int], mine: set[int]) -> bool:
        return all(self.network.forwards[node] or node in mine for node in ends)

    def _require(self, xs: list[int], links: list[int]) -> None:
        """Require that the own part of a set of nodes (`xs`) and the links into the set together are at least f."""
        self.program.add_row([*xs, *links, 0], [1.0] * (len(xs) + len(links)) + [-1.0], lower=0.0)

    def rate(self) -> float | None:
        """Return the rate in Mbit/s; None where time or rounds end before it is known."""
        if not self.scale > 0:
            return 0.0
        limit = deadline()
        for _ in range(ROUNDS):
            if limit.passed():
                return None
            try:
                solution = self.program.solve(within=limit)
            except NotInTime:
                return None
            if not solution.optimal:
                return None
            values = solution.values
            f = float(values[0])
            if f <= TOLERANCE:
                return 0.0
            missing = [self._cut(values, f, back) for back in (False, True)]
            if not any(missing):
                return f * self.scale
        return None

    def _cut(self, values: np.ndarray, f: float, back: bool) -> bool:
        """Add rows for the sets of nodes that too little can enter, and return whether there were any. `back` looks at
        the reduction, whose links are taken in the opposite direction.
        """
        from scipy.sparse import csr_matrix  # takes 0.4 s to import, and few commands look at trees of hosts
        from scipy.sparse.csgraph import maximum_flow

        first = self.first_c if back else self.first_b
        links = [(v, u) if back else (u, v) for u, v in self.ends]
        source = len(self.network.names)
        rows = [u for u, _ in links] + [source] * len(self.workers)
        columns = [v for _, v in links] + self.workers
        amounts = np.concatenate([values[first : first + len(links)], values[1 : self.first_b]])
        whole = np.round(np.clip(amounts / f, 0.0, 1.0) * UNITS).astype(np.int32)  # capacity beyond f does not matter
        graph = csr_matrix((whole, (rows, columns)), shape=(source + 1, source + 1))
        found: set[frozenset[int]] = set()
        for worker in self.workers:
            deadline().spend(FLOW_WORK * len(whole))
            result = maximum_flow(graph, source, worker)
            if result.flow_value < UNITS * (1 - TOLERANCE) - len(whole):
                found.add(frozenset(range(source)).difference(senders_side(graph, result.flow, source).tolist()))
        for nodes in found:
            inside = [1 + i for i, worker in enumerate(self.workers) if worker in nodes]
            entering = [first + e for e, (u, v) in enumerate(links) if v in nodes and u not in nodes]
            self._require(inside, entering)
        return bool(found)


def row_json(row: HostRow, job: Job, bound: Bound, *, whole: bool = False) -> dict[str, Any]:
    """Return a row as `compare --json` has it; with `whole`, its seconds count headers and turns."""
    return {
        "strategy": row.strategy,
        "rate_mbps": row.rate_mbps,
        "bound_mbps": bound.mbps,
        "bound": bound.what,
        "gap": max(0.0, 1 - row.rate_mbps / bound.mbps),
        "seconds": row.seconds(job, whole=whole),
        "communication_seconds": row.seconds(job),
        **(
            {"bottleneck": {"kind": "link" if "->" in row.bottleneck else "host", "name": row.bottleneck}}
            if row.bottleneck
            else {}
        ),
    }
