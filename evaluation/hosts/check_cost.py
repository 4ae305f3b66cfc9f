"""Measures what the check of every sum costs end to end: all-reduces by engines with it and without it, in turns.

    python -m evaluation.hosts.check_cost [--bytes 100M] [--mbps 1000] [--values 256] [--workers 4] [--turns 10]

Each turn makes the network of `python -m evaluation.hosts` anew and measures a few all-reduces, with the engines as
they are and with engines compiled without the check (native/unchecked.h). Printed are medians over the turns, of the
CPU time a packet of workers and root, and of the differences between the two of each turn. A packet has the check word
in both, which is the cost in bytes. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from p4src.protocol import frame_bytes
from worker_agent.native_engine import NATIVE

UNCHECKED = Path(__file__).resolve().parent / "native" / "unchecked.h"
LIMIT_CPU, LIMIT_BYTES = 0.03, 0.01
"""Of a worker's CPU time a packet, and of the bytes: more is too much."""


@dataclass(frozen=True)
class Cost:
    """Medians over the turns. worker, root: µs of CPU a packet, without the check and with it. worker_part, root_part:
    of the turns' differences, over what it is without. spread: half of the distance between the quartiles of the
    workers'. byte_part: of a frame. turns: how many."""

    worker: tuple[float, float]
    root: tuple[float, float]
    worker_part: float
    root_part: float
    spread: float
    byte_part: float
    turns: int


def turn(arguments: argparse.Namespace, *, checked: bool) -> dict[str, Any]:
    """Measure once. Raises CalledProcessError."""
    flags = "" if checked else f"-include {UNCHECKED} -I{NATIVE}"
    command = [sys.executable, "-m", "evaluation.hosts", "--no-gloo", "--json", "--repeat", str(arguments.repeat)]
    command += ["--bytes", arguments.bytes, "--mbps", str(arguments.mbps), "--values", str(arguments.values)]
    command += ["--workers", str(arguments.workers)]
    environment = {**os.environ, "INART_CFLAGS": flags}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return dict(json.loads(done.stdout))


def cost(turns: list[tuple[dict[str, Any], dict[str, Any]]], values: int) -> Cost:
    """Return what turns (without the check, with it) come to."""

    def both(name: str) -> tuple[list[float], list[float]]:
        key = f"{name}_cpu_us_per_packet"
        return [without[key] for without, _ in turns], [checked[key] for _, checked in turns]

    def parts(name: str) -> list[float]:
        return [(b - a) / a for a, b in zip(*both(name), strict=True)]

    def medians(name: str) -> tuple[float, float]:
        without, checked = both(name)
        return statistics.median(without), statistics.median(checked)

    worker = parts("worker")
    quartiles = statistics.quantiles(worker, n=4) if len(worker) > 1 else [0.0, 0.0, 0.0]
    return Cost(
        worker=medians("worker"), root=medians("root"), worker_part=statistics.median(worker),
        root_part=statistics.median(parts("root")), spread=(quartiles[2] - quartiles[0]) / 2,
        byte_part=4 / frame_bytes(values), turns=len(turns),
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.hosts.check_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bytes", default="100M", help="size of the tensor (%(default)s)")
    parser.add_argument("--mbps", type=int, default=1000, help="of each link (%(default)s)")
    parser.add_argument("--values", type=int, default=256, help="in a packet: 64 or 256 (%(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="all-reduces of each turn (%(default)s)")
    parser.add_argument("--turns", type=int, default=10, help="of both (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one object")
    arguments = parser.parse_args()
    turns = []
    for number in range(arguments.turns):
        order = (False, True) if number % 2 else (True, False)  # what comes first has no advantage
        measured = {checked: turn(arguments, checked=checked) for checked in order}
        turns.append((measured[False], measured[True]))
    found = cost(turns, arguments.values)
    if arguments.json:
        print(json.dumps(asdict(found), indent=1))
    else:
        for name, (without, checked), part in (
            ("worker", found.worker, found.worker_part),
            ("root", found.root, found.root_part),
        ):
            print(f"{name:7} {without:.3f} µs of CPU a packet without the check, {checked:.3f} with it: {part:+.1%}")
        print(f"medians of {found.turns} turns; the workers' quartiles are {found.spread:.1%} around theirs")
        print(f"bytes   {found.byte_part:.2%} of a frame")
    return 0 if found.worker_part <= LIMIT_CPU and found.byte_part <= LIMIT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
