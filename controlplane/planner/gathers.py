"""All-gathers faster than all-reduces: plans in which no worker gets its own chunks back.

A worker's link then carries (W - 1) / W of an all-gather, so its chunks may go W / (W - 1) times as fast as those of an
all-reduce, as far as the other links and the parameter servers carry that. Where an all-reduce fills those, plans are
made as if they had (W - 1) / W of their capacity: if that costs no rate, the workers' links are the bottleneck, and the
others have room for the faster gather.

A reduce-scatter sends much and receives little, an all-gather the other way round. Where links and parameter servers
carry both, they run at once (Plan.gathers_beside): near a parameter server that is up to 2 - 1 / W times the load of an
all-reduce, so plans are made as if these had W / (2 W - 1) of their capacity, if that costs no rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from controlplane.planner.evaluate import bound, evaluate, root_mbps, unit_loads
from controlplane.planner.job import Job
from controlplane.planner.plan.limits import DoesNotFit
from controlplane.planner.plan.model import Plan, Tree
from controlplane.planner.topology import Topology

SAME = 1e-6  # rates that differ by less than this fraction count as equal


def gather_loads(plan: Plan, results_on_links: bool = True) -> tuple[dict[tuple[str, str], float], dict[str, float]]:
    """Return the load of every link and of every root, per unit of rate, of an all-gather whose chunks do not come back
    to the workers that own them. Nothing is added: each worker's part of the chunks goes up to the root by itself.
    """
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
    """Return, by link of the return tree, the number of workers behind it."""
    parent = {child: above for above, child in tree.return_edges}
    found = dict.fromkeys(tree.return_edges, 0)
    for assignment in tree.assignments:
        node = assignment.worker
        while node != tree.root:
            found[parent[node], node] += 1
            node = parent[node]
    return found


def gather_speed(plan: Plan, topology: Topology) -> float:
    """Return how many times as fast as its all-reduces the plan's all-gathers may go on this network, at least 1."""
    workers = len(plan.job.workers)
    rate = evaluate(plan, topology, check=False).rate_mbps
    if workers < 2 or not rate > 0:
        return 1.0
    if workers == 2 and plan.job.both_roles:  # "all other workers" would be a label over no link
        return 1.0
    links, roots = gather_loads(plan, topology.results_on_links)
    carried = [topology.residual_bandwidth_mbps(*pair) / load for pair, load in links.items()]
    carried += [root_mbps(topology, plan.job, root) / load for root, load in roots.items()]
    return max(1.0, min(workers / (workers - 1), min(carried) / rate))


def loads_beside(plan: Plan, results_on_links: bool = True) -> tuple[dict[tuple[str, str], float], dict[str, float]]:
    """Return the load of every link and of every root, per unit of rate, of an all-gather and a reduce-scatter at once.

    The gather goes at the plan's rate. For it each worker sends 1 / W of its rate; it sends the rest for the
    reduce-scatter, whose sums go to one worker each.
    """
    workers = len(plan.job.workers)
    left = 1 - 1 / workers
    links, roots = gather_loads(plan, results_on_links)
    ups, _, added = unit_loads(plan, False)
    for pair, load in ups.items():
        links[pair] = links.get(pair, 0.0) + left * load
    for root, load in added.items():
        roots[root] = roots.get(root, 0.0) + left * load
    for tree in plan.trees if results_on_links else ():
        for pair, receivers in _receivers(tree).items():
            links[pair] = links.get(pair, 0.0) + left * tree.share * receivers / workers
    return links, roots


def fit_beside(plan: Plan, topology: Topology) -> bool:
    """Return whether the network carries an all-gather and a reduce-scatter of the plan at once; False for a plan with
    hosts that are both worker and parameter server, as these have one link for both roles, which keeps to one direction
    at a time.
    """
    rate = evaluate(plan, topology, check=False).rate_mbps
    if len(plan.job.workers) < 2 or not rate > 0 or plan.job.both_roles:
        return False
    links, roots = loads_beside(plan, topology.results_on_links)
    most = (1 + SAME) / rate
    return all(load <= topology.residual_bandwidth_mbps(*pair) * most for pair, load in links.items()) and all(
        load <= root_mbps(topology, plan.job, root) * most for root, load in roots.items()
    )


def with_speed(plan: Plan, topology: Topology) -> Plan:
    """Return the plan with the speed of its gathers, and whether they run beside reductions, if its job gathers; else
    the plan itself.
    """
    if not plan.job.gathers or not plan.trees:
        return plan
    return replace(plan, gather_speed=gather_speed(plan, topology), gathers_beside=fit_beside(plan, topology))


def planned(make: Callable[[Topology, Job], Plan], topology: Topology, job: Job) -> Plan:
    """Return the fastest plan for a job that gathers. Of equally fast plans, take one whose gathers run beside
    reductions, else one whose gathers are faster than its reductions. `make` makes a plan; its errors are raised here,
    too.
    """
    plain, full = replace(job, gathers=False), None
    workers = len(job.workers)
    for part in ((workers - 1) / (2 * workers - 1), 1 / workers):
        try:
            fast = make(_narrowed(topology, job, part), plain)
            rate = evaluate(fast, topology, check=False).rate_mbps
        except (ValueError, DoesNotFit):  # no plan is possible with so little capacity
            continue
        if rate < bound(topology, job) * (1 - SAME):
            full = full or make(topology, plain)
        if full is None or rate >= full.rate_mbps * (1 - SAME):
            return with_speed(replace(fast, rate_mbps=rate, job=job), topology)
    return with_speed(replace(full or make(topology, plain), job=job), topology)


def _narrowed(topology: Topology, job: Job, part: float) -> Topology:
    """Return the topology with the residual capacity of every link less by the fraction `part`, but for the workers'
    links.

    Of a worker that is a parameter server, too, its ingress is reduced instead, so that a plan uses several such
    servers: one alone would send all chunks of a gather over its one link.
    """
    workers = set(job.workers)
    links = {
        (u, v): {
            "used_bandwidth_mbps": topology.used_bandwidth_mbps(u, v) + part * topology.residual_bandwidth_mbps(u, v)
        }
        for u, v in topology.links
        if u not in workers and v not in workers
    }
    used = "used_ingress_mbps"
    nodes = {
        host: {"ingress_mbps": (1 - part) * topology.residual_ingress_mbps(host), used: 0.0} for host in job.both_roles
    }
    return topology.replace(nodes=nodes, links=links)
