"""`inart plan`: makes one plan, adds what the options ask for, prints a report, and writes it to a file."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from typing import Any

from controlplane.cli.plan.arguments import ALL, part_of_links
from controlplane.cli.plan.report import Planned, planned, print_plan, report, written
from controlplane.planner.job import Job
from controlplane.planner.plan.host_collectives import faster_than
from controlplane.planner.plan.losses import (
    Loss,
    kept,
    kept_with_new_shares,
    lines_of_losses,
    lines_of_weakened,
    losses,
    weakened,
)
from controlplane.planner.plan.model import Plan
from controlplane.planner.plan.planning import searching, solve, timed
from controlplane.planner.topology import Topology


def command(arguments: argparse.Namespace, topology: Topology, job: Job) -> None:
    """Print the plan; write and draw it if asked for. Raise one of planning.ERRORS, or OSError."""
    show(arguments, _made(arguments, topology, job), topology)


def show(arguments: argparse.Namespace, found: Planned, topology: Topology) -> None:
    """Print a plan with the losses and differences that the arguments ask for; write and draw it. Raise as `command`
    does."""
    after = losses(found.plan, topology) if arguments.losses == ALL else []
    loses = part_of_links(arguments)
    slower = [] if loses is None else weakened(found.plan, topology, found.evaluation.rate_mbps, loses)
    left = None if loses is None else kept(found.plan, topology, found.evaluation.rate_mbps, loses)
    changes = None
    if arguments.frozen_split:
        from controlplane.planner.plan.replan import difference

        previous = Plan.load(arguments.frozen_split)
        changes = difference(previous, found.plan).to_json(previous, found.plan)
    if not arguments.json:
        _print(found, topology, after, changes)
        if left is not None:
            print("\n".join(lines_of_weakened(slower, found.evaluation.rate_mbps, left)))
    if arguments.json or arguments.output:
        content = report(found, topology)
        content |= {"losses": [asdict(loss) for loss in after]} if after else {}
        if left is not None:
            again = kept_with_new_shares(slower, found.evaluation.rate_mbps, left.loses)
            content |= {"kept": asdict(left), "kept_with_new_shares": asdict(again)}
            content |= {"slower_links": [asdict(item) for item in slower]}
        content |= {} if changes is None else {"difference": changes}
        if arguments.output:
            with open(arguments.output, "w") as file:
                file.writelines(written(content, found.plan))
        if arguments.json:
            sys.stdout.writelines(written(content, found.plan))
    if arguments.draw:
        _draw(found, topology, arguments.draw)


def _made(arguments: argparse.Namespace, topology: Topology, job: Job) -> Planned:
    with timed(searching(arguments)) as limit:
        plan, seconds = solve(arguments, arguments.strategy, topology, job)
        bound = None
        if arguments.prove:
            from controlplane.planner.strategies.fabric.prove import proven_bound

            bound = proven_bound(topology, job)
        elif plan.strategy == "inart" and not limit.cut_short:
            from controlplane.planner.strategies.fabric.prove import closer_bound

            bound = closer_bound(plan, topology)
    found = planned(plan, topology, seconds, limit.cut_short, bound)
    faster = () if found.cut_short else faster_than(found.plan, topology, found.evaluation.rate_mbps)
    return replace(found, faster=faster)


def _print(found: Planned, topology: Topology, after: list[Loss], changes: dict[str, Any] | None) -> None:
    print_plan(found, topology)
    if after:
        print("\n".join(lines_of_losses(after, found.evaluation.rate_mbps)))
    if changes is not None:
        print(
            f"difference  {len(changes['kept_trees'])} trees kept, {len(changes['labels_to_add'])} labels to add, "
            f"{len(changes['labels_to_remove'])} to remove"
        )


def _draw(found: Planned, topology: Topology, path: str) -> None:
    from controlplane.planner.plan.draw import draw  # matplotlib takes a while

    draw(found.plan, found.evaluation, topology, path)
    print(f"drawn: {path}", file=sys.stderr)
