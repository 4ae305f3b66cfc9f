"""Code that ranks run to compare backend "inart" with what torch.distributed's own backends do."""

from __future__ import annotations

import copy
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.nn.parallel import DistributedDataParallel

from worker_agent import InArtState, MismatchError, inart_hook
from worker_agent.torch import presence


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
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    state = InArtState(agent=arguments["agent"])
    with torch._dynamo.config.patch(optimize_ddp="python_reducer", compiled_autograd=True):
        hooked = DistributedDataParallel(copy.deepcopy(model.module))
        hooked.register_comm_hook(state, inart_hook)
        hooked.zero_grad()
        torch.compile(hooked, backend="eager")(inputs).pow(2).mean().backward()
    state.close()
    pairs = zip(gradients, hooked.parameters(), strict=True)
    found["hooked"] = all(torch.allclose(one, other.grad) for one, other in pairs)
    return found | {"collectives": collectives(torch.ones(3)).tolist()}


def sparse(rank: int, arguments: dict[str, Any], _: Connection) -> dict[str, Any]:
    """Train an embedding with sparse gradients, with the hook and without; return the losses."""
    state = InArtState(agent=arguments["agent"])
    found: dict[str, Any] = {}
    for name in ("hook", "default"):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3)))
        if name == "hook":
            model.register_comm_hook(state, inart_hook)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        found[name] = []
        for step in range(3):
            inputs = torch.tensor([[rank, 2], [step, 5 + rank]])
            loss = model(inputs).pow(2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            found[name].append(loss.item())
        found[f"{name} sparse"] = next(model.parameters()).grad.is_sparse  # type: ignore[union-attr]
    found["counted"] = state.metrics()["operations_outside"]
    found["steps"] = state.steps_outside
    state.close()
    return found


def averages(rank: int, arguments: dict[str, Any], _: Connection) -> dict[str, Any]:
    """Return means, also of values whose sum is beyond their type, and bool values for which a mean is refused."""
    whole = torch.tensor([3 * rank, -3 * rank, 4], dtype=torch.int64)
    dist.all_reduce(whole, op=dist.ReduceOp.AVG)
    part = torch.zeros(1, dtype=torch.int32)
    dist.reduce_scatter_tensor(part, torch.tensor([rank, 5 * rank], dtype=torch.int32), op=dist.ReduceOp.AVG)
    flags, error = torch.tensor([rank == 0, True]), ""
    try:
        dist.all_reduce(flags, op=dist.ReduceOp.AVG)
    except TypeError as refused:
        error = str(refused)
    large = torch.tensor([3e38, 1.0])
    dist.all_reduce(large, op=dist.ReduceOp.AVG)
    return {
        "large": large.tolist(),
        "whole": whole.tolist(),
        "part": part.tolist(),
        "flags": flags.tolist(),
        "error": error,
    }


SKIPPED = {
    "abort",
    "barrier",
    "shutdown",
    "monitored_barrier",
    "merge_remote_group",
    "_start_coalescing",
    "_end_coalescing",
}
"""Members that end the group or wait for other ranks."""


def members(rank: int, arguments: dict[str, Any], _: Connection) -> dict[str, Any]:
    """Return each member of a group and of its handles that differs from that of gloo: what it gives, and gloo's."""
    groups = [dist.new_group(group_desc="a group"), dist.new_group(backend="gloo", group_desc="a group")]
    differing = _differing("", *groups, set(dir(dist.ProcessGroup)) - SKIPPED)
    inputs, parts = torch.arange(4.0) + rank, [torch.zeros(4), torch.zeros(4)]
    calls: dict[str, Any] = {
        "all_reduce": lambda group: dist.all_reduce(inputs.clone(), group=group, async_op=True),
        "maximum": lambda group: dist.all_reduce(inputs.clone(), dist.ReduceOp.MAX, group, async_op=True),
        "transposed": lambda group: dist.all_reduce(torch.ones(2, 3).t(), group=group, async_op=True),
        "broadcast": lambda group: dist.broadcast(inputs.clone(), 1, group, async_op=True),
        "all_gather": lambda group: dist.all_gather(parts, inputs, group, async_op=True),
        "all_gather_into_tensor": lambda group: dist.all_gather_into_tensor(torch.zeros(8), inputs, group, True),
        "all_to_all": lambda group: dist.all_to_all_single(torch.zeros(4), inputs, group=group, async_op=True),
        "reduce": lambda group: dist.reduce(inputs.clone(), 0, group=group, async_op=True),
        "barrier": lambda group: dist.barrier(group, async_op=True),
        "reduce_scatter": lambda group: dist.reduce_scatter(
            torch.zeros(2), list(inputs.view(2, 2)), group=group, async_op=True
        ),
        "reduce_scatter_tensor": lambda group: dist.reduce_scatter_tensor(
            torch.zeros(2), inputs, group=group, async_op=True
        ),
    }
    for name, call in calls.items():
        if name == "reduce_scatter":  # gloo counts it as several operations.
            differing |= _differing("", *groups, {"_get_sequence_number_for_group"})
        works = [call(group) for group in groups]
        assert all(work.wait() for work in works)
        differing |= _differing(f"{name}: ", *works, set(dir(dist.Work)))
        futures = [_seen(work, "get_future") for work in works]
        values = [repr(work.get_future().value()) for work in works if futures[1] == "Future"]
        if len(set(futures)) > 1 or len(set(values)) > 1:
            differing[f"{name}: future"] = (*futures, *values)
    return differing


def _differing(prefix: str, own: Any, gloo: Any, names: set[str]) -> dict[str, Any]:
    found = {name: (_seen(own, name), _seen(gloo, name)) for name in sorted(names) if not name.startswith("__")}
    return {prefix + name: pair for name, pair in found.items() if pair[0] != pair[1]}


def _seen(thing: Any, name: str) -> str:
    """Return the value of a member or the result of a call without arguments, in words."""
    try:
        value = getattr(thing, name)
        value = value() if callable(value) else value
    except Exception as error:
        return type(error).__name__
    return type(value).__name__ if " object at 0x" in repr(value) else repr(value)


def state_dicts(rank: int, arguments: dict[str, Any], _: Connection) -> dict[str, Any]:
    """Load a state dict that rank 0 has, and save one in the background."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    torch.manual_seed(rank)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, model.state_dict() if rank == 0 else {}, options=options)
    checkpoint.async_save({"model": model.state_dict()}, checkpoint_id=f"{arguments['store']}-saved").result()
    loaded = {"model": {name: torch.zeros_like(value) for name, value in model.state_dict().items()}}
    checkpoint.load(loaded, checkpoint_id=f"{arguments['store']}-saved")
    return {name: value.sum().item() for name, value in loaded["model"].items()}


def lists(rank: int, arguments: dict[str, Any], _: Connection) -> dict[str, Any]:
    """Run each collective on several tensors over both backends; return the results, and the metrics of the group."""
    found: dict[str, Any] = {}
    groups = {"inart": dist.new_group(), "gloo": dist.new_group(backend="gloo")}
    for name, group in groups.items():
        values = [torch.arange(6.0).view(2, 3) + rank, torch.full((4,), 10.0 * rank)]
        dist.all_reduce_coalesced(values, group=group)
        with dist._coalescing_manager(group, async_ops=True) as works:
            gathered = [torch.zeros(2, 3), torch.zeros(4)]
            for out, part in zip(gathered, (torch.ones(1, 3) * rank, torch.arange(2.0) + rank), strict=True):
                dist.all_gather_into_tensor(out, part, group=group)
        works.wait()
        with dist._coalescing_manager(group, async_ops=True) as works:
            scattered = [torch.zeros(3), torch.zeros(1)]
            for out, whole in zip(scattered, (torch.arange(6.0) * (rank + 1), torch.ones(2)), strict=True):
                dist.reduce_scatter_tensor(out, whole, group=group)
        works.wait()
        listed = torch.zeros(2)
        dist.reduce_scatter(listed, [torch.ones(2), torch.ones(2) * (rank + 1)], group=group)
        rows = [[torch.zeros(2), torch.zeros(1, 3)] for _ in range(2)]
        dist.all_gather_coalesced(rows, [torch.ones(2) * rank, torch.ones(1, 3) + rank], group=group)
        every = [*values, *gathered, *scattered, listed, *rows[0], *rows[1]]
        found[name] = [one.tolist() for one in every]
    network: Any = groups["inart"].network  # type: ignore[union-attr]
    before = network.metrics()["operations_outside"]
    for _ in range(2):
        dist.all_to_all_single(torch.zeros(2), torch.ones(2), group=groups["inart"])
    outside = dict(network.counts.operations_outside)
    return found | {"in_network": network.in_network, "before": before, "outside": outside}


def endings(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Rank 0 aborts the group while it waits; return how each waiter has its error."""
    group: Any = dist.group.WORLD
    found = {}
    if rank == 0:
        work = dist.all_reduce(torch.ones(50), async_op=True)
        mean = dist.all_reduce(torch.ones(2, 3).t(), dist.ReduceOp.MIN, async_op=True)
        doubled = work.get_future().then(lambda future: future.value()[0] * 2)
        group.abort()
        for name, wait in (("wait", work.wait), ("copied", mean.wait), ("future", doubled.wait)):
            try:
                wait()
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
        found["exception"] = type(work.exception()).__name__
        connection.send("aborted")
    connection.recv()
    return found


def timeouts(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Rank 1 takes no part in operations whose timeout is set in each way; return the errors of rank 0."""
    short, long = timedelta(seconds=0.2), timedelta(minutes=20)
    shortened = dist.new_group(timeout=long)
    dist.distributed_c10d._set_pg_timeout(short, shortened)
    options = dist.AllreduceOptions()
    options.timeout = short
    short_gloo = dist.new_group(backend="gloo", timeout=short)
    state = InArtState(agent=arguments["agent"], process_group=short_gloo)
    single: Any = dist.new_group(timeout=long)
    made, over_gloo = dist.new_group(timeout=short), dist.new_group(timeout=short)
    calls = {
        "new_group": lambda: dist.all_reduce(torch.ones(50), group=made),
        "over gloo": lambda: dist.all_reduce(torch.ones(5000), dist.ReduceOp.MAX, over_gloo),
        "_set_pg_timeout": lambda: dist.all_reduce(torch.ones(50), group=shortened),
        "options": lambda: single.allreduce([torch.ones(50)], options).wait(),
        "hook": lambda: state.allreduce(torch.ones(50)).wait(),
    }
    dist.barrier()
    found = {}
    if rank == 0:
        for name, call in calls.items():
            try:
                call()
            except RuntimeError as error:
                found[name] = str(error)
        connection.send("timed out")
    connection.recv()
    state.close()
    return found


def differing(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """The ranks ask for different operations, of which one or both could go through the network."""
    presence.LOOK_SECONDS = 0.05
    calls = arguments["calls"][rank]
    group = dist.new_group(timeout=timedelta(minutes=20))
    for _ in range(2):
        dist.all_reduce(torch.ones(1), group=group)
    dtype, elements, operator = calls
    try:
        dist.all_reduce(torch.ones(elements, dtype=getattr(torch, dtype)), getattr(dist.ReduceOp, operator), group)
    except MismatchError as error:
        return {"error": str(error)}
    return {"error": ""}


SCENARIOS = {
    "compiled": compiled,
    "sparse": sparse,
    "averages": averages,
    "members": members,
    "state dicts": state_dicts,
    "lists": lists,
    "endings": endings,
    "timeouts": timeouts,
    "differing": differing,
}
BACKEND_SCENARIOS = set(SCENARIOS)
