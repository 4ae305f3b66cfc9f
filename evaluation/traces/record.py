"""Records the collectives of one training step of the example GPT: `python -m evaluation.traces.record`, no network.

One process stands for rank 0 of all ranks: torch's "fake" process group answers every operation at once. Each is
recorded as it passes torch's dispatcher, with those before it for which the trainer has not waited yet. Only operations
among the nodes are recorded, because only they use the network.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from evaluation import commands
from evaluation.traces.trace import HOW, Operation, Trace
from examples.train_gpt import GPT
from worker_agent.torch.fsdp import gather_ahead

RANKS_OF_A_NODE = 2
"""Ranks of a node with hsdp: the model is sharded over them, and replicated over the nodes."""
LENGTH, HEADS, SYMBOLS = 64, 4, 256
OPS = {
    "allreduce": "allreduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
}
"""The names of nccl-tests, by the first words of the names of torch's operators."""


class Recorder(TorchDispatchMode):
    """Records the collectives of one group.

    Attributes:
        group: name of the group.
        found: the operations so far.
        under_way: places in `found` of asynchronous operations for which the trainer has not waited yet.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.group = ""
        self.found: list[Operation] = []
        self.under_way: list[int] = []
        self._blocks = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the operations within the `with` block, and the waits for them."""
        work = torch._C._distributed_c10d.FakeWork
        wait = work.wait

        def noted(itself: Any, *args: Any) -> Any:
            """Record an operation. Asynchronous ones are waited for in their order; one that blocks has been waited for
            when it has begun.
            """
            if self._blocks:
                self._blocks = False
            elif self.under_way:
                self.under_way.pop(0)
            return wait(itself, *args)

        with patch.object(work, "wait", noted), self:
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self._note(func.name().removeprefix("c10d::").lstrip("_"), args)
        return func(*args, **(kwargs or {}))

    def _note(self, name: str, args: Any) -> None:
        op = next((ours for theirs, ours in OPS.items() if name.startswith(theirs)), None)
        groups = [
            dist.ProcessGroup.unbox(one) for one in args if isinstance(one, torch.ScriptObject) and _is_group(one)
        ]
        if op is None or not groups or groups[0].group_name != self.group:
            return
        # The whole is what is largest: the output of an all-gather, the input of a reduce-scatter.
        sizes: dict[str, int] = {}
        for one in args:
            for tensor in _tensors(one):
                dtype = str(tensor.dtype).removeprefix("torch.")
                sizes[dtype] = max(sizes.get(dtype, 0), tensor.numel() * tensor.element_size())
        dtype, nbytes = max(sizes.items(), key=lambda item: item[1])
        self.found.append(Operation(op, dtype, nbytes, tuple(self.under_way)))
        self._blocks = False in (one for one in args if isinstance(one, bool))  # torch's flag, which is left out if set
        if not self._blocks:
            self.under_way.append(len(self.found) - 1)


def _note_bucket(recorder, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are texts.
    buffer = bucket.buffer()
    recorder.found.append(Operation("allreduce", str(buffer.dtype).removeprefix("torch."), buffer.nbytes))
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(buffer)
    return done


def _is_group(one: torch.ScriptObject) -> bool:
    return one._type().qualified_name().endswith("c10d.ProcessGroup")


def _tensors(given: Any) -> list[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        return [given]
    return [tensor for one in given for tensor in _tensors(one)] if isinstance(given, list | tuple) else []


def record(how: str, workers: int, width: int, layers: int, half: bool = False) -> Trace:
    """Record the second training step, with `half` that of a model in bfloat16; the first step has operations that do
    not come again.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    ranks = workers * (RANKS_OF_A_NODE if how == "hsdp" else 1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        torch.manual_seed(0)
        recorder = Recorder()
        whole = GPT(width, layers, HEADS, LENGTH).to(torch.bfloat16 if half else torch.float32)
        model = _distributed(whole, how, workers, recorder)
        if isinstance(model, DistributedDataParallel):  # DDP's buckets do not pass the dispatcher in a way that counts.
            model.register_comm_hook(recorder, _note_bucket)
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.randint(SYMBOLS, (2, LENGTH))
        for step in range(2):
            with nullcontext() if how == "ddp" else recorder.recording():
                model(tokens).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                recorder.found.clear()
                recorder.under_way.clear()
        name = f"{how}, width {width}, {layers} layers{', bfloat16' if half else ''}"
        return Trace(name, workers, tuple(recorder.found))
    finally:
        dist.destroy_process_group()


def _distributed(model: GPT, how: str, workers: int, recorder: Recorder) -> torch.nn.Module:
    if how == "ddp":
        return DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    shape, names = ((workers, RANKS_OF_A_NODE), ("replicate", "shard")) if how == "hsdp" else ((workers,), ("shard",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    recorder.group = mesh.get_group(0).group_name  # the group of all nodes is the first dimension
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if how == "fsdp2-ahead":
        gather_ahead(model)
    return model


def main() -> None:
    parser = commands.parser("traces.record", __doc__)
    parser.add_argument("how", choices=HOW)
    parser.add_argument("--workers", type=int, default=4, help="nodes (4)")
    parser.add_argument("--width", type=int, default=256, help="of the model (256)")
    parser.add_argument("--layers", type=int, default=4, help="of the model (4)")
    parser.add_argument("--half", action="store_true", help="of a model in bfloat16")
    arguments = parser.parse_args()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    size = arguments.workers, arguments.width, arguments.layers
    print(json.dumps(asdict(record(arguments.how, *size, arguments.half))))


if __name__ == "__main__":
    main()
