"""wan: the best packing of pipelined aggregation trees over all parameter servers, up and down together (ours)."""

from __future__ import annotations

from dataclasses import replace

from controlplane.job import Job
from controlplane.plan.model import Plan
from controlplane.strategies.common import Infeasible, Split, finish
from controlplane.strategies.wan_sites import aggregation_tree, needed, owners, sites
from controlplane.topology import Topology
from controlplane.wan.errors import WanError
from controlplane.wan.packing import pack


def wan(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Column generation over trees (controlplane/wan/packing.py): optimal for up to twelve sites with workers, or where
    every site has some; beyond that with a proven bound.

    Sites' aggregation capacities are not part of the packing; the evaluator's rate counts them.
    """
    view = sites(topology, job)
    servers, split = owners(view, frozen_split)
    intake = {
        site: min(topology.residual_ingress_mbps(server) / part for server, part in members)
        for site, members in servers.items()
    }
    try:
        network = needed(view, list(servers))
        packing = pack(network, list(servers), terminals=view.busy, shares=split, root_mbps=intake, gap=1e-4)
    except WanError as error:
        raise Infeasible(f"wan: {error}") from None
    used = [tree for tree in packing.trees if tree.mbps > 1e-4 * packing.rate]
    total = sum(tree.mbps for tree in used)
    trees = [
        aggregation_tree(view, server, part * tree.mbps / total, tree.up, tree.down)
        for tree in used
        for server, part in servers[tree.root]
    ]
    return replace(finish(topology, job, "wan", trees, seed), proven_mbps=packing.bound)
