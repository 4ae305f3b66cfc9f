"""Code that ranks run with the backend and with sharded models, compared with gloo in the same run."""

from __future__ import annotations

import logging
import time
import warnings
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.hook.models import losses_and_gradients, model_and_data
from worker_agent import InArtState, inart_fsdp, inart_hook
from worker_agent.torch import fsdp
from worker_agent.torch.backend import BackendOptions
from worker_agent.torch.fsdp import gather_ahead

STEPS = 20


def digest(tensors: Any) -> str:
    """Return a digest of the bits, which is the same on two ranks only when all bits are."""
    return sum(float(tensor.detach().double().abs().sum()) for tensor in tensors).hex()


def train(model: Any, optimizer: Any, inputs, targets, steps: int = STEPS) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def backend(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Run plain collectives, DDP without a hook, and ZeRO through the default group and over gloo."""
    gloo = dist.new_group(backend="gloo")
    group: Any = dist.group.WORLD
    found: dict[str, Any] = {"in_network": group.network.in_network, "wrong": []}

    def compare(name: str, result: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-6) -> None:
        largest = float(expected.double().abs().max())
        if float((result.double() - expected.double()).abs().max()) > tolerance * largest:
            found["wrong"].append(name)

    torch.manual_seed(rank)
    cases = {
        "sum": (torch.randn(5000), dist.ReduceOp.SUM, 1e-6),
        "small": (torch.randn(3), dist.ReduceOp.SUM, 1e-6),
        "max": (torch.randn(5000), dist.ReduceOp.MAX, 0.0),
        "integers": (torch.randint(0, 100, (5000,)), dist.ReduceOp.SUM, 0.0),
        "bfloat16": (torch.randn(5001).bfloat16(), dist.ReduceOp.SUM, 2e-2),
        "transposed": (torch.randn(60, 70).t(), dist.ReduceOp.SUM, 1e-6),
        "few integers": (torch.randint(-(2**40), 2**40, (3,)), dist.ReduceOp.SUM, 0.0),
        "largest": (torch.randn(4), dist.ReduceOp.MAX, 0.0),
        "bits": (torch.randint(0, 100, (4,), dtype=torch.int32), dist.ReduceOp.BOR, 0.0),
    }
    before = group.network.counts.steps_in_network
    for name, (tensor, op, tolerance) in cases.items():
        mine, theirs = tensor.clone(), tensor.clone()
        dist.all_reduce(mine, op)
        dist.all_reduce(theirs, op, group=gloo)
        compare(name, mine, theirs, tolerance)
    found["through"] = group.network.counts.steps_in_network - before
    mean, small = torch.full((4000,), float(rank)), torch.full((4,), float(rank))
    expected = (dist.get_world_size() - 1) / 2
    works = [dist.all_reduce(tensor, dist.ReduceOp.AVG, async_op=True) for tensor in (mean, small)]
    for work, tensor in zip(works, (mean, small), strict=True):
        work.wait()
        compare("mean", tensor, torch.full_like(tensor, expected))
    # gloo does these: the mean of a leaf that requires a gradient, and sums of values that lie apart in memory.
    leaf = torch.full((4000,), float(rank), dtype=torch.float64, requires_grad=True)
    dist.all_reduce(leaf, dist.ReduceOp.AVG)
    compare("mean of a leaf", leaf.detach(), torch.full((4000,), expected))
    for op, result in ((dist.ReduceOp.AVG, expected), (dist.ReduceOp.MAX, dist.get_world_size() - 1.0)):
        memory = torch.full((8000,), float(rank), dtype=torch.float64)
        dist.all_reduce(memory[::2], op)
        compare(f"{op} of values apart", memory.view(-1, 2), torch.tensor([result, rank]).expand(4000, 2))
    memory = torch.full((60,), float(rank))
    dist.broadcast(memory[::2], 1)
    compare("broadcast of values apart", memory.view(-1, 2), torch.tensor([1.0, rank]).expand(30, 2))
    # FSDP2 asks for this with a divisor of its own (as torchtitan does): gloo has no such operator.
    half = dist._make_nccl_premul_sum(0.5)
    for values in (8000, 8):
        whole = torch.full((values,), float(rank + 1))
        dist.all_reduce(whole, half)
        compare("premultiplied", whole, torch.full_like(whole, (expected + 1) * dist.get_world_size() / 2))
        part = torch.empty(values // dist.get_world_size())
        dist.reduce_scatter_tensor(part, torch.full((values,), float(rank + 1)), half)
        compare("premultiplied part", part, torch.full_like(part, (expected + 1) * dist.get_world_size() / 2))
    gathered = [torch.empty(3) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, torch.full((3,), float(rank)))
    compare("all_gather", torch.stack(gathered)[:, 0], torch.arange(float(dist.get_world_size())))
    dist.barrier()
    losses = {}
    for name, over in (("inart", group), ("gloo", gloo)):
        model, inputs, targets = model_and_data(rank, torch.float32)
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.1, process_group=over)
        losses[name] = losses_and_gradients(ddp, inputs, targets, STEPS)[0]
        model, inputs, targets = model_and_data(rank, torch.float32)
        ddp = DistributedDataParallel(model, process_group=over)
        zero = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, process_group=over, lr=0.05)
        losses[f"{name} zero"] = train(ddp, zero, inputs, targets, 5)
        found[f"{name} digest"] = digest(ddp.parameters())
    return {**found, "losses": losses, "steps": group.network.counts.steps_in_network}


def fsdp1(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Run FSDP1 without sharding (its gradients are all-reduced) and with it, over the backend and over gloo."""
    gloo = dist.new_group(backend="gloo")
    group: Any = dist.group.WORLD
    losses: dict[str, list[float]] = {}
    for strategy in ("NO_SHARD", "FULL_SHARD"):
        for name, over in (("inart", group), ("gloo", gloo)):
            model, inputs, targets = model_and_data(rank, torch.float32)
            from torch.distributed.fsdp import ShardingStrategy

            sharded = FullyShardedDataParallel(
                model, process_group=over, sharding_strategy=ShardingStrategy[strategy], device_id=torch.device("cpu")
            )
            losses[f"{name} {strategy}"] = train(
                sharded, torch.optim.SGD(sharded.parameters(), lr=0.05), inputs, targets, 10
            )
    state = InArtState(agent=arguments["agent"], timeout=30.0)
    refused = ""
    try:
        sharded.register_comm_hook(state, inart_hook)
    except TypeError as error:
        refused = str(error)
    state.close()
    return {"losses": losses, "refused": refused, "steps": group.network.counts.steps_in_network}


def collectives(seed: int, group: Any) -> dict[str, torch.Tensor]:
    """Return the result of each collective on this rank; the input is the same whatever the group."""
    rank, size = dist.get_rank(), dist.get_world_size()
    random = torch.Generator().manual_seed(100 * seed + rank)
    whole = torch.randn(size, 3001, generator=random)
    found: dict[str, torch.Tensor] = {}
    for name, dtype, op in (
        ("scatter", torch.float32, dist.ReduceOp.SUM),
        ("scatter mean", torch.float32, dist.ReduceOp.AVG),
        ("scatter bfloat16", torch.bfloat16, dist.ReduceOp.SUM),
    ):
        given = whole.to(dtype).view(-1)
        before, output = given.clone(), torch.empty(3001, dtype=dtype)
        scattered = dist.reduce_scatter_tensor(output, given, op, group=group, async_op=True)
        assert scattered is not None
        scattered.wait()
        assert torch.equal(before, given), "what is scattered is left alone"
        found[name] = output
    for name, part in (
        ("gather", torch.randn(3001, generator=random)),
        ("gather integers", torch.randint(-(2**62), 2**62, (1001,), generator=random)),
        ("gather bytes", torch.randint(0, 256, (5003,), generator=random, dtype=torch.uint8)),
    ):
        output = torch.empty(size * part.numel(), dtype=part.dtype)
        dist.all_gather_into_tensor(output, part, group=group)
        found[name] = output
        several = [torch.empty_like(part) for _ in range(size)]
        dist.all_gather(several, part, group=group)
        found[f"{name} list"] = torch.cat(several)
    for source in range(size):
        found[f"broadcast {source}"] = torch.randn(60, 70, generator=random).t()
        dist.broadcast(found[f"broadcast {source}"], source, group=group)
    return found


def different(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> list[str]:
    """Return names of results that differ: sums by more than the number format's error, all else in any bit."""
    wrong = []
    for name, tensor in mine.items():
        tolerance = 2e-2 if "bfloat16" in name else 1e-6
        error = float((tensor.double() - theirs[name].double()).abs().max())
        if not (error <= tolerance * 10 if "scatter" in name else torch.equal(tensor, theirs[name])):
            wrong.append(name)
    return wrong


def sharded(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Run collectives of parts, and FSDP2 over all ranks (fully sharded between nodes), over the backend and over
    gloo.
    """
    gloo = dist.new_group(backend="gloo")
    group: Any = dist.group.WORLD
    wrong = different(collectives(1, group), collectives(1, gloo))
    through = group.network.counts.steps_in_network
    losses, digests = {}, {}
    for name, over in (("inart", group), ("ahead", group), ("gloo", gloo)):
        model, inputs, targets = model_and_data(rank, torch.float32)
        assert isinstance(model, nn.Sequential)
        fully = shard_all(model, dist.DeviceMesh.from_group(over, "cpu"))
        if name == "ahead":  # Gathers run beside reduce-scatters.
            assert gather_ahead(fully) == 4
        optimizer = torch.optim.SGD(fully.parameters(), lr=0.05)
        losses[name] = train(fully, optimizer, inputs, targets)
        digests[name] = digest(parameter.full_tensor() for parameter in fully.parameters())
    steps = group.network.counts.steps_in_network
    return {"wrong": wrong, "through": through, "losses": losses, "digests": digests, "steps": steps - through}


def sharded_survive(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Run collectives of parts in turns: a message says whether they are to go through the network."""
    logging.getLogger("inart").setLevel(logging.ERROR)
    gloo = dist.new_group(backend="gloo")
    group: Any = dist.group.WORLD
    seed = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while (wanted := connection.recv()) is not None:
            wrong: list[str] = []
            rounds, deadline = 0, time.monotonic() + 120.0
            while True:
                seed, rounds = seed + 1, rounds + 1
                wrong += different(collectives(seed, group), collectives(seed, gloo))
                done = group.network.in_network == wanted and rounds >= 2
                over = torch.tensor([int(done or time.monotonic() > deadline)])
                dist.all_reduce(over, dist.ReduceOp.MIN, group=gloo)
                if over.item():
                    break
            connection.send({"in_network": group.network.in_network, "wrong": wrong})
    return {"falls": group.network.counts.falls}


def shard_all(model: nn.Sequential, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard  # Requires torch 2.6 or later.

    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def hybrid(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Run two ranks per node: FSDP2's hook on a mesh of one dimension, native HSDP over the backend, and HSDP over
    gloo.
    """
    logging.getLogger("inart").setLevel(logging.ERROR)
    names, shape = ("replicate", "shard"), (2, 2)
    plain = init_device_mesh("cpu", shape, mesh_dim_names=names)
    options = BackendOptions(agent=arguments["agent"], timeout=30.0)
    native = init_device_mesh("cpu", shape, mesh_dim_names=names, backend_override={"replicate": ("inart", options)})
    state = InArtState(agent=arguments["agent"], timeout=30.0, process_group=plain["replicate"].get_group())
    losses, digests = {}, {}
    for name, mesh in (("gloo", plain), ("hook", plain["shard"]), ("native", native)):
        model, inputs, targets = model_and_data(rank, torch.float32)
        sharded = shard_all(model, mesh)
        if name == "hook":
            assert inart_fsdp(sharded, state) == 4
        optimizer = torch.optim.SGD(sharded.parameters(), lr=0.05)
        losses[name] = train(sharded, optimizer, inputs, targets)
        digests[name] = digest(parameter.full_tensor() for parameter in sharded.parameters())
        if name == "gloo":
            refused = ""
            try:
                inart_fsdp(sharded, state)
            except ValueError as error:
                refused = str(error)
    group: Any = native["replicate"].get_group()
    steps = {"hook": state.steps_in_network, "native": group.network.counts.steps_in_network}
    result = {"losses": losses, "digests": digests, "steps": steps, "refused": refused}
    result["in_network"] = state.in_network and group.network.in_network
    state.close()
    dist.destroy_process_group(group)
    return result


def few_bits(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Run the backend's sums in 8 bits and gloo's, and return what the hook of an FSDP2 module keeps."""
    gloo = dist.new_group(backend="gloo")
    group: Any = dist.group.WORLD
    size = dist.get_world_size()
    given = torch.randn(size * 3001, generator=torch.Generator().manual_seed(rank))
    largest: dict[str, float] = {}
    for over, name in ((group, "inart"), (gloo, "gloo")):
        whole = given.clone()
        dist.all_reduce(whole, group=over)
        part = torch.empty(3001)
        dist.reduce_scatter_tensor(part, given.clone(), dist.ReduceOp.AVG if over is group else dist.ReduceOp.SUM, over)
        part = part if over is group else part / size
        if name == "inart":
            found = whole, part
        else:
            largest = {"sum": float((whole - found[0]).abs().max()), "mean": float((part - found[1]).abs().max())}
    state = InArtState(agent=arguments["agent"], timeout=30.0, bits=8)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    reduce = fsdp.reduce_of(model[0], state)  # type: ignore[arg-type]
    means = []
    for _ in range(2):
        means.append(given.clone())
        reduce(means[-1])
    exact = given.clone()
    dist.all_reduce(exact, group=gloo)
    left = state.state_dict(model)["left"]["module 0"]
    state.close()
    everybodys = left.clone()
    dist.all_reduce(everybodys, group=gloo)
    lost = float((sum(means) + everybodys / size - 2 * exact / size).abs().max())
    return {"largest": largest, "lost": lost, "left": float(left.abs().max())}


def beside(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Run DDP's hook with a state that finds its agent as the default group's backend does: by the environment."""
    gloo = dist.new_group(backend="gloo")
    losses = {}
    state = InArtState(timeout=30.0)
    for name in ("hook", "gloo"):
        model, inputs, targets = model_and_data(rank, torch.float32)
        ddp = DistributedDataParallel(model, process_group=gloo if name == "gloo" else None)
        if name == "hook":
            ddp.register_comm_hook(state, inart_hook)
        losses[name] = train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05), inputs, targets, 5)
    tensor = torch.ones(5000)
    dist.all_reduce(tensor)
    group: Any = dist.group.WORLD
    result = {"losses": losses, "in_network": [state.in_network, group.network.in_network], "sum": tensor[0].item()}
    result["steps"] = [state.steps_in_network, group.network.counts.steps_in_network]
    result["falls"] = state.falls + group.network.counts.falls
    state.close()
    return result


SCENARIOS = {
    "backend": backend,
    "beside": beside,
    "few_bits": few_bits,
    "fsdp1": fsdp1,
    "hybrid": hybrid,
    "sharded": sharded,
    "sharded_survive": sharded_survive,
}
BACKEND_SCENARIOS = {"backend", "beside", "few_bits", "fsdp1", "sharded", "sharded_survive"}
