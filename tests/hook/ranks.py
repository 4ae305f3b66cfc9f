"""The scenarios of the hook's tests that a rank runs in a process of its own.

Ranks talk gloo over loopback; `agent` is the socket of the agent process of "their" machine.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import pickle
import queue
import threading
import time
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any

import sklearn.datasets  # noqa: F401 (imported once, for the example)
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from examples import train_digits, train_gpt
from tests.hook import contract, leaving, masked, sharded
from tests.hook.models import losses_and_gradients, model_and_data
from worker_agent import AbortedError, AllReduceError, InArtState, Work, inart_hook
from worker_agent.collectives import collective
from worker_agent.torch import fallback, lateness
from worker_agent.torch.alike import reduce_alike
from worker_agent.torch.backend import BackendOptions
from worker_agent.torch.control import Control

HANG_SECONDS = 220.0


def train(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Return losses and gradients with the hook and without it, with the same seeds."""
    dtype = getattr(torch, arguments.get("dtype", "float32"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = InArtState(
            arguments.get("controller"),
            agent=arguments.get("agent"),
            timeout=arguments.get("timeout", 30.0),
            bits=arguments.get("bits"),
        )
    results = {}
    kept: dict[str, Any] = {}
    for name in ("hook", "default"):
        model, inputs, targets = model_and_data(rank, dtype)
        # Small buckets make several all-reduces in progress at once.
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.1)
        if name == "hook":
            ddp.register_comm_hook(state, inart_hook)
        results[name] = losses_and_gradients(ddp, inputs, targets, arguments.get("steps", 8))
        if name == "hook":
            kept = state.state_dict(ddp)
            state.load_state_dict(kept, model)  # The model is loaded both with DDP around it and without.
            assert str(state.state_dict(ddp)) == str(kept)
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
        "reductions": kept["reductions"],
        "left": {name: float(left.abs().max()) for name, left in kept["left"].items()},
        "warnings": [str(warning.message) for warning in caught if "in-network" in str(warning.message)],
    }


