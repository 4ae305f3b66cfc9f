"""Models that the ranks of the tests train."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def model_and_data(rank: int, dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 3)).to(dtype)
    torch.manual_seed(100 + rank)
    return model, torch.randn(16, 20).to(dtype), torch.randn(16, 3).to(dtype)


def losses_and_gradients(ddp: DistributedDataParallel, inputs, targets, steps: int) -> tuple[list[float], list]:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(ddp(inputs).float(), targets.float())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.grad.clone() for parameter in ddp.parameters() if parameter.grad is not None]
