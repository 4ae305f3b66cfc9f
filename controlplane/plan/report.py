"""What a command says of a plan: as JSON (schema: docs/planner.md) and as text. All rates come from the evaluator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controlplane.evaluate import Evaluation, Load, evaluate
from controlplane.job import Job
from controlplane.plan.cost import Windows, windows
from controlplane.plan.limits import held
from controlplane.plan.model import Plan
from controlplane.plan.packets import packet_seconds, packets
from controlplane.strategies.fabric.bounds import Bound, cheap_bound
from controlplane.topology import Topology
from p4src.protocol import MAX_WORKERS


@dataclass(frozen=True)
class Planned:
    """A plan with what is known of it. bound: the best that is cheap, or was asked for; seconds: from loaded inputs to
    the routed plan; cut_short: the time limit or Ctrl-C ended the search. windows: None where no target is known."""

    plan: Plan
    evaluation: Evaluation
    bound: Bound
    seconds: float
    cut_short: bool
    windows: Windows | None

    @property
    def gap(self) -> float:
        return max(0.0, 1 - self.evaluation.rate_mbps / self.bound.mbps) if self.bound.mbps > 0 else 0.0


def bound_of(plan: Plan, evaluation: Evaluation, topology: Topology, job: Job) -> Bound:
    """The best that is cheap; multicasts have one of their own, for as many receivers."""
    if plan.multicasts:
        return Bound(evaluation.bound_mbps, "workers' and sites' links")
    return cheap_bound(topology, job)


def planned(plan: Plan, topology: Topology, seconds: float, cut_short: bool, bound: Bound | None = None) -> Planned:
    """Evaluates. bound: a better one than the cheap ones."""
    evaluation = evaluate(plan, topology)
    least = bound_of(plan, evaluation, topology, plan.job)
    if bound is not None and bound.mbps < least.mbps:
        least = bound
    return Planned(plan, evaluation, least, seconds, cut_short, windows(plan, topology, evaluation.rate_mbps))


def report(found: Planned, topology: Topology) -> dict[str, Any]:
    """The JSON of one planned instance."""
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
        **packet_report(plan, topology, evaluation.rate_mbps),
        "ps_ingress_bytes": ps_ingress_bytes(plan),
        **({} if found.windows is None else {"windows": found.windows.to_json()}),
        "split": plan.split,
        "trees": [tree.to_json() for tree in plan.trees],
        **({"multicasts": [each.to_json() for each in plan.multicasts]} if plan.multicasts else {}),
        **({} if plan.proven_mbps is None else {"proven_mbps": plan.proven_mbps}),
        **({"detours": [list(route) for route in plan.detours]} if plan.detours else {}),
        "loads": [load.to_json() for load in evaluation.loads],
    }


def communication_seconds(plan: Plan, rate_mbps: float) -> float:
    """Time in which a worker sends its gradient at the rate (headers not counted)."""
    return plan.job.model_bytes * 8 / (rate_mbps * 1e6)


def packet_report(plan: Plan, topology: Topology, rate_mbps: float) -> dict[str, Any]:
    """Packets of a worker and time of one all-reduce with headers, padding and exponents, where the size is known."""
    size = held(topology).values_per_packet
    if size is None or plan.multicasts:
        return {}
    return {
        "values_per_packet": size,
        "packets": sum(packets(plan, size)),
        "packet_seconds": packet_seconds(plan, size, rate_mbps),
    }


def ps_ingress_bytes(plan: Plan) -> float:
    """Bytes that reach all parameter servers per iteration (headers not counted)."""
    flows = sum(
        tree.share
        * (sum(a.point == tree.root for a in tree.assignments) + sum(r.next == tree.root for r in tree.relays))
        for tree in plan.trees
    )
    return flows * plan.job.model_bytes


def bottleneck_text(load: Load) -> str:
    return f"{load.kind.replace('_', ' ')} {load.name} ({load.load_mbps:.4g} of {load.capacity_mbps:.4g} Mbit/s)"


def print_plan(found: Planned, topology: Topology) -> None:
    plan, evaluation = found.plan, found.evaluation
    print(plan)
    print(f"rate        {evaluation.rate_mbps:.6g} Mbit/s per worker")
    print(f"bound       {found.bound.mbps:.6g} Mbit/s (gap {100 * found.gap:.2f} %): {found.bound.what}")
    if plan.proven_mbps is not None:
        gap = 100 * (1 - evaluation.rate_mbps / plan.proven_mbps)
        print(f"proven      {plan.proven_mbps:.6g} Mbit/s at most for any trees over these links (gap {gap:.2f} %)")
    print(f"bottleneck  {bottleneck_text(evaluation.bottleneck)}")
    print(f"iteration   {communication_seconds(plan, evaluation.rate_mbps):.4g} s of gradients")
    counted = packet_report(plan, topology, evaluation.rate_mbps)
    if counted:
        print(
            f"            {counted['packet_seconds']:.4g} s in {counted['packets']} packets of "
            f"{counted['values_per_packet']} values, with headers, padding and exponents"
        )
    if found.windows is not None:
        for line in found.windows.lines(evaluation.rate_mbps):
            print(line)
    workers = len(plan.job.workers)
    if workers > MAX_WORKERS and not plan.multicasts:
        print(f"note        no switch program carries it yet: {workers} workers, bitmaps have {MAX_WORKERS} bits")
    print(f"solved in   {found.seconds:.3f} s{' (time was over: the best so far)' * found.cut_short}")
