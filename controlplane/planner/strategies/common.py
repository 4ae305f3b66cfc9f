"""Steps that strategies share: checks of the instance, the split, and routing, which turns chosen aggregation points
into a plan.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.planner.evaluate import evaluate
from controlplane.planner.job import Job
from controlplane.planner.plan.assignments import Assignment, Assignments, Way
from controlplane.planner.plan.limits import check_fits
from controlplane.planner.plan.model import Plan, Relay, Tree
from controlplane.planner.plan.separated import at_home
from controlplane.planner.routing import Access, Memory, Network, Router, downwards
from controlplane.planner.strategies.deadline import Deadline
from controlplane.planner.topology import Topology

Strategy = Callable[..., Plan]  # (topology, job, *, seed=0, frozen_split=None) -> Plan
Split = Mapping[str, float]
MANY_WAYS = 20_000  # trees x racks from which on all routes of a tree are found together
FINE_ROUTES = 1000  # with more flows, those of one rack to one point take one path


class Infeasible(ValueError):
    """Error: no plan of this strategy has a rate above 0; the message names the reason."""


@dataclass(frozen=True)
class Choice:
    """A tree before routing: its root, its share, and the aggregation point of each worker, in the order of job.workers
    (the root itself for workers that send directly).
    """

    root: str
    share: float
    points: tuple[str, ...]


def prepare(topology: Topology, job: Job) -> Network:
    """Check the job and that its servers reach each other, and return the network to route on. Raise JobError or
    Unreachable where that is not so.
    """
    if job.both_roles:
        raise ValueError(
            "hosts of both roles must be taken apart first: get the strategy from controlplane.planner.strategies"
        )
    job.check(topology)
    network = Network(topology)
    network.check_reachable(job)
    return network


def with_reached_roots(topology: Topology, job: Job) -> Job:
    """Return the job without parameter servers that some worker does not reach, or that do not reach some worker: they
    cannot be roots. Return the job itself if none would be left, so that the refusal names a server. Raise JobError
    where the topology lacks its servers.
    """
    job.check(topology)
    roots = Network(topology).reached_roots(job)
    return job if len(roots) in (0, len(job.parameter_servers)) else replace(job, parameter_servers=roots)


def split_or_equal(job: Job, frozen_split: Split | None) -> dict[str, float]:
    """Return the share x_s of each parameter server: the frozen split, once it is checked, or equal parts. Raise
    Infeasible where the split is none of this job.
    """
    roots = job.parameter_servers
    if frozen_split is None:
        return dict.fromkeys(roots, 1 / len(roots))
    for root, share in frozen_split.items():
        if root not in roots:
            raise Infeasible(
                f"the frozen split gives a share to {root}, which is no parameter server of job {job.name!r}"
            )
        if not 0 <= share <= 1 + 1e-9:  # a sum of several trees' shares
            raise Infeasible(f"the frozen split gives {root} a share of {share}, it must be between 0 and 1")
    if abs(sum(frozen_split.values()) - 1) > 1e-6:
        raise Infeasible(f"the frozen split's shares sum to {sum(frozen_split.values())}, not to 1")
    return {root: frozen_split.get(root, 0.0) for root in roots}


def route_choices(
    router: Router, job: Job, choices: Sequence[Choice], limit: Deadline | None = None
) -> tuple[Tree, ...]:
    """Return the trees of these choices, with least-loaded single paths for every flow and a return tree for every
    tree, which count together on the links.

    Raise OutOfTime where `limit` passes, since half of the trees are no plan.
    """
    network = router.network
    index = network.index
    leaves = [index[w] for w in job.workers]
    behind = [network.access(leaf) for leaf in leaves]
    racks = [access for access in behind if access is not None]
    grouped = len(choices) * len(leaves) > FINE_ROUTES and len(racks) == len(leaves)
    if grouped and len(choices) * len({access.switch for access in racks}) > MANY_WAYS:
        return _route_many(router, job, choices, racks, limit)
    trees = []
    for choice in choices:
        if limit is not None:
            limit.check()
        root = index[choice.root]
        back = _return_edges(router, choice, leaves, behind)
        relays = []
        memory: Memory | None = {} if grouped else None  # shared by the routes of all sums to one root
        for point in dict.fromkeys(choice.points):
            if point != choice.root:
                links = router.route(index[point], root, choice.share, memory)
                relays.append(Relay(point, choice.root, router.nodes(index[point], links)))
        if grouped:
            assignments = _route_racks(router, job, choice, racks)
        else:
            assignments = _route_each(router, job, choice, leaves)
        trees.append(Tree(choice.root, choice.share, assignments, tuple(relays), back))
    return tuple(trees)


def _route_many(
    router: Router, job: Job, choices: Sequence[Choice], racks: Sequence[Access], limit: Deadline | None
) -> tuple[Tree, ...]:
    """Route choices, as `route_choices` does, where there are so many trees and racks that a search for each would take
    too long: the routes of a tree to one point are found together (in_trees.py), and parts that are equal in all trees
    are made once.
    """
    from controlplane.planner.in_trees import InTrees  # imported here, as it imports numpy

    network, index = router.network, router.network.index
    names, links = network.names, network.topology.links
    together = InTrees(router)
    ends = list(dict.fromkeys(access.switch for access in racks))
    last = tuple([links[access.down] for access in racks])
    trees: list[Tree] = []
    for choice in choices:
        if limit is not None:
            limit.check()
        back = router.return_tree(index[choice.root], ends, choice.share)
        if network.topology.results_on_links:
            together.add(back, choice.share)
        relays = []
        for point in dict.fromkeys(choice.points):
            if point != choice.root:
                way = router.route(index[point], index[choice.root], choice.share)
                together.add(way, choice.share)
                relays.append(Relay(point, choice.root, router.nodes(index[point], way)))
        numbers: dict[tuple[str, int], int] = {}
        pairs = zip(choice.points, [access.switch for access in racks], strict=True)
        which = array("I", [numbers.setdefault(pair, len(numbers)) for pair in pairs])
        if trees and which == trees[-1].assignments.which:
            which = trees[-1].assignments.which
        many = Counter(which)
        found: dict[tuple[str, int], Way] = {}
        for point in dict.fromkeys(choice.points):
            flows = {rack: choice.share * many[number] for (at, rack), number in numbers.items() if at == point}
            following = together.route(index[point], flows)
            behind: dict[int, tuple[str, ...]] = {index[point]: (point,)}
            found |= {(point, rack): Way(point, _behind(rack, following, behind, names)) for rack in flows}
        ways = tuple([found[pair] for pair in numbers])
        edges = (*downwards(choice.root, [links[e] for e in back]), *last)
        own = Assignments(job.workers, ways, which)
        trees.append(Tree(choice.root, choice.share, own, tuple(relays), edges))
    total = sum(choice.share for choice in choices)
    router.add([access.up for access in racks], total)
    if network.topology.results_on_links:
        router.add([access.down for access in racks], total)
    return tuple(trees)


def _behind(
    node: int, following: Sequence[int], known: dict[int, tuple[str, ...]], names: Sequence[str]
) -> tuple[str, ...]:
    """Return the names of the nodes from this one to the end of its route, where `following` has the next node of each.
    Results are kept in `known`, by number of the node.
    """
    if node not in known:
        known[node] = (names[node], *_behind(following[node], following, known, names))
    return known[node]


def _return_edges(
    router: Router, choice: Choice, leaves: Sequence[int], behind: Sequence[Access | None]
) -> tuple[tuple[str, str], ...]:
    """Return the links of the results' tree, from the root down. Workers of a rack get results over their access
    switch, so that one route is searched for each rack.
    """
    network = router.network
    root, links = network.index[choice.root], network.topology.links
    ends = dict.fromkeys(leaf if way is None else way.switch for leaf, way in zip(leaves, behind, strict=True))
    back = router.return_tree(root, list(ends), choice.share)
    last = [way.down for way in behind if way is not None]
    if network.topology.results_on_links:
        router.add(last, choice.share)
    return (*downwards(choice.root, [links[e] for e in back]), *[links[e] for e in last])


def _route_each(router: Router, job: Job, choice: Choice, leaves: Sequence[int]) -> Assignments:
    """Return assignments with a path of its own for each worker."""
    assignments = []
    for worker, leaf, point in zip(job.workers, leaves, choice.points, strict=True):
        links = router.route(leaf, router.network.index[point], choice.share)
        assignments.append(Assignment(worker, point, router.nodes(leaf, links)))
    return Assignments.of(assignments)


def _route_racks(router: Router, job: Job, choice: Choice, racks: Sequence[Access]) -> Assignments:
    """Return assignments with one path per access switch and aggregation point, which is fine enough where there are
    many small trees.
    """
    network = router.network
    numbers: dict[tuple[int, str], int] = {}
    pairs = zip([access.switch for access in racks], choice.points, strict=True)
    which = array("I", [numbers.setdefault(pair, len(numbers)) for pair in pairs])
    members = Counter(which)
    memories: dict[str, Memory] = {}
    ways = []
    for (rack, point), number in numbers.items():
        memory = memories.setdefault(point, {})
        links = router.route(rack, network.index[point], choice.share * members[number], memory)
        ways.append(Way(point, router.nodes(rack, links)))
    router.add([access.up for access in racks], choice.share)
    return Assignments(job.workers, tuple(ways), which)


def finish(topology: Topology, job: Job, strategy: str, trees: Sequence[Tree], seed: int | None) -> Plan:
    """Return the plan of these trees with the evaluator's rate.

    Raise Infeasible, naming the resource, where that rate is 0, or where the job allows fewer trees; raise DoesNotFit
    where a switch cannot hold what the plan needs of it.
    """
    plan = Plan(job, strategy, 0.0, tuple(at_home(topology, tree) for tree in trees), seed=seed)
    if job.max_trees is not None and len(trees) > job.max_trees:
        raise Infeasible(f"{strategy}: the plan needs {len(trees)} trees, job {job.name!r} allows {job.max_trees}")
    check_fits(plan, topology)
    evaluation = evaluate(plan, topology, check=False)
    if evaluation.rate_mbps <= 0:
        full = evaluation.bottleneck
        raise Infeasible(
            f"{strategy}: no rate above 0 is possible, {full.kind.replace('_', ' ')} {full.name} has no capacity left"
        )
    return replace(plan, rate_mbps=evaluation.rate_mbps)


def plan_choices(
    topology: Topology,
    job: Job,
    strategy: str,
    choices: Sequence[Choice],
    seed: int | None,
    *,
    network: Network,
    limit: Deadline | None = None,
) -> Plan:
    """Return the routed and evaluated plan of the choices with a share above 0. Raise OutOfTime where the limit
    passes.
    """
    used = [choice for choice in choices if choice.share > 0]
    return finish(topology, job, strategy, route_choices(Router(network), job, used, limit), seed)
