"""Upper bounds of the sending rate that cost next to nothing, for any scheme, single- or multi-level, split or not.

The evaluator's bound looks at switches, parameter servers and workers' links. Where links between switches are the
bottleneck, two further bounds say more: that of every all-reduce among the workers, of whatever kind
(`all_reduce_bound`), and those of the network's parts (parts_bound.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from controlplane.planner.evaluate import bound
from controlplane.planner.job import Job
from controlplane.planner.plan.separated import separated
from controlplane.planner.strategies.fabric.parts_bound import Bound, divisions, parts, parts_bound
from controlplane.planner.topology import Topology

if TYPE_CHECKING:  # importing SciPy takes 0.4 s: only code that searches for cuts does
    from scipy.sparse import csr_matrix

SMALL = 1e-9  # relative error of rounding
SOLVED = 1e-6  # relative error to which a program of some thousand rows is solved
UNITS = 1_000_000  # units of a rate, as SciPy's flows are whole numbers
MOST_WORK = 50_000  # racks with workers x links up to which minimum cuts are searched, which takes 0.1 s


_known: ContextVar[Bound | None] = ContextVar("known bound", default=None)


@contextmanager
def bounded_by(known: Bound) -> Iterator[None]:
    """Tell searches inside the block that no plan is faster than this bound. A network whose hosts are taken apart does
    not show the limits of the whole one, so a search in it would go on after it has found the best plan.
    """
    token = _known.set(known)
    try:
        yield
    finally:
        _known.reset(token)


def cheap_bound(topology: Topology, job: Job) -> Bound:
    """Return the least of the bound that is known (`bounded_by`), the evaluator's bound, that of any all-reduce, and
    those of the network's parts. Where hosts have several roles, these are computed in the network in which such hosts
    are taken apart, too.
    """
    return _cheap_bound(topology, job, _known.get())


@lru_cache(maxsize=4)
def _cheap_bound(topology: Topology, job: Job, known: Bound | None) -> Bound:
    """Return what `cheap_bound` does; it is kept, since a search asks for it again and again, for the same network and
    job.
    """
    best = Bound(bound(topology, job), "switches, parameter servers and workers' links")
    if known is not None:
        best = _less(known, best, SMALL)
    if best.mbps <= 0:
        return best
    best = _less(all_reduce_bound(topology, job), best, SMALL)
    apart = separated(topology, job)
    if apart is not None:
        best = _less(Bound(bound(apart.topology, apart.job), best.what), best, SMALL)
    for network, own in ((topology, job), *([(apart.topology, apart.job)] if apart is not None else [])):
        for division in divisions(network):
            found = parts_bound(network, own, best.mbps, division) if best.mbps > 0 else None
            if found is not None:
                best = _less(Bound(found.mbps, apart.words(found.what) if apart else found.what), best, SOLVED)
    return best


def _less(found: Bound, best: Bound, rounding: float) -> Bound:
    """Return the lower bound of the two; the best so far where they are equal but for rounding."""
    return found if found.mbps < best.mbps * (1 - rounding) else best


def all_reduce_bound(topology: Topology, job: Job) -> Bound:
    """Return a bound in Mbit/s of any all-reduce among the job's workers over these links, with the job's parameter
    servers and the switches to help, whichever nodes add and wherever results are made.

    Each worker and each set of nodes with workers inside and outside (racks, and larger parts) sends at least f
    and gets at least f. Of the W - 1 additions of W gradients a switch makes n - 1 <= n (1 - 1/W) with n of its
    capacity; a host takes a stream in for each that it makes, and W - 1 workers take the result in beside it: 2 (W - 1)
    f <= what all hosts' links take in + sum_v C_v (1 - 1/W). Of the inputs of its sums (`ingress_mbps`) a host makes as
    many additions as a switch. Where the network is not too large, every set of nodes is looked
    at, by minimum cuts between workers. Where the topology does not count results on links, all workers together send
    (W - 1) f.
    """
    workers = len(job.workers)
    hosts = dict.fromkeys((*job.workers, *job.parameter_servers, *topology.switch_on))
    counted = topology.results_on_links
    rates = [topology.residual_rates_mbps[w] for w in job.workers]
    nic = min(min(out, into) if counted else out for out, into in rates)
    best = Bound(nic, "workers' links: no all-reduce of any kind is faster")
    if workers < 2:
        return best
    on_hosts = set(topology.switch_on.values())  # what these add comes in over the hosts' links
    plain = [v for v in topology.switches if v not in on_hosts]
    added = sum(topology.residual_aggregation_mbps(v) for v in plain) * (1 - 1 / workers)
    if not counted:  # A worker need not send what is added at itself, which for all workers together is f.
        best = replace(best, mbps=sum(out for out, _ in rates) / (workers - 1))
    else:
        together = (sum(topology.residual_rates_mbps[host][1] for host in hosts) + added) / (2 * (workers - 1))
        if together < best.mbps:
            best = Bound(together, "all hosts' links and switches: no all-reduce of any kind is faster")
        for division in divisions(topology):
            for name, part in parts(topology, job, division).items():
                if 0 < part.workers < workers and min(part.out, part.into) < best.mbps:
                    best = Bound(min(part.out, part.into), f"links around {name}: no all-reduce of any kind is faster")
        least = _least_cut(topology, job.workers)
        if least < best.mbps * (1 - SMALL):
            best = Bound(least, "links between two parts of the network: no all-reduce of any kind is faster")
    adding = (sum(_adds_mbps(topology, host, workers) for host in hosts) + added) / (workers - 1)
    if adding < best.mbps * (1 - SMALL):
        best = Bound(adding, "what hosts and switches add: no all-reduce of any kind is faster")
    return best


def _adds_mbps(topology: Topology, host: str, workers: int) -> float:
    """Return the Mbit/s of additions that a host can make at most: no more than streams come in over its links, and of
    n inputs n - 1, by its engine and by the switch on it.
    """
    switch = topology.switch_on.get(host)
    inputs = topology.residual_intake_mbps(host) + (topology.residual_aggregation_mbps(switch) if switch else 0.0)
    return min(inputs * (1 - 1 / workers), topology.residual_rates_mbps[host][1])


@lru_cache(maxsize=16)
def _least_cut(topology: Topology, workers: tuple[str, ...]) -> float:
    """Return the least Mbit/s that can leave any set of nodes with workers inside and outside; infinity where the
    network is too large to find it.

    Such a set separates the first worker from some other one, so it is found by flows from and to the first. Of the
    workers that hang on one switch only, one is looked at: a set of such a worker alone is left over its own link.
    """
    ends: dict[str, str] = {}
    for worker in workers:
        near = topology.neighbours(worker)
        ends.setdefault(near[0] if len(near) == 1 else worker, worker)
    if len(ends) < 2 or len(ends) * len(topology.links) > MOST_WORK:
        return math.inf
    from scipy.sparse import csr_matrix  # takes 0.4 s to import, and large networks do not need it
    from scipy.sparse.csgraph import maximum_flow

    index = {node: i for i, node in enumerate(topology.nodes)}
    capacity = np.array([topology.residual_bandwidth_mbps(u, v) for u, v in topology.links])
    pairs = np.array([(index[u], index[v]) for u, v in topology.links])
    switches = np.array([topology.kind(u) == topology.kind(v) == "switch" for u, v in topology.links])
    scale = float(capacity[switches].max()) if switches.any() else 0.0  # rate of the fastest link that can matter
    if scale <= 0:
        return math.inf
    whole = np.minimum(np.ceil(capacity / scale * UNITS), UNITS * len(pairs)).astype(np.int32)
    graph = csr_matrix((whole, (pairs[:, 0], pairs[:, 1])), shape=(len(index), len(index)))
    first, *others = (index[node] for node in ends)
    least = math.inf
    for other in others:
        for source, target in ((first, other), (other, first)):
            inside = np.zeros(len(index), dtype=bool)
            inside[senders_side(graph, maximum_flow(graph, source, target).flow, source)] = True
            least = min(least, float(capacity[inside[pairs[:, 0]] & ~inside[pairs[:, 1]]].sum()))
    return least


def senders_side(graph: csr_matrix, flow: csr_matrix, source: int) -> NDArray[np.int32]:
    """Return the nodes to which more can flow from `source`; all links out of this set are full. `graph` has capacities
    in whole numbers, `flow` a maximum flow in it from `source` (`scipy.sparse.csgraph.maximum_flow`).
    """
    from scipy.sparse.csgraph import breadth_first_order

    left = graph - flow
    left.data[left.data < 0] = 0
    left.eliminate_zeros()
    reached: NDArray[np.int32] = breadth_first_order(left, source, return_predecessors=False)
    return reached
