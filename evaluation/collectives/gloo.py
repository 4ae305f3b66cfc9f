"""One rank of the comparison with gloo: does what each line of its input says, in its worker's network namespace.

    python -m evaluation.collectives.gloo RANK WORLD ADDRESS_OF_RANK_0

A line of input is a JSON object with op, dtype, elements; for each, rank 0 prints the seconds that it took.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

PORT = 29512


def operation(op: str, tensor: Any, rank: int, world: int) -> Callable[[], object]:
    """Does it once, in place; gloo's reduce-scatter is an all-reduce, as torch's other users of gloo do it."""
    import torch.distributed as dist

    if op == "all_gather":
        rows = list(tensor.view(world, -1))
        own = rows[rank].clone()
        return lambda: dist.all_gather(rows, own)
    if op == "broadcast":
        return lambda: dist.broadcast(tensor, 0)
    return lambda: dist.all_reduce(tensor)


def main(rank: int, world: int, address: str) -> None:
    """Until its input ends."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "data0"
    dist.init_process_group("gloo", f"tcp://{address}:{PORT}", timedelta(seconds=300), world, rank)
    for line in sys.stdin:
        case = json.loads(line)
        tensor = torch.randn(case["elements"]).to(getattr(torch, case["dtype"]))
        run = operation(case["op"], tensor, rank, world)
        dist.barrier()
        start = time.monotonic()
        run()
        seconds = time.monotonic() - start
        dist.barrier()  # so that nobody's next begins while this one's packets are under way
        if rank == 0:
            print(json.dumps(seconds), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
