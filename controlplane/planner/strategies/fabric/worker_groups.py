"""Groups of workers on switches: what to aggregate where when the trees are few.

With a_s the rate of each of root s's trees, s takes floor(B_s / a_s) streams over all its trees, so aggregation has to
take away the other of the W streams per tree; a group of n workers at one switch takes n - 1 away and costs n a_s of
the switch's capacity. `Instance.pack` finds such groups, `Placement` puts them on switches and workers into them so
that links hold, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.planner.evaluate import bound, evaluate
from controlplane.planner.job import Job
from controlplane.planner.plan.limits import switch_limits
from controlplane.planner.plan.model import Plan
from controlplane.planner.plan.separated import worker_at
from controlplane.planner.routing import Network
from controlplane.planner.strategies.common import Choice, Split, finish, plan_choices
from controlplane.planner.strategies.deadline import deadline
from controlplane.planner.strategies.fabric.master import Master, Prices, to_trees
from controlplane.planner.strategies.fabric.pricing import Pricing
from controlplane.planner.topology import Topology

SLACK = 1 + 1e-9
PLACING_ROUNDS = 8
MOVING_ROUNDS = 3
ASSIGNED_WORKERS = 200  # with more, workers keep their nearest group, as an optimal assignment takes W^3
PRICE_STEP = 1.0
PRICED_FROM = 0.9  # utilisation from which a link gets dearer
LOWER_TARGETS = 5  # rates tried between the one that links allowed and the one packed for
REACHED = 1 - 1e-6
UNLIMITED = 1e300
TREE_WORK = 1000.0  # units of work that packing counts for each tree that may take a group
Groups = list[tuple[int, int, int]]  # tree, switch, workers


def _assigned(cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cheapest assignment of rows to columns, as (rows, their columns)."""
    from scipy.optimize import linear_sum_assignment  # takes a third of a second, and few plans need it

    return linear_sum_assignment(cost)


@dataclass(frozen=True)
class Instance:
    """An instance of packing trees.

    Attributes:
        owners: The root (position in job.parameter_servers) of every tree.
        usable: Switches that all workers reach and that reach all roots.
        switches: By usable switch, its residual aggregation in Mbit/s.
        trees_at: By usable switch, how many trees may add there.
        fan_in: By usable switch, how many flows of one tree it adds; infinity for no limit.
        roots: By root, its residual ingress in Mbit/s.
        shared: By root on a worker's host, what the host's links take in; infinity for other roots.
    """

    network: Network
    job: Job
    owners: tuple[int, ...]
    usable: tuple[str, ...]
    switches: np.ndarray
    trees_at: np.ndarray
    fan_in: np.ndarray
    roots: tuple[float, ...]
    shared: tuple[float, ...]

    @classmethod
    def of(cls, network: Network, job: Job, owners: Sequence[int]) -> Instance:
        """Return the instance of a job, with the residual capacities (Mbit/s) and the limits of switches of the
        network's topology.
        """
        topology = network.topology
        usable, limits = usable_switches(network, job), switch_limits(topology)
        return cls(
            network,
            job,
            tuple(owners),
            tuple(usable),
            np.array([topology.residual_aggregation_mbps(v) for v in usable]),
            np.array([limits.trees_at(v) for v in usable]),
            np.array([limits.fan_in.get(v, math.inf) for v in usable]),
            tuple(topology.residual_ingress_mbps(s) for s in job.parameter_servers),
            tuple(_shared_mbps(topology, job, s) for s in job.parameter_servers),
        )

    @property
    def workers(self) -> int:
        return len(self.job.workers)

    def pack(self, rates: Sequence[float]) -> Groups | None:
        """Return groups with which every root can take its trees at its rate; None where the greedy packing finds none.

        `rates` has the rate of each tree, by root. The largest reduction comes first; of equals the switch with the
        least room, and of the neediest root the tree with the most workers left.
        """
        needed = []
        everything = sum(rates[s] for s in self.owners)
        for s, (ingress, link, rate) in enumerate(zip(self.roots, self.shared, rates, strict=True)):
            trees = self.owners.count(s)
            own = trees * rate  # its worker's streams and their results cross no link; all others' results do
            capacity = min(ingress, link - everything + 2 * own)
            streams = trees * self.workers if rate <= 0 or math.isinf(capacity) else math.floor(capacity / rate * SLACK)
            if streams < trees:
                return None
            needed.append(trees * self.workers - streams)
        room, places = self.switches.copy(), self.trees_at.copy()
        left = [self.workers] * len(self.owners)
        free = np.ones((len(self.owners), len(room)), dtype=bool)
        groups: Groups = []
        limit = deadline()
        while max(needed) > 0:
            best: tuple[int, float, int, int] | None = None
            served: set[int] = set()
            limit.spend(TREE_WORK * len(self.owners))
            for t in sorted(range(len(self.owners)), key=lambda t: (-needed[self.owners[t]], -left[t])):
                s = self.owners[t]
                if s in served:  # a root's trees are alike, so one of them is enough
                    continue
                most = min(needed[s] + 1, left[t])
                if most < 2 or (best is not None and most - 1 < best[0]):
                    continue
                sizes = np.minimum(np.floor(room / rates[s] * SLACK), np.minimum(self.fan_in, most))
                sizes = np.where(free[t] & (places >= 1), sizes, 0)
                size = int(sizes.max(initial=0))
                if size < 2:
                    continue
                served.add(s)
                v = int(np.argmin(np.where(sizes == size, np.minimum(room, UNLIMITED), np.inf)))
                if best is None or (size - 1, -room[v]) > best[:2]:
                    best = (size - 1, -float(room[v]), t, v)
            if best is None:
                return None
            size, _, t, v = best[0] + 1, best[1], best[2], best[3]
            groups.append((t, v, size))
            free[t, v] = False
            places[v] -= 1
            needed[self.owners[t]] -= size - 1
            left[t] -= size
            room[v] -= size * rates[self.owners[t]]
        return groups

    def levels(self) -> list[float]:
        """Return the rates at which a switch or a root is just full, highest first."""
        finite = {float(c) for c in self.switches if 0 < c < math.inf}
        values = {c / n for c in finite for n in range(2, self.workers + 1)}
        for s, capacity in enumerate(self.roots):
            if 0 < capacity < math.inf:
                values |= {capacity / m for m in range(1, self.workers * self.owners.count(s) + 1)}
        return sorted(values, reverse=True)


