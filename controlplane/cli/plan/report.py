"""Reports of a plan, as JSON (schema: docs/planner.md) and as text. All rates in them come from the evaluator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from controlplane.common.numbers import short
from controlplane.planner.evaluate import Evaluation, Load, evaluate
from controlplane.planner.job import Job
from controlplane.planner.plan.cost import Cost, Windows, cost_of, packets
from controlplane.planner.plan.host_collectives import MORE_SERVERS, HostRow, row_json
from controlplane.planner.plan.limits import switch_limits, unfit_for
from controlplane.planner.plan.model import Plan
from controlplane.planner.strategies.fabric.bounds import all_reduce_bound, cheap_bound
from controlplane.planner.strategies.fabric.parts_bound import Bound
from controlplane.planner.topology import Topology
from p4src.protocol import MAX_WORKERS

EXAMPLES = (10**4, 10**6, 10**8)
"""Sizes of all-reduces, in bytes, to show the times of when the job's tensors may have any size."""


@dataclass(frozen=True)
class Planned:
    """A plan with everything that is reported of it.

    Attributes:
        bound: A cheap bound, or the one that was asked for.
        seconds: Seconds from the loaded inputs to the routed plan.
        cut_short: Whether the time limit or Ctrl-C ended the search.
        windows: Windows of the trees; None if no target is known.
        cost: Cost of all-reduces; None if no target is known.
        unfit: If no target is given, the reason for each target that cannot hold the plan.
        any_kind: A bound for every all-reduce among the workers, whichever nodes add.
        faster: Collectives among the hosts alone (host_collectives.py) that are faster, if these were evaluated.
    """

    plan: Plan
    evaluation: Evaluation
    bound: Bound
    seconds: float
    cut_short: bool
    windows: Windows | None
    cost: Cost | None
    unfit: dict[str, str]
    any_kind: Bound
    faster: tuple[HostRow, ...] = ()

    @property
    def gap(self) -> float:
        return max(0.0, 1 - self.evaluation.rate_mbps / self.bound.mbps) if self.bound.mbps > 0 else 0.0


def bound_of(plan: Plan, evaluation: Evaluation, topology: Topology, job: Job) -> Bound:
    """Return the best bound that is cheap to compute; for multicasts it is the evaluator's, for as many receivers."""
    if plan.multicasts:
        return Bound(evaluation.bound_mbps, "workers' and sites' links")
    return cheap_bound(topology, job)


def planned(plan: Plan, topology: Topology, seconds: float, cut_short: bool, bound: Bound | None = None) -> Planned:
    """Evaluate a plan for a report; `bound` is used instead of the cheap bound where it is tighter."""
    evaluation = evaluate(plan, topology)
    least = bound_of(plan, evaluation, topology, plan.job)
    if bound is not None and bound.mbps < least.mbps:
        least = bound
    rate = evaluation.rate_mbps
    cost = cost_of(plan, topology, rate)
    # If it was planned for a target and can be deployed, it fits that target.
    looked_at = not switch_limits(topology).anything
    unfit = unfit_for(plan, topology) if looked_at and not plan.multicasts else {}
    windows = None if cost is None else cost.windows
    any_kind = all_reduce_bound(topology, plan.job)
    return Planned(plan, evaluation, least, seconds, cut_short, windows, cost, unfit, any_kind)


def report(found: Planned, topology: Topology) -> dict[str, Any]:
    """Return the JSON of one planned instance without its trees (`written` adds these)."""
    plan, evaluation = found.plan, found.evaluation
    return {
        "strategy": plan.strategy,
        "topology": topology.name,
        "job": plan.job.to_json(),
        "seed": plan.seed,
        "version": plan.version,
        "rate_mbps": evaluation.rate_mbps,
        "bound_mbps": found.bound.mbps,
        "bound": found.bound.what,
        "gap": found.gap,
        "bottleneck": evaluation.bottleneck.to_json(),
        "solve_seconds": found.seconds,
        "cut_short": found.cut_short,
        "communication_seconds": communication_seconds(plan, evaluation.rate_mbps),
        **({"faster": _faster_json(found)} if found.faster else {}),
        "all_reduce_bound_mbps": found.any_kind.mbps,
        "all_reduce_bound": found.any_kind.what,
        **packet_report(found.cost),
        **({} if found.cost is None else {"cost": found.cost.to_json(plan.job.sizes or EXAMPLES)}),
        "ps_ingress_bytes": ps_ingress_bytes(plan),
        **({} if found.windows is None else {"windows": found.windows.to_json()}),
        **({"cannot_be_deployed_on": found.unfit} if found.unfit else {}),
        "split": plan.split,
        **({"multicasts": [each.to_json() for each in plan.multicasts]} if plan.multicasts else {}),
        **({} if plan.proven_mbps is None else {"proven_mbps": plan.proven_mbps}),
        **({"detours": [list(route) for route in plan.detours]} if plan.detours else {}),
        "loads": [load.to_json() for load in evaluation.loads],
    }


def _faster_json(found: Planned) -> list[dict[str, Any]]:
    return [row_json(row, found.plan.job, found.any_kind, whole=found.cost is not None) for row in found.faster]


