"""Checks whether training works with the torch, Python and protobuf of this environment, without a network.

    python train_briefly.py

Two processes train and print one JSON object: versions, and for hook, backend and FSDP2 "ok" or what went wrong. The
hook gets an agent that sums over gloo; the backend finds no controller, and falls back. Needs nothing but the
distribution and torch.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

SECONDS = 300.0
PARTS = ("hook", "backend", "fsdp2")


class Summing:
    """An agent that sums over gloo."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.world_size, self.ready = dist.get_world_size(), True
        self._dist, self._group = dist, dist.new_group(backend="gloo")
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def allreduce_async(self, array: Any, op: str = "sum", *, dtype: str | None = None) -> Any:
        from worker_agent.work import Work

        work = Work(array.numel(), array.numel() * array.element_size())
        self._waiting.put((array, op, work))
        return work

    def _run(self) -> None:
        while True:
            array, op, work = self._waiting.get()
            if op == "mean":
                array.div_(self.world_size)
            self._dist.all_reduce(array, group=self._group)
            work.finish(None)

    def close(self) -> None:
        return


def losses(model: Any, seed: int) -> list[float]:
    import torch

    torch.manual_seed(seed)
    inputs, targets = torch.randn(8, 20), torch.randn(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def model() -> Any:
    import torch

    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.Tanh(), torch.nn.Linear(300, 3))


def same(mine: list[float], theirs: list[float]) -> None:
    worst = max(abs(a - b) for a, b in zip(mine, theirs, strict=True))
    assert worst < 1e-5, f"losses differ by {worst}"


def hook(rank: int, store: str) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from worker_agent import InArtState, inart_hook

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    with InArtStateClosing(InArtState(agent=Summing())) as state:
        ddp = DistributedDataParallel(model())
        ddp.register_comm_hook(state, inart_hook)
        same(losses(ddp, rank), losses(DistributedDataParallel(model()), rank))
        assert state.in_network, "the agent was not used"
        assert state.steps_in_network == 5


class InArtStateClosing:
    def __init__(self, state: Any) -> None:
        self.state = state

    def __enter__(self) -> Any:
        return self.state

    def __exit__(self, *_: object) -> None:
        self.state.close()


def start_backend(rank: int, store: str) -> None:
    import torch.distributed as dist

    from worker_agent.torch.backend import BackendOptions

    options = BackendOptions(controller="127.0.0.1:1", timeout=0.1, group_timeout=timedelta(seconds=SECONDS))
    dist.init_process_group("cpu:inart", init_method=f"file://{store}", rank=rank, world_size=2, pg_options=options)


def backend(rank: int, store: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    start_backend(rank, store)
    gloo = dist.new_group(backend="gloo")
    whole = torch.full((4000,), float(rank + 1))
    dist.all_reduce(whole)
    assert torch.equal(whole, torch.full((4000,), 3.0)), "all_reduce"
    part = torch.empty(2000)
    dist.reduce_scatter_tensor(part, torch.full((4000,), float(rank + 1)))
    assert torch.equal(part, torch.full((2000,), 3.0)), "reduce_scatter_tensor"
    dist.all_gather_into_tensor(whole, torch.full((2000,), float(rank)))
    assert whole[:2000].eq(0).all() and whole[2000:].eq(1).all(), "all_gather_into_tensor"
    dist.broadcast(whole.fill_(rank), 1)
    assert whole.eq(1).all(), "broadcast"
    same(
        losses(DistributedDataParallel(model()), rank),
        losses(DistributedDataParallel(model(), process_group=gloo), rank),
    )


def fsdp2(rank: int, store: str) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    start_backend(rank, store)
    gloo = dist.new_group(backend="gloo")
    mesh = dist.DeviceMesh.from_group(dist.group.WORLD, "cpu")
    sharded = fully_shard(model(), mesh=mesh)
    same(losses(sharded, rank), losses(DistributedDataParallel(model(), process_group=gloo), rank))


def run(part: str) -> str:
    """Run both ranks of one part as processes; returns "ok" or the last line of the error."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, os.path.abspath(__file__), part]
        started = [
            subprocess.Popen([*words, str(rank), f"{folder}/store"], stderr=subprocess.PIPE, text=True)
            for rank in (0, 1)
        ]
        problem = ""
        for process in started:
            try:
                said = process.communicate(timeout=SECONDS)[1]
            except subprocess.TimeoutExpired:
                process.kill()
                problem, said = problem or "it hangs", process.communicate()[1]
            if process.returncode and not problem:
                problem = (said.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
    return problem or "ok"


def main() -> int:
    if len(sys.argv) == 4:
        parts: dict[str, Callable[[int, str], None]] = {"hook": hook, "backend": backend, "fsdp2": fsdp2}
        warnings.simplefilter("ignore")
        import torch

        torch.set_num_threads(1)
        parts[sys.argv[1]](int(sys.argv[2]), sys.argv[3])
        sys.stderr.flush()
        os._exit(0)  # Some versions of torch wait for something that a daemon thread holds.
    import google.protobuf
    import torch

    found = {"python": sys.version.split()[0], "torch": torch.__version__, "protobuf": google.protobuf.__version__}
    print(json.dumps(found | {part: run(part) for part in PARTS}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
