"""Ranks of a job in the hosts of an emulated network, one a host, with the environment that torchrun gives them."""

from __future__ import annotations

from typing import Any

from controlplane.planner.job import Job, JobError
from controlplane.planner.plan.limits import DoesNotFit
from controlplane.planner.strategies import Infeasible
from controlplane.planner.topology import TopologyError
from controlplane.targets.base import TargetError
from topologies import EmulationError
from topologies.zygote import HostFailure, Zygote

SECONDS = 300.0
REFUSALS = (EmulationError, TargetError, TopologyError, JobError, DoesNotFit, Infeasible, HostFailure)
"""Errors that end a command with a line."""


def run_ranks(zygote: Zygote, job: Job, function: str, port: int, controller: str = "", **given: Any) -> list[Any]:
    """Run a function on all workers, and return what each of them returns. Raise HostFailure.

    Args:
        zygote: starts processes in the hosts of the emulated network.
        job: the job whose workers run, and its parameter servers, too, if a controller is given.
        function: "module:name" of the function.
        port: TCP port of torch's store.
        controller: address of the controller; empty where there is none.
        given: further arguments of the function.
    """
    processes = []
    if controller:
        for node in job.parameter_servers:
            server = {"controller": controller}
            processes.append(zygote.spawn(node, "topologies.hosts:parameter_server", server))
    roots = len(processes)
    for number, node in enumerate(job.workers):
        environment = {
            "RANK": str(number),
            "WORLD_SIZE": str(len(job.workers)),
            "MASTER_ADDR": zygote.emulation.topology.address(job.workers[0]),
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": zygote.emulation.interface(node),
            "INART_CONTROLLER": controller,
        }
        processes.append(zygote.spawn(node, function, {"environment": environment, **given}))
    try:
        return [process.receive(SECONDS) for process in processes[roots:]]
    finally:
        for process in processes:
            process.end()
