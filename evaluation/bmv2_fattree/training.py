"""Trains the example, unchanged, in the emulated hosts: over gloo, and with its gradients through the switches.

Every sum of the latter is checked (see `sums`). If the losses of the two differ by more than LOSS_TOLERANCE, it is
trained a third time, over gloo with fixed point's rounding errors: the switches may differ by as much as that.
"""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from controlplane.planner.plan import Plan
from evaluation.bmv2_fattree.results import LOSS_TOLERANCE, Checked, Training
from evaluation.bmv2_fattree.settings import Setting
from topologies.deployment import Service
from topologies.zygote import Channel, HostFailure

HERE = "evaluation.bmv2_fattree.training"
MASTER_PORT = 29510
# Time for a whole training: the first message of a worker is its result.
TRAINING_SECONDS = 900.0
# Width of the example's model: 50,000 parameters, and 12,000 where rates are a tenth.
WIDTH = {"softswitch": 16, "bmv2": 4}
LEARNING_RATE = 0.1
ROUNDED = "gloo-rounded"
RUNS = ("gloo", "inart", ROUNDED)
"""The trainings, one after the other; each has a port of its own."""
HOOK, PARALLEL = "inart_hook", "DistributedDataParallel"
"""Names that the example imports, from worker_agent and from torch."""


def train_both(everything: Setting, service: Service, plan: Plan) -> Training:
    """Train over gloo and through the switches, on the same network. Raise HostFailure."""
    gloo, gloo_seconds = _run(everything, "gloo", "")
    everything.say(f"trained over gloo: {gloo_seconds:.1f} s, loss {gloo['losses'][-1]:.4f}")
    inart, inart_seconds = _run(everything, "inart", service.address)
    sums = Checked(**inart["sums"])
    everything.say(
        f"trained through the switches: {inart_seconds:.1f} s, loss {inart['losses'][-1]:.4f}; "
        f"{sums.buckets} all-reduces checked, {sums.wrong_buckets} wrong"
    )
    training = _compared(everything, plan, gloo, inart, sums)
    if training.largest_difference > LOSS_TOLERANCE:
        rounded, seconds = _run(everything, ROUNDED, "")
        everything.say(f"trained over gloo with fixed point's errors: {seconds:.1f} s")
        training = replace(training, loss_rounded=rounded["losses"])
    return training


def _compared(everything: Setting, plan: Plan, gloo: dict[str, Any], inart: dict[str, Any], sums: Checked) -> Training:
    return Training(
        loss_gloo=gloo["losses"],
        loss_inart=inart["losses"],
        seconds_gloo=sum(gloo["step_seconds"]),
        seconds_inart=sum(inart["step_seconds"]),
        strategy=plan.strategy,
        workers=len(plan.job.workers),
        ranks=everything.settings.ranks,
        dataset="CIFAR-100" if everything.settings.cifar100 else "handwritten digits (scikit-learn)",
        parameters=inart["parameters"],
        test_accuracy_gloo=gloo["test_accuracy"],
        test_accuracy_inart=inart["test_accuracy"],
        sums=sums,
    )


def _run(everything: Setting, hook: str, controller: str) -> tuple[dict[str, Any], float]:
    """Run one training on all workers. Return the report of rank 0 and the total seconds."""
    settings, job, emulation, zygote = everything.settings, everything.job, everything.emulation, everything.zygote
    started = time.monotonic()
    roots = []
    if controller:
        roots = [
            zygote.spawn(node, "topologies.hosts:parameter_server", {"controller": controller})
            for node in job.parameter_servers
        ]
    workers = [
        zygote.spawn(
            node,
            f"{HERE}:train",
            {
                # These are the variables that torchrun would set.
                "environment": {
                    "RANK": str(number * settings.ranks + local),
                    "WORLD_SIZE": str(len(job.workers) * settings.ranks),
                    "LOCAL_RANK": str(local),
                    "LOCAL_WORLD_SIZE": str(settings.ranks),
                    "GROUP_RANK": str(number),
                    "MASTER_ADDR": everything.topology.address(job.workers[0]),
                    "MASTER_PORT": str(MASTER_PORT + RUNS.index(hook)),
                    "GLOO_SOCKET_IFNAME": emulation.interface(node),
                    "INART_CONTROLLER": controller,
                },
                "rounded": hook == ROUNDED,
                "options": [
                    *("--hook", hook.removesuffix("-rounded")),
                    *("--steps", str(settings.steps), "--seed", str(settings.seed)),
                    *("--width", str(WIDTH[settings.switch]), "--rate", str(LEARNING_RATE)),
                    *(("--cifar100", str(settings.cifar100.resolve())) if settings.cifar100 else ()),
                ],
            },
        )
        for number, node in enumerate(job.workers)
        for local in range(settings.ranks)
    ]
    try:
        reports = [worker.receive(TRAINING_SECONDS) for worker in workers]
    finally:
        for process in (*workers, *roots):
            process.end()
    if controller and not all(report["in_network"] for report in reports):
        raise HostFailure("the workers fell back to gloo, from the start or in between: nothing would be measured")
    return reports[0], time.monotonic() - started


def train(_: Channel, *, environment: dict[str, str], options: list[str], rounded: bool = False) -> dict[str, Any]:
    """Run one rank, as torchrun would start it. Return its report, with `sums` where sums through switches were
    checked. With `rounded`, fixed point's errors are added to gloo's sums.
    """
    import torch
    from torch import distributed

    import worker_agent
    from evaluation.bmv2_fattree.sums import Recorder, rounded_hook
    from examples import train_digits

    os.environ.update(environment)
    arguments = train_digits.make_parser().parse_args(options)
    ranks = int(environment["LOCAL_WORLD_SIZE"])
    nodes = int(environment["WORLD_SIZE"]) // ranks
    torch.set_num_threads(arguments.threads)
    distributed.init_process_group("gloo")
    inner = worker_agent.inart_hook
    recorder = Recorder(inner) if arguments.hook == "inart" else None
    parallel = getattr(train_digits, PARALLEL)
    try:
        if recorder is not None:
            setattr(worker_agent, HOOK, recorder.hook)
        if rounded:
            setattr(train_digits, PARALLEL, _hooked(parallel, rounded_hook(arguments.seed, nodes)))
        report = asdict(train_digits.train(arguments))
        if recorder is not None:
            report["sums"] = asdict(recorder.check(nodes, ranks))
        return report
    finally:
        setattr(worker_agent, HOOK, inner)
        setattr(train_digits, PARALLEL, parallel)
        distributed.destroy_process_group()


def _hooked(parallel: Callable[..., Any], hook: Any) -> Any:
    """Return DistributedDataParallel with this communication hook."""

    def make(*arguments: Any, **options: Any) -> Any:
        model = parallel(*arguments, **options)
        model.register_comm_hook(None, hook)
        return model

    return make
