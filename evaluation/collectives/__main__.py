"""Measures collectives in the network and by gloo, in turns on the same links.

    python -m evaluation.collectives [--bytes 4,1K,64K,1M,25M] [--dtype float32,bfloat16] [--op allreduce]
                                     [--bits 16,8] [--workers 4] [--mbps 200] [--repeat 5] [--gathers]
                                     [--no-gloo] [--json] [--plot FILE]

Each collective has one parameter server (two with --gathers) and shaped links (tbf, burst 256 KB). Ours goes through
softswitch, gloo's through a bridge in the kernel, on a network of its own that is otherwise the same. Columns are as in
nccl-tests: size (of all parts together), elements, type, bits that a value travels in, time (each worker and each rank
of gloo is a process, all of them call at one moment, and the last one's result ends it), algbw (size over time), busbw
(what a ring's links would carry). Then come time over the bound (the bytes as they travel, with the packets' headers,
over a link's bandwidth), gloo's time, how many times as long that is, and the CPU time and context switches that one
operation of gloo costs all ranks together. Times are medians, each that of up to 25
operations in a row (of 4 MB together) over their number, as nccl-tests measures; other operations right before them use
up the burst that a link which was idle lets through at once.

Needs root (network namespaces, which it makes and removes).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from controlplane.common import command_line
from controlplane.common.inputs import parse_bytes
from evaluation import commands, machine
from evaluation.collectives.cases import OPS, bus_factor, cases
from evaluation.collectives.measure import Result, measure
from worker_agent.fields import FIELDS
from worker_agent.operands import ITEM_BYTES

HEADER = (
    f"{'op':15}{'bytes':>11}{'elements':>11} {'type':9}{'bits':>4}{'time, ms':>11}{'algbw':>8}{'busbw':>8}"
    f"{'x bound':>9}{'gloo, ms':>11}{'gloo/own':>9}{'CPU, ms':>9}{'switches':>9}   (bw: Mbit/s)"
)


def _list(of: Callable[[str], Any], choices: Any = None) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        try:
            found = [of(part) for part in text.split(",")]
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if choices is not None and (wrong := [one for one in found if one not in choices]):
            raise argparse.ArgumentTypeError(f"{wrong[0]} is none of {', '.join(map(str, choices))}")
        return found

    return parse


def line(result: Result) -> str:
    """Return one result as text."""
    rate = 8e-6 * result.bytes / result.seconds
    bus = rate * bus_factor(result.op, result.workers)
    text = (
        f"{result.op:15}{result.bytes:11}{result.bytes // ITEM_BYTES[result.dtype]:11} {result.dtype:9}{result.bits:4}"
        f"{1e3 * result.seconds:11.3f}{rate:8.1f}{bus:8.1f}{result.seconds / result.bound_seconds:9.2f}"
    )
    if result.gloo_seconds is not None:
        text += f"{1e3 * result.gloo_seconds:11.3f}{result.gloo_seconds / result.seconds:9.2f}"
        if result.gloo_cpu_seconds is not None:
            text += f"{1e3 * result.gloo_cpu_seconds:9.3f}{result.gloo_switches:9.1f}"
    return text


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = commands.parser("collectives", __doc__)
    sizes = [4, 1000, 16_000, 64_000, 256_000, 1_000_000, 8_000_000, 25_000_000]
    made.add_argument("--bytes", type=_list(parse_bytes), default=sizes, help="sizes of the tensor (4 to 25M)")
    made.add_argument(
        "--dtype", type=_list(str, tuple(ITEM_BYTES)), default=["float32", "bfloat16"], help="(float32,bfloat16)"
    )
    made.add_argument("--op", type=_list(str, tuple(OPS)), default=["allreduce"], help=f"of {', '.join(OPS)}")
    made.add_argument(
        "--bits",
        type=_list(int, tuple(FIELDS)),
        default=[None],
        help="that values travel in: 32, 16, 10, 8 (what their type has); more than the type has is left out",
    )
    made.add_argument("--workers", type=_list(int), default=[4], help="how many (4)")
    made.add_argument("--mbps", type=_list(float), default=[200.0], help="rate of every link (200)")
    made.add_argument("--repeat", type=int, default=5, help="runs of each, of which the median counts (%(default)s)")
    made.add_argument("--gathers", action="store_true", help="as for a job with gathers=1; two parameter servers")
    made.add_argument("--no-gloo", action="store_true", help="leave out the comparison")
    made.add_argument("--json", action="store_true", help="print a list of objects")
    made.add_argument("--plot", type=Path, metavar="FILE", help="draw them")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return the exit status."""
    options = parser().parse_args(arguments)
    if os.geteuid():
        print("needs root: makes network namespaces", file=sys.stderr)
        return 1
    wanted = [
        case
        for workers, mbps in product(options.workers, options.mbps)
        for case in cases(options.op, options.dtype, options.bits, options.bytes, workers=workers, mbps=mbps)
    ]
    print(machine.description(), file=sys.stderr)
    results = []
    network = None
    for result in measure(wanted, options.repeat, gloo=not options.no_gloo, gathers=options.gathers):
        results.append(result)
        if options.json:
            continue
        if network != (result.workers, result.mbps):
            network = result.workers, result.mbps
            print(f"\n{result.workers} workers, {result.mbps:g} Mbit/s\n{HEADER}")
        print(line(result), flush=True)
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    if options.plot is not None:
        from evaluation.collectives.plot import draw

        draw(results, options.plot)
    return 0


if __name__ == "__main__":
    command_line.end_in_order()
    sys.exit(main())
