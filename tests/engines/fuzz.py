"""Random jobs of the agents' engines on adversarial networks in virtual time, under ASan and UBSan.

    python -m tests.engines.fuzz [--seconds 3600] [--seed N] [--processes N]

The processes use so many seconds of CPU time together. Each begins with a seed of its own and prints the seed of a job
that finds something. Exit status: 0 if nothing was found; 1 if something was; 2 if there is no compiler.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.engines.build import NoCompiler, build

APART = 10**9
"""Distance of the seeds with which two processes begin: more than the jobs that either of them can run."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines.fuzz", description="engines on adversarial networks")
    parser.add_argument("--seconds", type=float, default=3600, help="CPU time of all processes (default: 3600)")
    parser.add_argument("--seed", type=int, help="seed of the first job (default: a random one)")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="default: one per core")
    options = parser.parse_args(arguments)
    seed = random.randrange(2**40) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            program = build(Path(folder))
        except NoCompiler as error:
            print(error, file=sys.stderr)
            return 2
        each = str(options.seconds / options.processes)
        running = [
            subprocess.Popen([program, "fuzz", str(seed + number * APART), each]) for number in range(options.processes)
        ]
        statuses = [process.wait() for process in running]
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
