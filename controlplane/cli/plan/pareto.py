"""`inart plan pareto`: rate, entries and slots of plans with fewer trees, and the fewest trees for a given rate."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict, dataclass, replace

from controlplane.cli.plan.report import planned, write_json
from controlplane.cli.plan.single import show
from controlplane.common.inputs import parse_part
from controlplane.planner.evaluate import evaluate
from controlplane.planner.job import Job
from controlplane.planner.plan.limits import MINIMUM_SLOTS, label_entries
from controlplane.planner.plan.model import Plan
from controlplane.planner.plan.planning import ERRORS, searching, solve, timed
from controlplane.planner.strategies import Strategy, get_strategy
from controlplane.planner.topology import Topology

STEP = 1.5  # factor from one number of trees to the next
ENOUGH = 1e-9  # relative tolerance for rounding


@dataclass(frozen=True)
class Point:
    """A point of the trade-off: a plan's number of trees, its rate in Mbit/s per worker, and the most table entries and
    slots that it takes of any switch (slots are a lower limit)."""

    trees: int
    rate_mbps: float
    entries: int
    slots: int


def point(plan: Plan, topology: Topology) -> Point:
    """Return a plan's rate in Mbit/s, and the most table entries and slots that it takes of any switch."""
    entries: Counter[str] = Counter()
    slots: Counter[str] = Counter()
    for tree in plan.trees:
        entries.update(label_entries(tree))
        slots.update(dict.fromkeys(tree.points, MINIMUM_SLOTS))
    rate = evaluate(plan, topology, check=False).rate_mbps
    return Point(len(plan.trees), rate, max(entries.values(), default=0), max(slots.values(), default=0))


def numbers(most: int) -> list[int]:
    """Return the numbers of trees to plan with: a geometric series from 1 to below `most`."""
    found, trees = set(), 1.0
    while round(trees) < most:
        found.add(round(trees))
        trees *= STEP
    return sorted(found)


def plans(best: Plan, topology: Topology, strategy: Strategy) -> list[Plan]:
    """Return the best plan and the Pareto-optimal plans with fewer trees, sorted by number of trees."""
    kept = [best]
    for trees in reversed(numbers(len(best.trees))):
        try:
            plan = strategy(topology, replace(best.job, max_trees=trees), seed=best.seed or 0)
        except ERRORS:
            continue
        kept.append(replace(plan, job=best.job))
    front: list[Plan] = []
    for plan in sorted(kept, key=lambda p: (len(p.trees), -p.rate_mbps)):
        if not front or plan.rate_mbps > front[-1].rate_mbps * (1 + ENOUGH):
            front.append(plan)
    return front


def fewest(best: Plan, topology: Topology, part: str, strategy: Strategy) -> Plan:
    """Return the plan with the fewest trees that keeps a part of the best plan's rate, found by bisection. `part` is a
    text such as "90%" or "0.9"; raise ValueError for anything else."""
    share = parse_part(part, "--rate-at-least")
    if best.multicasts:
        raise ValueError(f"--rate-at-least is for trees; {best.strategy} plans multicasts")
    enough = share * best.rate_mbps * (1 - ENOUGH)
    low, high = 1, len(best.trees)  # Below `low` the rate is too low; from `high` on it is enough.
    found = best
    while low < high:
        middle = (low + high) // 2
        try:
            plan = strategy(topology, replace(best.job, max_trees=middle), seed=best.seed or 0)
        except ERRORS:
            low = middle + 1
            continue
        if plan.rate_mbps >= enough:
            found, high = plan, min(middle, len(plan.trees))
        else:
            low = middle + 1
    return replace(found, job=best.job)


def command(arguments: argparse.Namespace, topology: Topology, job: Job) -> None:
    """Print the table, and draw it if --plot is given; with --rate-at-least, print the plan of the fewest trees."""
    strategy = get_strategy(arguments.strategy)
    if arguments.rate_at_least is not None:
        with timed(searching(arguments)) as limit:
            best, seconds = solve(arguments, arguments.strategy, topology, job)
            plan = fewest(best, topology, arguments.rate_at_least, strategy)
        show(arguments, planned(plan, topology, seconds, limit.cut_short), topology)
        return
    with timed(searching(arguments)):
        best = strategy(topology, job, seed=arguments.seed)
        if best.multicasts:
            raise ValueError(f"pareto is for trees; {best.strategy} plans multicasts")
        points = [point(plan, topology) for plan in plans(best, topology, strategy)]
    content = {"topology": topology.name, "job": job.to_json(), "points": [asdict(p) for p in points]}
    if arguments.output:
        write_json(content, arguments.output)
    if arguments.json:
        print(json.dumps(content))
    else:
        print(f"{'trees':>6}{'rate Mbit/s':>13}{'of the best':>13}{'entries':>9}{'slots':>7}   (at the fullest switch)")
        for p in points:
            part = 100 * p.rate_mbps / points[-1].rate_mbps
            print(f"{p.trees:>6}{p.rate_mbps:>13.4f}{part:>12.1f}%{p.entries:>9}{p.slots:>7}")
    if arguments.plot:
        draw(points, arguments.plot)


def draw(points: list[Point], path: str) -> None:
    """Plot rate over trees into the file `path`. Raise OSError, or ValueError for an unknown image format."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for axis, name, label in (
        (axes[0], "trees", "aggregation trees"),
        (axes[1], "entries", "label table entries of the switch with most"),
    ):
        axis.plot([getattr(p, name) for p in points], [p.rate_mbps for p in points], marker="o")
        axis.set_xlabel(label)
        axis.set_ylim(bottom=0)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))  # The axis shows whole numbers of trees only.
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("rate of a worker, Mbit/s")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
