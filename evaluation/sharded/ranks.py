"""The functions of each rank, in its emulated host."""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

from topologies.zygote import Channel


def collectives(_: Channel, *, environment: dict[str, str], backend: str, size: int, repeat: int) -> dict[str, float]:
    """Return median seconds of each collective on an array of `size` bytes in all, after one that synchronises all
    ranks.
    """
    import torch
    from torch import distributed as dist

    from worker_agent.torch.backend import register

    os.environ.update(environment)
    register()
    torch.set_num_threads(1)
    dist.init_process_group(f"cpu:{backend}")
    world = dist.get_world_size()
    part = torch.ones(size // 4 // world)
    whole = torch.ones(part.numel() * world)

    def gather() -> None:
        dist.all_gather_into_tensor(whole, part)

    runs: dict[str, Any] = {
        "all_gather": gather,
        "all_reduce": lambda: dist.all_reduce(whole),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_gather, as in training": gather,  # from the group's first reduce-scatter on (worker_agent/ways.py)
        "broadcast": lambda: dist.broadcast(whole, 0),
    }

    def scatter_beside_gather() -> None:
        """Run a reduce-scatter beside an all-gather, as a fully sharded backward pass could: one sends while the other
        receives.
        """
        other, mine = torch.empty_like(whole), torch.ones_like(part)
        works = [
            dist.reduce_scatter_tensor(part, whole, async_op=True),
            dist.all_gather_into_tensor(other, mine, async_op=True),
        ]
        for work in works:
            work.wait()

    runs["reduce_scatter + all_gather"] = scatter_beside_gather
    found = {}
    for name, run in runs.items():
        run()
        seconds = []
        for _run in range(repeat):
            dist.barrier()
            started = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - started)
        found[name] = statistics.median(seconds)
        whole.fill_(1.0)
    group: Any = dist.group.WORLD
    network = getattr(group, "network", None)
    found["in_network"] = float(network is not None and network.in_network and not network.counts.falls)
    dist.barrier()
    dist.destroy_process_group()
    return found


def train(_: Channel, *, environment: dict[str, str], options: list[str]) -> dict[str, Any]:
    """Run the example as torchrun would start it, and return its report."""
    from dataclasses import asdict

    import torch
    from torch import distributed as dist

    from examples import train_gpt

    os.environ.update(environment)
    arguments = train_gpt.make_parser().parse_args(options)
    torch.set_num_threads(1)
    train_gpt.initialise(arguments)
    try:
        return asdict(train_gpt.train(arguments))
    finally:
        dist.destroy_process_group()