def written(content: dict[str, Any], plan: Plan) -> Iterator[str]:
    """Yield the text of a report with the plan's trees, piece by piece: the trees of 1,000 workers are 36 MB of text,
    of which only one tree's is in memory at a time."""
    yield json.dumps(content)[:-1] + ', "trees": ['
    for number, tree in enumerate(plan.trees):
        yield (", " if number else "") + json.dumps(tree.to_json())
    yield "]}\n"


def write_json(content: dict[str, Any], path: str) -> None:
    """Write a result to a file as JSON. Raise OSError where that fails."""
    with open(path, "w") as file:
        json.dump(content, file, indent=2)
        file.write("\n")


def communication_seconds(plan: Plan, rate_mbps: float) -> float:
    """Return the seconds in which a worker sends its gradient at `rate_mbps`; headers are not counted."""
    return plan.job.model_bytes * 8 / (rate_mbps * 1e6)


def packet_report(cost: Cost | None) -> dict[str, Any]:
    """Return a worker's packets and the time of one gradient's all-reduces, if the packets' size is known
    (plan/cost.py)."""
    if cost is None:
        return {}
    sizes = cost.plan.job.sizes or (cost.plan.job.model_bytes,)
    return {
        "values_per_packet": cost.values_per_packet,
        "packets": sum(sum(packets(cost.plan, cost.values_per_packet, size)) for size in sizes),
        "packet_seconds": cost.job_seconds(),
    }


def ps_ingress_bytes(plan: Plan) -> float:
    """Return the bytes that reach all parameter servers over their links per iteration; headers are not counted."""
    flows = 0.0
    for tree in plan.trees:
        own = tree.assignments
        at_home = tree.root in plan.job.both_roles and own[own.workers.index(tree.root)].point == tree.root
        flows += tree.share * (tree.ends()[tree.root] - at_home)
    return flows * plan.job.model_bytes


def bottleneck_text(load: Load) -> str:
    return f"{load.kind.replace('_', ' ')} {load.name} ({short(load.load_mbps)} of {short(load.capacity_mbps)} Mbit/s)"


def cost_lines(cost: Cost) -> Iterator[str]:
    """Yield lines with the seconds of an all-reduce, and the parts of its first round trip."""
    job = cost.plan.job
    counted = packet_report(cost)
    if job.sizes:
        many = f" in {len(job.sizes)} tensors" if len(job.sizes) > 1 else ""
        yield (
            f"            {counted['packet_seconds']:.4g} s in {counted['packets']} packets of "
            f"{counted['values_per_packet']} values{many}, with headers, padding, exponents and latency"
        )
        if job.ready_ms:
            after = counted["packet_seconds"] - job.ready_ms[-1] / 1e3
            yield f"            from the step's beginning; {after:.4g} s after the last tensor is ready"
    for size in () if job.sizes else EXAMPLES:
        yield f"all-reduce  {cost.seconds(size):.4g} s of {bytes_text(size)}"
    levels = [level for level in cost.latency(max(job.sizes or EXAMPLES)) if level.ms]
    yield f"latency     {sum(level.ms for level in levels):.3g} ms: " + ", ".join(map(str, levels))


def bytes_text(size: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} bytes"


def print_plan(found: Planned, topology: Topology) -> None:
    """Print the plan, its rate and its bound as text."""
    plan, evaluation = found.plan, found.evaluation
    print(plan)
    print(f"rate        {evaluation.rate_mbps:.6g} Mbit/s per worker")
    print(f"bound       {found.bound.mbps:.6g} Mbit/s (gap {100 * found.gap:.2f} %): {found.bound.what}")
    if not plan.multicasts:
        print(f"any kind    {found.any_kind.mbps:.6g} Mbit/s ({found.any_kind.what})")
    for row in found.faster[:1]:
        at_size = f", {row.seconds(plan.job, whole=True):.4g} s" if found.cost is not None and plan.job.sizes else ""
        print(
            f"note        {row.strategy}, without switches that add, is faster: {row.rate_mbps:.6g} Mbit/s{at_size}; "
            f"{MORE_SERVERS}"
        )
    if plan.proven_mbps is not None:
        gap = 100 * (1 - evaluation.rate_mbps / plan.proven_mbps)
        print(f"proven      {plan.proven_mbps:.6g} Mbit/s at most for any trees over these links (gap {gap:.2f} %)")
    print(f"bottleneck  {bottleneck_text(evaluation.bottleneck)}")
    if plan.job.sizes or found.cost is None:
        print(f"iteration   {communication_seconds(plan, evaluation.rate_mbps):.4g} s of gradients")
    if found.cost is not None:
        print("\n".join(cost_lines(found.cost)))
    if found.windows is not None:
        for line in found.windows.lines(evaluation.rate_mbps):
            print(line)
    workers = len(plan.job.workers)
    if workers > MAX_WORKERS and not plan.multicasts:
        print(f"note        no switch program carries it: {workers} workers, a job has at most {MAX_WORKERS}")
    for target, why in found.unfit.items() if workers <= MAX_WORKERS else ():
        print(f"note        cannot be deployed on {target}: {why}")
    print(f"solved in   {found.seconds:.3f} s{' (time was over: the best so far)' * found.cut_short}")
