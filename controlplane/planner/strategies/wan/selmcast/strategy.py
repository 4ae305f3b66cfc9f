"""The strategies selmcast, selmcast-l7, orpheus and all-to-all: every worker multicasts its model to others; nothing
adds on the way.

They plan one round of BSP: Algorithm 1 of SelMcast with the rates that limit each worker, and least-loaded routes for
the selected pairs. (In SSP a manager plans at every event, from what is on its way: algorithm.py here,
evaluation/selmcast/ssp.py.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from controlplane.planner.evaluate import evaluate
from controlplane.planner.job import Job
from controlplane.planner.plan.model import Multicast, Plan
from controlplane.planner.routing import Router
from controlplane.planner.strategies.common import Infeasible, Split
from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.selmcast import algorithm as algorithms
from controlplane.planner.strategies.wan.sites import Sites, sites
from controlplane.planner.topology import Topology

FRACTION = 0.3  # the paper's p / n
UNLIMITED_MBPS = 1e9  # stands for a link without limit, so that loads can be compared

Pairs = Mapping[str, Collection[str]]
Choose = Callable[[algorithms.Instance], NDArray[np.bool_]]


def _access(view: Sites) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return upload and download of the job's workers in Mbit/s: the least of a worker's own links and an equal part of
    its site's links to other sites; the core is taken to be non-blocking, as in the paper.
    """
    topology, workers = view.topology, view.job.workers
    crowd = {site: sum(other == site for other in view.worker.values()) for site in view.busy}
    up, down = np.zeros(len(workers)), np.zeros(len(workers))
    for k, worker in enumerate(workers):
        site = view.worker[worker]
        up[k], down[k] = (topology.residual_bandwidth_mbps(*pair) for pair in ((worker, site), (site, worker)))
        if len(view.busy) > 1:
            up[k] = min(up[k], sum(d["mbps"] for _, _, d in view.graph.out_edges(site, data=True)) / crowd[site])
            down[k] = min(down[k], sum(d["mbps"] for _, _, d in view.graph.in_edges(site, data=True)) / crowd[site])
    return np.minimum(up, UNLIMITED_MBPS), np.minimum(down, UNLIMITED_MBPS)


def _matrix(workers: tuple[str, ...], pairs: Pairs, what: str) -> NDArray[np.bool_]:
    index = {worker: k for k, worker in enumerate(workers)}
    matrix = np.zeros((len(workers), len(workers)), bool)
    for sender, receivers in pairs.items():
        for receiver in receivers:
            if sender not in index or receiver not in index or sender == receiver:
                raise Infeasible(f"{what}: {sender} -> {receiver} is no pair of the job's workers")
            matrix[index[sender], index[receiver]] = True
    return matrix


@dataclass(frozen=True)
class Asked:
    """Requirements for each multicast.

    Attributes:
        receivers: The least number of receivers; None for 0.3 n.
        must: Receivers that a sender may not leave out any longer.
        stale: Rounds since a (sender, receiver) pair was last selected.
    """

    receivers: int | None = None
    must: Pairs | None = None
    stale: Mapping[tuple[str, str], int] | None = None


