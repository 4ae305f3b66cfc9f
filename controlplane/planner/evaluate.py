"""The independent computation of a plan's loads and of the rate that it can reach: the only source of any printed rate.

It looks at the plan's trees alone, not at how a strategy came to them. The load of every resource is its load per unit
of f, times f, so the feasible sending rate is the least of residual capacity / load per unit. A tree with share x
counts

- x on every link of every worker's route and of every relay's route, and on every link of the return tree (the latter
  only where the topology counts results on links);
- x of aggregation capacity at a switch for every flow that is added there (partial sums count like workers' flows);
- x of ingress at the root for every flow that ends there (direct ones and partial sums).

A host that is worker and parameter server at once receives its own gradients over no link; they count as ingress only
where its ingress_mbps says how much it can take in.

Where switches' slots and the packets' size are known (planner/plan/limits.py), a tree has no more packets under way
than slots (plan/cost.py). Then the bottleneck may be an `aggregation_memory`, where a tree would need more than the
slots that a switch has left for it, or a `window`, where it has the most slots that one tree can have.

A multicast loads every link of its own with 1 per unit of f, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.planner.job import Job
from controlplane.planner.plan.cost import windows
from controlplane.planner.plan.model import Multicast, Plan
from controlplane.planner.topology import Topology

KINDS = ("parameter_server", "switch", "nic", "link", "aggregation_memory", "window")
"""Kinds of resources, in the order in which resources of equal utilisation are listed."""


@dataclass(frozen=True)
class Load:
    """The load of one resource.

    Attributes:
        kind: "switch", "parameter_server", "link", "nic" (a link that a worker hangs on), "aggregation_memory" (of a
            switch) or "window" (of a tree).
        name: The node, "u->v", or "tree i".
        load_mbps: Load in Mbit/s at the plan's rate.
        capacity_mbps: Residual capacity in Mbit/s, without background load.
    """

    kind: str
    name: str
    load_mbps: float
    capacity_mbps: float

    @property
    def utilisation(self) -> float:
        if self.load_mbps == 0:
            return 0.0
        return self.load_mbps / self.capacity_mbps if self.capacity_mbps > 0 else math.inf

    def to_json(self) -> dict[str, Any]:
        capacity = None if math.isinf(self.capacity_mbps) else self.capacity_mbps
        return {"kind": self.kind, "name": self.name, "load_mbps": self.load_mbps, "capacity_mbps": capacity}


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a plan on a topology.

    Attributes:
        rate_mbps: The highest sending rate f, in Mbit/s, at which no capacity is violated.
        bound_mbps: Upper bound of f for any scheme, in Mbit/s (`bound`).
        gap: 1 - rate / bound.
        bottleneck: The resource that is full at that rate.
        loads: Every resource that the plan uses, fullest first.
    """

    rate_mbps: float
    bound_mbps: float
    gap: float
    bottleneck: Load
    loads: tuple[Load, ...]

    def load(self, kind: str, name: str) -> float:
        """Return the load of one resource in Mbit/s; 0 where the plan does not use it."""
        return next((item.load_mbps for item in self.loads if (item.kind, item.name) == (kind, name)), 0.0)

    def to_json(self) -> dict[str, Any]:
        return {
            "rate_mbps": self.rate_mbps,
            "bound_mbps": self.bound_mbps,
            "gap": self.gap,
            "bottleneck": self.bottleneck.to_json(),
            "loads": [item.to_json() for item in self.loads],
        }


def root_mbps(topology: Topology, job: Job, root: str) -> float:
    """Return the Mbit/s that a parameter server can take in. The own gradients of a server that is also a worker cross
    no link: there the links count only as links, not once more as a limit of its ingress.
    """
    return topology.residual_intake_mbps(root) if root in job.both_roles else topology.residual_ingress_mbps(root)