def _shared_mbps(topology: Topology, job: Job, root: str) -> float:
    """Return the capacity (Mbit/s) of the links into the host on which the root and a worker are; infinity where there
    is no such worker, or results do not count.
    """
    if not topology.results_on_links or worker_at(topology, root) not in job.workers:
        return math.inf
    inside = topology.neighbours(root)
    links = [(v, own) for own in inside for v in topology.neighbours(own) if topology.kind(v) == "switch"]
    return sum(topology.residual_bandwidth_mbps(*pair) for pair in links if topology.has_link(*pair))


def usable_switches(network: Network, job: Job) -> list[str]:
    """Return the switches that all workers reach and that reach all roots."""
    index, topology = network.index, network.topology
    result = []
    for v in topology.switches:
        to = network.distances_to(index[v])
        reached = all(to[index[w]] >= 0 for w in job.workers)
        if reached and all(network.distances_to(index[s])[index[v]] >= 0 for s in job.parameter_servers):
            result.append(v)
    return result


class Placement:
    """Packed groups on their switches, with their workers; they are moved about until links hold."""

    def __init__(self, instance: Instance, rates: Sequence[float], groups: Groups, strategy: str, seed: int) -> None:
        self.instance, self.rates, self.strategy, self.seed = instance, list(rates), strategy, seed
        self.network, self.job, self.usable = instance.network, instance.job, instance.usable
        self.switch = [v for _, v, _ in groups]  # position in `usable`, by group
        self.tree = [t for t, _, _ in groups]
        self.members = self._nearest([size for _, _, size in groups])
        self.of_tree: list[list[int]] = [[] for _ in instance.owners]
        for g, t in enumerate(self.tree):
            self.of_tree[t].append(g)

    @property
    def target(self) -> float:
        """The rate in Mbit/s for which the groups were packed."""
        return sum(self.rates[s] for s in self.instance.owners)

    def _nearest(self, sizes: list[int]) -> list[list[int]]:
        """Return the workers of each group: groups take the nearest workers that are left, the groups with the nearest
        workers first.
        """
        network, job = self.network, self.job
        index = network.index
        leaves = [index[w] for w in job.workers]
        members: list[list[int]] = [[] for _ in sizes]
        for t in range(len(self.instance.owners)):
            mine = [g for g, owner in enumerate(self.tree) if owner == t]
            hops = {g: network.distances_to(index[self.usable[self.switch[g]]]) for g in mine}
            free = set(range(len(leaves)))
            reach = {g: sum(sorted(hops[g][leaf] for leaf in leaves)[: sizes[g]]) for g in mine}
            for g in sorted(mine, key=lambda g: (reach[g], self.usable[self.switch[g]])):
                members[g] = sorted(free, key=lambda i: (hops[g][leaves[i]], leaves[i]))[: sizes[g]]
                free -= set(members[g])
        return members

    def choices(self) -> list[Choice]:
        """Return the trees before routing."""
        total = self.target
        result = []
        for t, s in enumerate(self.instance.owners):
            root = self.job.parameter_servers[s]
            points = [root] * len(self.job.workers)
            for g in self.of_tree[t]:
                for i in self.members[g]:
                    points[i] = self.usable[self.switch[g]]
            result.append(Choice(root, self.rates[s] / total, tuple(points)))
        return result

    def plan(self) -> Plan:
        """Return the routed and evaluated plan."""
        choices, topology = self.choices(), self.network.topology
        return plan_choices(topology, self.job, self.strategy, choices, self.seed, network=self.network)

    def improved(self, enough: float) -> Plan:
        """Move groups and workers away from links that the plan overloads, as long as a link is the bottleneck. Return
        the best plan on the way, at once when its rate is `enough`.

        Links that are over PRICED_FROM at the target get dearer from round to round; workers are assigned to the places
        in their trees' groups, and the groups to switches, at least total price.
        """
        best = plan = self.plan()
        pricing = Pricing(self.network, self.job)
        if not pricing.applies:
            return best
        links = len(self.network.ends)
        index = {f"{u}->{v}": e for e, (u, v) in enumerate(self.network.topology.links)}
        price = np.ones(links)
        for _ in range(PLACING_ROUNDS):
            evaluation = evaluate(plan, self.network.topology, check=False)
            if best.rate_mbps >= enough or evaluation.bottleneck.kind != "link" or deadline().passed():
                break
            scale = self.target / plan.rate_mbps
            for load in evaluation.loads:
                over = load.utilisation * scale - PRICED_FROM
                if over <= 0 and load.kind == "link":
                    break
                if load.kind == "link":
                    price[index[load.name]] *= 1 + PRICE_STEP * over
            nothing = Prices(price, np.zeros(len(pricing.switches)), np.zeros(len(pricing.roots)), np.ones(0))
            pricing.update(nothing, np.zeros(links), tie=0.0)
            for _ in range(MOVING_ROUNDS):
                if len(self.job.workers) <= ASSIGNED_WORKERS:
                    self._assign(pricing)
                self._relocate(pricing)
            plan = self.plan()
            best = max(best, plan, key=lambda p: p.rate_mbps)
        return best

    def _positions(self, pricing: Pricing) -> np.ndarray:
        """Return the positions of the usable switches among pricing's nodes."""
        return np.array([pricing.position[self.network.index[v]] for v in self.usable])

    def _assign(self, pricing: Pricing) -> None:
        """Assign every tree's workers to the places in its groups, and to sending directly."""
        at = self._positions(pricing)
        for t, s in enumerate(self.instance.owners):
            groups = self.of_tree[t]
            places = [g for g in groups for _ in self.members[g]]
            direct = len(self.job.workers) - len(places)
            columns = [*(int(at[self.switch[g]]) for g in places), *[len(pricing.switches) + s] * direct]
            _, chosen = _assigned(pricing.from_worker[:, columns])
            for g in groups:
                self.members[g] = []
            for i, place in enumerate(chosen):
                if place < len(places):
                    self.members[places[place]].append(i)

    def _relocate(self, pricing: Pricing) -> None:
        """Move the groups that share a switch, together, to switches that have the capacity."""
        instance = self.instance
        at = self._positions(pricing)
        bins = sorted(set(self.switch))
        if not bins:
            return
        cost = np.zeros((len(bins), len(self.usable)))
        for row, v in enumerate(bins):
            inside = [g for g, switch in enumerate(self.switch) if switch == v]
            load, most = 0.0, 0
            for g in inside:
                s = instance.owners[self.tree[g]]
                load += len(self.members[g]) * self.rates[s]
                most = max(most, len(self.members[g]))
                cost[row] += pricing.from_worker[self.members[g]][:, at].sum(axis=0)
                cost[row] += pricing.distance[at, len(pricing.switches) + s]
            fits = instance.switches * SLACK >= load
            fits &= (instance.trees_at >= len(inside)) & (instance.fan_in >= most)
            fits[v] = True
            cost[row] = np.where(fits & np.isfinite(cost[row]), cost[row], 1e9)
        rows, chosen = _assigned(cost)
        to = {bins[row]: int(column) for row, column in zip(rows, chosen, strict=True) if cost[row, column] < 1e9}
        if len(to) == len(bins):
            self.switch = [to[v] for v in self.switch]


