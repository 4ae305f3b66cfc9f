"""A replica group of one rank under torchft's Manager, which does a step for each line of its input. For
`tests.outside.torchft_manager`.

    python -m tests.outside.torchft_manager_rank NAME

"go": a step of DDP. "die": the same, but the process kills itself when the others have begun to add up with it. "end":
it leaves. After each step it prints a JSON object: the step, how many replicas took part, whether it counted, and a
digest of the parameters. $INART_AGENT, $TORCHFT_LIGHTHOUSE and the store ($MASTER_ADDR, $MASTER_PORT) are given.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import zlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft import Manager
from torchft.ddp import DistributedDataParallel
from torchft.optim import OptimizerWrapper

from worker_agent.torch.backend import BackendOptions
from worker_agent.torch.torchft import ProcessGroupInArt

TIMEOUT = timedelta(seconds=60)


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def main(name: str) -> None:
    torch.manual_seed(3)
    torch.set_num_threads(1)
    inner = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=True, wait_for_workers=False
    )
    group = ProcessGroupInArt(BackendOptions(agent=os.environ["INART_AGENT"], smallest=1), timeout=TIMEOUT)
    plain = torch.optim.SGD(inner.parameters(), lr=0.05, momentum=0.9)

    def load(state: dict[str, Any]) -> None:
        inner.load_state_dict(state["model"])
        plain.load_state_dict(state["optimiser"])

    manager = Manager(
        pg=group,
        load_state_dict=load,
        state_dict=lambda: {"model": inner.state_dict(), "optimiser": plain.state_dict()},
        min_replica_size=1,
        replica_id=name,
        timeout=TIMEOUT,
    )
    model, optimiser = DistributedDataParallel(manager, inner), OptimizerWrapper(manager, plain)
    say(ready=os.getpid())
    for order in map(str.strip, sys.stdin):
        if order == "end":
            break
        optimiser.zero_grad()
        generator = torch.Generator().manual_seed(manager.current_step() * 10 + int(name))
        loss = model(torch.randn(16, 64, generator=generator)).square().mean()
        if order == "die":
            manager.wait_quorum()
            os.kill(os.getpid(), signal.SIGKILL)
        before = manager.current_step()
        loss.backward()
        optimiser.step()
        digest = zlib.crc32(b"".join(one.detach().numpy().tobytes() for one in inner.parameters()))
        # Who is let in gets the others' number of the step, which is not a step of its own.
        counted = before < manager.current_step() and manager.errored() is None
        say(step=manager.current_step(), replicas=manager.num_participants(), counted=counted, digest=digest)
    manager.shutdown(wait=False)
    group.shutdown()
    del store
    os._exit(0)  # torchft's threads of timeouts do not end.


if __name__ == "__main__":
    main(sys.argv[1])
