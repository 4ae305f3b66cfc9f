"""The strategy wan (our own): the best packing of pipelined aggregation trees over all parameter servers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from controlplane.planner.job import Job
from controlplane.planner.plan.framing import PAYLOAD, Framing, payload_mbps
from controlplane.planner.plan.model import Plan
from controlplane.planner.strategies.common import Infeasible, Split, finish
from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.sites import Sites, aggregation_tree, needed, owners, sites
from controlplane.planner.strategies.wan.tree_packing.algorithm import ROUNDS, GivenUp, PackedTree, pack
from controlplane.planner.topology import Topology

SHALLOW = 5e-4
"""The part of the rate that may be given up for trees with less delay, where messages and not only values count."""


def _limits(view: Sites) -> dict[str, float]:
    """Return, by server, the highest rate in Mbit/s at which it takes in sums and sends results."""
    found = {}
    for server, site in view.server.items():
        mbps = view.topology.residual_ingress_mbps(server)
        if view.topology.results_on_links:
            mbps = min(mbps, view.topology.residual_bandwidth_mbps(server, site))
        found[server] = mbps
    return found


def _given(trees: Sequence[PackedTree], limits: Mapping[str, float]) -> list[tuple[PackedTree, str, float]]:
    """Return (tree, server, Mbit/s): the trees of one site, dealt to its servers, which are filled one after the other,
    the largest first.
    """
    servers = sorted(limits, key=lambda server: -limits[server])
    left = limits[servers[0]]
    given = []
    for tree in trees:
        rest = tree.mbps
        while rest > left and len(servers) > 1:
            if left > 0:
                given.append((tree, servers[0], left))
            rest -= left
            servers = servers[1:]
            left = limits[servers[0]]
        given.append((tree, servers[0], rest))
        left -= rest
    return given


def wan(
    topology: Topology,
    job: Job,
    *,
    seed: int = 0,
    frozen_split: Split | None = None,
    framing: Framing = PAYLOAD,
    rounds: int = ROUNDS,
) -> Plan:
    """Return the plan of column generation over trees (algorithm.py). It is optimal for up to twelve sites with
    workers, or when every site has workers; else it is near a proven bound.

    The packing ignores the aggregation capacities of sites; the evaluator's rate counts them. `framing` has the bytes
    that links carry beside the payload, for which the shares, the rate and the bound leave room; `rounds` is the most
    rounds of new trees (`GivenUp`).
    """
    view = sites(topology, job)
    limits = _limits(view)
    members, split = owners(view, frozen_split)
    if split is None:
        at = {site: {s: limits[s] for s, where in view.server.items() if where == site} for site in members}
        intake = {site: math.fsum(own.values()) for site, own in at.items() if any(own.values())}
    else:
        intake = {site: min(limits[server] / part for server, part in own) for site, own in members.items()}
    try:
        network = needed(view, list(intake))
        for _, _, data in network.edges(data=True):
            data["mbps"] /= 1 + framing.headers
        packing = pack(
            network,
            list(intake),
            terminals=view.busy,
            shares=split,
            root_mbps=intake,
            results=topology.results_on_links,
            back=framing.acknowledgements / (1 + framing.headers),
            given_up=GivenUp(gap=1e-4, shallow=SHALLOW if framing != PAYLOAD else 0.0, rounds=rounds),
        )
    except WanError as error:
        raise Infeasible(f"wan: {error}") from None
    used = [tree for tree in packing.trees if tree.mbps > 1e-4 * packing.rate]
    if split is None:
        given = [each for site in intake for each in _given([tree for tree in used if tree.root == site], at[site])]
    else:
        given = [(tree, server, part * tree.mbps) for tree in used for server, part in members[tree.root]]
    total = math.fsum(mbps for _, _, mbps in given)
    trees = [
        aggregation_tree(view, server, mbps / total, tree.up, tree.down) for tree, server, mbps in given if mbps > 0
    ]
    plan = replace(finish(topology, job, "wan", trees, seed), proven_mbps=packing.bound)
    if framing == PAYLOAD:
        return plan
    return replace(plan, rate_mbps=min(plan.rate_mbps, payload_mbps(plan, topology, framing)))
