"""Several jobs on one network: weighted max-min fair rates, by column generation over the trees of all jobs at once.

    maximise t   subject to   rate of job j >= w_j t   for every job j,
                              every capacity holds for all trees of all jobs together

(a job whose split is frozen keeps each root's share of its rate). A job gets all that it can have beyond that without
taking from one that has no more per weight: t is fixed, and maximised again over the jobs that do not bind.

Guaranteed rates hold before all that: whether they can is the same program, with guarantees as weights and t = 1
wanted. Jobs of a higher priority come next, with t of their own; those below them share the rest, and keep TRICKLE of
the rate that they would have without priorities, so that they do not stand still.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.planner.evaluate import bound
from controlplane.planner.job import Job
from controlplane.planner.plan.model import Plan, Tree
from controlplane.planner.plan.separated import separated_for
from controlplane.planner.routing import Network
from controlplane.planner.strategies.common import Infeasible, Split
from controlplane.planner.strategies.fabric.column_generation import SMOOTHING, price_roots
from controlplane.planner.strategies.fabric.master import Column, Master, Prices, to_trees
from controlplane.planner.strategies.fabric.pricing import Pricing
from controlplane.planner.strategies.solver import INFINITY, Program
from controlplane.planner.topology import Topology

ROUNDS = 60
GAP = 1e-3
"""Least gain, as a fraction of t: column generation ends when PATIENCE rounds together have gained less."""
PATIENCE = 4
BINDING = 1e-9
TRICKLE = 0.01


@dataclass(frozen=True)
class Demand:
    """A job that shares a network.

    Attributes:
        start: Plans whose trees are the first columns, at least one plan.
        weight: Rates in proportion to the jobs' weights count as fair.
        split: Shares of the model by parameter server, where they may not change.
        guarantee_mbps: The least rate that the job gets, in Mbit/s.
        priority: Jobs of the highest priority come first.
    """

    job: Job
    start: tuple[Plan, ...]
    weight: float = 1.0
    split: Split | None = None
    guarantee_mbps: float = 0.0
    priority: int = 0
    tenant: str = ""


class _Part(Master):
    """The columns that one job has in the linear program of all jobs."""

    def __init__(self, shared: _Shared, demand: Demand, pricing: Pricing) -> None:
        super().__init__(shared.network, demand.job, shared.scale, demand.split)
        self.counted[:] = True
        self._making = False
        self.demand, self.pricing = demand, pricing
        self._shared = shared
        self.where: list[int] = []  # the columns, in the program of all jobs
        roots = demand.job.parameter_servers
        program = shared.program
        # The rate f is the sum of its trees' rates; by root where the split is frozen.
        if demand.split is None:
            self.root_rows = [program.rows] * len(roots)
            shares = {program.rows: 1.0}
            program.add_row(lower=0.0, upper=0.0)
        else:
            self.root_rows = [program.rows + i for i in range(len(roots))]
            shares = {row: demand.split.get(s, 0.0) for row, s in zip(self.root_rows, roots, strict=True)}
            for _ in roots:
                program.add_row(lower=0.0, upper=0.0)
        self.shares = shares
        self.rate = shared.add_column(0.0, list(shares), [-share for share in shares.values()])
        self.rows = np.array([*range(self.root_row0), *(shared.root_rows[s] for s in roots)], dtype=np.int32)

    def make(self, tree: Tree) -> Column | None:
        self._making = True
        try:
            return super().make(tree)
        finally:
            self._making = False

    def column(self, root: int, use: np.ndarray, written: Callable[[], Tree]) -> Column | None:
        # Other jobs may use a worker's link, too: it counts here also where it is not the narrowest.
        return super().column(root, use, written) if self._making else self.make(written())

    def add(self, column: Column, penalty: float = 0.0, most: float = INFINITY) -> None:
        assert most == INFINITY, "jobs share what windows do not limit"
        self.columns.append(column)
        self.known.add(column.key)
        own = self.root_rows[column.root]
        rows = np.append(self.rows[column.rows], np.int32(own))
        self.where.append(self._shared.add_column(penalty, rows, np.append(column.uses, 1.0)))

    def prices(self, duals: np.ndarray) -> Prices | None:
        """Return the resources' prices in units in which this job's rate is worth 1; None where the job does not
        bind.
        """
        worth = duals[self.root_rows]
        unit = float(sum(share * duals[row] for row, share in self.shares.items()))
        if unit <= BINDING:
            return None
        costs = np.maximum(-duals[self.rows], 0.0) / unit
        return Prices(
            costs[: self.switch_row0], costs[self.switch_row0 : self.root_row0], costs[self.root_row0 :], worth / unit
        )


class _Shared:
    """The program of all jobs: capacities, rates, and t."""

    def __init__(self, network: Network, demands: Sequence[Demand], scale: float, limits: Mapping[str, float]) -> None:
        self.network, self.scale = network, scale
        self.program = Program("sharing", tolerance=1e-9, presolve=False)
        self.columns = 0
        topology = network.topology
        capacities = [*network.capacity, *(topology.residual_aggregation_mbps(v) for v in topology.switches)]
        for limit in capacities:
            self.program.add_row(upper=min(limit / scale, 1e6))
        self.root_rows: dict[str, int] = {}
        for root in dict.fromkeys(s for demand in demands for s in demand.job.parameter_servers):
            self.root_rows[root] = self.program.rows
            self.program.add_row(upper=min(topology.residual_ingress_mbps(root) / scale, 1e6))
        self.resources = self.program.rows
        self.short = ""  # the resource that is worth most in the last solution
        self.parts = [_Part(self, demand, Pricing(network, demand.job)) for demand in demands]
        for tenant, most in limits.items():
            rates = [part.rate for part in self.parts if part.demand.tenant == tenant]
            self.program.add_row(rates, [1.0] * len(rates), upper=most / scale)
        for part in self.parts:
            part.add_trees(tree for plan in part.demand.start for tree in plan.trees)

    def add_column(self, cost: float, rows: Sequence[int] | np.ndarray, values: Sequence[float] | np.ndarray) -> int:
        self.program.add_column(cost, np.asarray(rows, dtype=np.int32), values)
        self.columns += 1
        return self.columns - 1

    def keep(self, part: _Part, rate: float) -> None:
        """Keep at least this rate for a job from now on, in units of the scale."""
        self.program.add_row([part.rate], [1.0], lower=rate)

    def maximise(
        self, weights: Mapping[_Part, float], *, most: float = INFINITY, fix: bool = True
    ) -> tuple[float, np.ndarray, list[_Part]]:
        """Return the largest t (at most `most`) over these jobs by weight beside what is fixed, all columns' values,
        and the jobs that do not bind. With `fix`, t is fixed from then on.
        """
        parts = [part for part in self.parts if part in weights or part.demand.guarantee_mbps > 0]
        fairness = {}
        for part in weights:
            fairness[part] = self.program.rows
            self.program.add_row([part.rate], [1.0], lower=0.0)
        t = self.add_column(-1.0, list(fairness.values()), [-weight for weight in weights.values()])
        self.program.set_bounds(t, 0.0, most)
        solution = self.program.solve()
        reached = [solution.values[t]]
        smooth = {part: part.prices(solution.duals) for part in parts}
        for _ in range(ROUNDS):
            now = {part: part.prices(solution.duals) for part in parts}
            added = False
            for part in parts:
                exact, mild = now[part], smooth[part]
                if exact is None:
                    continue
                mild = exact if mild is None else mild
                use = part.link_use(solution.values[part.where])
                for used in (mild, exact):
                    part.pricing.update(used, use)
                    gained, _ = price_roots(part, part.pricing, exact, used)
                    added |= gained
                    if gained:
                        break
                smooth[part] = mild.mixed(exact, SMOOTHING)
            if not added or reached[-1] >= most * (1 - BINDING):
                break
            solution = self.program.solve()
            reached.append(solution.values[t])
            if len(reached) > PATIENCE and reached[-1] - reached[-1 - PATIENCE] < GAP * reached[-1]:
                break
        solution = self.program.solve()  # with the columns of the last round, too
        best = float(solution.values[t])
        self.program.set_bounds(t, best * (1 - 1e-9) if fix else 0.0, best if fix else 0.0)
        loose = [part for part in weights if abs(solution.duals[fairness[part]]) <= BINDING]
        self.short = self._name(int(np.argmin(solution.duals[: self.resources])))
        return best, solution.values, loose

    def _name(self, row: int) -> str:
        topology, links = self.network.topology, len(self.network.ends)
        if row < links:
            u, v = self.network.ends[row]
            return f"link {self.network.names[u]} -> {self.network.names[v]}"
        if row < links + len(topology.switches):
            return f"switch {topology.switches[row - links]}"
        return f"parameter server {next(root for root, own in self.root_rows.items() if own == row)}"

    def guarantee(self, strict: bool) -> float:
        """Keep the guaranteed rates, or (not `strict`) the fraction of them that is possible, and return that fraction.
        Raise Infeasible where they cannot be kept.
        """
        guaranteed = [part for part in self.parts if part.demand.guarantee_mbps > 0]
        wanted = {part: part.demand.guarantee_mbps / self.scale for part in guaranteed}
        if not wanted:
            return 1.0
        part_of_it, _, _ = self.maximise(wanted, most=1.0, fix=False)
        if strict and part_of_it < 1 - GAP:
            words = ", ".join(f"{part.job.name} {part.demand.guarantee_mbps:g}" for part in wanted)
            raise Infeasible(
                f"sharing: the guaranteed rates ({words} Mbit/s) do not fit together, {part_of_it:.1%} of them would: "
                f"{self.short} is short"
            )
        for part, rate in wanted.items():
            self.keep(part, rate * min(part_of_it, 1.0) * (1 - 1e-9))
        return min(part_of_it, 1.0)

    def trickle(self) -> None:
        """Keep TRICKLE of each job's even rate, so that no job stands still for one of a higher priority."""
        even, _, _ = self.maximise({part: part.demand.weight for part in self.parts}, fix=False)
        for part in self.parts:
            self.keep(part, TRICKLE * even * part.demand.weight)