def bound(topology: Topology, job: Job) -> float:
    """Return an upper bound of f in Mbit/s for any scheme, single- or multi-level.

    Of W streams per unit of f, a switch that aggregates n inputs takes away n - 1 <= n (1 - 1/W), and at least one
    stream per tree reaches a root: W f <= sum_v C_v (1 - 1/W) + sum_s B_s' and f <= sum_s B_s'. Of D roots that are
    workers, too, what they send to themselves (at most f in all) needs none of this, but results of other trees come in
    over the same links: (W + D - 2) f <= the same sum.

    f is also at most every worker's link, in both directions (results come back), and at most what the parameter
    servers' links can send.
    """
    workers, both = len(job.workers), len(job.both_roles)
    counted, roots = topology.results_on_links, job.parameter_servers
    ingress = sum(topology.residual_ingress_mbps(s) for s in roots)
    aggregation = sum(topology.residual_aggregation_mbps(v) for v in topology.switches)
    rates = topology.residual_rates_mbps
    limits = [ingress]
    if counted or not both:
        taken = sum(rates[s][1] if s in job.both_roles else topology.residual_ingress_mbps(s) for s in roots)
        streams = workers + both - 2 if both else workers
    else:
        taken, streams = ingress, workers - 1
    limits.append((aggregation * (1 - 1 / workers) + taken) / streams)
    # A worker that is a root, too, sends results over its link where these count; else it may keep its whole part.
    sending = [worker for worker in job.workers if counted or worker not in job.both_roles]
    limits += [rates[worker][0] for worker in sending]
    if counted:
        limits += [rates[worker][1] for worker in job.workers]
        limits.append(sum(rates[s][0] for s in roots))
    elif both > 1:
        limits.append(sum(rates[worker][0] for worker in job.both_roles) / (both - 1))
    return min(limits)


def multicast_bound(topology: Topology, job: Job, multicasts: Sequence[Multicast]) -> float:
    """Return an upper bound of f in Mbit/s for these senders, with as many receivers each as `multicasts` has,
    whichever workers these are.

    A sender's links carry its model once (L3) or once per receiver (L7), and the workers receive as often as there are
    deliveries. A site is a switch with its workers: deliveries that its own workers cannot take leave it, and all that
    leaves a site comes into another (in L3 one copy may serve all of its workers).
    """
    sites: dict[str, list[str]] = {}
    for worker in job.workers:
        sites.setdefault(topology.access_switch(worker), []).append(worker)
    site = {worker: switch for switch, members in sites.items() for worker in members}
    crowd = max(len(members) for members in sites.values())

    def capacity(pairs: Iterable[tuple[str, str]]) -> float:
        return sum(topology.residual_bandwidth_mbps(u, v) for u, v in pairs)

    def beyond(pairs: Iterable[tuple[str, str]]) -> float:
        return capacity((u, v) for u, v in pairs if topology.kind(u) == topology.kind(v) == "switch")

    down = capacity((site[worker], worker) for worker in job.workers)
    limits = [down / sum(len(each.routes) for each in multicasts)]
    leaves: dict[str, int] = {}
    enters = 0.0
    for each in multicasts:
        up = capacity([(each.sender, site[each.sender])])
        limits.append(up if each.layer == "L3" else up / len(each.routes))
        away = max(0, len(each.routes) - len(sites[site[each.sender]]) + 1)
        leaves[site[each.sender]] = leaves.get(site[each.sender], 0) + (min(away, 1) if each.layer == "L3" else away)
        enters += away / crowd if each.layer == "L3" else away
    limits += [beyond(topology.graph.out_edges(s)) / count for s, count in leaves.items() if count]
    if enters:
        limits.append(sum(beyond(topology.graph.in_edges(s)) for s in sites) / enters)
    return min(limits)


