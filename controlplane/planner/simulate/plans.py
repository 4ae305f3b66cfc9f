"""Simulated training with a plan on its topology: rounds of computing and of synchronising the gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from controlplane.planner.evaluate import evaluate
from controlplane.planner.plan.cost import Cost, cost_of
from controlplane.planner.plan.model import Plan, Tree
from controlplane.planner.simulate.engine import Sharing, Simulator
from controlplane.planner.simulate.native import SimulationError
from controlplane.planner.topology import Topology


class PlanNetwork:
    """Resources of a plan's network: directed links, switches that add, parameter servers that take in, as the
    evaluator counts them. `paces` adds a resource for each tree, of the Mbit/s to which the tree keeps.
    """

    def __init__(self, topology: Topology, paces: Sequence[float] = ()) -> None:
        self.links = {link: k for k, link in enumerate(topology.links)}
        self.adders = {v: len(self.links) + k for k, v in enumerate(topology.switches)}
        first = len(self.links) + len(self.adders)
        self.results = topology.results_on_links
        self.takers = {s: first + k for k, s in enumerate(topology.servers)}
        self.paces = range(first + len(self.takers), first + len(self.takers) + len(paces))
        self.capacities = np.array(
            [topology.residual_bandwidth_mbps(u, v) for u, v in topology.links]
            + [topology.residual_aggregation_mbps(v) for v in topology.switches]
            + [topology.residual_intake_mbps(s) for s in topology.servers]
            + list(paces)
        )

    def link(self, u: str, v: str) -> int:
        try:
            return self.links[u, v]
        except KeyError:
            raise SimulationError(f"link {u} -> {v} does not exist") from None

    def node(self, name: str) -> list[int]:
        """Return all links of the node in both directions, and its adding and taking in, all of which its outage takes
        away.
        """
        own = [of[name] for of in (self.adders, self.takers) if name in of]
        if not own:
            raise SimulationError(f"node {name} does not exist")
        return [*(k for link, k in self.links.items() if name in link), *own]

    def flow(self, route: tuple[str, ...], point: str, root: str) -> list[int]:
        """Return the resources that a flow of a tree with this root passes."""
        end = self.takers[point] if point == root else self.adders[point]
        return [*(self.links[link] for link in pairwise(route)), end]


Compute = Callable[[str], float]
Prepare = Callable[[Simulator, PlanNetwork], None]


@dataclass(frozen=True)
class Flows:
    """Settings for how a plan's flows move in the simulator.

    Attributes:
        stored: If not set, every tree (and L3 multicast) is one fluid that moves on all its links at once (chunks much
            smaller than the model), from the moment when all workers are ready. If set, each flow of a tree starts when
            all that it carries has arrived, and results go down hop by hop. A multicast waits for its sender only, and
            has no pace.
        sharing: The rule by which flows share resources.
        pace: The fraction of the plan's rates at which trees send.
        paced: Whether trees of fluid send at no more than their part of the plan's rate, as agents do; else they share
            resources max-min, as TCP would.
    """

    stored: bool = False
    sharing: Sharing = "fair"
    pace: float = 1.0
    paced: bool = True


FLUID = Flows()


def synchronisation_seconds(
    plan: Plan, topology: Topology, *, stored: bool = False, sharing: Sharing = "fair", paced: bool = True
) -> float:
    """Return the seconds to synchronise the job's whole model once, for workers that are all ready. Options are those
    of `Flows`.
    """
    return run_plan(plan, topology, flows=Flows(stored, sharing, paced=paced))[0]


def run_plan(
    plan: Plan,
    topology: Topology,
    *,
    rounds: int = 1,
    compute: Compute | None = None,
    prepare: Prepare | None = None,
    flows: Flows = FLUID,
) -> list[float]:
    """Simulate bulk-synchronous training, and return the times (s) at which rounds end, which is when all workers have
    all results.

    `compute(worker)` returns the seconds of a worker's next step (default 0). `prepare(simulator, network)` may have
    capacities change (`follow`, `outage`), or start further traffic.

    Where the topology does not count results on its links (`results_on_links`), they take no time there. Where the
    packets' size is known (values_per_packet of the switches), trees carry packets with headers, padding and exponents,
    send at the plan's rates times the pace and wait for round trips, as plan/cost.py has it (not with `stored`).

    Raise SimulationError where the plan uses a resource that has no capacity and will never have any.
    """
    if rounds < 1:
        raise SimulationError(f"there must be at least one round, got {rounds}")
    cost = None if flows.stored else cost_of(plan, topology, evaluate(plan, topology).rate_mbps, flows.pace)
    paces: Sequence[float] = ()
    if cost is not None:
        paces = cost.tree_rates_mbps
    elif flows.paced and not flows.stored:
        paces = [plan.rate_mbps * flows.pace * tree.share for tree in plan.trees]
    network = PlanNetwork(topology, paces)
    simulator = Simulator(network.capacities, flows.sharing)
    if prepare is not None:
        prepare(simulator, network)
    run = _Run(plan, simulator, network, flows.stored, cost)
    ends: list[float] = []

    def begin() -> None:
        run.start(finished)
        for worker in plan.job.workers:
            simulator.after(0.0 if compute is None else compute(worker), partial(run.ready, worker))

    def finished() -> None:
        ends.append(simulator.now)
        if len(ends) < rounds:
            begin()
        else:
            simulator.stop()

    begin()
    simulator.run()
    return ends


class _Run:
    """A plan's rounds, one after the other."""

    def __init__(self, plan: Plan, simulator: Simulator, network: PlanNetwork, stored: bool, cost: Cost | None) -> None:
        self.plan, self.simulator, self.network, self.stored = plan, simulator, network, stored
        self.size = plan.job.model_bytes * 8e-6
        self.fluids = [self._fluid(tree) for tree in plan.trees]
        self.sizes = [tree.share * self.size for tree in plan.trees]
        self.waits = [0.0] * len(plan.trees)
        if network.paces:
            self.fluids = [{**use, pace: 1.0} for use, pace in zip(self.fluids, network.paces, strict=True)]
        if cost is not None:
            sizes = plan.job.sizes or (plan.job.model_bytes,)
            trees = [cost.tree_parts(size) for size in sizes]
            self.sizes = [sum(each[i].mbit for each in trees) for i in range(len(plan.trees))]
            self.waits = [sum(each[i].wait_s for each in trees) for i in range(len(plan.trees))]
        workers = set(plan.job.workers)
        self.workers = workers
        deliveries = sum(v in workers for tree in plan.trees for _, v in tree.return_edges)
        receivers = sum(len(each.routes) for each in plan.multicasts)
        fluids = len(plan.trees) + sum(1 if each.layer == "L3" else len(each.routes) for each in plan.multicasts)
        self.total = deliveries + receivers if stored else fluids

    def start(self, finished: Callable[[], None]) -> None:
        self.finished, self.left = finished, self.total
        self.computing = set(self.workers)
        self.missing: list[dict[str, int]] = []
        for tree in self.plan.trees:
            missing: dict[str, int] = {}
            for flow in tree.flows:
                missing[flow.end] = missing.get(flow.end, 0) + 1
            self.missing.append(missing)

    def ready(self, worker: str) -> None:
        self.computing.discard(worker)
        for each in self.plan.multicasts:
            if each.sender == worker:
                for links in (each.links,) if each.layer == "L3" else map(pairwise, each.routes):
                    pairs = list(links)
                    if self.stored:
                        self._downwards(pairs, worker, self.size)
                    else:
                        self.simulator.send(self.size, [self.network.links[pair] for pair in pairs], self._delivered)
        if self.stored:
            for index in range(len(self.plan.trees)):
                self._climb(index, worker)
        elif not self.computing:
            for use, size, wait in zip(self.fluids, self.sizes, self.waits, strict=True):
                done = partial(self.simulator.after, wait, self._delivered) if wait else self._delivered
                self.simulator.send(size, list(use), done, coefficients=list(use.values()))

    def _fluid(self, tree: Tree) -> dict[int, float]:
        """Return how often a tree uses each resource."""
        use: dict[int, float] = {}
        for flow in tree.flows:
            for resource in self.network.flow(flow.route, flow.end, tree.root):
                use[resource] = use.get(resource, 0.0) + 1
        for link in tree.return_edges if self.network.results else ():
            use[self.network.links[link]] = use.get(self.network.links[link], 0.0) + 1
        return use

    def _delivered(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.finished()

    def _climb(self, index: int, source: str) -> None:
        tree = self.plan.trees[index]
        size = tree.share * self.size
        for flow in tree.flows:
            if flow.source == source:
                used = self.network.flow(flow.route, flow.end, tree.root)
                self.simulator.send(size, used, partial(self._arrived, index, flow.end))

    def _arrived(self, index: int, point: str) -> None:
        self.missing[index][point] -= 1
        if self.missing[index][point] == 0:
            tree = self.plan.trees[index]
            if point == tree.root:
                self._downwards(tree.return_edges, point, tree.share * self.size, free=not self.network.results)
            else:
                self._climb(index, point)

    def _downwards(self, edges: Sequence[tuple[str, str]], root: str, size: float, *, free: bool = False) -> None:
        """Send along the tree of edges from the root, hop by hop, each hop when all of it has arrived; at once where it
        is free.
        """
        children: dict[str, list[str]] = {}
        for above, below in edges:
            children.setdefault(above, []).append(below)

        def down(node: str) -> None:
            for child in children.get(node, ()):
                if free:
                    arrived(child)
                    continue
                self.simulator.send(size, [self.network.links[node, child]], partial(arrived, child))

        def arrived(node: str) -> None:
            down(node)
            if node in self.workers:
                self._delivered()

        down(root)