def share(
    topology: Topology,
    demands: Sequence[Demand],
    *,
    strict: bool = True,
    short: Callable[[str], None] | None = None,
    limits: Mapping[str, float] | None = None,
) -> list[Plan]:
    """Return plans for all jobs at weighted max-min fair rates, in their order; the rates hold for all of them
    together.

    With `strict`, guarantees hold; without, as much of them as is possible, and `short` is called with words about it
    where that is not all. `limits` has the most Mbit/s of each tenant's jobs together. Raise Infeasible where a job
    gets nothing, guarantees cannot hold (naming the resource that is short), or a job has servers that hang on other
    servers.
    """
    parts = separated_for(topology, [demand.job for demand in demands])
    if not parts:
        return _share(topology, demands, strict, short, limits or {})
    apart = [
        replace(demand, job=part.job, start=tuple(map(part.apart, demand.start)), split=part.split(demand.split))
        for demand, part in zip(demands, parts, strict=True)
    ]
    words = parts[0].words
    try:
        plans = _share(parts[0].topology, apart, strict, short and (lambda line: short(words(line))), limits or {})
    except Infeasible as error:
        raise Infeasible(words(str(error))) from None
    return [part.together(plan) for part, plan in zip(parts, plans, strict=True)]


def _share(
    topology: Topology,
    demands: Sequence[Demand],
    strict: bool,
    short: Callable[[str], None] | None,
    limits: Mapping[str, float],
) -> list[Plan]:
    """Return what `share` returns, for a network in which every server has one role and none adds for others."""
    network = Network(topology)
    scale = max(bound(topology, demand.job) for demand in demands)
    if not scale > 0:
        raise Infeasible("sharing: no rate above 0 is possible")
    shared = _Shared(network, demands, scale, limits)
    for part in shared.parts:
        if not part.pricing.applies:
            raise Infeasible(f"sharing: job {part.job.name!r} has servers that hang on no switch that all reach")
    held = shared.guarantee(strict)
    if held < 1 - GAP and short is not None:
        short(f"{held:.1%} of the guaranteed rates can be held: {shared.short} is short")
    priorities = sorted({demand.priority for demand in demands}, reverse=True)
    if len(priorities) > 1:
        shared.trickle()
    for priority in priorities:
        left = [part for part in shared.parts if part.demand.priority == priority]
        while left:
            best, values, loose = shared.maximise({part: part.demand.weight for part in left})
            if best <= 0:
                raise Infeasible(
                    f"sharing: no rate above 0 is possible for job {left[0].job.name!r}: {shared.short} is short"
                )
            left = loose if len(loose) < len(left) else []
    plans = []
    for part in shared.parts:
        own = values[part.where]
        trees = to_trees(part, own)
        plans.append(Plan(part.job, "inart", float(own.sum()) * scale, tuple(trees), seed=0))
    return plans
