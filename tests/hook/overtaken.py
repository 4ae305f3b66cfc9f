"""Scenarios of ranks that are late, for worker_agent/torch/deadline.py.

The gradient of rank r in step s is 1 at place (r, s) and 0 elsewhere, in each of several parameters: so a mean shows
exactly whose gradients are in it, and with which weight.
"""

from __future__ import annotations

import warnings
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_agent import InArtState
from worker_agent.torch.deadline import Deadline

STEPS = 8
LAYERS = 3


class Places(nn.Module):
    """Parameters whose gradient is the input."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(torch.zeros(size)) for _ in range(LAYERS))

    def forward(self, where: torch.Tensor) -> torch.Tensor:
        return sum((layer * where).sum() for layer in self.layers)  # type: ignore[return-value]


def overtaken(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Train STEPS steps; before its step `arguments["held"]` a rank waits for a message.

    Returns the gradients of each step and what the deadline counted.
    """
    size = dist.get_world_size()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = InArtState(arguments.get("controller"), agent=arguments.get("agent"), timeout=arguments["timeout"])
    ddp = DistributedDataParallel(Places(size * STEPS), bucket_cap_mb=0.0001)
    deadline = Deadline(ddp, state, most_behind=arguments.get("most_behind", 4))
    found, skipped = [], []
    for step in range(STEPS):
        ddp.zero_grad()
        if step == arguments.get("held"):
            connection.send("waits")
            connection.recv()
        if arguments.get("skips", True) and deadline.overtaken():
            skipped.append(step)
        else:
            where = torch.zeros(size * STEPS)
            where[rank * STEPS + step] = 1
            ddp(where).backward()
        found.append([layer.grad.tolist() for layer in ddp.module.layers])
        if step in arguments.get("tells", ()):
            connection.send(step)
    dist.barrier()
    in_network = state.in_network
    deadline.close()
    state.close()
    return {
        "found": found, "skipped": skipped, "stood_in": deadline.stood_in, "carried": deadline.carried,
        "in_network": in_network, "said": [str(one.message) for one in caught],
        "steps": (state.steps_in_network, state.steps_outside, state.falls),
    }  # fmt: skip


SCENARIOS = {"overtaken": overtaken}
