"""netstorm: one fastest aggregation path tree per root, chunks by quality scores (NetStorm, Algorithms 1 and 2)."""

from __future__ import annotations

from dataclasses import replace

from controlplane.job import Job
from controlplane.plan.model import Plan
from controlplane.strategies.common import Infeasible, Split, finish
from controlplane.strategies.wan_sites import aggregation_tree, needed, owners, sites
from controlplane.topology import Topology
from controlplane.wan import netstorm as algorithms
from controlplane.wan.errors import WanError


def netstorm(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """All sites with a parameter server are roots (the paper's best number); a frozen split replaces the scores.

    The plan's detours are the auxiliary paths between all neighbours that exchange sums.
    """
    view = sites(topology, job)
    servers, split = owners(view, frozen_split)
    network = needed(view, list(servers))
    try:
        found = algorithms.multi_root(network, list(servers))
    except WanError as error:
        raise Infeasible(f"netstorm: {error}") from None
    trees = []
    for tree in found:
        share = tree.share if split is None else split[tree.root]
        for server, part in servers[tree.root]:
            trees.append(aggregation_tree(view, server, share * part, tree.parent, tree.parent))
    talking = [pair for tree in trees for relay in tree.relays for pair in (relay.route, relay.route[::-1])]
    detours = [
        path
        for u, v in dict.fromkeys(pair for pair in talking if all(site in network for site in pair))
        for path in algorithms.auxiliary_paths(network, u, v)
    ]
    return replace(finish(topology, job, "netstorm", trees, seed), detours=tuple(detours))


def tsengine(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """NetStorm's baseline TSEngine: the widest spanning tree, from the first site with a parameter server.

    With a frozen split: a tree for each of its servers.
    """
    view = sites(topology, job)
    servers, shares = owners(view, frozen_split)
    if shares is None:
        shares = {next(iter(servers)): 1.0}
    trees = []
    for root, share in shares.items():
        try:
            tree = algorithms.widest_tree(needed(view, [root]), root)
        except WanError as error:
            raise Infeasible(f"tsengine: {error}") from None
        for server, part in servers[root]:
            trees.append(aggregation_tree(view, server, share * part, tree.parent, tree.parent))
    return finish(topology, job, "tsengine", trees, seed)
