"""chains: a reduction along all hosts that add, one after the other, as in a ring: each adds its own gradients to the
partial sum of those before it and passes that on to the next, up to the root.

With a chain for each host as root, links between hosts carry what a ring's do. Chains need no memory of switches and
few entries, and so they are candidates where switches hold little. It is no strategy of its own: `inart` chooses among
these trees, too, if there may be few.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from controlplane.planner.job import Job
from controlplane.planner.plan.assignments import Assignment, Assignments
from controlplane.planner.plan.model import Relay, Tree
from controlplane.planner.plan.separated import at_home, worker_at
from controlplane.planner.routing import Network, Router, Unreachable, downwards, walk
from controlplane.planner.topology import Topology
from controlplane.planner.topology_hosts import HOST

MOST_WORKERS = 64  # most workers of jobs with chains


def chains(network: Network, job: Job) -> list[Tree]:
    """Return a chain to each root, around the workers in the order in which a walk over the network meets them."""
    topology = network.topology
    own = {worker: near for worker in job.workers for near in topology.neighbours(worker) if _adds(topology, near)}
    if len(job.workers) > MOST_WORKERS or len(own) < 2:
        return []
    wanted = {network.index[worker] for worker in job.workers}
    order = [network.names[node] for node in walk(network, network.index[job.workers[0]]) if node in wanted]
    router = Router(network)
    trees = []
    for root in job.parameter_servers:
        home = worker_at(topology, root)
        last = order.index(home) + 1 if home in order else 0
        around = [worker for worker in (*order[last:], *order[:last]) if worker != home]
        try:
            trees.append(_chain(router, job, root, around, own))
        except Unreachable:
            continue
    return trees


def _adds(topology: Topology, switch: str) -> bool:
    return HOST in topology.graph.nodes[switch] and topology.residual_aggregation_mbps(switch) > 0


def _chain(router: Router, job: Job, root: str, around: list[str], own: Mapping[str, str]) -> Tree:
    """Return the chain to the root of these workers in this order. A worker whose host does not add sends to the next
    one that does, and so does the first.
    """
    network, amount = router.network, 1.0 / len(job.parameter_servers)

    def way(source: str, target: str) -> tuple[str, ...]:
        return router.nodes(network.index[source], router.route(network.index[source], network.index[target], amount))

    points = [own[worker] for worker in around[1:] if worker in own]
    ahead = [*points, root]
    ends = dict.fromkeys(job.workers, root)
    for worker in around:
        ends[worker] = ahead[0]
        if own.get(worker) == ahead[0]:
            ahead.pop(0)
    relays = [Relay(point, after, way(point, after)) for point, after in pairwise((*points, root))]
    leaves = [network.index[worker] for worker in job.workers]
    links = [network.topology.links[e] for e in router.return_tree(network.index[root], leaves, amount)]
    ways = Assignments.of([Assignment(worker, end, way(worker, end)) for worker, end in ends.items()])
    return at_home(network.topology, Tree(root, 1.0, ways, tuple(relays), downwards(root, links)))
