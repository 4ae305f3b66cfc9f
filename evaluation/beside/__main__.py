"""A job beside foreign TCP or UDP over links of an emulated network: what each of them gets, and how long the queue is.

    python -m evaluation.beside                                  every case, four TCP flows each way; about two minutes
    python -m evaluation.beside --cases with --flows 1 --json
    python -m evaluation.beside --figure beside.png

Each case is run with a plan for the whole link; with one for an equal share of it, as an operator declares what is left
(`inart replan --set LINK.used_bandwidth_mbps=N`); with that and a queue of its own in the switches, by the DSCP of its
packets (INART_DSCP=32), which is held to that share; and with a controller that measures what is left (`beside = 25` in
its --config). Needs root. Exit status: 0 when all went well, 1 when it could not run, 3 when a sum was wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from controlplane.common.command_line import add_json
from evaluation import commands
from evaluation.beside.run import CASES, PLANS, Settings, run
from evaluation.beside.shares import draw, table
from topologies.command import Say, guarded, stopwatch
from topologies.network import EmulationError
from topologies.zygote import HostFailure


def make_parser() -> argparse.ArgumentParser:
    usual = Settings()
    parser = commands.parser("beside", __doc__)
    cases = "; ".join(f"{name}: {what}" for name, what in CASES.items())
    parser.add_argument("--cases", default=",".join(CASES), metavar="NAME,...", help=f"{cases} (default: all)")
    parser.add_argument("--plans", default=",".join(PLANS), metavar="NAME,...", help="%(default)s (default: all)")
    parser.add_argument("--flows", type=int, default=usual.flows, metavar="N", help="of TCP, each way (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=usual.seconds, help="how long the job takes with an equal share (%(default)g)"
    )
    parser.add_argument(
        "--queue", type=int, default=usual.queue, metavar="N", help="packets in the narrow link's queue (%(default)s)"
    )
    parser.add_argument(
        "--ecn", type=int, default=usual.ecn, metavar="N",
        help="each case once more with switches that mark what finds N packets waiting (ECN), and TCP that answers",
    )  # fmt: skip
    parser.add_argument("--congestion", default=usual.congestion, help="control of TCP: cubic, reno, ... (%(default)s)")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw rates and queues")
    add_json(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    arguments = parser.parse_args(argv)
    cases = arguments.cases.split(",")
    if unknown := [case for case in cases if case not in CASES]:
        parser.error(f"--cases {unknown[0]}: there are {', '.join(CASES)}")
    plans = arguments.plans.split(",")
    if unknown := [plan for plan in plans if plan not in PLANS]:
        parser.error(f"--plans {unknown[0]}: there are {', '.join(PLANS)}")
    if min(arguments.flows, arguments.queue, arguments.seconds) <= 0:
        parser.error("--flows, --queue and --seconds are above 0")

    def work() -> int:
        settings = Settings(
            flows=arguments.flows, seconds=arguments.seconds, queue=arguments.queue, congestion=arguments.congestion,
            ecn=arguments.ecn,
        )  # fmt: skip
        say: Say = (lambda line: None) if arguments.json else stopwatch()
        shares = []
        for case in cases:
            shares += run(case, PLANS[:1] if case == "alone" else plans, settings, say)
        text = json.dumps({"settings": vars(settings), "runs": [one.to_json() for one in shares]}, indent=1)
        print(text if arguments.json else f"\n{table(shares)}")
        if arguments.figure is not None:
            draw(shares, arguments.figure)
        return 0 if all(one.right for one in shares) else 3

    return guarded("beside", work, EmulationError, HostFailure, ValueError)


if __name__ == "__main__":
    sys.exit(main())
