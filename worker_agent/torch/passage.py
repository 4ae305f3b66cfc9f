"""The path of one operation of a process group through a node with several ranks and through the network.

    all-reduce       sum inside the node, a part each -> network -> all-gather inside the node
    reduce-scatter   sum inside the node, each rank the parts of its peers on the other nodes -> network
    all-gather       network, among its peers on the other nodes -> all-gather inside the node
    broadcast        scatter inside the source's node -> network, a part each -> all-gather inside the node

A rank's peers are the ranks with its number on the other nodes. So the network carries what a node sends or receives
once, whatever number of ranks it has. NCCL is used inside the node on CUDA devices, gloo on the CPU.

The array of reduce-scatter and all-gather has one part per rank: first those of local rank 0 of each node, ordered by
the worker's number, then those of local rank 1, and so on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ReduceScatterOptions

from worker_agent.collectives import Collective, Kind, broadcast
from worker_agent.torch.local_ranks import LocalRanks
from worker_agent.torch.result import Completion, Result
from worker_agent.torch.route import Route


class Passage(ABC):
    """One array on its way through node and network. Its original content can still be reduced in another way until
    `finish`.

    Attributes:
        reduced: the result of this rank's part in the network.
    """

    def __init__(self, local: LocalRanks, buffer: torch.Tensor, op: Collective, route: Route) -> None:
        self._buffer = buffer
        self._local = local
        self._gathering: Any = None
        self._scatter, self._gather = local.groups(buffer.device.type)
        if not buffer.is_cuda:
            ready = self._enter(op)
            part = self._part
            completion = Completion(part)

            def enter() -> torch.Tensor:
                ready()
                return part

            work = route.lane.submit_later(enter, self._network_op(op), part.numel(), part.element_size())
            work.add_done_callback(lambda done: completion.finish(done.exception()))
            self.reduced: Result = completion
            return
        # The work is on a stream of its own; the part goes through pinned memory. Waiting is in stream order.
        device = buffer.device
        stream = local.stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self._enter(op)()
            for tensor in (buffer, self._part):
                tensor.record_stream(stream)
            self.reduced = route.staging.start(self._part, self._network_op(op))

    @abstractmethod
    def _enter(self, op: Collective) -> Callable[[], object]:
        """Set `_part` and start the node's work before the network, and return a function that waits for it."""

    _part: torch.Tensor

    def _network_op(self, op: Collective) -> Collective:
        return op

    @abstractmethod
    def gather(self) -> None:
        """Hand this rank's part, which has arrived or is lost, to the other ranks of the node, which wait for it in
        either case.
        """

    @abstractmethod
    def finish(self, good: bool) -> None:
        """Wait for the parts of the other ranks; where `good` says that all have arrived, the buffer gets them."""

    def _sum(self, whole: torch.Tensor, part: torch.Tensor, divisor: int) -> Callable[[], object]:
        """Start the sum over the node's ranks of each one's part of `whole`, divided by `divisor`, into `part`, and
        return a function that waits for it.
        """
        if whole.is_cuda:
            options = ReduceScatterOptions()
            options.reduceOp = dist.ReduceOp.SUM if divisor == 1 else dist.ReduceOp.AVG  # type: ignore[assignment]
            return self._scatter.group._reduce_scatter_base(part, whole, options).wait
        # Parts are exchanged and added here, in float32 and in the same order on every node.
        parts = torch.empty_like(whole)
        exchanged = self._scatter.group.alltoall_base(parts, whole, [], [])

        def add() -> None:
            self._scatter.wait(exchanged)
            part.copy_(sum_of(parts.view(self._local.size, part.numel()), divisor))

        return add


def sum_of(rows: torch.Tensor, divisor: int) -> torch.Tensor:
    """Return the sum of the rows divided by `divisor`, added in float32; a mean is finite if only the sum is not."""
    total = rows.sum(0, dtype=torch.float32)
    if divisor == 1:
        return total
    if not bool(total.isfinite().all()):
        total = rows.sum(0, dtype=torch.float64)
    return total.div_(divisor)


