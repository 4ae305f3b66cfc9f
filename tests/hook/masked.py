"""Code that ranks run on values with infinities and NaN: every second one is -inf, as in masked logits, and all
mixtures occur.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_agent import InArtState, inart_hook

SIZE = 20_000
STEPS = 3


def given(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a rank's values. Every second value is -inf on both ranks; between them are NaN, and infinities that meet
    a number, an equal and an opposite infinity.
    """
    generator = torch.Generator().manual_seed(7 + rank)
    values = torch.randn(SIZE, generator=generator).to(dtype)
    values[::2] = -torch.inf
    values[8::16] = torch.inf if rank == 1 else -torch.inf  # -inf + inf
    values[1 + 10 * rank :: 40] = torch.nan
    values[3::40] = torch.inf if rank == 0 else values[3::40]
    values[5::40] = torch.inf
    values[7::40] = torch.inf if rank == 0 else -torch.inf
    return values


def wrong(found: torch.Tensor, dtype: torch.dtype, divisor: int) -> list[str]:
    """Return a description of every value that differs from IEEE addition of the ranks' values."""
    exact = sum(given(rank, dtype).double() for rank in range(2)) / divisor
    assert isinstance(exact, torch.Tensor)
    found = found.double()
    words = []
    for name, test in (("NaN", torch.isnan), ("inf", torch.isposinf), ("-inf", torch.isneginf)):
        assert int(test(exact).sum()) > 100, f"the values have {name}"
        if not torch.equal(test(found), test(exact)):
            words.append(f"{name} at {int(test(found).sum())} places instead of {int(test(exact).sum())}")
    finite = torch.isfinite(exact) & torch.isfinite(found)
    worst = float((found - exact)[finite].abs().max())
    # Values are below 8; the rest is the format's own rounding.
    bound = 8 * (2.0**-20 if dtype == torch.float32 else 2.0**-7)
    return words if worst <= bound else [*words, f"a number is wrong by {worst}"]


def hook(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Return gradients of DDP with the hook, which averages."""
    dtype = getattr(torch, arguments["dtype"])

    class Weights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.zeros(SIZE, dtype=dtype))

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return (self.weights * values).sum()  # Its gradient is `values`.

    state = InArtState(agent=arguments["agent"], timeout=30.0)
    model = Weights()
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(state, inart_hook)
    found: list[str] = []
    for _ in range(STEPS):
        model.weights.grad = None
        ddp(given(rank, dtype)).backward()
        assert model.weights.grad is not None
        found += wrong(model.weights.grad, dtype, 2)
    result = {"wrong": found, "in_network": state.in_network, "steps": state.steps_in_network, "falls": state.falls}
    state.close()
    return result


def backend(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Return the result of dist.all_reduce."""
    dtype = getattr(torch, arguments["dtype"])
    group: Any = dist.group.WORLD
    found: list[str] = []
    for _ in range(STEPS):
        values = given(rank, dtype)
        dist.all_reduce(values)
        found += wrong(values, dtype, 1)
    counts = group.network.counts
    return {
        "wrong": found, "in_network": group.network.in_network, "steps": counts.steps_in_network, "falls": counts.falls,
    }  # fmt: skip


SCENARIOS = {"masked_hook": hook, "masked_backend": backend}
BACKEND_SCENARIOS = {"masked_backend"}
