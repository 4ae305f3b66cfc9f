"""A replica group of one rank under torchft's Manager, which does a step for each line of its input. For
`tests.outside.torchft_manager`.

    python -m tests.outside.torchft_manager_rank NAME ALGORITHM GROUP

ALGORITHM: ddp, local or diloco (torchft's DDP, LocalSGD and DiLoCo); GROUP: inart or gloo. "go": a step of DDP, or the
steps up to the next sum of the others. "die": the same, but the process kills itself when the others have begun to add
up with it. "save FILE": writes the parameters. "end": it leaves. After each step it prints a JSON
object: the step, how many replicas took part, whether it counted, and a digest of the parameters. $INART_AGENT,
$TORCHFT_LIGHTHOUSE and the store ($MASTER_ADDR, $MASTER_PORT) are given.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torchft import Manager
from torchft.ddp import DistributedDataParallel
from torchft.local_sgd import DiLoCo, LocalSGD
from torchft.optim import OptimizerWrapper
from torchft.process_group import ProcessGroupGloo

from worker_agent.torch.backend import BackendOptions
from worker_agent.torch.torchft import ProcessGroupInArt

TIMEOUT = timedelta(seconds=60)
EVERY = 3
"""Steps of LocalSGD and DiLoCo from one sum to the next."""


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


class Replica:
    """A model that is trained by one of the algorithms."""

    def __init__(self, name: str, algorithm: str, group: Any, stack: ExitStack) -> None:
        torch.manual_seed(3)
        self.inner = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
        self.plain = torch.optim.SGD(self.inner.parameters(), lr=0.05, momentum=0.9)
        self.name, self.ddp = int(name), algorithm == "ddp"
        # LocalSGD and DiLoCo begin with equal parameters at all replicas: torchft's init_sync would have the second one
        # take those of the first at some moment of its first steps, and no two runs would be alike.
        self.manager = Manager(
            pg=group, load_state_dict=self._load, state_dict=self._state, min_replica_size=1, replica_id=name,
            timeout=TIMEOUT, use_async_quorum=self.ddp, init_sync=self.ddp,
        )  # fmt: skip
        if self.ddp:
            self.model, self.optimiser = (
                DistributedDataParallel(self.manager, self.inner),
                OptimizerWrapper(self.manager, self.plain),
            )
            return
        self.model, self.optimiser = self.inner, self.plain
        if algorithm == "local":
            stack.enter_context(LocalSGD(self.manager, self.inner, self.plain, sync_every=EVERY))
        else:
            outer = torch.optim.SGD(self.inner.parameters(), lr=0.7, momentum=0.9, nesterov=True)
            # The sum is under way during the last step before its result is used.
            stack.enter_context(
                DiLoCo(self.manager, [self.inner], self.plain, outer, sync_every=EVERY, fragment_sync_delay=1)
            )

    def _load(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["model"])
        self.plain.load_state_dict(state["optimiser"])

    def _state(self) -> dict[str, Any]:
        return {"model": self.inner.state_dict(), "optimiser": self.plain.state_dict()}

    def step(self, *, dies: bool) -> dict[str, Any]:
        """Train up to the next sum; returns what is said of it."""
        before = self.manager.current_step()
        if dies and not self.ddp:
            self.manager.allreduce = _die  # by now the quorum with the others is made
        for k in range(1 if self.ddp else EVERY):
            self.optimiser.zero_grad()
            seed = ((before * EVERY) + k) * 10 + self.name
            inputs = torch.randn(16, 64, generator=torch.Generator().manual_seed(seed))
            loss = self.model(inputs).square().mean()
            if dies and self.ddp:
                self.manager.wait_quorum()
                _die()
            loss.backward()
            self.optimiser.step()
        # Who is let in gets the others' number of the step, which is not a step of its own.
        counted = before < self.manager.current_step() and self.manager.errored() is None
        return {"step": self.manager.current_step(), "replicas": self.manager.num_participants(), "counted": counted,
                "loss": loss.item(), "digest": zlib.crc32(self.parameters().tobytes())}  # fmt: skip

    def parameters(self) -> np.ndarray:
        return torch.cat([one.detach().reshape(-1) for one in self.inner.parameters()]).numpy()


def _die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(name: str, algorithm: str, over: str) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=True, wait_for_workers=False
    )
    made: dict[str, Callable[[], Any]] = {
        "gloo": lambda: ProcessGroupGloo(timeout=TIMEOUT),
        "inart": lambda: ProcessGroupInArt(
            BackendOptions(agent=os.environ["INART_AGENT"], smallest=1), timeout=TIMEOUT
        ),
    }
    group = made[over]()
    with ExitStack() as stack:
        replica = Replica(name, algorithm, group, stack)
        say(ready=os.getpid())
        for order in map(str.strip, sys.stdin):
            if order == "end":
                break
            if order.startswith("save "):
                np.save(order.removeprefix("save "), replica.parameters())
                say(saved=True)
            else:
                say(**replica.step(dies=order == "die"))
    replica.manager.shutdown(wait=False)
    group.shutdown()
    del store
    os._exit(0)  # torchft's threads of timeouts do not end.


if __name__ == "__main__":
    main(*sys.argv[1:])
