"""A DDP trainer of the tests: some steps through the network; the rank that $DIES names is killed before its fourth."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_agent import InArtState, inart_hook

STEPS = 8


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Linear(100, 30)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(InArtState(fallback=os.environ["FALLBACK"] == "yes"), inart_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        if rank == int(os.environ["DIES"]) and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        ddp(torch.randn(8, 100, generator=data)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    content = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print(json.dumps({"rank": rank, "digest": hashlib.sha256(content).hexdigest()}), flush=True)
    # The process group has lost a rank: nobody would answer its messages at the end.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
