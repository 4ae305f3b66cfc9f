"""Runs a plan in the simulator: inart simulate --topology .. --plan FILE [--rounds N] ..

Prints when each round of training ends, in seconds. The same arguments give the same numbers.
"""

from __future__ import annotations

import argparse
import json
import re
import sys

import numpy as np

from controlplane.common import command_line
from controlplane.planner.generators import parse_topology
from controlplane.planner.job import JobError
from controlplane.planner.plan.model import Plan, PlanError
from controlplane.planner.simulate.engine import Simulator
from controlplane.planner.simulate.native import SimulationError
from controlplane.planner.simulate.networks import follow, outage
from controlplane.planner.simulate.plans import PlanNetwork, run_plan
from controlplane.planner.topology import TopologyError

NUMBER = r"(\d+(?:\.\d+)?)"


def _outage(text: str) -> tuple[str, float, float]:
    match = re.fullmatch(rf"([^:]+):{NUMBER}-{NUMBER}", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not NODE:START-END or NODE,NODE:START-END (seconds)")
    return match[1], float(match[2]), float(match[3])


def _change(text: str) -> tuple[str, str, float, float]:
    match = re.fullmatch(rf"([^:,]+),([^:,]+):{NUMBER}={NUMBER}", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not NODE,NODE:TIME=MBPS")
    return match[1], match[2], float(match[3]), float(match[4])


def _range(text: str) -> tuple[float, float]:
    match = re.fullmatch(rf"{NUMBER}(?:-{NUMBER})?", text)
    if not match or float(match[2] or match[1]) < float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not SECONDS or LOW-HIGH")
    return float(match[1]), float(match[2] or match[1])


def _parser() -> argparse.ArgumentParser:
    parser = command_line.make("simulate", __doc__)
    parser.add_argument("--topology", required=True, help="a file, or a rule, as for inart plan")
    parser.add_argument("--plan", required=True, metavar="FILE", help="a plan that inart plan --output wrote")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of training (default: %(default)s)")
    parser.add_argument(
        "--compute",
        type=_range,
        default=(0.0, 0.0),
        metavar="LOW-HIGH",
        help="seconds of a worker's step, drawn uniformly (default: 0)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the compute times (default: %(default)s)")
    parser.add_argument(
        "--outage",
        type=_outage,
        action="append",
        default=[],
        metavar="NODE[,NODE]:START-END",
        help="a node, or a link in both directions, carries nothing from START to END s",
    )
    parser.add_argument(
        "--bandwidth",
        type=_change,
        action="append",
        default=[],
        metavar="NODE,NODE:TIME=MBPS",
        help="the link from the first to the second node has MBPS from TIME s on",
    )
    command_line.add_json(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    streams: dict[str, np.random.Generator] = {}

    def compute(worker: str) -> float:
        return float(streams[worker].uniform(*arguments.compute))

    def prepare(simulator: Simulator, network: PlanNetwork) -> None:
        for u, v, time, mbps in arguments.bandwidth:
            follow(simulator, network.link(u, v), [(time, mbps)])
        for what, start, end in arguments.outage:
            u, comma, v = what.partition(",")
            resources = [network.link(u, v), network.link(v, u)] if comma else network.node(u)
            outage(simulator, resources, start, end, network.capacities)

    try:
        topology = parse_topology(arguments.topology)
        plan = Plan.load(arguments.plan)
        plan.check(topology)
        generators = np.random.default_rng(arguments.seed).spawn(len(plan.job.workers))
        streams.update(zip(plan.job.workers, generators, strict=True))
        ends = run_plan(plan, topology, rounds=arguments.rounds, compute=compute, prepare=prepare)
    except (TopologyError, JobError, PlanError, SimulationError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps({"strategy": plan.strategy, "topology": topology.name, "ends_s": ends}))
    else:
        for index, end in enumerate(ends):
            print(f"round {index + 1}: {end:.6g} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
