"""Measures training with ranks that are slowed at random, with a deadline and without one.

    python -m evaluation.stragglers [--workers 4] [--slow 0.16] [--compute 0.15] [--steps 120] [--seeds 3] [--json]

The network is a fat-tree with k = 4 (softswitch), one rank per host. Each rank trains the digits' convolution net; its
step takes --compute seconds of sleep (an accelerator's work, which leaves the processors alone) beside the real one. In
a step, with probability --slow, one rank sleeps for 0.5 to 2 times that time more. Three runs are compared: nobody
slowed; slowed, all wait; slowed, with a deadline. The same seed gives the same model, batches and pauses. Needs root.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from controlplane.planner.generators import fattree
from controlplane.planner.job import place_job
from controlplane.planner.strategies import get_strategy
from evaluation import commands
from evaluation.ranks import REFUSALS, run_ranks
from topologies import Emulation
from topologies.command import Say, guarded, stopwatch
from topologies.deployment import Fabric
from topologies.zygote import HostFailure, Zygote

HERE = "evaluation.stragglers.ranks"
PORT = 29630
MODULES = (
    "torch", "torch._dynamo", "sklearn.datasets", "worker_agent.torch.deadline", "examples.train_digits", HERE,
    "topologies.hosts",
)  # fmt: skip
RUNS = {
    "nobody slowed": {"slowed": False, "deadline": False},
    "slowed, all wait": {"slowed": True, "deadline": False},
    "slowed, deadline": {"slowed": True, "deadline": True},
}


def make_parser() -> argparse.ArgumentParser:
    parser = commands.parser("stragglers", __doc__)
    parser.add_argument("--workers", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--mbps", type=float, default=200.0, help="rate of every link (default: %(default)g)")
    parser.add_argument("--slow", type=float, default=0.16, help="probability, of each step (default: %(default)g)")
    parser.add_argument("--compute", type=float, default=0.15, help="seconds of a step (default: %(default)g)")
    parser.add_argument("--deviations", type=float, default=4.0, help="of the deadline (default: %(default)g)")
    parser.add_argument("--steps", type=int, default=120, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=16, help="images per rank and step (default: %(default)s)")
    parser.add_argument("--width", type=int, default=8, help="of the model (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate (default: %(default)g)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each kind (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def measure(arguments: argparse.Namespace, say: Say) -> list[dict[str, Any]]:
    """Return a row for each seed and run. Raise HostFailure, and emulation and planner errors."""
    topology = fattree(4, arguments.mbps, aggregation_mbps=None, ingress_mbps=None)
    job = place_job(topology, arguments.workers, 1, seed=0)
    plan = get_strategy("inart")(topology, job, seed=0)
    rows = []
    with ExitStack() as stack:
        emulation = stack.enter_context(Emulation(topology, "softswitch", seed=0))
        zygote = stack.enter_context(Zygote(emulation, MODULES))
        fabric = stack.enter_context(Fabric(emulation))
        service = stack.enter_context(fabric.serve(plan))
        say("the network is up")
        zygote.wait_ready()
        for seed in range(arguments.seeds):
            for number, (name, how) in enumerate(RUNS.items()):
                port = PORT + seed * len(RUNS) + number
                call = {"options": options_of(arguments, seed), **how}
                reports = run_ranks(zygote, job, f"{HERE}:train", port, service.address, **call)
                if len({report["bits"] for report in reports}) != 1:
                    raise HostFailure("the ranks' models differ")
                if not all(report["in_network"] for report in reports):
                    why = [(report["steps"], *report["said"]) for report in reports]
                    raise HostFailure(f"the workers fell back to gloo: nothing would be measured ({why})")
                row = {"run": name, "seed": seed, **reports[0]}
                row["seconds"] = max(report["seconds"] for report in reports)
                for key in ("stood_in", "carried", "skipped"):
                    row[key] = sum(report[key] for report in reports)
                rows.append(row)
                say(f"seed {seed}, {name}: {row['seconds']:.1f} s, loss {row['train_loss']:.3f}")
    return rows


def options_of(arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    names = ("slow", "compute", "deviations", "steps", "batch", "width", "rate")
    return {name: getattr(arguments, name) for name in names} | {"seed": seed}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the means over the seeds, with the smallest and largest time over the undisturbed run's, as text."""
    lines = [
        f"{'':18}{'seconds':>9}{'over undisturbed':>24}{'train loss':>12}{'test loss':>11}{'accuracy':>10}"
        f"{'skipped':>9}{'carried':>9}"
    ]
    usual = {row["seed"]: row["seconds"] for row in rows if row["run"] == "nobody slowed"}
    for name in RUNS:
        mine = [row for row in rows if row["run"] == name]
        ratios = [row["seconds"] / usual[row["seed"]] for row in mine]

        def mean(key: str, mine: list[dict[str, Any]] = mine) -> float:
            return statistics.mean(row[key] for row in mine)

        ratio = f"{statistics.mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append(
            f"{name:18}{mean('seconds'):9.1f}{ratio:>24}{mean('train_loss'):12.4f}{mean('test_loss'):11.4f}"
            f"{mean('accuracy'):10.3f}{mean('skipped'):9.1f}{mean('carried'):9.1f}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return the exit status: 0 when all is well, 1 when it failed, 130 when it was interrupted."""
    arguments = make_parser().parse_args(argv)
    say = (lambda line: None) if arguments.json else stopwatch()

    def work() -> int:
        rows = measure(arguments, say)
        print(json.dumps(rows) if arguments.json else table(rows))
        return 0

    return guarded("evaluation.stragglers", work, *REFUSALS)


if __name__ == "__main__":
    raise SystemExit(main())
