"""What a rank does in the tests of the hook, in a process of its own.

Ranks talk gloo over loopback; `agent` is the socket of the agent process of "their" machine.
"""

from __future__ import annotations

import os
import queue
import threading
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
from worker_agent import AbortedError, AllReduceError, InArtState, Work, inart_hook


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
    """Train without a fallback until the parameter server is gone; what the error says."""
    state = InArtState(agent=arguments["agent"], timeout=30.0, fallback=False)
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


def survive(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Train in turns: a message asks for steps until a condition holds, the answer says what became of them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = InArtState(agent=arguments["agent"], timeout=30.0)
        ddps = []
        for hook in (True, False):
            model, inputs, targets = model_and_data(rank, torch.float32)
            ddps.append(DistributedDataParallel(model, bucket_cap_mb=0.1))
            if hook:
                ddps[-1].register_comm_hook(state, inart_hook)
        while (wanted := connection.recv()) is not None:
            losses: list[float] = []
            expected: list[float] = []
            while True:
                losses += losses_and_gradients(ddps[0], inputs, targets, 1)[0]
                expected += losses_and_gradients(ddps[1], inputs, targets, 1)[0]
                # All ranks do the same number of steps.
                over = torch.tensor([int((state.in_network == wanted and len(losses) >= 3) or len(losses) >= 3000)])
                dist.all_reduce(over, dist.ReduceOp.MIN)
                if over.item():
                    break
            connection.send({"in_network": state.in_network, "losses": losses, "expected": expected})
        result = {"steps": (state.steps_in_network, state.steps_outside, state.falls)}
        state.close()
    return {**result, "warnings": [str(w.message) for w in caught if "in-network" in str(w.message)]}


class Flaky:
    """An agent that sums over gloo, and fails where it is told to: after the others may have had their result."""

    def __init__(self, failing: set[int]) -> None:
        self.world_size = dist.get_world_size()
        self.ready = True
        self._failing = failing
        self._group = dist.new_group(backend="gloo")
        self._operations = 0
        self._work: queue.SimpleQueue[tuple[int, torch.Tensor, Work] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def allreduce_async(self, array, op="sum", *, dtype=None) -> Work:
        work = Work(array.numel(), array.numel() * array.element_size())
        self._work.put((self._operations, array, work))
        self._operations += 1
        return work

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            number, array, work = item
            dist.all_reduce(array.div_(self.world_size), group=self._group)
            if number in self._failing:
                array.fill_(float("nan"))  # "its tensor's content is undefined"
                work.finish(AllReduceError(f"operation {number} failed"))
            else:
                work.finish(None)

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()


def flaky(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """`train` with an agent that fails at the operations that `failing` names for this rank."""
    agent = Flaky(set(arguments["failing"]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = InArtState(agent=agent)
        results = []
        for hook in (True, False):
            model, inputs, targets = model_and_data(rank, torch.float32)
            ddp = DistributedDataParallel(model, bucket_cap_mb=0.1)
            if hook:
                ddp.register_comm_hook(state, inart_hook)
            results.append(losses_and_gradients(ddp, inputs, targets, arguments["steps"])[0])
        steps = (state.steps_in_network, state.steps_outside, state.falls)
        state.close()
    agent.close()
    return {
        "losses": results[0],
        "expected": results[1],
        "steps": steps,
        "warnings": [str(w.message) for w in caught if "in-network" in str(w.message)],
    }


def example(arguments: dict[str, Any]) -> dict[str, Any]:
    """examples/train_digits.py with a command line, as torchrun would start it."""
    os.environ.update(arguments["environment"])
    return {"code": train_digits.main(arguments["arguments"])}


SCENARIOS = {"train": train, "lose": lose, "survive": survive, "flaky": flaky}


def main(scenario: str, connection: Connection, arguments: dict[str, Any]) -> None:
    """Entry of the rank's process; the last thing that it sends is its result."""
    torch.set_num_threads(1)
    try:
        if scenario == "example":
            connection.send(example(arguments))
            return
        rank = arguments["rank"]
        dist.init_process_group("gloo", init_method=f"file://{arguments['store']}", rank=rank, world_size=2)
        connection.send(SCENARIOS[scenario](rank, arguments, connection))
        if scenario != "lose":
            dist.destroy_process_group()
    except Exception:
        connection.send({"traceback": traceback.format_exc()})