def passage(local: LocalRanks, buffer: torch.Tensor, op: Collective, route: Route) -> Passage:
    """Begin an operation on `buffer` over all ranks of all nodes, without waiting on the CPU.

    `buffer` is contiguous, except for all-reduce.
    """
    if op.kind is Kind.ALL_REDUCE:
        made: type[Passage] = AllReduce
    elif op.kind is Kind.REDUCE_SCATTER:
        made = ReduceScatter
    else:
        made = AllGather if op.source < 0 else Broadcast
    return made(local, buffer, op, route)


class Whole(Passage):
    """An operation on a padded copy, which travels in equal parts and is gathered again."""

    _whole: torch.Tensor

    def gather(self) -> None:
        self._gathering = self._gather.group._allgather_base(self._whole, self._part)

    def finish(self, good: bool) -> None:
        self._gather.wait(self._gathering, self._buffer.is_cuda)
        _used(self._whole)
        if good:
            self._take()

    @abstractmethod
    def _take(self) -> None:
        """Copy the result to the buffer."""


class AllReduce(Whole):
    """The sum or mean over all ranks."""

    def _enter(self, op: Collective) -> Callable[[], object]:
        local, buffer = self._local, self._buffer
        size = -(-buffer.numel() // local.size)
        self._whole = buffer.new_zeros(size * local.size)
        self._whole[: buffer.numel()].copy_(buffer.reshape(-1))
        self._part = buffer.new_zeros(size)
        return self._sum(self._whole, self._part, local.size if op.mean else 1)

    def _take(self) -> None:
        self._buffer.copy_(self._whole[: self._buffer.numel()].view_as(self._buffer))


class ReduceScatter(Passage):
    """A reduce-scatter: each rank gets its own sum or mean, and the node has nothing to do afterwards."""

    def _enter(self, op: Collective) -> Callable[[], object]:
        local, whole = self._local, self._buffer.view(-1)
        self._part = whole.new_empty(whole.numel() // local.size)
        return self._sum(whole, self._part, local.size if op.mean else 1)

    def gather(self) -> None:
        return

    def finish(self, good: bool) -> None:
        _used(self._part)
        if good:
            self._buffer.view(self._local.size, -1)[self._local.rank].copy_(self._part)


class AllGather(Passage):
    """An all-gather of every rank's part, in place. After a loss it can be repeated, because this rank's own part
    stays.
    """

    def _enter(self, op: Collective) -> Callable[[], object]:
        self._part = self._buffer.view(self._local.size, -1)[self._local.rank]
        return _nothing

    def gather(self) -> None:
        self._gathering = self._gather.group._allgather_base(self._buffer.view(-1), self._part)

    def finish(self, good: bool) -> None:
        self._gather.wait(self._gathering, self._buffer.is_cuda)


class Broadcast(Whole):
    """A broadcast of one rank's array: it gives a part to each rank of its node, which passes it on."""

    def _enter(self, op: Collective) -> Callable[[], object]:
        local, bytes_ = self._local, self._buffer.view(-1).view(torch.uint8)
        size = -(-bytes_.numel() // local.size)
        source = op.source
        self._whole = bytes_.new_zeros(size * local.size)
        self._part = bytes_.new_zeros(size)
        if source % local.workers != local.worker:
            return _nothing
        options = dist.ScatterOptions()
        options.rootRank = source // local.workers
        rows = []
        if options.rootRank == local.rank:
            self._whole[: bytes_.numel()].copy_(bytes_)
            rows = [list(self._whole.view(local.size, size))]
        return partial(self._scatter.wait, self._scatter.group.scatter([self._part], rows, options), bytes_.is_cuda)

    def _network_op(self, op: Collective) -> Collective:
        return broadcast(op.source % self._local.workers)

    def _take(self) -> None:
        bytes_ = self._buffer.view(-1).view(torch.uint8)
        bytes_.copy_(self._whole[: bytes_.numel()])


def _nothing() -> None:
    return


def _used(tensor: torch.Tensor) -> None:
    """Mark a tensor as used by the current stream, so that its memory is not reused earlier."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
