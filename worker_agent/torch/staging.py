"""Copies CUDA tensors to pinned host memory and back beside computation.

    compute stream   gradients ready -> side stream: copy to pinned memory -> lane: submit, in the order of the calls
    agent's thread   sum has arrived -> side stream: copy to the device -> the waiter for the Future

The caller never waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from worker_agent.collectives import MEAN, Collective
from worker_agent.lane import Lane
from worker_agent.torch.result import Completion, Result
from worker_agent.work import Work


@dataclass
class _Transfer:
    """A bucket that is being copied and reduced."""

    buffer: torch.Tensor
    host: torch.Tensor
    stream: torch.cuda.Stream
    completion: Completion


class CudaStaging:
    """Reduces CUDA tensors with an all-reduce of host memory, over this process's lane to the agent."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._stream = cache(torch.cuda.Stream)  # one for each device
        self._free: dict[tuple[int, torch.dtype], list[tuple[torch.Tensor, torch.cuda.Event]]] = {}
        self._lock = threading.Lock()

    def start(self, buffer: torch.Tensor, op: Collective = MEAN) -> Result:
        """Start the mean (or sum) of `buffer` over all ranks; it is in place and in stream order once the Future of the
        result is done.
        """
        device = buffer.device
        stream = self._stream(device)
        completion = Completion(buffer)
        host = self._take(buffer)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            host.copy_(buffer.reshape(-1), non_blocking=True)
            copied = torch.cuda.Event()
            copied.record(stream)
        # The caching allocator must not hand the memory out again while the side stream uses it.
        buffer.record_stream(stream)

        def ready() -> torch.Tensor:
            copied.synchronize()
            return host

        work = self._lane.submit_later(ready, op, host.numel(), host.element_size())
        work.add_done_callback(self._finisher(_Transfer(buffer, host, stream, completion)))
        return completion

    def _take(self, like: torch.Tensor) -> torch.Tensor:
        """Return pinned memory of the tensor's size. It is reused, because pinning costs a millisecond per 10 MB."""
        with self._lock:
            free = self._free.setdefault((like.numel(), like.dtype), [])
            for position, (host, read) in enumerate(free):
                if read.query():
                    del free[position]
                    return host
        return torch.empty(like.numel(), dtype=like.dtype, pin_memory=True)

    def _finisher(self, transfer: _Transfer) -> Callable[[Work], Any]:
        def finish(work: Work) -> None:
            error = work.exception()
            if error is not None:
                transfer.completion.finish(error)
                return
            with torch.cuda.stream(transfer.stream):
                transfer.buffer.copy_(transfer.host.view_as(transfer.buffer), non_blocking=True)
                read = torch.cuda.Event()
                read.record(transfer.stream)
                # The Future records the current stream: a waiter for it waits for the copy.
                transfer.completion.finish(None)
            with self._lock:
                self._free[transfer.host.numel(), transfer.host.dtype].append((transfer.host, read))

        return finish
