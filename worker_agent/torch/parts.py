"""Reduce-scatter, all-gather and broadcast of a process group whose nodes are the workers of a job.

torch.distributed has part r for rank r, the network has part i for worker i of the job (passage.py describes the parts
where nodes have several ranks). Therefore the ranks exchange once which part each of them has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from worker_agent.collectives import GATHER, Collective, broadcast
from worker_agent.torch.control import Control
from worker_agent.torch.result import Result


class Order:
    """The part of each rank, which is known once all ranks are in the network at the same time.

    Args:
        control: a group of all ranks that nothing else uses.
        index: returns this rank's part; -1 while it is not known.
    """

    def __init__(self, control: Control, index: Callable[[], int]) -> None:
        self._control = control
        self._index = index
        self._found: list[int] | None = None
        self._calls = 0

    def end(self, error: Exception) -> None:
        """End the exchange in progress with this error."""
        self._control.end(error)

    def find(self) -> list[int] | None:
        """Return the parts by rank, or None when they are not known yet.

        The result is the same on all ranks, which all must call this equally often.
        """
        if self._found is None:
            self._calls += 1
            if self._calls & (self._calls - 1) == 0:  # It is tried less and less often.
                numbers = [int(text) for text in self._control.exchange(str(self._index()))]
                if sorted(numbers) == list(range(len(numbers))):
                    self._found = numbers
        return self._found


class Parts:
    """The operations with one part per rank.

    Args:
        start: starts an operation, given the array, the operation, and a copy of the input or None.
        order: the part of each rank, by rank.
    """

    def __init__(
        self,
        rank: int,
        order: list[int],
        start: Callable[[torch.Tensor, Collective, torch.Tensor | None], Result],
    ) -> None:
        self._own = order[rank]
        self._order = order
        self._in_order = order == sorted(order)
        self._start = start

    def reduce_scatter(self, output: torch.Tensor, given: torch.Tensor, op: Collective) -> Result:
        """Reduce `given`, which has a part per rank and stays unchanged; `output` gets this rank's sum or mean."""
        given = given.detach().contiguous()
        parts = given.view(len(self._order), -1)
        whole = torch.empty_like(parts)
        if self._in_order:
            whole.copy_(parts)
        else:
            whole[self._order] = parts

        def take(_: torch.Tensor) -> list[torch.Tensor]:
            return [output.detach().copy_(whole[self._own].view_as(output))]

        before = given.view(-1) if self._in_order else None
        return self._start(whole.view(-1), op, before).then(take)

    def all_gather(self, outputs: list[torch.Tensor] | torch.Tensor, given: torch.Tensor) -> Result:
        """Gather `given`, this rank's part; `outputs` is one tensor for the parts of all ranks in sequence, or a list
        with a tensor for each.
        """
        together = isinstance(outputs, torch.Tensor)
        in_place = together and self._in_order and outputs.is_contiguous()  # type: ignore[union-attr]
        whole = outputs.detach() if in_place else given.new_empty(given.numel() * len(self._order))  # type: ignore[union-attr]
        parts = whole.view(len(self._order), -1)
        if not in_place or parts[self._own].data_ptr() != given.data_ptr():
            parts[self._own].copy_(given.detach().reshape(-1))

        def take(_: torch.Tensor) -> Any:
            if together and not in_place:
                outputs.detach().copy_(parts[self._order].view_as(outputs))  # type: ignore[union-attr,arg-type]
            elif not together:
                for number, output in zip(self._order, outputs, strict=True):
                    output.detach().copy_(parts[number].view_as(output))
            return [outputs] if together else list(outputs)

        return self._start(whole.view(-1), GATHER, None).then(take)

    def broadcast(self, tensor: torch.Tensor, source: int) -> Result:
        """Broadcast the tensor of rank `source`."""
        whole = tensor.detach().contiguous()

        def take(_: torch.Tensor) -> list[torch.Tensor]:
            if whole.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(whole)
            return [tensor]

        return self._start(whole.view(-1), broadcast(self._order[source]), None).then(take)


def outside(group: dist.ProcessGroup, buffer: torch.Tensor, op: Collective, order: list[int]) -> Any:
    """Run the same operation on the same array over a group of torch.distributed, and return its Work; `order` has the
    part of each rank.
    """
    parts = buffer.view(-1)
    if op.in_parts and op.raw:
        rows = parts.view(len(order), -1)
        return group.allgather([[rows[number] for number in order]], [rows[order[group.rank()]].clone()])
    if op.raw:
        options = dist.BroadcastOptions()
        options.rootRank = order.index(op.source)
        options.rootTensor = 0
        return group.broadcast([parts], options)
    # gloo's reduce-scatter is an all-reduce, too.
    if op.mean:
        parts.div_(len(order))
    return group.allreduce([parts])
