"""A DDP trainer of the tests: some steps through the network; one of the ranks is killed before its fourth."""

from __future__ import annotations

import hashlib
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from topologies.zygote import Channel
from worker_agent import InArtState, inart_hook

STEPS = 8


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
    content = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(content).hexdigest()