def unit_loads(
    plan: Plan, results_on_links: bool = True
) -> tuple[dict[tuple[str, str], float], dict[str, float], dict[str, float]]:
    """Return the load per unit of f of every link, of every node that adds and of every root that the plan uses."""
    links: dict[tuple[str, str], float] = {}
    switches: dict[str, float] = {}
    roots: dict[str, float] = {}
    # The workers' own links are added up at the end, as most trees use the same ones.
    own_links: dict[tuple[tuple[str, ...], tuple[str, ...]], float] = {}
    for tree in plan.trees:
        share, root = tree.share, tree.root
        for node, count in tree.ends().items():
            loaded = roots if node == root else switches
            loaded[node] = loaded.get(node, 0.0) + count * share
        for pair, count in tree.inner_crossed().items():
            links[pair] = links.get(pair, 0.0) + count * share
        own = tree.assignments.starts, tree.assignments.first_nodes()
        own_links[own] = own_links.get(own, 0.0) + share
        for pair in tree.return_edges if results_on_links else ():
            links[pair] = links.get(pair, 0.0) + share
    for own, share in own_links.items():
        for pair in zip(*own, strict=True):
            if pair[0] != pair[1]:
                links[pair] = links.get(pair, 0.0) + share
    for each in plan.multicasts:
        for pair in each.links:
            links[pair] = links.get(pair, 0.0) + 1
    return links, switches, roots


def evaluate(plan: Plan, topology: Topology, *, check: bool = True) -> Evaluation:
    """Return the loads, the feasible rate, the bottleneck, the bound and the gap of a plan on a topology (in its
    present state). The rate that the plan itself states is not looked at.

    Where `check` is set, hold the plan's structure against the topology first; raise PlanError where it is violated.
    """
    if check:
        plan.check(topology)
    found = _last.of(plan, topology)
    if found is None:
        found = evaluated_anew(plan, topology)
        _last.known = plan, topology, found
    return found


class _Last:
    """The evaluation that was made last. A strategy evaluates the plan that it returns, and its caller evaluates that
    plan once more, which would take seconds where a plan has a million flows.
    """

    def __init__(self) -> None:
        self.known: tuple[Plan, Topology, Evaluation] | None = None

    def of(self, plan: Plan, topology: Topology) -> Evaluation | None:
        """Return the last evaluation if it is one of this plan's trees in this network (the same objects, which never
        change), else None.
        """
        if self.known is None:
            return None
        before, network, found = self.known
        same = plan.trees is before.trees and plan.multicasts is before.multicasts and topology is network
        return found if same and plan.job == before.job else None


_last = _Last()


def evaluated_anew(plan: Plan, topology: Topology) -> Evaluation:
    links, switches, roots = unit_loads(plan, topology.results_on_links)
    workers = set(plan.job.workers)
    items = [("switch", v, load, topology.residual_aggregation_mbps(v)) for v, load in switches.items()]
    items += [("parameter_server", s, load, root_mbps(topology, plan.job, s)) for s, load in roots.items()]
    items += [
        (
            "nic" if u in workers or v in workers else "link",
            f"{u}->{v}",
            load,
            topology.residual_bandwidth_mbps(u, v),
        )
        for (u, v), load in links.items()
    ]
    rate = min(capacity / load for _, _, load, capacity in items if load > 0)
    limited = windows(plan, topology, rate, assumed_ms=0.0)
    if limited is not None and limited.rate_mbps < rate:
        rate = limited.rate_mbps
        first = plan.trees[limited.tree].share, limited.carries_mbps[limited.tree]
        name = ("window", f"tree {limited.tree}") if limited.switch is None else ("aggregation_memory", limited.switch)
        items.append((*name, *first))
    loads = sorted(
        (Load(kind, name, load * rate, capacity) for kind, name, load, capacity in items),
        key=lambda item: (-round(item.utilisation, 9), KINDS.index(item.kind), item.name),
    )
    # At rate 0 all utilisations are 0, so the bottleneck is a resource without capacity.
    stopped = [Load(kind, name, 0.0, 0.0) for kind, name, load, capacity in items if load > 0 and capacity == 0]
    limit = multicast_bound(topology, plan.job, plan.multicasts) if plan.multicasts else bound(topology, plan.job)
    gap = 1 - rate / limit if limit > 0 else 0.0
    return Evaluation(rate, limit, gap, stopped[0] if stopped else loads[0], tuple(loads))
