"""How long one synchronisation of a plan takes on its topology."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from controlplane.plan.model import Plan, Tree
from controlplane.simulate.engine import Sharing, Simulator
from controlplane.topology import Topology


class _Resources:
    """Directed links, what switches can add, what parameter servers take in; as the evaluator counts them."""

    def __init__(self, topology: Topology) -> None:
        self.links = {link: k for k, link in enumerate(topology.links)}
        self.adders = {v: len(self.links) + k for k, v in enumerate(topology.switches)}
        first = len(self.links) + len(self.adders)
        self.takers = {s: first + k for k, s in enumerate(topology.servers)}
        self.capacities = np.array(
            [topology.residual_bandwidth_mbps(u, v) for u, v in topology.links]
            + [topology.residual_aggregation_mbps(v) for v in topology.switches]
            + [topology.residual_ingress_mbps(s) for s in topology.servers]
        )

    def flow(self, route: tuple[str, ...], point: str) -> list[int]:
        end = self.adders[point] if point in self.adders else self.takers[point]
        return [*(self.links[link] for link in pairwise(route)), end]


def _flows(tree: Tree) -> list[tuple[str, tuple[str, ...], str]]:
    """(from, route, to) of everything that climbs."""
    return [(a.worker, a.route, a.point) for a in tree.assignments] + [(r.node, r.route, r.next) for r in tree.relays]


def synchronisation_seconds(
    plan: Plan, topology: Topology, *, stored: bool = False, sharing: Sharing = "fair"
) -> float:
    """Seconds to bring the job's whole model to all workers once.

    stored False: every tree (and L3 multicast) is one fluid, moving on all its links at once (chunks much smaller than
    the model); trees share resources max-min. True: each flow of a tree starts when all of what it carries has come,
    and results go down hop by hop. Raises SimulationError when the plan uses what has no capacity.
    """
    resources = _Resources(topology)
    simulator = Simulator(resources.capacities, sharing)
    model = plan.job.model_bytes * 8e-6
    for each in plan.multicasts:
        for links in (each.links,) if each.layer == "L3" else map(pairwise, each.routes):
            pairs = list(links)
            if stored:
                _downwards(simulator, resources, pairs, each.sender, model)
            else:
                simulator.send(model, [resources.links[pair] for pair in pairs])
    for tree in plan.trees:
        size = tree.share * model
        if stored:
            _store_and_forward(simulator, resources, tree, size)
            continue
        use: dict[int, float] = {}
        for _, route, point in _flows(tree):
            for resource in resources.flow(route, point):
                use[resource] = use.get(resource, 0.0) + 1
        for link in tree.return_edges:
            use[resources.links[link]] = use.get(resources.links[link], 0.0) + 1
        simulator.send(size, list(use), coefficients=list(use.values()))
    return simulator.run()


def _downwards(
    simulator: Simulator, resources: _Resources, edges: Sequence[tuple[str, str]], root: str, size: float
) -> None:
    """Along the tree of edges from the root, hop by hop, each when all of it has come."""
    children: dict[str, list[str]] = {}
    for above, below in edges:
        children.setdefault(above, []).append(below)

    def down(node: str) -> None:
        for child in children.get(node, ()):
            simulator.send(size, [resources.links[node, child]], partial(down, child))

    down(root)


def _store_and_forward(simulator: Simulator, resources: _Resources, tree: Tree, size: float) -> None:
    flows = _flows(tree)
    missing: dict[str, int] = {}
    for _, _, point in flows:
        missing[point] = missing.get(point, 0) + 1

    def start(source: str) -> None:
        for origin, route, point in flows:
            if origin == source:
                simulator.send(size, resources.flow(route, point), partial(arrived, point))

    def arrived(point: str) -> None:
        missing[point] -= 1
        if missing[point] == 0:
            if point == tree.root:
                _downwards(simulator, resources, tree.return_edges, point, size)
            else:
                start(point)

    for assignment in tree.assignments:
        start(assignment.worker)
