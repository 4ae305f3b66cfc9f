"""A rank of DDP training over the overlay."""

import json
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from overlay.net.agent import Agent
from overlay.net.hook import HookState, overlay_hook


def losses(rank: int, world: int, hook: HookState | None) -> list[float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)), bucket_cap_mb=0.004)
    if hook is not None:
        model.register_comm_hook(hook, overlay_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    found = []
    for _ in range(12):
        x = torch.randn(32, 20, generator=generator)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        torch.distributed.all_reduce(total)
        found.append(float(total) / world)
    return [*found, float(sum(p.double().sum() for p in model.parameters()))]


def train(rank: int, world: int, store: str, port: int, out: str) -> None:
    """Train over gloo, and then over the coordinator at this port, in a process of its own; the losses go to `out`."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    agent = Agent(("127.0.0.1", port), f"h{rank}", listen=("127.0.0.1", 0))
    agent.wait_joined()
    Path(out).write_text(json.dumps([losses(rank, world, None), losses(rank, world, HookState(agent))]))
    torch.distributed.barrier()
    agent.leave()
    torch.distributed.destroy_process_group()
    os._exit(0)  # The result is written; what PyTorch's threads do while the interpreter ends is not tested here.
