"""Code that ranks run to compare backend "inart" with what torch.distributed's own backends do."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def compiled(rank: int, arguments: dict[str, Any], _: Connection) -> dict[str, Any]:
    """Compile a DDP model and collectives; return losses and values."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    inputs = torch.randn(4, 8)

    def loss(module: nn.Module) -> float:
        model.zero_grad()
        value = module(inputs).pow(2).mean()
        value.backward()
        return value.item()

    @torch.compile(backend="eager")
    def collectives(x: torch.Tensor) -> torch.Tensor:
        y = x + rank
        dist.all_reduce(y, async_op=True).wait()
        dist.broadcast(y, 1)
        dist.barrier()
        return y * 2

    found: dict[str, Any] = {"plain": loss(model), "compiled": loss(torch.compile(model, backend="aot_eager"))}
    torch._dynamo.reset()
    with torch._dynamo.config.patch(optimize_ddp=False):
        found["whole"] = loss(torch.compile(model, backend="aot_eager"))
    return found | {"collectives": collectives(torch.ones(3)).tolist()}


def averages(rank: int, arguments: dict[str, Any], _: Connection) -> dict[str, Any]:
    """Return means of integers, and what is left of bool values for which a mean is refused."""
    whole = torch.tensor([3 * rank, -3 * rank, 4], dtype=torch.int64)
    dist.all_reduce(whole, op=dist.ReduceOp.AVG)
    part = torch.zeros(1, dtype=torch.int32)
    dist.reduce_scatter_tensor(part, torch.tensor([rank, 5 * rank], dtype=torch.int32), op=dist.ReduceOp.AVG)
    flags, error = torch.tensor([rank == 0, True]), ""
    try:
        dist.all_reduce(flags, op=dist.ReduceOp.AVG)
    except TypeError as refused:
        error = str(refused)
    return {"whole": whole.tolist(), "part": part.tolist(), "flags": flags.tolist(), "error": error}


SCENARIOS = {"compiled": compiled, "averages": averages}
BACKEND_SCENARIOS = set(SCENARIOS)
