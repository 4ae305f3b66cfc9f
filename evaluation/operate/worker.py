"""A worker of a job of the day, which Slurm or `inart run` starts on each node: all-reduces that it checks bit for bit.

    python -m evaluation.operate.worker --nodes h1,h4 --operations 20 --elements 50000 --seed 7 --folder DIR

The workers agree by files in a folder that they share after each operation, as trainers do over gloo: an operation of
which one of them has no result is done again by all. At its end each worker leaves a file with its findings,
`rank-N.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation import commands
from evaluation.chaos.worker import JOIN_SECONDS, Worker
from worker_agent.launch.machines import expand

AGREE_SECONDS = 240.0
OPERATION_SECONDS = 120.0
ATTEMPTS = 10
LOOK_SECONDS = 0.02
PROGRESS_SECONDS = 60.0


class GivenUp(Exception):
    """The job cannot go on; the message says why."""


def agreed(folder: Path, what: str, rank: int, workers: int, right: bool) -> bool:
    """Return whether all workers have the result. Raise GivenUp."""
    mine = folder / f"{what}.{rank}.new"
    mine.write_text(str(int(right)))
    mine.rename(folder / f"{what}.{rank}")
    files = [folder / f"{what}.{number}" for number in range(workers)]
    until = time.monotonic() + AGREE_SECONDS
    while not all(file.exists() for file in files):
        if time.monotonic() > until:
            raise GivenUp(f"operation {what}: not all workers have ended it after {AGREE_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)
    return all(file.read_text() == "1" for file in files)


def work(arguments: argparse.Namespace, found: dict[str, Any]) -> None:
    """Do all operations, and write the findings into `found`. Raise GivenUp and the errors of agents."""
    if not os.environ.get("INART_JOB"):
        raise GivenUp("the job is not in the network")
    nodes = expand(arguments.nodes)
    worker = Worker(os.environ["INART_CONTROLLER"], nodes, PROGRESS_SECONDS)
    worker.agent.wait_ready(JOIN_SECONDS)
    rank = found["rank"] = worker.agent.config.index
    for number in range(arguments.operations):
        order = {"operation": number, "elements": [arguments.elements], "seed": arguments.seed + number,
                 "seconds": OPERATION_SECONDS}  # fmt: skip
        for attempt in range(ATTEMPTS):
            began = time.monotonic()
            answer = worker.operate(order)
            found["seconds"] += time.monotonic() - began
            if agreed(arguments.folder, f"{number}.{attempt}", rank, len(nodes), answer["right"]):
                break
            found["repeated"] += 1
            found["errors"].append(answer["error"])
        else:
            raise GivenUp(f"operation {number} failed {ATTEMPTS} times: {answer['error']}")
        found["sums"] += 1
        found["elements"] += arguments.elements
        found["wrong"] += answer["wrong"]
    worker.agent.close()


def main(argv: Sequence[str] | None = None) -> int:
    parser = commands.parser("operate.worker", __doc__)
    parser.add_argument("--nodes", default=os.environ.get("SLURM_JOB_NODELIST", ""))
    parser.add_argument("--folder", type=Path, required=True)
    for name in ("operations", "elements", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args(argv)
    found: dict[str, Any] = {"rank": -1, "sums": 0, "wrong": [], "repeated": 0, "errors": [], "seconds": 0.0,
                             "elements": 0, "failure": ""}  # fmt: skip
    try:
        work(arguments, found)
    except Exception as error:  # an error of any kind goes into the day's report
        found["failure"] = f"{type(error).__name__}: {error}"
        print(found["failure"], file=sys.stderr)
    name = f"rank-{found['rank'] if found['rank'] >= 0 else os.getpid()}"
    (arguments.folder / f"{name}.new").write_text(json.dumps(found))
    (arguments.folder / f"{name}.new").rename(arguments.folder / f"{name}.json")
    return 1 if found["failure"] else 0


if __name__ == "__main__":
    sys.exit(main())
