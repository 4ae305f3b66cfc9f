"""Replays the collectives of training: in the network and by gloo, in turns on the same links.

    python -m evaluation.traces [--how ddp,fsdp2,..] [--workers 4] [--width 256] [--layers 4] [--mbps 200]
                                [--half] [--repeat 3] [--trace FILE ...] [--json]

A trace is the collectives of one training step of the example GPT, as `python -m evaluation.traces.record` records it
(and this command, where no FILE is given). They are done in their order. Each begins when those before it have ended
for which the trainer had waited by then (fsdp2-ahead gathers parameters while it scatters gradients). The links are
those of `python -m evaluation.collectives`, with two parameter servers where the step gathers. So the times are those
of the network in a step, not the waits of a trainer that computes meanwhile. Columns: operations, bytes that they move,
seconds of a step, the least that they can take (bytes as they travel, with headers, over a link's bandwidth), gloo's
seconds, and how many times as long that is.

Needs root (network namespaces, which it makes and removes).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from controlplane.common import command_line
from evaluation import commands
from evaluation.collectives.cases import OPS, Case
from evaluation.collectives.measure import Bench
from evaluation.traces.execution_trace import read
from evaluation.traces.trace import HOW, Trace
from worker_agent.fields import OWN_BITS, bits_of

VALUES = 256


@dataclass(frozen=True)
class Replay:
    """The result of a trace. Seconds are medians of all operations of a step."""

    trace: str
    workers: int
    mbps: float
    operations: int
    bytes: int
    seconds: float
    gloo_seconds: float
    bound_seconds: float


def recorded(how: str, workers: int, width: int, layers: int, half: bool) -> Trace:
    """Record a trace in a process of its own, so that torch is not loaded in the process that measures. Raise
    RuntimeError.
    """
    words = ["--workers", str(workers), "--width", str(width), "--layers", str(layers)]
    command = [sys.executable, "-m", "evaluation.traces.record", how, *words, *["--half"] * half]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"recording failed: {done.stderr[-2000:]}")
    return Trace.from_json(json.loads(done.stdout.splitlines()[-1]))


def cases_of(trace: Trace, mbps: float) -> list[Case]:
    """Return the operations as cases of the bench of collectives. Raise ValueError for operations that it does not
    have.
    """
    found = []
    for one in trace.operations:
        if one.op not in OPS or one.dtype not in OWN_BITS:
            raise ValueError(f"{trace.name}: {one.op} of {one.dtype} is none of the operations that go in the network")
        bits = OWN_BITS[one.dtype] if OPS[one.op].raw else bits_of(one.dtype, None, trace.workers)
        found.append(Case(one.op, one.dtype, bits, one.nbytes, trace.workers, mbps))
    return found


def bound_of(trace: Trace, cases: list[Case]) -> float:
    """Return the least seconds of a step: for operations that are under way together, what a worker sends or what it
    receives.
    """
    left = iter(cases)
    found = 0.0
    for group in trace.groups():
        links = [next(left).link_seconds(VALUES) for _ in group]
        found += max(map(sum, zip(*links, strict=True)))
    return found


def replay(traces: list[Trace], mbps: float, repeat: int) -> Iterator[Replay]:
    """Yield the result of each trace, one after the other. Raise ValueError, before any is replayed, when one of them
    cannot be.
    """
    prepared = [(trace, cases_of(trace, mbps)) for trace in traces]
    for trace, cases in prepared:
        gathers = any(OPS[case.op].raw for case in cases)
        with Bench(trace.workers, mbps, VALUES, gathers=gathers) as bench:
            own, other = bench.seconds(cases, repeat, [one.beside for one in trace.operations])
        assert other is not None, "the bench measures gloo, too"
        moved = sum(case.nbytes for case in cases)
        yield Replay(trace.name, trace.workers, mbps, len(cases), moved, own, other, bound_of(trace, cases))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = commands.parser("traces", __doc__)
    made.add_argument("--how", default=",".join(HOW), help=f"what is recorded: of {', '.join(HOW)} (all)")
    made.add_argument(
        "--trace",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="instead of recording: recorded by us, or an execution trace of PyTorch (JSON) or of Chakra (.et)",
    )
    made.add_argument("--workers", type=int, default=4, help="of what is recorded; of one .et file that lies alone (4)")
    made.add_argument("--width", type=int, default=256, help="of the model (256)")
    made.add_argument("--layers", type=int, default=4, help="of the model (4)")
    made.add_argument("--half", action="store_true", help="record a model in bfloat16")
    made.add_argument("--mbps", type=float, default=200.0, help="rate of every link (200)")
    made.add_argument("--repeat", type=int, default=3, help="runs of each, of which the median counts (%(default)s)")
    made.add_argument("--json", action="store_true", help="print a list of objects")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return the exit status."""
    options = parser().parse_args(arguments)
    if os.geteuid():
        print("needs root: makes network namespaces", file=sys.stderr)
        return 1
    if unknown := set(options.how.split(",")) - set(HOW):
        parser().error(f"--how {', '.join(sorted(unknown))}: there are {', '.join(HOW)}")
    results = []
    try:
        if options.trace:
            traces = [read(path, options.workers) for path in options.trace]
        else:
            size = options.workers, options.width, options.layers, options.half
            traces = [recorded(how, *size) for how in options.how.split(",")]
        for result in replay(traces, options.mbps, options.repeat):
            results.append(result)
            if not options.json:
                print(line(result), flush=True)
    except (OSError, ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    return 0


def line(result: Replay) -> str:
    """Return one result as text."""
    return (
        f"{result.trace} ({result.workers} workers, {result.mbps:g} Mbit/s): {result.operations} operations, "
        f"{result.bytes:,} bytes: {result.seconds:.3f} s, {result.seconds / result.bound_seconds:.2f} times the bound; "
        f"gloo {result.gloo_seconds:.3f} s, {result.gloo_seconds / result.seconds:.2f} times ours"
    )


if __name__ == "__main__":
    command_line.end_in_order()
    sys.exit(main())
