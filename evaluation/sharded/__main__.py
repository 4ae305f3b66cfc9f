"""Measures how long fully sharded training takes through the switches and over gloo, on the same links, in one run.

    python -m evaluation.sharded [--workers 4] [--mbps 25] [--bytes 4M] [--steps 6] [--width 128] [--layers 4]
        [--half] [--json]

The network is a fat-tree with k = 4 (softswitch), one rank per host and two parameter servers; every link has the given
rate. First come the collectives on an array of --bytes (of all ranks together), then FSDP2 of the example's GPT over
all ranks. Needs root.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from controlplane.common.command_line import value
from controlplane.common.inputs import parse_bytes
from controlplane.planner.generators import fattree
from controlplane.planner.job import place_job
from controlplane.planner.strategies import get_strategy
from evaluation import commands
from evaluation.ranks import REFUSALS, run_ranks
from topologies import Emulation
from topologies.command import Say, guarded, stopwatch
from topologies.deployment import Fabric
from topologies.zygote import HostFailure, Zygote

HERE = "evaluation.sharded.ranks"
PORT = 29530
MODULES = (
    "torch", "torch.distributed.fsdp", "worker_agent.torch.backend", "examples.train_gpt", HERE, "topologies.hosts",
)  # fmt: skip


def make_parser() -> argparse.ArgumentParser:
    parser = commands.parser("sharded", __doc__)
    parser.add_argument("--workers", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--mbps", type=float, default=25.0, help="rate of every link")
    size = value(parse_bytes)
    parser.add_argument("--bytes", type=size, default=parse_bytes("4M"), help="bytes of a collective's whole array")
    parser.add_argument("--repeat", type=int, default=3, help="times each collective (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=6, help="training steps (default: %(default)s)")
    parser.add_argument("--width", type=int, default=128, help="of the model (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="of the model (default: %(default)s)")
    parser.add_argument(
        "--half", action="store_true", help="train in bfloat16: parameters are gathered, gradients scattered in it"
    )
    parser.add_argument("--seed", type=int, default=0, help="of model and data (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def measure(arguments: argparse.Namespace, say: Say) -> dict[str, Any]:
    """Run both measurements, through the switches and over gloo, and return the results. Raise HostFailure, and
    emulation and planner errors.
    """
    topology = fattree(4, arguments.mbps, aggregation_mbps=None, ingress_mbps=None)
    job = replace(place_job(topology, arguments.workers, 2, seed=arguments.seed), gathers=True)
    plan = get_strategy("inart")(topology, job, seed=arguments.seed)
    say(f"planned: {plan.rate_mbps:.4g} of {arguments.mbps:g} Mbit/s")
    with ExitStack() as stack:
        emulation = stack.enter_context(Emulation(topology, "softswitch", seed=arguments.seed))
        zygote = stack.enter_context(Zygote(emulation, MODULES))
        fabric = stack.enter_context(Fabric(emulation))
        service = stack.enter_context(fabric.serve(plan))
        say("the network is up")
        zygote.wait_ready()
        found: dict[str, Any] = {"workers": arguments.workers, "mbps": arguments.mbps, "bytes": arguments.bytes}
        model = ["--width", str(arguments.width), "--layers", str(arguments.layers), "--batch", "2"]
        model += ["--steps", str(arguments.steps), "--seed", str(arguments.seed)]
        model += ["--half"] * arguments.half + ["--ahead"]
        ways = (("inart", service.address, "full", PORT), ("gloo", "", "full-gloo", PORT + 2))
        for name, controller, how, port in ways:
            given = {"backend": name, "size": arguments.bytes, "repeat": arguments.repeat}
            reports = run_ranks(zygote, job, f"{HERE}:collectives", port, controller, **given)
            found[name] = {key: max(report[key] for report in reports) for key in reports[0]}
            say(f"collectives over {name}: done")
            reports = run_ranks(zygote, job, f"{HERE}:train", port + 1, controller, options=["--how", how, *model])
            found[name]["step"] = statistics.median(reports[0]["step_seconds"][1:])
            found[name]["losses"] = reports[0]["losses"]
            found["parameters"] = reports[0]["parameters"]
            say(f"trained over {name}: {found[name]['step']:.2f} s a step, loss {reports[0]['losses'][-1]:.4f}")
            if controller and not (found[name]["in_network"] and all(one["in_network"] for one in reports)):
                raise HostFailure("the workers fell back to gloo: nothing would be measured")
    return found


def table(found: dict[str, Any]) -> str:
    """Return the results as text."""
    bits = 8 * found["bytes"] / 1e6 / found["mbps"]
    lines = [
        f"{found['workers']} workers, {found['mbps']:g} Mbit/s, {found['bytes']} bytes: {bits:.2f} s at link rate",
        f"{'seconds':30}{'InArt':>9}{'gloo':>9}{'gloo/InArt':>12}",
    ]
    for name in [key for key in found["gloo"] if key not in ("in_network", "losses", "step")] + ["step"]:
        mine, theirs = found["inart"][name], found["gloo"][name]
        label = f"FSDP2 step ({found['parameters']} param.)" if name == "step" else name
        lines.append(f"{label:30}{mine:9.3f}{theirs:9.3f}{theirs / mine:12.2f}")
    most = max(abs(a - b) / abs(b) for a, b in zip(found["inart"]["losses"], found["gloo"]["losses"], strict=True))
    lines.append(f"losses differ by {most:.1e} at most")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return the exit status: 0 when all is well, 1 when it failed, 130 when it was interrupted."""
    arguments = make_parser().parse_args(argv)
    say = (lambda line: None) if arguments.json else stopwatch()

    def work() -> int:
        found = measure(arguments, say)
        print(json.dumps(found) if arguments.json else table(found))
        return 0

    return guarded("evaluation.sharded", work, *REFUSALS)


if __name__ == "__main__":
    raise SystemExit(main())
