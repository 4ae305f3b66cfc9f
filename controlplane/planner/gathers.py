"""All-gathers faster than all-reduces: plans in which no worker gets its own chunks back.

A worker's link carries (W - 1) / W of an all-gather then, so its chunks may go W / (W - 1) times as fast as those of an
all-reduce, as far as the other links and the parameter servers carry that. Where an all-reduce fills these, they are no
limit to it if they are planned as if they had (W - 1) / W of what they have: it is the workers' links that bind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from controlplane.planner.evaluate import bound, evaluate, root_mbps
from controlplane.planner.job import Job
from controlplane.planner.plan.limits import DoesNotFit
from controlplane.planner.plan.model import Plan, Tree
from controlplane.planner.topology import Topology

SAME = 1e-6  # relative difference of rates that says nothing


def gather_loads(plan: Plan, results_on_links: bool = True) -> tuple[dict[tuple[str, str], float], dict[str, float]]:
    """Load of every link and of every root, per unit of rate, of an all-gather whose chunks do not come back to those
    who own them. Nothing is added: each worker's part of the chunks goes up to the root by itself."""
    links: dict[tuple[str, str], float] = {}
    roots: dict[str, float] = {}
    workers = len(plan.job.workers)

    def load(pair: tuple[str, str], much: float) -> None:
        links[pair] = links.get(pair, 0.0) + much

    for tree in plan.trees:
        roots[tree.root] = roots.get(tree.root, 0.0) + tree.share
        for assignment in tree.assignments:
            onwards = tree.way(assignment.point) if assignment.point != tree.root else ()
            for pair in (*pairwise(assignment.route), *pairwise(onwards)):
                load(pair, tree.share / workers)
        for pair, others in _receivers(tree).items() if results_on_links else ():
            load(pair, tree.share * ((workers - 1) / workers if others == 1 else 1.0))
    return links, roots


def _receivers(tree: Tree) -> dict[tuple[str, str], int]:
    """Workers behind each link of the return tree."""
    parent = {child: above for above, child in tree.return_edges}
    found = dict.fromkeys(tree.return_edges, 0)
    for assignment in tree.assignments:
        node = assignment.worker
        while node != tree.root:
            found[parent[node], node] += 1
            node = parent[node]
    return found


def gather_speed(plan: Plan, topology: Topology) -> float:
    """How many times as fast as its all-reduces the plan's all-gathers may go on this network; at least 1."""
    workers = len(plan.job.workers)
    rate = evaluate(plan, topology, check=False).rate_mbps
    if workers < 2 or not rate > 0:
        return 1.0
    links, roots = gather_loads(plan, topology.results_on_links)
    carried = [topology.residual_bandwidth_mbps(*pair) / load for pair, load in links.items()]
    carried += [root_mbps(topology, plan.job, root) / load for root, load in roots.items()]
    return max(1.0, min(workers / (workers - 1), min(carried) / rate))


def with_speed(plan: Plan, topology: Topology) -> Plan:
    """The plan with the speed of its gathers, if its job wants them fast."""
    if not plan.job.gathers or not plan.trees:
        return plan
    return replace(plan, gather_speed=gather_speed(plan, topology))


def planned(make: Callable[[Topology, Job], Plan], topology: Topology, job: Job) -> Plan:
    """The fastest plan; of those that are, one whose gathers are faster. make: plans. Raises what it raises."""
    try:
        fast = make(_narrowed(topology, job), replace(job, gathers=False))
        rate = evaluate(fast, topology, check=False).rate_mbps
    except (ValueError, DoesNotFit):  # nothing is possible with less
        rate = 0.0
    plan = make(topology, replace(job, gathers=False)) if rate < bound(topology, job) * (1 - SAME) else None
    if plan is None or rate >= plan.rate_mbps * (1 - SAME):
        plan = replace(fast, rate_mbps=rate)
    return with_speed(replace(plan, job=job), topology)


def _narrowed(topology: Topology, job: Job) -> Topology:
    """The topology with 1 / W less of everything but the workers' links."""
    part = 1 / len(job.workers)
    workers = set(job.workers)
    links = {
        (u, v): {
            "used_bandwidth_mbps": topology.used_bandwidth_mbps(u, v) + part * topology.residual_bandwidth_mbps(u, v)
        }
        for u, v in topology.links
        if u not in workers and v not in workers
    }
    return topology.replace(links=links)
