"""The command of the package, whose docstring describes it; --help lists the options."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from controlplane.planner.generators import fattree
from controlplane.planner.job import place_job
from controlplane.planner.plan import Plan
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology
from evaluation import commands
from evaluation.recovery.bound import most_carried
from evaluation.recovery.disturbances import KINDS, LENGTH, LOSSES, SHARE, WINDOW, Played, Recovery
from evaluation.recovery.networks import racks
from evaluation.recovery.virtual import VirtualNetwork

GOAL_SECONDS = 2.0
SLACK_SECONDS = 8.0
INGRESS = 1.0


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = commands.parser(
        "recovery",
        f"""The agents' engines on a network in virtual time: disturbances, and how long until {SHARE:.0%}
of the planned rate is carried again (over {WINDOW:g} s). Virtual seconds are the network's: how
quick or busy this machine is makes no difference to them.

Exit status 0: all within {GOAL_SECONDS:g} s and every sum right, else 1.""",
    )
    parser.add_argument("--k", type=int, default=0, help="a fat-tree; 0: racks of 32 below one switch (%(default)s)")
    parser.add_argument("--workers", type=int, default=100, help="(%(default)s)")
    commands.add_servers(parser, 4)
    parser.add_argument("--bandwidth", type=float, default=2.0, help="Mbit/s of each link (%(default)s)")
    parser.add_argument(
        "--aggregation", type=float, default=9.0, help="Mbit/s that a fat-tree's switch adds (%(default)s)"
    )
    parser.add_argument("--values", type=int, default=64, help="in a packet (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of losses and lateness (%(default)s)")
    parser.add_argument(
        "--kinds",
        default=",".join(KINDS),
        help="; ".join(f"{name}: {what}" for name, what in KINDS.items()).replace("%", "%%"),
    )
    parser.add_argument("--json", action="store_true", help="instead of a table")
    arguments = parser.parse_args(argv)
    arguments.kinds = arguments.kinds.split(",")
    unknown = [kind for kind in arguments.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if arguments.ps is None and not arguments.k:
        parser.error("--ps workers needs a fat-tree: --k")
    return arguments


def network_of(arguments: argparse.Namespace) -> tuple[Topology, Plan]:
    """Return the network of a command line, and the plan of its job."""
    if not arguments.k:
        return racks(arguments.workers, arguments.ps, arguments.bandwidth)
    topology = fattree(
        arguments.k,
        arguments.bandwidth,
        aggregation_mbps=arguments.aggregation,
        ingress_mbps=INGRESS * arguments.bandwidth,
    )
    job = place_job(topology, arguments.workers, arguments.ps, seed=0, model_bytes=1 << 20)
    return topology, get_strategy("inart")(topology, job, seed=0)


def row(one: Recovery, right: bool, most: float | None) -> str:
    """Return a recovery as a line of the table. `most` is the part of the planned rate that could be carried meanwhile
    (bound.most_carried), where packets are lost.
    """
    could = "" if most is None else f" (nobody more than {most:.3f})"
    back = "not" if one.back_seconds is None else f"{one.back_seconds:.1f} s"
    rates = " ".join(f"{rate / one.planned_mbps:.2f}" for rate in one.rates)
    return (
        f"{one.kind:6} of the plan meanwhile: {one.meanwhile:.3f}{could}  back after {back:6}  of the plan "
        f"in each second: {rates}  packets to the parameter servers: "
        f"{one.excess:.2f} of needed, {one.unadded} unadded, {one.questions} questions, "
        f"{'sums right' if right else 'WRONG OR NOT DONE'}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    topology, plan = network_of(arguments)
    found, good = [], True
    if not arguments.json:
        print(f"{len(plan.job.workers)} workers, {len(plan.trees)} trees, {plan.rate_mbps:.3g} Mbit/s planned")
    for kind in arguments.kinds:
        with VirtualNetwork(topology, plan, values=arguments.values, seed=arguments.seed) as network:
            played = Played(network, kind, seconds=LENGTH[kind] + SLACK_SECONDS, seed=arguments.seed)
            one = played.run()
            right = played.finish(60.0)
        good &= right and one.back_seconds is not None and one.back_seconds <= GOAL_SECONDS
        found.append(one.to_json() | {"right": right})
        if not arguments.json:
            most = most_carried(topology, plan, LOSSES[kind]) if kind in LOSSES else None
            print(row(one, right, most), flush=True)
    if arguments.json:
        print(json.dumps(found, indent=2))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
