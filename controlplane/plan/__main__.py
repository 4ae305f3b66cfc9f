"""The planner's command line: python -m controlplane.plan [compare] --topology .. --job .. --strategy .."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from controlplane.evaluate import Evaluation, Load, evaluate
from controlplane.generators import parse_topology
from controlplane.job import Job, JobError, parse_job
from controlplane.plan.limits import Limits, held, limited
from controlplane.plan.model import Plan, PlanError
from controlplane.plan.packets import packet_seconds, packets
from controlplane.strategies import STRATEGIES, Infeasible, get_strategy
from controlplane.topology import Topology, TopologyError
from p4src.protocol import PROTOCOL

ERRORS = (TopologyError, JobError, PlanError, Infeasible, ValueError)

COMPARED = ("inart", "inart-strict", "inart-paper", "r-inart", "atp", "atp-strict", "lbmm", "equal", "exact")


def report(plan: Plan, evaluation: Evaluation, topology: Topology, solve_seconds: float) -> dict[str, Any]:
    """The JSON of one planned instance (schema: docs/planner.md). All rates come from the evaluator."""
    return {
        "strategy": plan.strategy,
        "topology": topology.name,
        "job": plan.job.to_json(),
        "seed": plan.seed,
        "version": plan.version,
        "rate_mbps": evaluation.rate_mbps,
        "bound_mbps": evaluation.bound_mbps,
        "gap": evaluation.gap,
        "bottleneck": evaluation.bottleneck.to_json(),
        "solve_seconds": solve_seconds,
        "communication_seconds": communication_seconds(plan, evaluation.rate_mbps),
        **packet_report(plan, topology, evaluation.rate_mbps),
        "ps_ingress_bytes": ps_ingress_bytes(plan),
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


def solve(arguments: argparse.Namespace, strategy: str, topology: Topology, job: Job) -> tuple[Plan, Evaluation, float]:
    """Plans and evaluates; seconds from loaded inputs to the routed plan."""
    previous = Plan.load(arguments.frozen_split) if arguments.frozen_split else None
    begin = time.perf_counter()
    if previous:
        from controlplane.plan.replan import replan  # brings the solver along

        plan = replan(previous, topology, job=job, strategy=strategy, seed=arguments.seed)
    else:
        plan = get_strategy(strategy)(topology, job, seed=arguments.seed)
    seconds = time.perf_counter() - begin
    return plan, evaluate(plan, topology), seconds


def bottleneck_text(load: Load) -> str:
    return f"{load.kind.replace('_', ' ')} {load.name} ({load.load_mbps:.4g} of {load.capacity_mbps:.4g} Mbit/s)"


def print_plan(plan: Plan, evaluation: Evaluation, topology: Topology, seconds: float) -> None:
    print(plan)
    print(f"rate        {evaluation.rate_mbps:.6g} Mbit/s per worker")
    print(f"bound       {evaluation.bound_mbps:.6g} Mbit/s (gap {100 * evaluation.gap:.2f} %)")
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
    print(f"solved in   {seconds:.3f} s")


def compare(arguments: argparse.Namespace, topology: Topology, job: Job) -> None:
    """All strategies on one instance; those that cannot run there say why."""
    rows: list[dict[str, Any]] = []
    names = tuple(STRATEGIES) if arguments.strategies == ["all"] else tuple(arguments.strategies or COMPARED)
    for name in names:
        get_strategy(name)  # a name that does not exist is an error, not a row
    for done, name in enumerate(names):
        _progress(f"{name} is planning, {done} of {len(names)} done")
        try:
            plan, evaluation, seconds = solve(arguments, name, topology, job)
        except ERRORS as error:
            rows.append({"strategy": name, "refused": str(error)})
            continue
        rows.append(
            {
                "strategy": name,
                "rate_mbps": evaluation.rate_mbps,
                "bound_mbps": evaluation.bound_mbps,
                "gap": evaluation.gap,
                **({} if plan.proven_mbps is None else {"proven_mbps": plan.proven_mbps}),
                "bottleneck": evaluation.bottleneck.to_json(),
                "trees": len(plan.trees),
                "communication_seconds": communication_seconds(plan, evaluation.rate_mbps),
                **packet_report(plan, topology, evaluation.rate_mbps),
                "ps_ingress_bytes": ps_ingress_bytes(plan),
                "solve_seconds": seconds,
            }
        )
    _progress("")
    proven = {row["strategy"]: row["proven_mbps"] for row in rows if "proven_mbps" in row}
    for row in rows:  # what one strategy proves holds for the trees of all
        if proven and row.get("trees"):
            row["gap"] = max(0.0, 1 - row["rate_mbps"] / min(row["bound_mbps"], *proven.values()))
    if arguments.json:
        print(json.dumps({"topology": topology.name, "job": job.to_json(), "strategies": rows}, indent=2))
        return
    counted = any("packet_seconds" in row for row in rows)
    heads = f"{'rate Mbit/s':>12}{'gap':>9}{'trees':>7}{'time s':>10}"
    heads += f"{'in packets s':>14}" * counted + f"{'PS bytes':>12}{'solve s':>9}"
    print(f"{'strategy':<14}{heads}  bottleneck")
    for row in rows:
        if "refused" in row:
            print(f"{row['strategy']:<14}  {row['refused']}")
            continue
        print(
            f"{row['strategy']:<14}{row['rate_mbps']:>12.4f}{100 * row['gap']:>8.2f}%{row['trees']:>7}"
            f"{row['communication_seconds']:>10.4f}"
            + (f"{row.get('packet_seconds', math.nan):>14.4f}" if counted else "")
            + f"{row['ps_ingress_bytes']:>12.0f}{row['solve_seconds']:>9.3f}"
            f"  {row['bottleneck']['kind'].replace('_', ' ')} {row['bottleneck']['name']}"
        )
    # A plan of multicasts has a bound of its own, for as many receivers.
    bounds = [row["bound_mbps"] for row in rows if row.get("trees")]
    if bounds:
        print(f"bound for any scheme: {bounds[0]:.4f} Mbit/s")
    for name, mbps in proven.items():
        print(f"bound for any trees over these links, proven by {name}: {mbps:.4f} Mbit/s")


def _progress(text: str) -> None:
    """For who watches a terminal: what is being done, over what was said before."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m controlplane.plan", description=__doc__)
    result.add_argument("command", nargs="?", choices=("plan", "compare"), default="plan")
    result.add_argument("--topology", required=True, help="a file, or like fattree:k=6,bandwidth=20 or testbed")
    result.add_argument("--job", default="", help="a file, or like workers=50,ps=4,seed=1,model=548K,trees=16")
    result.add_argument(
        "--target",
        metavar="NAME",
        help=f"plan for switches with this program's slots, tables and packets ({', '.join(PROTOCOL.targets)})",
    )
    result.add_argument("--max-trees", type=int, metavar="N", help="at most so many aggregation trees")
    result.add_argument("--strategy", default="inart", help=f"one of {', '.join(STRATEGIES)} (default: %(default)s)")
    result.add_argument(
        "--strategies", nargs="+", metavar="NAME", help="with compare: these, or all (default: the in-network ones)"
    )
    result.add_argument("--seed", type=int, default=0, help="of strategies that draw (default: %(default)s)")
    result.add_argument(
        "--frozen-split",
        metavar="PLAN",
        help="replan: keep each parameter server's share of this plan (and its job unless --job says otherwise), and "
        "of its trees what still serves; show what changes",
    )
    result.add_argument("--json", action="store_true", help="print JSON (docs/planner.md)")
    result.add_argument("--output", metavar="FILE", help="also write the JSON here; it can be read as a plan again")
    result.add_argument("--draw", metavar="PNG", help="draw the fabric with trees, link loads and the bottleneck")
    return result


