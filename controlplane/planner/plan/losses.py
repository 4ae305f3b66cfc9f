"""Rates of a plan after a loss: of a link or switch (`losses`), or of a part of one link's capacity (`weakened`),
because a cable of a trunk or a lane of an optic fails, or it was measured slower than it was declared.

After the loss of a link or switch the trees that do not need it carry the whole model, each as much as it can: the
rates come from the master program of their columns.

On weakened links every tree still works. With the shares as they are, the rate falls until the link carries its load;
with new shares (which the controller gives once it has noticed) the same trees may carry more. Each link is a limit of
its own, so with the shares as they are, the worst loss of any one link costs as much as all links' losses at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from controlplane.planner.evaluate import bound, unit_loads
from controlplane.planner.job import Job
from controlplane.planner.plan.model import Plan, Tree
from controlplane.planner.routing import Network
from controlplane.planner.strategies.fabric.bounds import cheap_bound
from controlplane.planner.strategies.fabric.master import Master
from controlplane.planner.topology import Topology

ROUNDING = 1e-9
SHOWN = 20  # lines of the tables

Ends = tuple[str, str]
"""A link in both directions: its nodes in alphabetical order."""


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
        return _ends(*self.nodes) in _links(tree)

    def without(self, topology: Topology) -> Topology:
        """Return the topology after the loss."""
        if len(self.nodes) == 1:
            return topology.replace(remove_nodes=self.nodes)
        u, v = self.nodes
        return topology.replace(remove_links=[pair for pair in ((u, v), (v, u)) if topology.has_link(*pair)])


def _links(tree: Tree) -> frozenset[tuple[str, str]]:
    """Return the links that a tree uses, each by its ends in one order."""
    return frozenset(_ends(*pair) for pair in (*tree.crossed(), *tree.return_edges))


def _nodes(tree: Tree) -> frozenset[str]:
    return frozenset(node for link in _links(tree) for node in link)


def scenarios(plan: Plan, topology: Topology) -> list[Scenario]:
    """Return the losses of every switch and every link (both directions together) that some tree needs."""
    nodes = {node for tree in plan.trees for node in _nodes(tree)}
    links = {link for tree in plan.trees for link in _links(tree)}
    found = [Scenario((v,)) for v in topology.switches if v in nodes]
    seen = set()
    for u, v in topology.links:
        if _ends(u, v) in links and (v, u) not in seen:
            seen.add((u, v))
            found.append(Scenario((u, v)))
    return found


def best_rate(trees: Iterable[Tree], job: Job, network: Network) -> float:
    """Return the rate of these trees with the best shares, in Mbit/s."""
    scale = bound(network.topology, job)
    master = Master(network, job, scale, None)
    return master.solve()[0] * scale if master.add_trees(trees) else 0.0


def cut_off(job: Job, topology: Topology, scenario: Scenario) -> tuple[str, ...]:
    """Return the workers that are connected by nothing but the lost switch or link."""
    if len(scenario.nodes) == 1:
        return tuple(w for w in job.workers if topology.neighbours(w) == scenario.nodes)
    u, v = scenario.nodes
    return tuple(w for w in job.workers if w in scenario.nodes and topology.neighbours(w) == (v if w == u else u,))


def losses(plan: Plan, topology: Topology) -> list[Loss]:
    """Return the losses of every switch and link that the plan needs, those that cost most first."""
    network = Network(topology)
    found = [_loss(plan, network, scenario) for scenario in scenarios(plan, topology)]
    return sorted(found, key=lambda x: (x.rate_mbps, x.what))


def _loss(plan: Plan, network: Network, scenario: Scenario) -> Loss:
    left = [tree for tree in plan.trees if not scenario.needed_by(tree)]
    trees = len(plan.trees) - len(left)
    if cut := cut_off(plan.job, network.topology, scenario):
        return Loss(str(scenario), trees, 0.0, 0.0, cut)
    after = scenario.without(network.topology)
    roots = tuple(s for s in plan.job.parameter_servers if s in after and after.neighbours(s))
    most = cheap_bound(after, replace(plan.job, parameter_servers=roots)).mbps if roots else 0.0
    return Loss(str(scenario), trees, best_rate(left, plan.job, network), most)


def lines_of_losses(found: list[Loss], rate_mbps: float) -> Iterator[str]:
    """Yield a table of the losses that cost most, then how many cost less."""
    yield f"{'lost':<16}{'trees':>6}{'rate Mbit/s':>13}{'of now':>8}{'at most':>10}"
    shown = [loss for loss in found if not loss.cut]
    for loss in shown[:SHOWN]:
        part = 100 * loss.rate_mbps / rate_mbps if rate_mbps > 0 else 0.0
        bound = max(loss.bound_mbps, 0.0)  # a solver's zero may be below it
        yield f"{loss.what:<16}{loss.trees:>6}{loss.rate_mbps:>13.4f}{part:>7.1f}%{bound:>10.4f}"
    if len(shown) > SHOWN:
        yield f"and {len(shown) - SHOWN} more, each at least {shown[SHOWN].rate_mbps:.4f} Mbit/s"
    cut = [loss for loss in found if loss.cut]
    if cut:
        yield f"{len(cut)} links and switches cut workers off (their access): no plan survives these"


@dataclass(frozen=True)
class Kept:
    """The rate that is left when the link whose loss costs most loses a part of its capacity.

    Attributes:
        loses: The part of its capacity that the link loses, from 0 to 1.
        link: The link as "u-v"; "" where no link's loss costs anything.
        rate_mbps: The rate that is left, in Mbit/s.
        part: The same as a fraction of the plan's rate.
    """

    loses: float
    link: str
    rate_mbps: float
    part: float

    def __str__(self) -> str:
        return f"{100 * self.part:.1f} %, {self.rate_mbps:.6g} Mbit/s" + f" (worst {self.link})" * bool(self.link)


@dataclass(frozen=True)
class Weakened:
    """A link ("u-v") that has lost a part of its capacity.

    Attributes:
        trees: How many trees cross it.
        unchanged_mbps: The rate with the shares as they are, in Mbit/s.
        rate_mbps: The rate of the same trees with new shares.
        bound_mbps: A bound of any plan's rate then.
    """

    link: str
    trees: int
    unchanged_mbps: float
    rate_mbps: float
    bound_mbps: float


def kept(plan: Plan, topology: Topology, rate_mbps: float, loses: float) -> Kept:
    """Return the rate that is left with the shares as they are, where `rate_mbps` is the plan's rate from the
    evaluator.
    """
    return _worst(_rates(plan, topology, rate_mbps, loses).items(), rate_mbps, loses)


def kept_with_new_shares(found: list[Weakened], rate_mbps: float, loses: float) -> Kept:
    """Return the rate that is left once the trees have new shares, from the list that `weakened` returned."""
    return _worst(((item.link, item.rate_mbps) for item in found), rate_mbps, loses)


def weakened(plan: Plan, topology: Topology, rate_mbps: float, loses: float) -> list[Weakened]:
    """Return every link that costs rate when it alone loses this part of its capacity, those that cost most first."""
    trees = Counter(ends for tree in plan.trees for ends in _links(tree))
    found = []
    for ends, mbps in _rates(plan, topology, rate_mbps, loses).items():
        if mbps >= rate_mbps * (1 - ROUNDING) or not plan.trees:
            continue
        after = _with_less(topology, loses, [ends, ends[::-1]])
        again, most = mbps, 0.0
        if bound(after, plan.job) > 0:
            again = max(mbps, best_rate(plan.trees, plan.job, Network(after)))
            most = cheap_bound(after, plan.job).mbps
        found.append(Weakened("-".join(ends), trees[ends], mbps, again, most))
    return sorted(found, key=lambda item: (item.unchanged_mbps, item.rate_mbps, item.link))


def lines_of_weakened(found: list[Weakened], rate_mbps: float, now: Kept) -> Iterator[str]:
    """Yield lines that say which rate is kept, and a table of the links that cost most; `now` is what is kept with the
    shares as they are.
    """
    again = kept_with_new_shares(found, rate_mbps, now.loses)
    yield f"kept        when any one link loses {100 * now.loses:g} %: {now}; with new shares {again}"
    if not found:
        return
    yield f"{'slower link':<16}{'trees':>6}{'as it is':>13}{'of now':>8}{'new shares':>12}{'of now':>8}{'at most':>10}"
    for item in found[:SHOWN]:
        first, second = (100 * mbps / rate_mbps for mbps in (item.unchanged_mbps, item.rate_mbps))
        yield (
            f"{item.link:<16}{item.trees:>6}{item.unchanged_mbps:>13.4f}{first:>7.1f}%{item.rate_mbps:>12.4f}"
            f"{second:>7.1f}%{item.bound_mbps:>10.4f}"
        )
    if len(found) > SHOWN:
        yield f"and {len(found) - SHOWN} more, each at least {found[SHOWN].unchanged_mbps:.4f} Mbit/s as it is"


def _worst(rates: Iterable[tuple[Ends | str, float]], rate_mbps: float, loses: float) -> Kept:
    """Return the least of these rates with its link; of several, the first link by name."""
    named = [(mbps, ends if isinstance(ends, str) else "-".join(ends)) for ends, mbps in rates]
    least = min(named, default=(rate_mbps, ""))[0]
    if not least < rate_mbps * (1 - ROUNDING):
        return Kept(loses, "", rate_mbps, 1.0)
    return Kept(loses, min(name for mbps, name in named if mbps <= least * (1 + ROUNDING)), least, least / rate_mbps)


def _rates(plan: Plan, topology: Topology, rate_mbps: float, loses: float) -> dict[Ends, float]:
    """Return, by link that the plan uses, the rate when it loses this part and the shares stay."""
    rates: dict[Ends, float] = {}
    for (u, v), load in unit_loads(plan, topology.results_on_links)[0].items():
        if load > 0:
            left = max(0.0, topology.residual_bandwidth_mbps(u, v) - loses * topology.bandwidth_mbps(u, v))
            rates[_ends(u, v)] = min(rate_mbps, left / load, rates.get(_ends(u, v), rate_mbps))
    return rates


def _with_less(topology: Topology, part: float, links: Iterable[Ends]) -> Topology:
    """Return the topology in which these links have lost this part of their bandwidth; links that do not exist are left
    out.
    """
    there = [(u, v) for u, v in links if topology.has_link(u, v)]
    less = {(u, v): {"bandwidth_mbps": topology.bandwidth_mbps(u, v) * (1 - part)} for u, v in there}
    return topology.replace(links=less)


def _ends(u: str, v: str) -> Ends:
    return (u, v) if u <= v else (v, u)