def _plan(
    topology: Topology,
    job: Job,
    name: str,
    layer: algorithms.Layer,
    choose: Choose,
    *,
    asked: Asked,
    seed: int,
    frozen_split: Split | None,
) -> Plan:
    if any((frozen_split or {}).values()):
        raise Infeasible(f"{name}: no parameter server adds anything, so there is no split to keep")
    workers, n = job.workers, len(job.workers)
    if n == 1:
        raise Infeasible(f"{name}: one worker has nobody to send its model to")
    view = sites(topology, job)
    up, down = _access(view)
    for what, rates in (("upload", up), ("download", down)):
        if not rates.any():
            raise Infeasible(f"{name}: no worker of the job has {what} bandwidth left")
    silent = [worker for worker, rate in zip(workers, up, strict=True) if rate == 0]
    if silent:
        raise Infeasible(f"{name}: {', '.join(silent)} cannot send, no upload bandwidth is left")
    age = np.zeros((n, n), np.int64)
    for (sender, receiver), count in (asked.stale or {}).items():
        age[np.nonzero(_matrix(workers, {sender: [receiver]}, "stale"))] = count
    wanted = max(1, round(FRACTION * n)) if asked.receivers is None else asked.receivers
    forced, size = _matrix(workers, asked.must or {}, "must"), job.model_bytes * 8e-6
    try:
        chosen = choose(algorithms.instance(up, down, wanted, layer=layer, volumes=size, must=forced, stale=age))
    except WanError as error:
        raise Infeasible(f"{name}: {error} (workers by their place in the job)") from None
    router = Router(view.network)
    multicasts = tuple(
        _routed(view, router, worker, [workers[j] for j in np.flatnonzero(row)], layer)
        for worker, row in zip(workers, chosen, strict=True)
        if row.any()
    )
    if not multicasts:
        raise Infeasible(f"{name}: no worker has a receiver to send to (receivers = {wanted})")
    plan = Plan(job, name, 0.0, (), seed=seed, multicasts=multicasts)
    evaluation = evaluate(plan, topology, check=False)
    if evaluation.rate_mbps <= 0:
        full = evaluation.bottleneck
        raise Infeasible(f"{name}: no rate above 0 is possible, {full.kind} {full.name} has no capacity left")
    return replace(plan, rate_mbps=evaluation.rate_mbps)


def _routed(view: Sites, router: Router, sender: str, receivers: list[str], layer: algorithms.Layer) -> Multicast:
    network = view.network
    source, targets = network.index[sender], [network.index[worker] for worker in receivers]
    if layer == "L7":
        routes = [router.nodes(source, router.route(source, target, 1.0)) for target in targets]
        return Multicast(sender, layer, tuple(routes))
    links = router.return_tree(source, targets, 1.0)
    if not view.topology.results_on_links:
        router.add(links, 1.0)  # the router does not count return trees here, but multicasts always load links
    above = {network.ends[e][1]: network.ends[e][0] for e in links}
    routes = []
    for target in targets:
        nodes = [target]
        while nodes[-1] != source:
            nodes.append(above[nodes[-1]])
        routes.append(tuple(network.names[node] for node in reversed(nodes)))
    return Multicast(sender, layer, tuple(routes))


def selmcast(
    topology: Topology,
    job: Job,
    *,
    seed: int = 0,
    frozen_split: Split | None = None,
    layer: algorithms.Layer = "L3",
    receivers: int | None = None,
    must: Pairs | None = None,
    stale: Mapping[tuple[str, str], int] | None = None,
) -> Plan:
    """Return the plan of Algorithm 1. Raise Infeasible, Unreachable or JobError where there is none.

    `receivers` is p, the least number of receivers of each worker (default: 0.3 n); `must` is D, receivers that a
    sender may not leave out any longer; `stale` is c, rounds since a (sender, receiver) pair was last selected.
    """
    name = "selmcast" if layer == "L3" else "selmcast-l7"
    return _plan(topology, job, name, layer, algorithms.select, asked=Asked(receivers, must, stale), seed=seed,
                 frozen_split=frozen_split)  # fmt: skip


selmcast_l7 = partial(selmcast, layer="L7")


def orpheus(
    topology: Topology,
    job: Job,
    *,
    seed: int = 0,
    frozen_split: Split | None = None,
    layer: algorithms.Layer = "L3",
    receivers: int | None = None,
    must: Pairs | None = None,
) -> Plan:
    """Return the plan of the baseline: D and then random receivers, as the paper modifies Orpheus. Arguments are those
    of `selmcast`.
    """
    rng = np.random.default_rng(seed)
    return _plan(topology, job, "orpheus", layer, partial(algorithms.orpheus, rng=rng), asked=Asked(receivers, must),
                 seed=seed, frozen_split=frozen_split)  # fmt: skip


def all_to_all(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Return the plan in which every worker sends its model straight to all others (CREW's baseline A2A)."""
    everyone = len(job.workers) - 1
    return _plan(topology, job, "all-to-all", "L7", algorithms.select, asked=Asked(everyone), seed=seed,
                 frozen_split=frozen_split)  # fmt: skip
