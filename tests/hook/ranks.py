"""What a rank does in the tests of the hook, in a process of its own.

Ranks talk gloo over loopback; `agent` is the socket of the agent process of "their" machine.
"""

from __future__ import annotations

import os
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any

import sklearn.datasets  # noqa: F401 (imported once, for the example)
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from examples import train_digits
from worker_agent import AbortedError, InArtState, inart_hook


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


def train(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Losses and gradients with the hook against those without, same seeds."""
    dtype = getattr(torch, arguments.get("dtype", "float32"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = InArtState(
            arguments.get("controller"), agent=arguments.get("agent"), timeout=arguments.get("timeout", 30.0)
        )
    results = {}
    for name in ("hook", "default"):
        model, inputs, targets = model_and_data(rank, dtype)
        # Small buckets: several are under way at once.
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.1)
        if name == "hook":
            ddp.register_comm_hook(state, inart_hook)
        results[name] = losses_and_gradients(ddp, inputs, targets, arguments.get("steps", 8))
    in_network = state.in_network
    state.close()
    difference = max(
        float((mine - theirs).abs().max()) / (float(theirs.abs().max()) + 1e-30)
        for mine, theirs in zip(results["hook"][1], results["default"][1], strict=True)
    )
    digest = sum(float(gradient.double().abs().sum()) for gradient in results["hook"][1])
    return {
        "in_network": in_network,
        "losses": results["hook"][0],
        "expected": results["default"][0],
        "difference": difference,
        "digest": digest.hex(),
        "warnings": [str(warning.message) for warning in caught if "in-network" in str(warning.message)],
    }


def lose(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Train until the parameter server is gone; what the error says."""
    state = InArtState(agent=arguments["agent"], timeout=30.0)
    model, inputs, targets = model_and_data(rank, torch.float32)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(state, inart_hook)
    losses_and_gradients(ddp, inputs, targets, 1)
    connection.send("trained")
    try:
        losses_and_gradients(ddp, inputs, targets, 1_000_000)
    except (RuntimeError, AbortedError) as error:
        return {"error": str(error)}
    finally:
        state.close()
    return {"error": ""}


def example(arguments: dict[str, Any]) -> dict[str, Any]:
    """examples/train_digits.py with a command line, as torchrun would start it."""
    os.environ.update(arguments["environment"])
    return {"code": train_digits.main(arguments["arguments"])}


def main(scenario: str, connection: Connection, arguments: dict[str, Any]) -> None:
    """Entry of the rank's process; the last thing that it sends is its result."""
    torch.set_num_threads(1)
    try:
        if scenario == "example":
            connection.send(example(arguments))
            return
        rank = arguments["rank"]
        dist.init_process_group("gloo", init_method=f"file://{arguments['store']}", rank=rank, world_size=2)
        connection.send({"train": train, "lose": lose}[scenario](rank, arguments, connection))
        if scenario == "train":
            dist.destroy_process_group()
    except Exception:
        connection.send({"traceback": traceback.format_exc()})
