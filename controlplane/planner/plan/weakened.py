"""Weakened links: the rate that a plan keeps when one link loses a part of its capacity, because a cable of a trunk or
a lane of an optic fails, or it was measured slower than it was declared.

Every tree still works then. With the shares as they are, the rate falls until the link carries its load; with new
shares (which the controller gives once it has noticed) the same trees may carry more. Each link is a limit of its own,
so with the shares as they are, the worst loss of any one link costs as much as all links' losses at once. The plan that
keeps most is therefore the one that is best on links that have all lost that part (`with_headroom`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from controlplane.planner.evaluate import bound, evaluate, unit_loads
from controlplane.planner.plan.model import Plan
from controlplane.planner.plan.survive import Pool
from controlplane.planner.strategies.fabric.bounds import cheap_bound
from controlplane.planner.topology import Topology

ROUNDING = 1e-9
SHOWN = 20  # lines of the table

Ends = tuple[str, str]
"""A link in both directions: its nodes in alphabetical order."""


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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


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
    trees = Counter(
        ends for tree in plan.trees for ends in {_ends(*pair) for pair in (*tree.crossed(), *tree.return_edges)}
    )
    found = []
    for ends, mbps in _rates(plan, topology, rate_mbps, loses).items():
        if mbps >= rate_mbps * (1 - ROUNDING) or not plan.trees:
            continue
        after = _with_less(topology, loses, [ends, ends[::-1]])
        again, most = mbps, 0.0
        if bound(after, plan.job) > 0:
            again = max(mbps, Pool(plan, after).rate(list(plan.trees)))
            most = cheap_bound(after, plan.job).mbps
        found.append(Weakened("-".join(ends), trees[ends], mbps, again, most))
    return sorted(found, key=lambda item: (item.unchanged_mbps, item.rate_mbps, item.link))


def with_headroom(topology: Topology, part: float) -> Topology:
    """Return the network in which every link has lost this part of its capacity."""
    return _with_less(topology, part, topology.links)


def on_whole_links(plan: Plan, topology: Topology) -> Plan:
    """Return a plan that was made with headroom with the rate that it has on the links as they are; a rate that was
    proven with headroom is no bound there.
    """
    return replace(plan, rate_mbps=evaluate(plan, topology).rate_mbps, proven_mbps=None)


def lines(found: list[Weakened], rate_mbps: float, now: Kept) -> Iterator[str]:
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
