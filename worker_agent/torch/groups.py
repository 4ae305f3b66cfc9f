"""Makes InArt's own process groups beside those of the script, from a store under names that are never used twice.

`dist.new_group` gives a group the name of its ranks and a counter that starts anew when the group is destroyed. The
store still has the old group's addresses then, and a rank that uses them waits for ever. The groups here are no part of
torch.distributed's world: nobody has to destroy them, and they can be made and dropped in a loop.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from controlplane.common.host_name import FIX, loopback_problem
from worker_agent.torch.waiting import keep_when_forked

OLDEST = 2, 6
if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:  # Older versions make process groups in another way.
    raise ImportError(f"InArt needs torch 2.6 or later, this is {torch.__version__}: pip install 'torch>=2.6'")

TIMEOUT = timedelta(minutes=30)
"""The timeout of the groups, which is torch.distributed's default."""


def make_group(
    name: str, store: Any, rank: int, size: int, *, backend: str = "gloo", timeout: timedelta = TIMEOUT
) -> dist.ProcessGroup:
    """Make a group of `size` processes that all call this with the same, new name; `backend` is gloo (CPU) or nccl
    (CUDA).
    """
    prefix = dist.PrefixStore(f"inart/{name}", store)
    group = dist.ProcessGroup(prefix, rank, size)
    if backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        made: Any = dist.ProcessGroupNCCL(prefix, rank, size, options)
        kind, device = dist.ProcessGroup.BackendType.NCCL, "cuda"
    else:
        try:
            made = dist.ProcessGroupGloo(prefix, rank, size, timeout=timeout)
        except RuntimeError as error:
            if not (problem := loopback_problem()):
                raise
            raise RuntimeError(f"gloo cannot connect the ranks: {problem}; {FIX} ({error})") from error
        kind, device = dist.ProcessGroup.BackendType.GLOO, "cpu"
    made._set_sequence_number_for_group()
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, made)
    # Some of torch's bookkeeping refuses a group without a name.
    group._set_group_name(f"inart/{name}")  # type: ignore[arg-type]
    group._set_group_desc("inart")
    keep_when_forked(group)
    return group


@dataclass(frozen=True)
class Ranks:
    """The ranks of a process group.

    Attributes:
        name: prefix of the groups that are made for them, the same on all ranks and never used before.
        store, rank, size: those of the process group.
        timeout: returns the present timeout of the process group.
    """

    name: str
    store: Any
    rank: int
    size: int
    timeout: Callable[[], timedelta] = lambda: TIMEOUT

    def group(self, what: str, *, backend: str = "gloo") -> dist.ProcessGroup:
        """Make another group of these ranks, whose operations may wait at least as long as those of the process group;
        this is a collective call.
        """
        timeout = max(TIMEOUT, self.timeout())
        return make_group(f"{self.name}/{what}", self.store, self.rank, self.size, backend=backend, timeout=timeout)


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """Return the timeout of a process group's operations, as `_set_pg_timeout` may have changed it."""
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)  # gloo has none before torch 2.7.
        if options is not None:
            return options._timeout
    return TIMEOUT


def default_store() -> Any:
    """Return the store that torch.distributed was initialised with."""
    return dist.distributed_c10d._get_default_store()


def fresh_name(group: dist.ProcessGroup) -> str:
    """Return a name that is the same on all ranks and was never used before; this is a collective call."""
    names: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(names, secrets.token_hex(8), group=group)
    return str(names[0])
