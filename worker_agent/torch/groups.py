"""Makes InArt's own process groups beside those of the script, from a store under names that are never used twice.

`dist.new_group` gives a group the name of its ranks and a counter that starts anew when the group is destroyed. The
store still has the old group's addresses then, and a rank that uses them waits for ever. The groups here are no part of
torch.distributed's world: nobody has to destroy them, and they can be made and dropped in a loop.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

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
        made = dist.ProcessGroupGloo(prefix, rank, size, timeout=timeout)
        kind, device = dist.ProcessGroup.BackendType.GLOO, "cpu"
    made._set_sequence_number_for_group()
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, made)
    # Some of torch's bookkeeping refuses a group without a name.
    group._set_group_name(f"inart/{name}")  # type: ignore[arg-type]
    group._set_group_desc("inart")
    return group


@dataclass(frozen=True)
class Ranks:
    """The ranks of a process group.

    Attributes:
        name: prefix of the groups that are made for them, the same on all ranks and never used before.
        store, rank, size: those of the process group.
    """

    name: str
    store: Any
    rank: int
    size: int

    def group(self, what: str, *, backend: str = "gloo") -> dist.ProcessGroup:
        """Make another group of these ranks; this is a collective call."""
        return make_group(f"{self.name}/{what}", self.store, self.rank, self.size, backend=backend)


def default_store() -> Any:
    """Return the store that torch.distributed was initialised with."""
    return dist.distributed_c10d._get_default_store()


def fresh_name(group: dist.ProcessGroup) -> str:
    """Return a name that is the same on all ranks and was never used before; this is a collective call."""
    names: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(names, secrets.token_hex(8), group=group)
    return str(names[0])


def exchange(group: dist.ProcessGroup, text: str) -> list[str]:
    """Return the texts of all ranks, by rank; this is a collective call."""
    data = torch.frombuffer(bytearray(text.encode() + b"\0"), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    group.allgather([lengths], [torch.tensor([len(data)])]).wait()
    most = max(int(length) for length in lengths)
    padded = torch.zeros(most, dtype=torch.uint8)
    padded[: len(data)] = data
    parts = [torch.zeros(most, dtype=torch.uint8) for _ in lengths]
    group.allgather([parts], [padded]).wait()
    texts = [bytes(part.tolist())[: int(length)] for part, length in zip(parts, lengths, strict=True)]
    return [data.removesuffix(b"\0").decode() for data in texts]


def reduce_numbers(group: dist.ProcessGroup, numbers: list[int], op: Any) -> list[int]:
    """Return the minimum or maximum (op) of whole numbers over the ranks; this is a collective call."""
    tensor = torch.tensor(numbers, dtype=torch.int64)
    group.allreduce([tensor], op).wait()
    return [int(number) for number in tensor]


def agree(problem: str, group: dist.ProcessGroup) -> str:
    """Return the problems of all ranks in words, empty when there are none; this is a collective call."""
    return in_words(exchange(group, problem))


def in_words(problems: list[str]) -> str:
    """Return the ranks' problems as one text, in which the same problem occurs once."""
    found = {rank: text for rank, text in enumerate(problems) if text}
    # All ranks often have the same problem, such as a controller that does not run.
    causes = sorted(set(found.values()), key=list(found.values()).index)
    lines = []
    for cause in causes[:4]:
        ranks = [str(rank) for rank, text in found.items() if text == cause]
        which = "all ranks" if len(ranks) == len(problems) else f"rank {', '.join(ranks)}"
        lines.append(f"{which}: {cause}")
    return "; ".join(lines) + ("; ..." if len(causes) > 4 else "")
