"""All-reduces over gloo inside the emulated hosts, each worker in a process of its own (see `topologies.zygote`)."""

import time

from topologies.hosts import OPERATION_SECONDS, gradient
from topologies.zygote import Channel


def gloo(channel: Channel, *, master: str, port: int, rank: int, workers: int, interface: str, seed: int) -> None:
    """Run all-reduces by torch.distributed over gloo. Messages are as in `topologies.hosts.allreduce`, and answers have
    "seconds".
    """
    import torch
    from torch import distributed

    join_gloo(master, port, rank, workers, interface)
    try:
        distributed.all_reduce(torch.zeros(1))
        channel.send({"index": rank})
        while (order := channel.receive(OPERATION_SECONDS)) is not None:
            values = torch.from_numpy(gradient(seed, rank, order["size"]))
            distributed.barrier()
            start = time.monotonic()
            distributed.all_reduce(values)
            channel.send({"seconds": time.monotonic() - start})
    finally:
        distributed.destroy_process_group()


def join_gloo(master: str, port: int, rank: int, workers: int, interface: str) -> None:
    """Initialise torch.distributed over the data network."""
    import os
    from datetime import timedelta

    from torch import distributed

    os.environ["GLOO_SOCKET_IFNAME"] = interface
    os.environ["TP_SOCKET_IFNAME"] = interface
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{master}:{port}",
        rank=rank,
        world_size=workers,
        timeout=timedelta(seconds=OPERATION_SECONDS),
    )
