"""One rank of the comparison with gloo; evaluation.hosts starts one in every worker's network namespace.

python -m evaluation.hosts.gloo RANK WORLD ADDRESS_OF_RANK_0 BYTES REPEAT      prints seconds, one JSON list (rank 0)
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta


def main(rank: int, world: int, address: str, size: int, repeat: int) -> None:
    """All-reduce `size` bytes of float32 `repeat` times."""
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "data0"
    dist.init_process_group("gloo", f"tcp://{address}:29511", timedelta(seconds=120), world, rank)
    tensor = torch.randn(size // 4)
    seconds = []
    for _ in range(repeat):
        dist.barrier()
        start = time.monotonic()
        dist.all_reduce(tensor)
        seconds.append(time.monotonic() - start)
    if rank == 0:
        print(json.dumps(seconds), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
