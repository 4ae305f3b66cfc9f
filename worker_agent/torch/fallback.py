"""Runs reductions over torch.distributed, instead of the network."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from worker_agent.collectives import Kind
from worker_agent.errors import MismatchError
from worker_agent.shared import Reducer
from worker_agent.torch.alike import TORCH_OPS, can_be_alike, reduce_alike
from worker_agent.torch.control import Control, in_words
from worker_agent.torch.groups import Ranks
from worker_agent.torch.parts import outside
from worker_agent.torch.steps import Item
from worker_agent.torch.waiting import Follower

COMMON_VALUES = 256


class Fallback:
    """The reductions of one process group over torch.distributed.

    Args:
        control: the group for tensors on the CPU.
        reducer: returns the reducer that the network was last used with, if it ever was.
        reproducible: whether they give the same bits as in the network (alike.py).

    Attributes:
        order: the number of each rank's worker, by rank, where that matters.
    """

    def __init__(
        self, ranks: Ranks, control: Control, reducer: Callable[[], Reducer | None], *, reproducible: bool
    ) -> None:
        self._ranks, self._control, self._reducer, self._reproducible = ranks, control, reducer, reproducible
        self.order: list[int] = list(range(ranks.size))
        self._shape: tuple[list[int], int] | None = None
        self._on_device: dist.ProcessGroup | None = None
        self._follower = Follower("inart-fallback")
        self._stream = cache(torch.cuda.Stream)  # one for each device

    def start(self, item: Item, done: Callable[[Exception | None], None]) -> None:
        """Start an operation, in place, and call `done` at its end with its error (None where there is none)."""
        if item.written is not None:
            item.written.wait()
        work = self._reduce(item)
        if work is None or item.buffer.is_cuda:
            self._wait(item, work)
            done(None)
        else:
            self._control.keep(work)

            def ended(error: Exception | None) -> None:
                self._control.release(work)
                done(error)

            self._follower.call(work, ended)

    def close(self) -> None:
        """End the thread after the last operation."""
        self._follower.close()

    def end(self, error: Exception) -> None:
        """End all operations with this error, and the thread."""
        self._follower.end(error)

    def repeat(self, item: Item) -> None:
        """Repeat an operation that failed in the network, from its original content.

        A result that this rank has stays. Raise MismatchError on all ranks where their operations differ: gloo ends the
        process of a rank that is sent more than it expects.
        """
        asked = f"{item.op.plain} of {item.buffer.numel()} {str(item.buffer.dtype).removeprefix('torch.')}"
        operations = self._control.exchange(asked)
        if len(set(operations)) > 1:
            raise MismatchError(f"the ranks' operations differ: {in_words(operations)}")
        if item.early and item.op.kind is Kind.REDUCE_SCATTER:
            assert item.before is not None, "kept since it began"
            self._wait(item, self._reduce(item, item.before))
            if item.kept is None:
                parts, own = (self._ranks.size, -1), self.order[self._ranks.rank]
                item.buffer.view(parts)[own].copy_(item.before.view(parts)[own])
            return
        if item.before is not None:
            item.buffer.copy_(item.before)
        self._wait(item, self._reduce(item))

    def _wait(self, item: Item, work: dist.Work | None) -> None:
        if work is not None:
            self._control.wait(work, item.buffer.is_cuda)

    def stream(self, device: torch.device) -> Any:
        """Return a context in which operations on tensors of the device run beside the script's own."""
        if device.type != "cuda":
            return contextlib.nullcontext()
        return torch.cuda.stream(self._stream(device))

    def _reduce(self, item: Item, buffer: torch.Tensor | None = None) -> dist.Work | None:
        """Start an operation over torch.distributed, in place, and return its Work; None if it has ended.

        `buffer` takes the place of the item's own, in operations other than all-reduce.
        """
        group = self._group(item.buffer)
        if item.op.kind is not Kind.ALL_REDUCE:
            return outside(group, item.buffer if buffer is None else buffer, item.op, self.order)
        if self._reproducible and can_be_alike(item.buffer, item.op):
            order, values = self._network_shape()
            reduce_alike(self._control, item.buffer, item.op, order, values)
            return None
        if item.op.mean:
            item.buffer.div_(self._ranks.size)
        options = dist.AllreduceOptions()
        options.reduceOp = TORCH_OPS[item.op.merge] if item.op.merge else dist.ReduceOp.SUM  # type: ignore[assignment]
        return group.allreduce([item.buffer], options)

    def _network_shape(self) -> tuple[list[int], int]:
        """Return the number of each rank's worker, by rank, and the values of a packet.

        They are those of the most common network where no rank has been in any. All ranks ask for them at the same
        step.
        """
        if self._shape is None:
            reducer = self._reducer()
            told = self._control.exchange(f"{getattr(reducer, 'index', -1)} {getattr(reducer, 'values_per_packet', 0)}")
            order, sizes = zip(*((int(word) for word in text.split()) for text in told), strict=True)
            known = sorted(order) == list(range(len(order)))
            self._shape = list(order) if known else self.order, max(sizes) or COMMON_VALUES
        return self._shape

    def _group(self, buffer: torch.Tensor) -> dist.ProcessGroup:
        """Return torch.distributed's group for a tensor. All ranks make that for devices at the same step, at its first
        use.
        """
        if not buffer.is_cuda:
            return self._control.group
        if self._on_device is None:
            self._on_device = self._ranks.group("spare", backend="nccl")
        return self._on_device