def refitted(network: Network, job: Job, plan: Plan, frozen_split: Split | None) -> Plan:
    """Return the plan's trees with the rates that are best together."""
    master = Master(network, job, bound(network.topology, job), frozen_split)
    master.add_trees(plan.trees)
    rate, values, _ = master.solve()
    if not rate > 0:
        return plan
    other = finish(network.topology, job, plan.strategy, to_trees(master, values), plan.seed)
    return max(plan, other, key=lambda p: p.rate_mbps)


def packed_plans(
    instance: Instance,
    rates: Sequence[float],
    reached: float,
    strategy: str,
    *,
    seed: int,
    frozen_split: Split | None,
    lower_targets: int = LOWER_TARGETS,
) -> list[Plan]:
    """Return plans for trees at these rates (by root) or, where links do not allow them, at lower ones; `reached` is
    the rate to beat. Raise Infeasible or DoesNotFit where the first of them is no plan.
    """
    plans: list[Plan] = []
    total = sum(rates[s] for s in instance.owners)
    low, high, factor = min(1.0, reached / total), 1.0, 1.0
    for _ in range(1 + lower_targets):
        lowered = [factor * rate for rate in rates]
        groups = instance.pack(lowered)
        if groups is None:
            break
        plan = Placement(instance, lowered, groups, strategy, seed).improved(factor * total * REACHED)
        if plan.rate_mbps < factor * total * REACHED:
            plan = refitted(instance.network, instance.job, plan, frozen_split)
            high = factor
        plans.append(plan)
        low = max(low, min(1.0, plan.rate_mbps / total))
        if high - low < 0.01 or deadline().passed():
            break
        factor = (low + high) / 2
    return plans
