"""DDP trainers of the tests: one of the ranks is killed before its fourth step; or steps are taken on demand."""

from __future__ import annotations

import hashlib
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from topologies.zygote import Channel
from worker_agent import InArtState, inart_hook, native_worker

STEPS = 8


def train_on_demand(channel: Channel, variables: dict[str, str], last_number: int) -> None:
    """Take so many steps for each message, until one is null; the answer has a digest of the model, and how many steps
    went through the network, and how many did not. An epoch has sequence numbers up to `last_number`.
    """
    native_worker.LAST_NUMBER = last_number
    os.environ.update(variables)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Linear(1000, 100)
    ddp = DistributedDataParallel(model)
    state = InArtState()
    ddp.register_comm_hook(state, inart_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(dist.get_rank())
    while (steps := channel.receive()) is not None:
        for _ in range(steps):
            ddp(torch.randn(8, 1000, generator=data)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        channel.send([digest(model), state.steps_in_network, state.steps_outside])
    state.close()


def digest(model: nn.Module) -> str:
    content = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(content).hexdigest()


def train(channel: Channel, dies: bool, variables: dict[str, str]) -> str:
    """Train with these variables of the environment; returns a digest of the model."""
    os.environ.update(variables)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Linear(100, 30)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(InArtState(fallback=False), inart_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(dist.get_rank())
    for step in range(STEPS):
        if dies and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        ddp(torch.randn(8, 100, generator=data)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return digest(model)
