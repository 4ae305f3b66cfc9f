"""Measures gradients of the examples' training in fewer bits: errors, and losses, beside a ring in bfloat16.

    python -m evaluation.precision [--task gpt,digits] [--ways TEXT] [--workers 8] [--steps 60] [--every 10] [--json]

1. The gradients of every worker of a training in float32, each `every` steps: root mean square error of their mean,
   over that of the mean itself, and the worst error over the largest value. A ring in bfloat16 rounds the gradients to
   bfloat16 first and each of its W - 1 sums; ours in bfloat16 rounds them too; both are measured against the exact
   mean of the rounded gradients, which are what the user gave them.
2. The same training with each way to the mean, same seeds and batches: the loss over the last tenth of the steps.
   PowerSGD (rank 4) and float16 are what torch's own hooks do, powerSGD_hook from the eleventh step on.

All of it runs in one process, without a network: the engine's own conversions (worker_agent/native/fields.h) do what
each worker does.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch

from evaluation import commands
from evaluation.precision.schemes import as_bfloat16, exact, schemes
from evaluation.precision.training import TASKS, train
from worker_agent.fixedpoint import Floats

LAST = 0.1


def errors(task: str, workers: int, steps: int, every: int, seed: int, *, named: str) -> dict[str, tuple[float, float]]:
    """Return, for each way, the relative root mean square error and the worst error over the largest value, means over
    the steps.
    """
    trained = TASKS[task](workers, seed)
    every_way = schemes(workers, trained.shapes)
    ways = {
        name: way for name, way in every_way.items() if "feedback" not in name and named in name and name != "float32"
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}

    def see(step: int, gradients: list[Floats]) -> None:
        if step % every:
            return
        for name, way in ways.items():
            given = [as_bfloat16(one) for one in gradients] if name.startswith("bfloat16") else gradients
            right = exact(given).astype(np.float64)
            off = np.abs(way(given) - right)
            size = np.sqrt(np.mean(right**2))
            found[name].append((float(np.sqrt(np.mean(off**2)) / size), float(off.max() / np.abs(right).max())))

    train(trained, exact, workers, steps, see)
    return {name: tuple(np.mean(each, axis=0)) for name, each in found.items()}


def measure(task: str, workers: int, steps: int, every: int, seed: int, *, named: str = "") -> list[dict[str, Any]]:
    """Return a row for each way; with `named`, only for those with this text in their names and for float32."""
    off = errors(task, workers, steps, every, seed, named=named)
    rows = []
    for name, way in schemes(workers, TASKS[task](workers, seed).shapes).items():
        if named not in name and name != "float32":
            continue
        losses = train(TASKS[task](workers, seed), way, workers, steps)
        last = float(np.mean(losses[-max(1, int(LAST * steps)) :]))
        rms, worst = off.get(name, (None, None))
        rows.append(
            {"task": task, "workers": workers, "steps": steps, "way": name, "rms": rms, "worst": worst, "loss": last}
        )
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return the exit status."""
    parser = commands.parser("precision", __doc__)
    parser.add_argument("--task", default=",".join(TASKS), help="of gpt, digits (both)")
    parser.add_argument("--ways", default="", metavar="TEXT", help="those with this text in their names (all)")
    parser.add_argument("--workers", type=int, default=8, help="(8)")
    parser.add_argument("--steps", type=int, default=60, help="of each training (60)")
    parser.add_argument("--every", type=int, default=10, help="steps between those whose gradients are looked at (10)")
    parser.add_argument("--seed", type=int, default=0, help="(0)")
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    options = parser.parse_args(arguments)
    tasks = options.task.split(",")
    if unknown := set(tasks) - set(TASKS):
        parser.error(f"there is no task {', '.join(sorted(unknown))}: {', '.join(TASKS)}")
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for task in tasks:
        found = measure(task, options.workers, options.steps, options.every, options.seed, named=options.ways)
        rows += found
        if options.json:
            continue
        print(f"\n{task}, {options.workers} workers, {options.steps} steps\n{'':44}{'rms':>10}{'worst':>10}{'loss':>9}")
        for row in found:
            off = "".join(f"{row[key]:10.1e}" if row[key] is not None else " " * 10 for key in ("rms", "worst"))
            print(f"{row['way']:44}{off}{row['loss']:9.4f} ({row['loss'] / found[0]['loss'] - 1:+.2%})")
    if options.json:
        print(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
