"""Survival: the rate that a plan has left after the loss of one link or switch.

After a loss the trees that do not need the lost part carry the whole model, each as much as it can: the rates come from
the master program in which the other trees' columns are closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from controlplane.planner.evaluate import bound
from controlplane.planner.job import Job
from controlplane.planner.plan.model import Plan, Tree
from controlplane.planner.routing import Network
from controlplane.planner.strategies.fabric.bounds import cheap_bound
from controlplane.planner.strategies.fabric.master import Master
from controlplane.planner.strategies.solver import Program
from controlplane.planner.topology import Topology


@dataclass(frozen=True)
class Loss:
    """The loss of a switch, or of a link.

    Attributes:
        what: The switch, or the link as "u-v".
        trees: How many trees need it.
        rate_mbps: The rate that the other trees have with new shares, in Mbit/s.
        bound_mbps: A bound of any plan's rate without it.
        cut: Workers that hang on nothing else.
    """

    what: str
    trees: int
    rate_mbps: float
    bound_mbps: float
    cut: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "trees": self.trees,
            "rate_mbps": self.rate_mbps,
            "bound_mbps": self.bound_mbps,
            "cut": list(self.cut),
        }


@dataclass(frozen=True)
class Scenario:
    """A loss that may happen: of a switch (one node), or of a link (its two ends)."""

    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return "-".join(self.nodes)

    def needed_by(self, tree: Tree) -> bool:
        """Return whether the tree is broken by the loss."""
        if len(self.nodes) == 1:
            return self.nodes[0] in _nodes(tree)
        return self.nodes in _links(tree) or self.nodes[::-1] in _links(tree)

    def without(self, topology: Topology) -> Topology:
        """Return the topology after the loss."""
        if len(self.nodes) == 1:
            return topology.replace(remove_nodes=self.nodes)
        pairs = [pair for pair in (self.nodes, self.nodes[::-1]) if topology.has_link(*pair)]
        return topology.replace(remove_links=[(u, v) for u, v in pairs])


def _links(tree: Tree) -> frozenset[tuple[str, ...]]:
    found = {pair for flow in tree.flows for pair in pairwise(flow.route)}
    return frozenset(found | set(tree.return_edges))


def _nodes(tree: Tree) -> frozenset[str]:
    return frozenset(node for link in _links(tree) for node in link)


def scenarios(plan: Plan, topology: Topology) -> list[Scenario]:
    """Return the losses of every switch and every link (both directions together) that some tree needs."""
    nodes = {node for tree in plan.trees for node in _nodes(tree)}
    links = {link for tree in plan.trees for link in _links(tree)}
    found = [Scenario((v,)) for v in topology.switches if v in nodes]
    seen = set()
    for u, v in topology.links:
        if ((u, v) in links or (v, u) in links) and (v, u) not in seen:
            seen.add((u, v))
            found.append(Scenario((u, v)))
    return found


class Pool:
    """The trees of a plan, from which the rate after a loss is computed."""

    def __init__(self, plan: Plan, topology: Topology) -> None:
        self.plan, self.topology = plan, topology
        self.network = Network(topology)
        self.trees = list(plan.trees)

    @cached_property
    def scale(self) -> float:
        """A bound of the rate in Mbit/s; rates are computed as fractions of it."""
        return bound(self.topology, self.plan.job)

    def left(self, scenario: Scenario) -> list[Tree]:
        """Return the trees that a loss does not break."""
        return [tree for tree in self.trees if not scenario.needed_by(tree)]

    def rate(self, trees: list[Tree]) -> float:
        """Return the rate of these trees with the best shares, in Mbit/s."""
        return float(self._rates(trees).sum()) * self.scale

    def _rates(self, trees: list[Tree]) -> np.ndarray:
        """Return the rates of these trees as fractions of the scale; of equal trees, any one may have all of the
        rate.
        """
        if not trees:
            return np.zeros(0)
        master = Master(self.network, self.plan.job, self.scale, None)
        program = Program("trees after a loss", tolerance=1e-9)
        for most in master.capacity:
            program.add_row(upper=float(most))
        for tree in trees:
            column = master.make(tree)
            rows, uses = ([], []) if column is None else (list(column.rows), list(column.uses))
            program.add_column(-1.0, rows, uses, upper=0.0 if column is None else np.inf)
        return program.solve().values


def cut_off(job: Job, topology: Topology, scenario: Scenario) -> tuple[str, ...]:
    """Return the workers that are connected by nothing but the lost switch or link."""
    if len(scenario.nodes) == 1:
        return tuple(w for w in job.workers if topology.neighbours(w) == scenario.nodes)
    u, v = scenario.nodes
    return tuple(w for w in job.workers if w in scenario.nodes and topology.neighbours(w) == (v if w == u else u,))


def job_without(job: Job, topology: Topology) -> Job | None:
    """Return the job with the parameter servers that are still connected; None where there are none."""
    roots = tuple(s for s in job.parameter_servers if s in topology and topology.neighbours(s))
    return replace(job, parameter_servers=roots) if roots else None


def losses(plan: Plan, topology: Topology) -> list[Loss]:
    """Return the losses of every switch and link that the plan needs, those that cost most first."""
    pool = Pool(plan, topology)
    return sorted(
        (_loss(pool, scenario) for scenario in scenarios(plan, topology)), key=lambda x: (x.rate_mbps, x.what)
    )


def _loss(pool: Pool, scenario: Scenario) -> Loss:
    left = pool.left(scenario)
    trees = len(pool.trees) - len(left)
    if cut := cut_off(pool.plan.job, pool.topology, scenario):
        return Loss(str(scenario), trees, 0.0, 0.0, cut)
    after = scenario.without(pool.topology)
    job = job_without(pool.plan.job, after)
    most = 0.0 if job is None else cheap_bound(after, job).mbps
    return Loss(str(scenario), trees, pool.rate(left), most)


def lines(found: list[Loss], rate_mbps: float, most: int = 20) -> Iterator[str]:
    """Yield a table of the losses that cost most, then how many cost less."""
    yield f"{'lost':<16}{'trees':>6}{'rate Mbit/s':>13}{'of now':>8}{'at most':>10}"
    shown = [loss for loss in found if not loss.cut]
    for loss in shown[:most]:
        part = 100 * loss.rate_mbps / rate_mbps if rate_mbps > 0 else 0.0
        bound = max(loss.bound_mbps, 0.0)  # a solver's zero may be below it
        yield f"{loss.what:<16}{loss.trees:>6}{loss.rate_mbps:>13.4f}{part:>7.1f}%{bound:>10.4f}"
    if len(shown) > most:
        yield f"and {len(shown) - most} more, each at least {shown[most].rate_mbps:.4f} Mbit/s"
    cut = [loss for loss in found if loss.cut]
    if cut:
        yield f"{len(cut)} links and switches cut workers off (their access): no plan survives these"
