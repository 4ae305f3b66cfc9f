"""apsp, apsp-exact: one parameter server, placed and reached as APSP decides (or the exact optimum of its problem)."""

from __future__ import annotations

from controlplane.job import Job
from controlplane.plan.model import Plan
from controlplane.strategies.common import Infeasible, Split, finish
from controlplane.strategies.wan_sites import Sites, needed, owners, sites, star_tree, widest_return
from controlplane.topology import Topology
from controlplane.wan.apsp import Placement, place, place_exactly
from controlplane.wan.errors import WanError

MOST_PATHS = 60  # per flow: what longer paths win is less than what their hops cost


def _plan(view: Sites, name: str, seed: int, frozen_split: Split | None, exactly: bool) -> Plan:
    servers, shares = owners(view, frozen_split)

    def placed(roots: list[str]) -> Placement:
        graph, busy = needed(view, roots), view.busy
        try:
            if exactly:
                return place_exactly(
                    graph, 1.0, roots=roots, sources=busy, delay="fluid", most_paths=MOST_PATHS, time_limit=10.0
                )
            return place(graph, 1.0, seed=seed, roots=roots, sources=busy, most_paths=MOST_PATHS)
        except WanError as error:
            raise Infeasible(f"{name}: {error}") from None

    if shares is None:
        found = [(placed(list(servers)), 1.0)]
    else:
        found = [(placed([root]), share) for root, share in shares.items()]
    trees = [
        star_tree(view, server, share * part, placement.paths, widest_return(view, server, placement.paths))
        for placement, share in found
        for server, part in servers[placement.root]
    ]
    return finish(view.topology, view.job, name, trees, seed)


def apsp(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """Algorithm 2 with the paper's delay (|p| counts); a frozen split fixes the servers, their routes are chosen."""
    return _plan(sites(topology, job), "apsp", seed, frozen_split, False)


def apsp_exact(topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None) -> Plan:
    """The best server and single paths for pipelined hops, by MILP."""
    return _plan(sites(topology, job), "apsp-exact", seed, frozen_split, True)
