"""Measures our planner on many different instances: whether every plan is feasible, whether a collective among hosts
alone is faster, and how far the plans are from the bounds.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from controlplane.planner.adding_hosts import workers_add
from controlplane.planner.job import Job
from controlplane.planner.plan.host_collectives import host_rows
from controlplane.planner.plan.limits import switch_limits
from controlplane.planner.plan.model import Plan
from controlplane.planner.plan.planning import ERRORS
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.deadline import OutOfTime, limited_time
from controlplane.planner.strategies.fabric.bounds import all_reduce_bound, cheap_bound
from controlplane.planner.strategies.fabric.prove import closer_bound, proven_bound
from controlplane.planner.topology import Topology
from evaluation.inart import kinds
from evaluation.inart.checked import faults
from evaluation.inart.optimum import optimum
from evaluation.inart.varied import Instance, draw

SEARCH_S = 60.0  # seconds of processor time for one plan
PROOF_S = 5.0  # seconds of processor time for one bound over all trees
LOOKED_AT = 5e-3  # gap to the printed bound from which the one over all trees is computed
AIM_PRINTED, AIM_TRUE = 0.02, 0.01
ROUNDING = 1e-5  # relative difference of two rates below which they count as equal
EVEN = 1 - 1e-4  # least fraction of a host collective's rate that counts as equal: solvers' tolerance


@dataclass(frozen=True)
class Row:
    """A plan of ours on an instance, or why there is none.

    Attributes:
        bound_mbps: the bound that is printed beside the plan, which `what` names.
        true_mbps: the least of that and of the bound over all trees, the exact one if there is `optimum_mbps`.
        limited: the plan keeps within what switches hold, or has few trees, of which bounds know nothing.
        faults: what the independent check has found.
        refused: why there is no plan, in words.
        cut_short: whether the search took longer than it may.
        optimum_mbps: the rate that trees reach whatever switches hold, found exactly by code of its own (optimum.py); 0
            if the network is too large for that.
    """

    rate_mbps: float
    bound_mbps: float
    what: str
    true_mbps: float
    trees: int
    seconds: float
    limited: bool
    faults: tuple[str, ...] = ()
    refused: str = ""
    cut_short: bool = False
    optimum_mbps: float = 0.0

    @property
    def refuted(self) -> bool:
        """Whether there are trees that are faster than the printed bound."""
        return self.optimum_mbps * (1 - ROUNDING) > self.bound_mbps

    @property
    def gap(self) -> float:
        return _gap(self.rate_mbps, self.bound_mbps)

    @property
    def true_gap(self) -> float:
        return _gap(self.rate_mbps, self.true_mbps)


@dataclass(frozen=True)
class Measured:
    """An instance and what was measured of it.

    Attributes:
        plans: our plans by the parameter servers that they use: "own" are the job's; "workers" one on every
            worker's host; "hosts" the same where workers' hosts also add inside of trees, measured only where a
            collective among hosts alone is faster than the other plans, or where that is asked for.
        hosts: rates that hosts reach alone.
        any_kind_mbps: rate that no all-reduce can exceed.
    """

    seed: int
    what: tuple[str, ...]
    plans: dict[str, Row]
    hosts: dict[str, float]
    any_kind_mbps: float

    @property
    def best(self) -> Row:
        """The fastest plan of ours."""
        return max(self.plans.values(), key=lambda row: row.rate_mbps)

    @property
    def any_gap(self) -> float:
        """The part by which the best plan is below the rate that no all-reduce can exceed."""
        return _gap(self.best.rate_mbps, self.any_kind_mbps)

    @property
    def refuted(self) -> bool:
        """Whether some plan or some trees are faster than a bound."""
        rates = [*self.hosts.values(), *(max(row.rate_mbps, row.optimum_mbps) for row in self.plans.values())]
        fastest = max(rates) if self.hosts else 0.0  # without them, results do not count, but in that bound they do
        return any(row.refuted for row in self.plans.values()) or fastest * (1 - ROUNDING) > self.any_kind_mbps

    @property
    def beaten_by(self) -> str:
        """The collective among hosts alone that is faster than every plan of ours, or ""."""
        name = max(self.hosts, key=lambda each: self.hosts[each], default="")
        return name if name and self.hosts[name] * EVEN > self.best.rate_mbps else ""

    def to_json(self) -> dict[str, Any]:
        plans = {name: {**asdict(r), "gap": r.gap, "true_gap": r.true_gap} for name, r in self.plans.items()}
        return {**asdict(self), "plans": plans, "any_gap": self.any_gap, "beaten_by": self.beaten_by}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measured:
        """Return the object of which `to_json` has made this."""
        names = {field.name for field in fields(Row)}
        plans = {
            name: Row(**{**{key: row[key] for key in names}, "faults": tuple(row["faults"])})
            for name, row in data["plans"].items()
        }
        return cls(data["seed"], tuple(data["what"]), plans, dict(data["hosts"]), data["any_kind_mbps"])


def _gap(rate: float, bound: float) -> float:
    return max(0.0, 1 - rate / bound) if bound > 0 else 0.0


def measure(instance: Instance, *, on_hosts: bool = False) -> Measured:
    """Plan an instance in every way, and compute the bounds. With `on_hosts`, let hosts add in any case."""
    topology, job = instance.topology, instance.job
    plans = {"own": _row(instance, job)}
    if not set(job.workers) <= set(job.parameter_servers):
        plans["workers"] = _row(instance, replace(job, parameter_servers=job.workers))
    with limited_time(SEARCH_S, clock=time.process_time):
        hosts = {row.strategy: row.rate_mbps for row in host_rows(topology, job)} if topology.results_on_links else {}
    found = Measured(instance.seed, instance.what, plans, hosts, all_reduce_bound(topology, job).mbps)
    if found.beaten_by or on_hosts:
        network, everywhere = workers_add(topology, job)
        plans["hosts"] = _row(replace(instance, topology=network), everywhere)
    return found


def measured(seeds: Iterable[int], kept: Path | None = None, *, of_kinds: bool = False) -> Iterator[Measured]:
    """Yield the instances of these seeds, measured: drawn by varied.py, or by kinds.py.

    `kept` is a file with a line of JSON for each instance that was measured before, which is not measured again. Each
    new one is added to the file as soon as it is known, so that a run that was cut off goes on where it was. A line
    that was cut off is ignored.
    """
    before: dict[int, Measured] = {}
    if kept is not None and kept.exists():
        whole = kept.read_text()
        if whole and not whole.endswith("\n"):
            kept.write_text(whole + "\n")
        for text in whole.splitlines():
            try:
                found = Measured.from_json(json.loads(text))
            except json.JSONDecodeError:
                continue
            before[found.seed] = found
    for seed in seeds:
        found = before.get(seed) or measure((kinds.draw if of_kinds else draw)(seed), on_hosts=of_kinds)
        if kept is not None and seed not in before:
            with kept.open("a") as file:
                file.write(f"{json.dumps(found.to_json())}\n")
        yield found


def _row(instance: Instance, job: Job) -> Row:
    topology = instance.topology
    begin = time.process_time()
    limited = switch_limits(topology).anything or job.max_trees is not None
    try:
        with limited_time(SEARCH_S, clock=time.process_time) as limit:
            plan = get_strategy("inart")(topology, job)
    except ERRORS as error:
        return Row(0.0, 0.0, "", 0.0, 0, time.process_time() - begin, limited, refused=str(error))
    seconds = time.process_time() - begin
    bound = closer_bound(plan, topology) or cheap_bound(topology, job)
    true = bound.mbps
    wrong = faults(topology.to_json(), plan.to_json())
    best = optimum(topology.to_json(), job.to_json())
    if best is None and _gap(plan.rate_mbps, true) > LOOKED_AT and not limited:
        true = min(true, _proven(plan, topology))
    if best is not None:
        true = min(true, best.proven_mbps)
        if plan.rate_mbps > best.proven_mbps * (1 + ROUNDING):
            wrong.append(f"no trees of these servers exceed {best.proven_mbps:.6g} Mbit/s")
    reached = 0.0 if best is None else best.reached_mbps
    size = len(plan.trees), seconds, limited
    return Row(plan.rate_mbps, bound.mbps, bound.what, true, *size, tuple(wrong), "", limit.cut_short, reached)


def _proven(plan: Plan, topology: Topology) -> float:
    try:
        with limited_time(PROOF_S, clock=time.process_time):
            return proven_bound(topology, plan.job, plan).mbps
    except (*ERRORS, OutOfTime):
        return math.inf


def line(found: Measured) -> str:
    """Return the measurements of one instance as a line of text."""
    parts = [f"{found.seed:>4} {'; '.join(found.what)}:"]
    for name, row in found.plans.items():
        if row.refused:
            parts.append(f"{name} refused ({row.refused})")
            continue
        parts.append(
            f"{name} {row.rate_mbps:.4f} (printed gap {100 * row.gap:.2f} %, true {100 * row.true_gap:.2f} %, "
            f"{row.trees} trees, {row.seconds:.1f} s)" + " FAULTS: " * bool(row.faults) + "; ".join(row.faults[:3])
        )
    hosts = max(found.hosts.values(), default=0.0)
    parts.append(f"hosts {hosts:.4f}, any {found.any_kind_mbps:.4f}")
    parts += ["REFUTED: a bound is below a rate that is possible"] * found.refuted
    if found.beaten_by:
        parts.append(f"BEATEN by {found.beaten_by}")
    return "  ".join(parts)


def distribution(all_found: Sequence[Measured]) -> Iterator[str]:
    """Return how many instances are how far from the bounds, in lines of text."""
    rows = [(found, row) for found in all_found for row in found.plans.values() if not row.refused]
    yield f"{len(all_found)} instances, {len(rows)} plans; {sum(bool(r.faults) for _, r in rows)} not feasible"
    refused = [found.seed for found in all_found if any(row.refused for row in found.plans.values())]
    yield f"refused: {len(refused)} {refused}"
    cut = [found.seed for found, row in rows if row.cut_short]
    slowest = max((row.seconds for _, row in rows), default=0.0)
    yield f"slowest plan: {slowest:.1f} s of processor time; cut short after {SEARCH_S:g} s: {len(cut)} {cut}"
    exact = sum(row.optimum_mbps > 0 for _, row in rows)
    refuted = [found.seed for found in all_found if found.refuted]
    yield f"bounds below a rate that is possible: {len(refuted)} {refuted} (best trees searched exactly: {exact} plans)"
    beaten = [found.seed for found in all_found if found.beaten_by]
    yield f"below a collective of hosts: {len(beaten)} {beaten}"
    free = [(found, row) for found, row in rows if not row.limited]
    for text, gaps, aim in (
        ("gap to the printed bound", [(found.seed, row.gap) for found, row in free], AIM_PRINTED),
        ("gap to the true bound", [(found.seed, row.true_gap) for found, row in free], AIM_TRUE),
    ):
        yield _gaps(text, gaps, aim)
    whole = [(f.seed, f.any_gap) for f in all_found if not f.best.limited and f.best.rate_mbps > 0]
    yield _gaps("the best plan's gap to what no all-reduce can beat", whole, AIM_PRINTED)


def _gaps(text: str, gaps: list[tuple[int, float]], aim: float) -> str:
    values = sorted(gap for _, gap in gaps)
    if not values:
        return f"{text}: none"
    over = sorted({seed for seed, gap in gaps if gap > aim})
    parts = ", ".join(f"{100 * values[min(len(values) - 1, int(q * len(values)))]:.2f}" for q in (0.5, 0.9, 0.99))
    return (
        f"{text}: median, 90 %, 99 % {parts} %, largest {100 * values[-1]:.2f} %; over {100 * aim:g} %: "
        f"{sum(v > aim for v in values)} of {len(values)} (seeds {over})"
    )
