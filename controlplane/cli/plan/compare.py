"""`inart plan --compare`: plans one instance with several strategies and prints each result as soon as it is there.

A strategy that cannot plan the instance has a line that says why.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from controlplane.cli.plan.arguments import ALL, HOST_WAYS, ON_HOSTS, ON_WORKERS, part_of_links
from controlplane.cli.plan.report import (
    Planned,
    communication_seconds,
    packet_report,
    planned,
    ps_ingress_bytes,
    write_json,
)
from controlplane.common.numbers import short
from controlplane.planner.adding_hosts import workers_add
from controlplane.planner.job import Job
from controlplane.planner.plan.host_collectives import MORE_SERVERS, NOTABLY, host_rows, row_json
from controlplane.planner.plan.limits import switch_limits
from controlplane.planner.plan.losses import Kept, kept
from controlplane.planner.plan.planning import ERRORS, solve, timed
from controlplane.planner.strategies import STRATEGIES
from controlplane.planner.strategies.fabric.bounds import all_reduce_bound, cheap_bound
from controlplane.planner.strategies.fabric.parts_bound import Bound
from controlplane.planner.strategies.fabric.prove import closer_bound, proven_bound
from controlplane.planner.topology import Topology
from p4src.protocol import PROTOCOL

COMPARED = STRATEGIES.below("fabric")
WIDTH = 27  # columns of a strategy's name
LIMIT_EACH_S = 60.0  # seconds for the search of each strategy, unless --time-limit is given

OURS = "inart"
"""The strategy for which a tighter bound is computed where it leaves a gap."""

ONE_TREE_EACH = ("exact",)
"""Strategies whose bound holds only for plans with one tree per parameter server."""


Row = dict[str, Any]


def command(arguments: argparse.Namespace, topology: Topology, job: Job) -> None:
    """Print the strategies side by side: rates in Mbit/s, planning times in seconds; write them if asked for. Raise
    OSError where that fails."""
    every = arguments.strategies in ((), (ALL,))
    names = tuple(STRATEGIES) if arguments.strategies == (ALL,) else arguments.strategies or COMPARED
    among_hosts = HOST_WAYS if every else tuple(n for n in names if n in HOST_WAYS)
    beside = every or ON_WORKERS in names
    names = tuple(name for name in names if name not in (*HOST_WAYS, ON_WORKERS, ON_HOSTS))
    bound: Bound | None = None
    if arguments.prove:
        with timed(arguments.time_limit):
            bound = proven_bound(topology, job)
    counted = switch_limits(topology).values_per_packet is not None
    if not arguments.json:
        print(_head(counted), flush=True)
    rows = []
    for name in names:
        row = _row(arguments, name, topology, job, bound)
        rows.append(row)
        if not arguments.json:
            print(_line(row, counted), flush=True)
    shared = _on_workers(arguments, topology, job) if beside else None
    if shared is not None and not arguments.json:
        print(_line(shared, counted), flush=True)
    any_kind = all_reduce_bound(topology, job)
    host_part = _among_hosts(arguments, topology, job, among_hosts, any_kind) if among_hosts else []
    if host_part and not arguments.json:
        print("\n".join(_host_line(row, counted) for row in host_part), flush=True)
    ours = [*rows, *([] if shared is None else [shared])]
    wanted = ON_HOSTS in arguments.strategies
    adding = _on_hosts(arguments, topology, job) if wanted or (beside and _beaten(topology, ours, host_part)) else None
    if adding is not None and not arguments.json:
        print(_line(adding, counted), flush=True)
    trees = [row for row in rows if "proven_mbps" in row and row["strategy"] not in ONE_TREE_EACH]
    proven = {row["strategy"]: row["proven_mbps"] for row in trees}
    for row in rows:  # A bound that one strategy proves for trees holds for the trees of all strategies.
        if proven and row.get("trees"):
            row["gap"] = max(0.0, 1 - row["rate_mbps"] / min(row["bound_mbps"], *proven.values()))
    everything = {
        "topology": topology.name,
        "job": job.to_json(),
        "all_reduce_bound_mbps": any_kind.mbps,
        "all_reduce_bound": any_kind.what,
        "strategies": [*ours, *host_part, *([] if adding is None else [adding])],
    }
    if arguments.output:
        write_json(everything, arguments.output)
    if arguments.json:
        print(json.dumps(everything, indent=2))
        return
    if any(row.get("trees") for row in rows):
        best = cheap_bound(topology, job)
        best = bound if bound is not None and bound.mbps < best.mbps else best
        print(f"bound for any trees of these parameter servers: {best.mbps:.4f} Mbit/s ({best.what})")
    print(f"bound for any all-reduce: {any_kind.mbps:.4f} Mbit/s ({any_kind.what})")
    _print_notes(topology, rows, shared, host_part, sized=bool(job.sizes))
    if adding is not None and "rate_mbps" in adding:
        print(f"note: {ON_HOSTS} needs a softswitch on each host that adds (docs/planner.md, Hosts that add, deployed)")
    for name, mbps in proven.items():
        print(f"bound for any trees over these links, proven by {name}: {mbps:.4f} Mbit/s")


def _among_hosts(
    arguments: argparse.Namespace, topology: Topology, job: Job, names: Sequence[str], any_kind: Bound
) -> list[Row]:
    """Return the rows of these collectives among the hosts alone; `any_kind` is the bound of every all-reduce."""
    with timed(arguments.time_limit or LIMIT_EACH_S):
        made = [row for row in host_rows(topology, job) if row.strategy in names]
    whole = switch_limits(topology).values_per_packet is not None
    return [row_json(row, job, any_kind, whole=whole) for row in made]


def _print_notes(
    topology: Topology, rows: Sequence[Row], shared: Row | None, host_part: Sequence[Row], *, sized: bool
) -> None:
    """Print which rows are faster than the plans for these parameter servers, and which of these cannot be deployed.
    `sized` says whether the sizes of the job's tensors are known; where those of packets are known, too, times are
    compared."""
    ours = _best(rows)
    if _beaten(topology, rows, host_part):
        winner = max(host_part, key=lambda row: row["rate_mbps"])
        least = min((row["seconds"] for row in rows if "packet_seconds" in row and sized), default=math.inf)
        if winner["seconds"] < least:
            print(
                f"note: {winner['strategy']}, without switches that add, is faster than all plans for these parameter "
                f"servers: {winner['rate_mbps']:.4f} Mbit/s; {MORE_SERVERS}"
            )
        else:
            print(
                f"note: {winner['strategy']}, without switches that add, has a higher rate, {winner['rate_mbps']:.4f} "
                f"Mbit/s, and takes longer at this size, {short(winner['seconds'])} s"
            )
    if shared is not None and shared.get("rate_mbps", 0.0) > ours * NOTABLY:
        print(f"note: a parameter server on every worker's server (ps=workers) makes {shared['rate_mbps']:.4f} Mbit/s")
    for target in PROTOCOL.targets:
        no = [row["strategy"] for row in rows if target in row.get("cannot_be_deployed_on", {})]
        if no:
            print(f"cannot be deployed on {target}: {', '.join(no)} (the plan of one says why)")


def _best(rows: Sequence[Row]) -> float:
    """Return the highest rate of these rows; infinity where none of them has one."""
    return max((row["rate_mbps"] for row in rows if "rate_mbps" in row), default=math.inf)


def _beaten(topology: Topology, ours: Sequence[Row], host_part: Sequence[Row]) -> bool:
    """Return whether a collective among hosts alone is notably faster than all of these rows."""
    return bool(topology.results_on_links and host_part and _best(host_part) > _best(ours) * NOTABLY)


def _on_hosts(arguments: argparse.Namespace, topology: Topology, job: Job) -> Row | None:
    """Return the row of our planner where workers' hosts are parameter servers and add inside of trees; None for a job
    of one worker."""
    if arguments.frozen_split or len(job.workers) < 2:
        return None
    return {**_row(arguments, "inart", *workers_add(topology, job), None), "strategy": ON_HOSTS}


def _on_workers(arguments: argparse.Namespace, topology: Topology, job: Job) -> dict[str, Any] | None:
    """Return the row of our planner for a parameter server on every worker's server instead of the job's own.

    Its gap is to the bound of such plans. Return None if the job is already of that form, or has one worker.
    """
    if arguments.frozen_split or len(job.workers) < 2 or set(job.workers) <= set(job.parameter_servers):
        return None
    row = _row(arguments, "inart", topology, replace(job, parameter_servers=job.workers), None)
    return {**row, "strategy": ON_WORKERS}


def _row(arguments: argparse.Namespace, name: str, topology: Topology, job: Job, bound: Bound | None) -> dict[str, Any]:
    try:
        with timed(arguments.time_limit or LIMIT_EACH_S) as limit:
            plan, seconds = solve(arguments, name, topology, job)
            if bound is None and name == OURS and not limit.cut_short:
                bound = closer_bound(plan, topology)
        found: Planned = planned(plan, topology, seconds, limit.cut_short, bound)
    except ERRORS as error:
        return {"strategy": name, "refused": str(error)}
    rate = found.evaluation.rate_mbps
    loses = part_of_links(arguments)
    return {
        "strategy": name,
        "rate_mbps": rate,
        "bound_mbps": found.bound.mbps,
        "bound": found.bound.what,
        "gap": found.gap,
        **({} if plan.proven_mbps is None else {"proven_mbps": plan.proven_mbps}),
        "bottleneck": found.evaluation.bottleneck.to_json(),
        **({} if loses is None else {"kept": asdict(kept(plan, topology, rate, loses))}),
        "trees": len(plan.trees),
        "communication_seconds": communication_seconds(plan, rate),
        "seconds": communication_seconds(plan, rate) if found.cost is None else found.cost.job_seconds(),
        **packet_report(found.cost),
        **({} if found.windows is None else {"window_mbps": found.windows.rate_mbps}),
        "ps_ingress_bytes": ps_ingress_bytes(plan),
        "solve_seconds": seconds,
        "cut_short": found.cut_short,
        **({"cannot_be_deployed_on": found.unfit} if found.unfit else {}),
    }


def _head(counted: bool) -> str:
    heads = f"{'rate Mbit/s':>12}{'gap':>9}{'trees':>7}{'time s':>10}"
    heads += f"{'in packets s':>14}" * counted + f"{'PS bytes':>12}{'solve s':>9}"
    return f"{'strategy':<{WIDTH}}{heads}  bottleneck"


def _host_line(row: dict[str, Any], counted: bool) -> str:
    """Return the line of a collective among the hosts alone; its gap is to a bound that holds for every all-reduce."""
    full = row["bottleneck"]["name"] if "bottleneck" in row else "links"
    return (
        f"{row['strategy']:<{WIDTH}}{row['rate_mbps']:>12.4f}{100 * row['gap']:>8.2f}%{'-':>7}{row['seconds']:>10.4f}"
        + f"{'-':>14}" * counted
        + f"{'-':>12}{'-':>9}  {full}"
    )


def _line(row: dict[str, Any], counted: bool) -> str:
    if "refused" in row:
        return f"{row['strategy']:<{WIDTH}}  {row['refused']}"
    return (
        f"{row['strategy']:<{WIDTH}}{row['rate_mbps']:>12.4f}{100 * row['gap']:>8.2f}%{row['trees']:>7}"
        f"{row['communication_seconds']:>10.4f}"
        + (f"{row.get('packet_seconds', math.nan):>14.4f}" if counted else "")
        + f"{row['ps_ingress_bytes']:>12.0f}{row['solve_seconds']:>9.3f}"
        f"  {row['bottleneck']['kind'].replace('_', ' ')} {row['bottleneck']['name']}"
        + " (best so far: time was over)" * row["cut_short"]
        + (f"; keeps {Kept(**row['kept'])}" if "kept" in row else "")
    )
