"""The ranks of a node add up among themselves first: each then carries one part of the sum through the network.

    bucket --reduce-scatter on the node--> this rank's part --network--> its sum --all-gather on the node--> bucket

NCCL on CUDA devices, gloo on the CPU. A part is one of as many as the node has ranks, so the network carries each
gradient of the node once, whatever number of ranks it has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ReduceScatterOptions

from worker_agent.engine import Operation
from worker_agent.errors import AgentError
from worker_agent.groups import make_group
from worker_agent.lane import Lane
from worker_agent.staging import Completion, CudaStaging


def node_key(agent: str | None, node: str | None, size: int) -> str:
    """What the ranks of one node have in common, and no other node has. size: ranks of this node."""
    if size == 1:
        return f"process {os.getpid()} on {_machine()}"
    if "GROUP_RANK" in os.environ:  # torchrun's number of the node
        return f"node {os.environ['GROUP_RANK']}"
    return f"{agent or node or ''} on {_machine()}"


def _machine() -> str:
    """This network namespace of this boot: what sees the same abstract sockets."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = os.uname().nodename
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


@dataclass(frozen=True)
class Place:
    """Where a rank of a process group is. key: of its node; rank: on the node."""

    key: str
    rank: int


def arrange(places: Sequence[Place], rank: int) -> tuple[list[int], int]:
    """The ranks of `rank`'s node in the process group, by their rank on the node, and the number of nodes. Raises
    AgentError when the nodes do not have the same number."""
    nodes: dict[str, list[tuple[int, int]]] = {}
    for number, place in enumerate(places):
        nodes.setdefault(place.key, []).append((place.rank, number))
    sizes = {len(members) for members in nodes.values()}
    if len(sizes) > 1:
        raise AgentError(
            f"the nodes have {', '.join(map(str, sorted(sizes)))} ranks of this process group: in the network every "
            "node takes part with the same number"
        )
    # The same part of a bucket must meet its likes of the other nodes.
    kinds = {tuple(sorted(local for local, _ in members)) for members in nodes.values()}
    if len(kinds) > 1:
        raise AgentError("the nodes take part in this process group with different local ranks: use the same on each")
    return [number for _, number in sorted(nodes[places[rank].key])], len(nodes)


class LocalRanks:
    """The ranks of this node in a process group.

    Args:
        name: of the groups that are made, the same on the ranks of this node and of no other.
        rank, size: among them; size 2 or more.
    """

    def __init__(self, name: str, store: Any, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._name = name
        self._store = store
        self._groups: dict[str, tuple[dist.ProcessGroup, dist.ProcessGroup]] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def groups(self, device: str) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """For scattering and for gathering: they are used by different threads, each in its own order."""
        if device not in self._groups:
            backend = "nccl" if device == "cuda" else "gloo"
            self._groups[device] = tuple(  # type: ignore[assignment]
                make_group(f"{self._name}/{device}/{use}", self._store, self.rank, self.size, backend=backend)
                for use in ("scatter", "gather")
            )
        return self._groups[device]

    def start(self, buffer: torch.Tensor, op: Operation, lane: Lane, staging: Callable[[], CudaStaging]) -> Passage:
        """Begin the reduction of `buffer` over all ranks of all nodes. Does not wait on the CPU."""
        return (_CudaPassage if buffer.is_cuda else Passage)(self, buffer, op, lane, staging)

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """For what runs beside the computation."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]


class Passage:
    """One bucket on its way; it is left as it was until `finish`. reduced: done when this rank's part is summed."""

    def __init__(
        self, local: LocalRanks, buffer: torch.Tensor, op: Operation, lane: Lane, staging: Callable[[], CudaStaging]
    ) -> None:
        self._buffer = buffer
        self._local = local
        self._gathering: Any = None
        self._size = -(-buffer.numel() // local.size)
        self._whole = buffer.new_zeros(self._size * local.size)
        self._part = buffer.new_zeros(self._size)
        self._scatter, self._gather = local.groups(buffer.device.type)
        self.reduced = self._start(op, lane, staging)

    def _fill(self, op: Operation) -> None:
        flat = self._whole[: self._buffer.numel()]
        flat.copy_(self._buffer.reshape(-1))
        if op == "mean":
            flat.div_(self._local.size)  # before the sum: half precision does not overflow

    def _start(
        self, op: Operation, lane: Lane, staging: Callable[[], CudaStaging]
    ) -> torch.futures.Future[torch.Tensor]:
        # Parts are exchanged and added here: in float32, in the same order on every node.
        self._fill(op)
        parts = torch.empty_like(self._whole)
        scattered = self._scatter.alltoall_base(parts, self._whole, [], [])

        def ready() -> torch.Tensor:
            scattered.wait()
            shape = parts.view(self._local.size, self._size)
            self._part.copy_(shape.sum(0, dtype=torch.float32))
            return self._part

        completion = Completion(self._part)
        work = lane.submit_later(ready, op, self._size, self._part.element_size())
        work.add_done_callback(lambda done: completion.finish(done.exception()))
        return completion.future

    def gather(self) -> None:
        """This rank's part is summed, or is lost: hand it to the others of the node, who wait for it either way."""
        self._gathering = self._gather._allgather_base(self._whole, self._part)

    def finish(self, good: bool) -> None:
        """Wait for the parts of the others. good: all are sums, and the buffer gets them."""
        self._gathering.wait()
        if good:
            self._buffer.copy_(self._whole[: self._buffer.numel()].view_as(self._buffer))


class _CudaPassage(Passage):
    """With NCCL on a stream of its own; the part goes through pinned memory. Waiting is in stream order."""

    def _start(
        self, op: Operation, lane: Lane, staging: Callable[[], CudaStaging]
    ) -> torch.futures.Future[torch.Tensor]:
        device = self._buffer.device
        stream = self._local.stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        for tensor in (self._buffer, self._whole, self._part):
            tensor.record_stream(stream)
        with torch.cuda.stream(stream):
            self._fill(op)
            self._scatter._reduce_scatter_base(self._part, self._whole, ReduceScatterOptions()).wait()
            return staging().start(self._part, op)
