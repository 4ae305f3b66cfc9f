"""Measures how fast the hosts are, beside numpy and gloo in the same run.

    python -m evaluation.hosts [--bytes 25M] [--workers 4] [--mbps 200] [--values 256] [--repeat 3] [--no-gloo] [--json]
    python -m evaluation.hosts --workers 2,4,8 --mbps 200,400,1000,2000,4000 --bytes 100M --duration 0.5 --limit 330 \\
        --plot docs/images/hosts-sweep.png
    python -m evaluation.hosts --mbps 4000 --bytes 100M --lanes 2 --threads 2 --no-gloo

1. Conversions per core: numpy and the C engine, GB/s of float32 tensor (CPU time). Not with --json or in a sweep.
2. One tensor over the workers and one parameter server, all links shaped (tbf, burst 256 KB), softswitch in the middle:
   summed in the switch, and gloo's own algorithm over TCP on the same links (through a bridge in the kernel). Several
   rates or numbers of workers: a sweep.

Needs root for 2 (network namespaces, which it makes and removes).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from controlplane.common import command_line
from controlplane.common.command_line import value
from controlplane.common.inputs import parse_bytes
from evaluation import commands, machine
from evaluation.hosts.measure import Result, Setting, measure
from evaluation.hosts.numbers import speeds
from worker_agent.io_options import IoOptions

BEAT = {"quantise": 0.9, "packetise": 3.3}


def _list(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"numbers with commas between them are wanted, got {text!r}") from None


def print_speeds() -> None:
    """Print part 1, the conversions."""
    print(f"{'per core, GB/s of float32':32}{'numpy':>8}{'engine':>9}{'to beat':>9}")
    for name, numpy_speed, native_speed in speeds():
        print(f"{name:32}{numpy_speed:8.2f}{native_speed:9.2f}{BEAT.get(name, ''):>9}")


def line(result: Result) -> str:
    """Return one result as text."""
    own = result.network_seconds
    text = (
        f"{result.workers:3} {result.mbps:6g} {'in the switch':22}{own:8.3f} s (x{own / result.bound_seconds:4.2f})"
        f"  CPU a packet, µs: worker {result.worker_cpu_us_per_packet:.2f}, root {result.root_cpu_us_per_packet:.2f}, "
        f"switch {result.switch_cpu_us_per_packet:.2f}; {100 * result.cpu_idle:.0f} % idle, {result.resent} resent"
        f"{f', busy: {result.gave_out}' if result.gave_out else ''}"
    )
    if result.gloo_seconds:
        text += f"\n{'':11}{'gloo':22}{result.gloo_seconds:8.3f} s (x{result.gloo_seconds / result.bound_seconds:4.2f})"
    return text


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = commands.parser("hosts", __doc__)
    parser.add_argument("--bytes", type=value(parse_bytes), default=25_000_000, help="size of the tensor (25M)")
    parser.add_argument("--workers", type=_list, default=[4.0], help="how many; a list for a sweep (4)")
    parser.add_argument("--mbps", type=_list, default=[200.0], help="rate of every link; a list for a sweep (200)")
    parser.add_argument("--values", type=int, default=256, help="values per packet: 64 or 256 (256)")
    parser.add_argument(
        "--duration",
        type=float,
        metavar="SECONDS",
        help="use fewer bytes if size / bandwidth would be longer than this",
    )
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="a sweep starts no measurement after this time")
    parser.add_argument("--trees", type=int, default=1, help="trees of equal shares, for threads to share out (1)")
    parser.add_argument("--lanes", type=int, default=1, help="ports of each tree, likewise: 1, 2, 4, 8 or 16 (1)")
    parser.add_argument(
        "--repeat", type=int, default=3, help="runs of each, of which the median counts (default: %(default)s)"
    )
    parser.add_argument("--no-gloo", action="store_true", help="leave out the comparison with gloo")
    parser.add_argument("--json", action="store_true", help="print one object, of a sweep a list of them")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the sweep")
    parser.add_argument("--threads", type=int, metavar="N", help="I/O threads of an engine (default: by the rate)")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        io = IoOptions.from_environment()
        io = io if options.threads is None else replace(io, threads=options.threads)
    except ValueError as error:
        parser.error(str(error))
    print(machine.description(), file=sys.stderr)
    if not options.json and len(options.workers) == len(options.mbps) == 1:
        print_speeds()
    if os.geteuid():
        print("The all-reduce needs root (network namespaces): skipped.", file=sys.stderr)
        return 1 if options.json else 0
    results: list[Result] = []
    if not options.json:
        print(f"\n{options.bytes / 1e6:g} MB, 1 parameter server; x: times size / bandwidth of wire bytes\n  W Mbit/s")
    began = time.monotonic()
    for workers, mbps in itertools.product(options.workers, options.mbps):
        if options.limit and results and time.monotonic() - began > options.limit:
            print(f"stopped before {workers:g} workers at {mbps:g} Mbit/s: over {options.limit:g} s", file=sys.stderr)
            break
        size = options.bytes
        if options.duration:
            size = min(size, int(mbps * 1e6 / 8 * options.duration) // 4096 * 4096 or 4096)
        given = {"values": options.values, "repeat": options.repeat, "io": io}
        given |= {"trees": options.trees, "lanes": options.lanes}
        result = measure(Setting(int(workers), mbps, size, gloo=not options.no_gloo, **given))
        results.append(result)
        if not options.json:
            print(line(result), flush=True)
    if options.json:
        objects = [asdict(result) for result in results]
        print(json.dumps(objects[0] if len(objects) == 1 else objects, indent=2))
    if options.plot is not None:
        from evaluation.hosts.plot import draw

        draw(results, options.plot)
    return 0


if __name__ == "__main__":
    command_line.end_in_order()
    sys.exit(main())