def lose(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Train without a fallback until the parameter server is gone; returns the text of the error."""
    state = InArtState(agent=arguments["agent"], timeout=30.0, fallback=False)
    model, inputs, targets = model_and_data(rank, torch.float32)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(state, inart_hook)
    losses_and_gradients(ddp, inputs, targets, 1)
    connection.send("trained")
    try:
        losses_and_gradients(ddp, inputs, targets, 1_000_000)
    except AbortedError as error:  # The loss of the server came between two steps.
        return {"error": f"AbortedError: {error}"}
    except RuntimeError as error:  # It came in the middle of a step: torch puts the class before the text.
        return {"error": str(error)}
    finally:
        state.close()
    return {"error": ""}


def unlike(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Sum small and large tensors whose sizes differ between the ranks, and then some that are alike."""
    state = InArtState(agent=arguments["agent"], timeout=30.0)
    errors = []
    for elements in (1_000, 100_000):
        everybody = torch.zeros(1)
        while not everybody:  # After an error all have left the network, and return to it.
            state.allreduce(torch.ones(10), "sum").wait()
            everybody = torch.tensor([int(state.in_network)])
            dist.all_reduce(everybody, dist.ReduceOp.MIN)
        try:
            state.allreduce(torch.ones(elements * (1 + rank)), "sum").wait()
        except RuntimeError as error:
            errors.append(str(error))
    total = state.allreduce(torch.ones(1000), "sum").wait()
    state.close()
    return {"errors": errors, "total": total.tolist()}


def survive(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Train in turns: a message asks for steps until a condition holds, and the answer reports them."""
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
            deadline = time.monotonic() + 120.0
            while True:
                losses += losses_and_gradients(ddps[0], inputs, targets, 1)[0]
                expected += losses_and_gradients(ddps[1], inputs, targets, 1)[0]
                # All ranks do the same number of steps.
                done = state.in_network == wanted and len(losses) >= 3
                over = torch.tensor([int(done or time.monotonic() > deadline)])
                dist.all_reduce(over, dist.ReduceOp.MIN)
                if over.item():
                    break
            said = [str(warning.message) for warning in caught][-3:]
            connection.send({"in_network": state.in_network, "losses": losses, "expected": expected, "said": said})
        result = {"steps": (state.steps_in_network, state.steps_outside, state.falls)}
        state.close()
    return {**result, "warnings": [str(w.message) for w in caught if "in-network" in str(w.message)]}


def models(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Train two models with a state each in turns, and then make and close states over and over."""
    losses: dict[str, list[float]] = {}
    states = [InArtState(agent=arguments["agent"], timeout=30.0) for _ in range(2)]
    pairs = []
    for state in (*states, None):
        model, inputs, targets = model_and_data(rank, torch.float32)
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.1)
        if state is not None:
            ddp.register_comm_hook(state, inart_hook)
        pairs.append((ddp, inputs, targets))
    for _ in range(6):
        for name, (ddp, inputs, targets) in zip(("first", "second", "expected"), pairs, strict=True):
            losses.setdefault(name, []).extend(losses_and_gradients(ddp, inputs, targets, 1)[0])
    steps = [(state.steps_in_network, state.falls) for state in states]
    metrics = states[0].metrics()
    try:
        pickle.dumps(states[0])
    except TypeError as error:
        refused = str(error)
    states[0].close()
    sums = []
    for _ in range(12):
        again = InArtState(agent=arguments["agent"], timeout=30.0)
        tensor = torch.full((100,), float(rank + 1))
        again.allreduce(tensor, "sum").wait()
        sums.append((again.in_network, tensor[0].item()))
        again.close()
    states[1].close()
    return {"losses": losses, "steps": steps, "metrics": metrics, "refused": refused, "sums": sums}


def counted(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Sum over one rank of each node, and then over all, where no launcher has told the ranks their nodes."""
    pair = None
    for members in ([0, 2], [1, 3]):
        made = dist.new_group(members)
        pair = made if rank in members else pair
    found = []
    for group in (pair, None):
        state = InArtState(agent=arguments["agent"], timeout=30.0, process_group=group)
        total = state.allreduce(torch.full((1000,), float(rank)), "sum").wait()
        found.append((state.in_network, total[-1].item()))
        if group is None:
            dist.barrier()
        state.close()
    return {"found": found}


def late(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Rank 1 begins an all-reduce only when it is told; rank 0 reports what it sees meanwhile."""
    lateness.LATE_SECONDS = 0.5
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    handler = logging.Handler()
    handler.emit = lambda record: lines.put(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("inart").addHandler(handler)
    state = InArtState(agent=arguments["agent"], timeout=30.0)
    tensor = torch.ones(5000)
    if rank == 1:
        connection.recv()
    future = state.allreduce(tensor, "sum")
    found: list[str] = []
    if rank == 0:
        while not any("w1 has not submitted" in line for line in found):
            found.append(lines.get(timeout=60))
        connection.send("said")
    future.wait()
    result = {"in_network": state.in_network, "falls": state.falls, "sum": tensor[0].item(), "lines": found}
    state.close()
    return result


class Flaky:
    """An agent that sums over gloo and fails when told to: possibly after the others have had their result."""

    def __init__(self, failing: set[int]) -> None:
        self.world_size = dist.get_world_size()
        self.ready = True
        self._failing = failing
        self._group = dist.new_group(backend="gloo")
        self._operations = 0
        self._work: queue.SimpleQueue[tuple[int, torch.Tensor, str, Work] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def allreduce_async(self, array, op="sum", *, dtype=None) -> Work:
        work = Work(array.numel(), array.numel() * array.element_size())
        self._work.put((self._operations, array, str(op), work))
        self._operations += 1
        return work

    def _reduce(self, array: torch.Tensor, op: str) -> torch.Tensor:
        """Return the part of the array that the operation writes."""
        parts = array.view(self.world_size, -1) if op in ("scatter mean", "gather") else array
        if op == "gather":
            own = parts[dist.get_rank()].clone()
            dist.all_gather(list(parts), own, group=self._group)
        elif op == "scatter mean":
            whole = parts / self.world_size
            dist.all_reduce(whole, group=self._group)
            return parts[dist.get_rank()].copy_(whole[dist.get_rank()])
        else:
            dist.all_reduce(array.div_(self.world_size), group=self._group)
        return array

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            number, array, op, work = item
            written = self._reduce(array, op)
            if number in self._failing:
                written.fill_(float("nan"))  # What an aborted operation would have written is undefined.
                work.finish(AllReduceError(f"operation {number} failed"))
            else:
                work.finish(None)

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()


def flaky(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Run `train` with an agent that fails at the operations that `failing` names for this rank."""
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


def skipped(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Train with an agent that works, where rank 1 skips the backward pass of one step; return the warnings."""
    agent = Flaky(set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = InArtState(agent=agent)
        model, inputs, _ = model_and_data(rank, torch.float32)
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.1)
        ddp.register_comm_hook(state, inart_hook)
        for step in range(6):
            with torch.no_grad():
                ddp(inputs)
            loss = ddp(inputs).sum()
            if (rank, step) not in ((1, 2), (0, 5)):
                loss.backward()
        state.close()
    agent.close()
    return {"warnings": [str(one.message) for one in caught if "forward passes" in str(one.message)]}


def few(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Small operations, one after the other, each with the result of the one before in it; some fail on this rank."""
    agent = Flaky(set(arguments["failing"]))
    agreements = []

    reduce = Control.reduce

    def counted(self: Control, *given: Any) -> list[int]:
        agreements.append(given)
        return reduce(self, *given)

    Control.reduce = counted  # type: ignore[method-assign]
    as_in_network = []

    def noted(*given: Any) -> None:
        as_in_network.append(given)
        reduce_alike(*given)

    fallback.reduce_alike = noted
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = InArtState(agent=agent, reproducible=arguments.get("reproducible", False))
        values, found = torch.zeros(5), []
        for number in range(arguments["operations"]):
            tensor = values * 0.75 + (rank + 1) * number
            state.allreduce(tensor, "mean").wait()
            values = tensor.clone()
            tensor.fill_(-1.0)  # the caller may do what it likes with it
            found.append(values.tolist())
            if arguments.get("idle") == number:
                connection.send("idle")
                connection.recv()
        state.close()
    agent.close()
    said = [str(w.message) for w in caught if "in-network" in str(w.message)]
    return {"found": found, "agreements": len(agreements), "warnings": said, "as_in_network": len(as_in_network)}


def in_parts(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Reduce-scatters and all-gathers by turns, each of what the one before gave; some fail on this rank."""
    agent = Flaky(set(arguments["failing"]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = InArtState(agent=agent)
        values, found = torch.zeros(2, 20_000), []
        for number in range(arguments["operations"]):
            tensor = values * 0.75 + (rank + 1) * number
            tensor[1] += 1
            state.allreduce(tensor, "scatter mean").wait()
            values = torch.full_like(tensor, -1.0)
            values[rank] = tensor[rank]
            tensor.fill_(-1.0)  # the caller may do what it likes with it
            gathered = values.clone()
            state.allreduce(gathered, "gather").wait()
            values = gathered.clone()
            gathered.fill_(-1.0)
            found.append(values[:, ::19_999].tolist())
        state.close()
    agent.close()
    return {"found": found, "warnings": [str(w.message) for w in caught if "in-network" in str(w.message)]}


def alike(rank: int, arguments: dict[str, Any], connection: Connection) -> list[bytes]:
    """All-reduces over torch.distributed, as the network would do them; each a tensor's bytes, dtype, and operation."""
    found = []
    for (given, dtype, op), values in arguments["cases"]:
        tensor = torch.frombuffer(bytearray(given[rank]), dtype=getattr(torch, dtype))
        reduce_alike(Control(dist.group.WORLD), tensor, collective(op), [1, 0], values)
        found.append(tensor.view(torch.uint8).numpy().tobytes())
    return found


def example(arguments: dict[str, Any]) -> dict[str, Any]:
    """Run an example with a command line, as torchrun would start it."""
    os.environ.update(arguments["environment"])
    program = {"digits": train_digits, "gpt": train_gpt}[arguments.get("program", "digits")]
    return {"code": program.main(arguments["arguments"])}


SCENARIOS = {
    "train": train,
    "lose": lose,
    "survive": survive,
    "unlike": unlike,
    "models": models,
    "counted": counted,
    "late": late,
    "flaky": flaky,
    "skipped": skipped,
    "few": few,
    "in parts": in_parts,
    "alike": alike,
    **contract.SCENARIOS,
    **leaving.SCENARIOS,
    **masked.SCENARIOS,
    **sharded.SCENARIOS,
}
BACKEND_SCENARIOS = (
    contract.BACKEND_SCENARIOS | leaving.BACKEND_SCENARIOS | masked.BACKEND_SCENARIOS | sharded.BACKEND_SCENARIOS
)


def main(scenario: str, connection: Connection, arguments: dict[str, Any]) -> None:
    """Run a scenario in the rank's process; its last message is the result."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(HANG_SECONDS)  # If a rank hangs, this shows where in pytest's captured output.
    try:
        if scenario == "example":
            connection.send(example(arguments))
            return
        rank = arguments["rank"]
        os.environ.update(arguments.get("environment", {}))
        backend, options = "gloo", None
        if scenario in BACKEND_SCENARIOS:
            backend, options = (
                "cpu:inart",
                BackendOptions(agent=arguments.get("agent"), timeout=30.0, bits=arguments.get("bits")),
            )
        world = arguments.get("world", 2)
        store = f"file://{arguments['store']}"
        dist.init_process_group(backend, init_method=store, rank=rank, world_size=world, pg_options=options)
        connection.send(SCENARIOS[scenario](rank, arguments, connection))
        if scenario != "lose":
            dist.destroy_process_group()
    except Exception:
        connection.send({"traceback": traceback.format_exc()})
