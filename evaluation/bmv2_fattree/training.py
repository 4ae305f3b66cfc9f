"""Trains the example, unchanged, in the emulated hosts: over gloo, and with its gradients through the switches."""

import os
import time
from typing import Any

from controlplane.plan import Plan
from evaluation.bmv2_fattree.results import Training
from evaluation.bmv2_fattree.setting import Setting
from topologies.deployment import Service
from topologies.zygote import Channel, HostFailure

HERE = "evaluation.bmv2_fattree.training"
MASTER_PORT = 29510
# Time for a whole training run: the first message of a worker is its result.
TRAINING_SECONDS = 900.0
# Width of the example's model: 50,000 parameters, and 12,000 where rates are a tenth.
WIDTH = {"softswitch": 16, "bmv2": 4}
LEARNING_RATE = 0.1


def train_both(everything: Setting, service: Service, plan: Plan) -> Training:
    """The same training over gloo and through the switches, on the same network. Raises HostFailure."""
    gloo, gloo_seconds = _run(everything, "gloo", "")
    everything.say(f"trained over gloo: {gloo_seconds:.1f} s, loss {gloo['losses'][-1]:.4f}")
    inart, inart_seconds = _run(everything, "inart", service.address)
    everything.say(f"trained through the switches: {inart_seconds:.1f} s, loss {inart['losses'][-1]:.4f}")
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
    )


def _run(everything: Setting, hook: str, controller: str) -> tuple[dict[str, Any], float]:
    """One training on all workers; the report of rank 0 and the time that it took altogether."""
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
                # As torchrun would set it.
                "environment": {
                    "RANK": str(number * settings.ranks + local),
                    "WORLD_SIZE": str(len(job.workers) * settings.ranks),
                    "LOCAL_RANK": str(local),
                    "LOCAL_WORLD_SIZE": str(settings.ranks),
                    "GROUP_RANK": str(number),
                    "MASTER_ADDR": everything.topology.address(job.workers[0]),
                    "MASTER_PORT": str(MASTER_PORT + bool(controller)),
                    "GLOO_SOCKET_IFNAME": emulation.interface(node),
                    "INART_CONTROLLER": controller,
                },
                "options": [
                    *("--hook", hook, "--steps", str(settings.steps), "--seed", str(settings.seed)),
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


def train(_: Channel, *, environment: dict[str, str], options: list[str]) -> dict[str, Any]:
    """One rank, as torchrun would start it; returns its report."""
    from dataclasses import asdict

    import torch
    from torch import distributed

    from examples import train_digits

    os.environ.update(environment)
    arguments = train_digits.make_parser().parse_args(options)
    torch.set_num_threads(arguments.threads)
    distributed.init_process_group("gloo")
    try:
        return asdict(train_digits.train(arguments))
    finally:
        distributed.destroy_process_group()