def refuse_with_compare(arguments: argparse.Namespace) -> None:
    for option in ("draw", "output"):
        if getattr(arguments, option):
            raise ValueError(f"--{option} is for one plan: compare makes several; give --strategy NAME without compare")


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        topology = parse_topology(arguments.topology)
        if arguments.command == "compare":
            refuse_with_compare(arguments)
        if arguments.frozen_split and not arguments.job:
            job = Plan.load(arguments.frozen_split).job
        else:
            job = parse_job(arguments.job, topology)
        if arguments.target is not None:
            topology = limited(topology, Limits.of_target(arguments.target))
        if arguments.max_trees is not None:
            job = replace(job, max_trees=arguments.max_trees)
        if arguments.command == "compare":
            compare(arguments, topology, job)
            return 0
        plan, evaluation, seconds = solve(arguments, arguments.strategy, topology, job)
    except ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    content = report(plan, evaluation, topology, seconds)
    if arguments.frozen_split:
        from controlplane.plan.replan import difference

        previous = Plan.load(arguments.frozen_split)
        content["difference"] = difference(previous, plan).to_json(previous, plan)
    if arguments.json:
        print(json.dumps(content, indent=2))
    else:
        print_plan(plan, evaluation, topology, seconds)
        if "difference" in content:
            changes = content["difference"]
            print(
                f"difference  {len(changes['kept_trees'])} trees kept, {len(changes['labels_to_add'])} labels to add, "
                f"{len(changes['labels_to_remove'])} to remove"
            )
    try:
        if arguments.output:
            Path(arguments.output).write_text(json.dumps(content, indent=2) + "\n")
        if arguments.draw:
            from controlplane.plan.draw import draw

            draw(plan, evaluation, topology, arguments.draw)
            print(f"drawn: {arguments.draw}", file=sys.stderr)
    except OSError as error:
        print(f"error: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except ValueError as error:  # a format that matplotlib does not know
        print(f"error: --draw {arguments.draw}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever reads has seen enough
