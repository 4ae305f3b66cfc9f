"""The best few trees under the limits of switches, chosen from many by an integer program.

Of trees t with rates y_t and whether they are taken, z_t (0 or 1):

    maximise sum y_t   subject to   every capacity, as in the master program (master.py),
                                    y_t <= (the rate that t has alone) z_t
                                    sum z_t <= the number of trees that there may be
                                    what the trees with z_t = 1 need of slots, entries and groups <= what a switch has

(with the split frozen: the sum of y_t over the trees of root s = x_s f). The trees to choose from are those of other
plans; further ones come from the prices of the resources that the chosen trees use, now and on average, as column
generation has them (pricing.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from controlplane.planner.evaluate import bound
from controlplane.planner.job import Job
from controlplane.planner.plan.limits import MINIMUM_SLOTS, SwitchLimits, copies, fan_in, label_entries, switch_limits
from controlplane.planner.plan.model import Tree
from controlplane.planner.routing import Network
from controlplane.planner.strategies.common import Split
from controlplane.planner.strategies.deadline import SECOND, deadline, limited_work
from controlplane.planner.strategies.fabric.bounds import cheap_bound
from controlplane.planner.strategies.fabric.master import Column, Master, Prices, to_trees
from controlplane.planner.strategies.fabric.pricing import Pricing
from controlplane.planner.strategies.solver import Program, SolverError

ROUNDS = 8  # times that trees are chosen, and new ones found for the prices of those
WORK = 10 * SECOND  # for all choices and new trees
CHOICE_WORK = 0.2 * SECOND  # for the iterations of one choice
CHOICE_COSTS = 1.0 * SECOND  # of one choice in all: presolving and heuristics count no iterations
FASTEST_COSTS = 0.2 * SECOND  # of a search for fast trees
GAP = 1e-3  # of a choice to its optimum at which it ends
SMALL = 1000  # racks x switches up to which new trees are looked for
FEW = 4  # trees up to which trees that are fast by themselves are looked for
ATTEMPTS = 5  # for each root
TAKEN = 1e-6  # fraction of the rate from which on a tree is one of the chosen
TIES = (1e-3, 0.1, 1.0)  # prices of all links beside those of full ones, so that trees are short
AVERAGE = 0.7  # weight of the earlier rounds' prices in the average


class Selection:
    """Trees to choose from, in a network whose switches have limits."""

    def __init__(self, network: Network, job: Job, frozen_split: Split | None) -> None:
        self.network, self.job, self.frozen_split = network, job, frozen_split
        self.limits = switch_limits(network.topology)
        self.master = Master(network, job, bound(network.topology, job), frozen_split)
        self.pricing = Pricing(network, job)
        self._needs: list[dict[tuple[str, ...], float]] = []  # of each tree, by row of the program
        self.prices: Prices | None = None
        self.small = self.pricing.applies and len(self.pricing.racks) * len(self.pricing.switches) <= SMALL

    def offer(self, trees: Iterable[Tree]) -> None:
        """Add trees to choose from, if switches can tell apart the flows of each."""
        for tree in trees:
            self._add(self.master.make(replace(tree, share=1.0)))

    def _add(self, column: Column | None) -> bool:
        if column is None or any(n > self.limits.fan_in.get(v, n) for v, n in fan_in(column.tree).items()):
            return False
        self.master.add(column)
        self._needs.append(dict(_needs(column.tree, self.limits)))
        return True

    def best(self, most: int) -> list[Tree]:
        """Return the best of at most so many trees, with their shares; none where the limits allow none."""
        with limited_work(WORK):
            return self._best(most)

    def _best(self, most: int) -> list[Tree]:
        found: list[Tree] = []
        reached, enough = 0.0, cheap_bound(self.network.topology, self.job).mbps / self.master.scale * (1 - GAP)
        if most <= FEW:
            self._fastest({})
        for number in range(ROUNDS):
            rate, chosen = self._chosen(most)
            if rate > reached * (1 + GAP):
                values = np.array([rate if t in chosen else 0.0 for t, rate in enumerate(self._refit(chosen))])
                reached, found = rate, to_trees(self.master, values)
            if not chosen or reached >= enough or deadline().passed() or number + 1 == ROUNDS:
                break
            new = self._new()
            if most <= FEW:
                rates = dict(enumerate(self._refit(chosen)))
                for t in chosen:
                    new |= self._fastest({other: rates[other] for other in chosen if other != t})
            if not new:
                break
        return found

    def _chosen(self, most: int) -> tuple[float, list[int]]:
        """Return the rate of the best at most so many trees (in units of the master's scale), and these."""
        master, count = self.master, len(self.master.columns)
        program = Program("few trees: the choice", gap=GAP)
        cost = np.concatenate([np.full(count, -1.0), np.full(count, 1e-6)])
        alone = [float((master.capacity[c.rows] / c.uses).min()) for c in master.columns]
        program.add_columns(cost, 0.0, 1.0, whole=np.arange(2 * count) >= count)
        by_row: dict[int, tuple[list[int], list[float]]] = {}
        for t, column in enumerate(master.columns):
            for row, use in zip(column.rows.tolist(), column.uses.tolist(), strict=True):
                columns, values = by_row.setdefault(row, ([], []))
                columns.append(t)
                values.append(use)
            program.add_row([t, count + t], [1.0, -min(1.0, alone[t])], upper=0.0)
        for row, entries in by_row.items():
            if master.capacity[row] < sum(entries[1]):
                program.add_row(*entries, upper=float(master.capacity[row]))
        program.add_row(range(count, 2 * count), [1.0] * count, upper=float(most))
        self._add_limits(program, count)
        if self.frozen_split is not None:
            self._freeze(program)
        deadline().spend(CHOICE_COSTS)
        with limited_work(CHOICE_WORK) as limit:
            try:
                solution = program.solve(within=limit)
            except SolverError:
                return 0.0, []
        taken = [t for t in range(count) if solution.values[count + t] > 0.5]
        rates = self._refit(taken)
        total = float(sum(rates))
        return total, [t for t in taken if rates[t] > TAKEN * total]

    def _add_limits(self, program: Program, count: int) -> None:
        """Add the rows of what the chosen trees need of switches. Trees that copy to the same neighbours share a
        group.
        """
        groups: dict[tuple[str, ...], list[int]] = {}
        rows: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}
        for t, needs in enumerate(self._needs):
            for row, amount in needs.items():
                if row[0] == "group":
                    groups.setdefault(row, []).append(t)
                else:
                    columns, values = rows.setdefault(row, ([], []))
                    columns.append(count + t)
                    values.append(amount)
        first = 2 * count
        program.add_columns(np.zeros(len(groups)), 0.0, 1.0)
        for column, (row, trees) in enumerate(groups.items(), start=first):
            for t in trees:
                program.add_row([count + t, column], [1.0, -1.0], upper=0.0)
            columns, values = rows.setdefault(("groups", row[1]), ([], []))
            columns.append(column)
            values.append(1.0)
        limits: dict[str, Mapping[str, int]] = {
            "slots": self.limits.slots,
            "labels": self.limits.label_entries,
            "groups": self.limits.multicast_groups,
        }
        for (kind, switch, *_), entries in rows.items():
            program.add_row(*entries, upper=float(limits[kind][switch]))

    def _freeze(self, program: Program) -> None:
        """Add the rows by which each root keeps its part of the rate."""
        assert self.frozen_split is not None
        rate = program.columns
        program.add_columns([0.0])
        for position, root in enumerate(self.job.parameter_servers):
            own = [t for t, column in enumerate(self.master.columns) if column.root == position]
            program.add_row([*own, rate], [*[1.0] * len(own), -self.frozen_split.get(root, 0.0)], 0.0, 0.0)

    def _refit(self, chosen: list[int]) -> list[float]:
        """Return the rate of every tree where only these have one, and note the prices."""
        part = Master(self.network, self.job, self.master.scale, self.frozen_split)
        for t in chosen:
            part.add(self.master.columns[t])
        rates = [0.0] * len(self.master.columns)
        try:
            _, values, prices = part.solve()
        except SolverError:
            return rates
        for t, value in zip(chosen, values.tolist(), strict=True):
            rates[t] = value
        self.prices = prices if self.prices is None else self.prices.mixed(prices, AVERAGE)
        self._now, self._use = prices, part.link_use(values)
        return rates

    def _new(self) -> bool:
        """Add cheap trees under the prices of the chosen ones, short ones, too, and return whether there are new
        ones.
        """
        pricing, added = self.pricing, False
        if not self.small or self.prices is None:
            return False
        for prices, tie in ((self._now, TIES[0]), *((self.prices, tie) for tie in TIES)):
            pricing.update(prices, self._use, tie)
            for root in range(len(pricing.roots)):
                if deadline().passed():
                    return added
                sketch = pricing.sketch(root, pricing.design(root), pricing.results(root).links)
                added |= self._add(pricing.column(self.master, sketch))
        return added

    def _fastest(self, beside: Mapping[int, float]) -> bool:
        """Add trees that have a high rate by themselves beside these trees with their rates, and return whether there
        are new ones. Each resource gets dearer when it is the bottleneck of the last tree.
        """
        master, pricing, added = self.master, self.pricing, False
        if not self.small:
            return False
        left = master.capacity.copy()
        for t, rate in beside.items():
            column = master.columns[t]
            left[column.rows] -= rate * column.uses
        left = np.maximum(left, TAKEN * master.capacity + 1e-12)
        nothing = np.zeros(master.switch_row0)
        deadline().spend(FASTEST_COSTS)
        for root in range(len(pricing.roots)):
            price = 1.0 / left / len(left)
            for _ in range(ATTEMPTS):
                if deadline().passed():
                    return added
                links, switches = price[: master.switch_row0], price[master.switch_row0 : master.root_row0]
                pricing.update(Prices(links, switches, price[master.root_row0 :], np.ones(len(pricing.roots))), nothing)
                sketch = pricing.sketch(root, pricing.design(root), pricing.results(root).links)
                use = pricing.use(master, sketch)
                added |= self._add(master.column(root, use, partial(pricing.tree, sketch)))
                price *= 1 + use / left / (use / left).max()
        return added


def _needs(tree: Tree, limits: SwitchLimits) -> Iterable[tuple[tuple[str, ...], float]]:
    """Yield what a tree needs of switches with limits, by row of the program."""
    for v in tree.points:
        if v in limits.slots:
            yield ("slots", v), float(MINIMUM_SLOTS)
    if limits.label_entries:
        for v, count in label_entries(tree).items():
            if v in limits.label_entries:
                yield ("labels", v), float(count)
    if limits.multicast_groups:
        for v, children in copies(tree).items():
            if v in limits.multicast_groups:
                yield ("group", v, *sorted(children)), 1.0
