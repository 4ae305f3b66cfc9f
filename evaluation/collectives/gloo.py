"""One rank of the comparison with gloo: does what each line of its input says, in its worker's network namespace.

    python -m evaluation.collectives.gloo RANK WORLD ADDRESS_OF_RANK_0

A line of input is a JSON object with the cases that are to be done one after the other (ranks.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from evaluation.collectives.cases import Case
from evaluation.collectives.ranks import in_order, serve

PORT = 29512


def operation(op: str, tensor: Any, rank: int, world: int) -> Callable[[], object]:
    """Return a function that begins the operation once, in place, and returns its work. gloo's reduce-scatter is an
    all-reduce, as torch's other users of gloo do it.
    """
    import torch.distributed as dist

    if op == "all_gather":
        rows = list(tensor.view(world, -1))
        own = rows[rank].clone()
        return lambda: dist.all_gather(rows, own, async_op=True)
    if op == "broadcast":
        return lambda: dist.broadcast(tensor, 0, async_op=True)
    return lambda: dist.all_reduce(tensor, async_op=True)


def main(rank: int, world: int, address: str) -> None:
    """Do what each line of the input asks for, until it ends."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "data0"
    dist.init_process_group("gloo", f"tcp://{address}:{PORT}", timedelta(seconds=300), world, rank)

    def prepare(task: dict[str, Any]) -> tuple[Callable[[], float], Callable[[], int]]:
        cases = [Case(**case) for case in task["cases"]]
        tensors = [torch.randn(case.elements).to(getattr(torch, case.dtype)) for case in cases]
        calls = [operation(case.op, tensor, rank, world) for case, tensor in zip(cases, tensors, strict=True)]
        return in_order(calls, task["beside"], task["warm"]), lambda: 0

    serve(prepare)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
