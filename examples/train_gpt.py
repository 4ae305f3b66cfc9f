"""Trains a small GPT on the documentation that ships with Python; `--how` is all that in-network aggregation changes.

    torchrun --nnodes 4 --nproc-per-node 2 ... examples/train_gpt.py --how hook --controller HOST:PORT
    torchrun --nnodes 4 --nproc-per-node 2 ... examples/train_gpt.py --how fsdp2 --controller HOST:PORT
    torchrun --nproc-per-node 2 examples/train_gpt.py --how gloo

how: gloo (DDP as it is), hook (DDP with inart_hook), backend (DDP over the backend "inart"), fsdp2 (sharded inside the
node, the network between nodes) or hsdp (the same by a mesh of two dimensions over gloo, to compare with), full
(sharded over all ranks, over the backend "inart") or full-gloo (the same over gloo).
Bytes are the tokens: 470 KB of text (pydoc_data.topics), no download. Everything random comes from --seed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

HOW = ("gloo", "hook", "backend", "fsdp2", "hsdp", "full", "full-gloo")
THROUGH_BACKEND = ("backend", "full")


@dataclass
class Report:
    """The report of a run: one loss per step, of this rank's sequences averaged over all ranks, and the steps' times in
    seconds.
    """

    how: str
    in_network: bool
    world_size: int
    parameters: int
    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


class Block(nn.Module):
    """A transformer block: attention to earlier tokens, and a perceptron, both beside the residual stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        batch, length, width = stream.shape
        qkv = self.qkv(self.before_attention(stream)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return stream + self.perceptron(self.before_perceptron(stream))


class GPT(nn.Module):
    """A model for next-byte prediction: given tokens of shape (batch, length) and type int64, it returns logits of
    shape (batch, length, 256).
    """

    def __init__(self, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        stream = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            stream = block(stream)
        return self.head(self.norm(stream))


def text() -> torch.Tensor:
    """Return Python's own documentation, as bytes."""
    from pydoc_data.topics import topics

    return torch.tensor(list("\n".join(topics[name] for name in sorted(topics)).encode()), dtype=torch.int64)


def report_file(text: str) -> Path:
    """Return the path of the report, which rank 0 writes after all the training: refuse one that it could not write."""
    if os.environ.get("RANK", "0") != "0":
        return Path(text)
    from controlplane.common.command_line import new_file

    return new_file(text)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--how", choices=HOW, default="hook", help="what reduces gradients (default: %(default)s)")
    parser.add_argument("--controller", metavar="HOST:PORT", help="default: $INART_CONTROLLER")
    parser.add_argument("--agent", metavar="unix:PATH", help="an `inart agent` of this machine instead")
    parser.add_argument("--node", metavar="NAME", help="default: the node whose address this machine has")
    parser.add_argument(
        "--bits", type=int, help="bits of a gradient value on the wire: 16, 10 or 8 (default: those of its type)"
    )
    parser.add_argument("--steps", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank and step")
    parser.add_argument("--length", type=int, default=64, help="bytes of a sequence")
    parser.add_argument("--width", type=int, default=64, help="of the model (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="of the model (default: %(default)s)")
    parser.add_argument("--heads", type=int, default=4, help="of attention (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--seed", type=int, default=0, help="of model and data (default: %(default)s)")
    parser.add_argument(
        "--half", action="store_true", help="of full, full-gloo: gather parameters and scatter gradients in bfloat16"
    )
    parser.add_argument(
        "--ahead", action="store_true", help="of full, full-gloo: gather the next block's parameters meanwhile"
    )
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument("--output", type=report_file, metavar="FILE", help="where rank 0 writes its report (JSON)")
    return parser


def fully_sharded(model: GPT, arguments: argparse.Namespace) -> nn.Module:
    """Return the model with FSDP2 over all ranks."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from worker_agent.torch.fsdp import gather_ahead

    half = torch.bfloat16 if arguments.half else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half)
    for block in model.blocks:
        # The last block's parameters are needed again at once, where the backward pass begins: they stay.
        fully_shard(block, mp_policy=policy, reshard_after_forward=block is not model.blocks[-1])
    fully_shard(model, mp_policy=policy)
    if arguments.ahead:
        gather_ahead(model)
    return model


def distribute(model: GPT, arguments: argparse.Namespace, device: torch.device) -> tuple[nn.Module, Any]:
    """Return the model wrapped for data-parallel training, and the object to close afterwards."""
    where = {"agent": arguments.agent, "node": arguments.node, "bits": arguments.bits}
    if arguments.how in ("gloo", "backend"):
        return DistributedDataParallel(model), None
    from worker_agent import InArtState, inart_fsdp, inart_hook

    if arguments.how == "hook":
        state = InArtState(arguments.controller, **where)
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(state, inart_hook)
        return ddp, state
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if arguments.how.startswith("full"):
        return fully_sharded(model, arguments), None
    names = ("replicate", "shard")
    mesh = init_device_mesh(device.type, (dist.get_world_size() // ranks, ranks), mesh_dim_names=names)
    sharding = mesh["shard"] if arguments.how == "fsdp2" else mesh
    for block in model.blocks:
        fully_shard(block, mesh=sharding)
    fully_shard(model, mesh=sharding)
    if arguments.how == "hsdp":
        return model, None
    state = InArtState(arguments.controller, process_group=mesh["replicate"].get_group(), **where)
    inart_fsdp(model, state)
    return model, state


def train(arguments: argparse.Namespace) -> Report:
    """Train with an initialised process group, and return the report. The same arguments and world size give the same
    losses.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device(arguments.device)
    torch.manual_seed(arguments.seed)
    corpus = text()
    model = GPT(arguments.width, arguments.layers, arguments.heads, arguments.length).to(device)
    report = Report(arguments.how, False, world, sum(parameter.numel() for parameter in model.parameters()))
    distributed, state = distribute(model, arguments, device)
    optimizer = torch.optim.AdamW(distributed.parameters(), lr=arguments.rate)
    # All ranks draw the same; each takes its part of every batch.
    draws = torch.Generator().manual_seed(arguments.seed)
    span = torch.arange(arguments.length + 1)
    try:
        for step in range(arguments.steps):
            starts = torch.randint(len(corpus) - len(span), (world, arguments.batch), generator=draws)[rank]
            sequences = corpus[starts[:, None] + span].to(device)
            started = time.perf_counter()
            logits = distributed(sequences[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            report.step_seconds.append(time.perf_counter() - started)
            report.losses.append(loss.item())
            if rank == 0 and (step % 10 == 0 or step == arguments.steps - 1):
                print(f"step {step}: loss {report.losses[-1]:.4f}, {report.step_seconds[-1]:.3f} s", flush=True)
        network = getattr(dist.group.WORLD, "network", None) if arguments.how in THROUGH_BACKEND else state
        if network is not None:
            report.metrics = network.metrics()
            report.in_network = network.in_network and not report.metrics["falls"]
    finally:
        if state is not None:
            state.close()
    losses = torch.tensor(report.losses, dtype=torch.float64, device=device)
    dist.all_reduce(losses)
    report.losses = (losses / world).tolist()
    return report


def initialise(arguments: argparse.Namespace) -> None:
    """Make the process group with the backend that `how` needs."""
    if arguments.how in THROUGH_BACKEND:
        from worker_agent.backend import BackendOptions

        where = {"agent": arguments.agent, "node": arguments.node, "bits": arguments.bits}
        options = BackendOptions(controller=arguments.controller, **where)
        dist.init_process_group("cpu:inart,cuda:inart", pg_options=options)
    else:
        dist.init_process_group("cpu:gloo,cuda:nccl" if arguments.device == "cuda" else "gloo")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    torch.set_num_threads(1)
    # Without torchrun, the world has size one.
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29513")):
        os.environ.setdefault(name, value)
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    initialise(arguments)
    try:
        report = train(arguments)
        if dist.get_rank() == 0:
            losses, seconds = report.losses, sum(report.step_seconds) / len(report.step_seconds)
            print(
                f"{report.parameters} parameters, {report.how}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
                f"{seconds:.3f} s a step, in the network: {report.in_network}"
            )
            if arguments.output is not None:
                arguments.output.write_text(json.dumps(asdict(report), indent=1) + "\n")
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
