"""The handles of operations of a process group, with the members of torch.distributed's own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import OpType  # type: ignore[attr-defined]

from worker_agent.torch.journal import Entry, Journal
from worker_agent.torch.result import Result
from worker_agent.torch.waiting import wait_for


class Outside(Result):
    """The result of an operation that only gloo sees.

    Args:
        work: gloo's handle.
        ended: returns the error with which waits must end; None while there is none.
    """

    def __init__(self, work: dist.Work, ended: Callable[[], Exception | None]) -> None:
        self._outside, self._ended = work, ended
        self.error = None

    @property
    def future(self) -> torch.futures.Future[Any]:  # type: ignore[override]
        """The Future of gloo, which some of its operations do not have."""
        return self._outside.get_future()

    def done(self) -> bool:
        """Return whether the operation has ended."""
        return self._outside.is_completed()

    def value(self) -> Any:
        """Return the value of an operation that has ended."""
        return self._outside.result()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the operation, for at most `timeout` seconds (None: the timeout of gloo)."""
        try:
            wait_for(self._outside, self._ended, timeout)
        except Exception as error:
            self.error = error
            raise


class InArtWork(dist.Work):
    """An operation in progress. On CUDA, waiting is in stream order, as with NCCL."""

    def __del__(self) -> None:
        if self._entry.work is not None:  # Some works of gloo never say that they are completed.
            self._journal.end(self._entry)

    def __init__(self, result: Result, kind: OpType, entry: Entry, journal: Journal) -> None:
        super().__init__()
        self._result, self._kind, self._entry, self._journal = result, kind, entry, journal

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the result.

        Raise the error of the operation, or ProgressTimeoutError when there is no result after `timeout` (None or 0:
        the timeout of the process group); the operation then continues.
        """
        self._result.wait(timeout.total_seconds() if timeout else None)
        self._journal.end(self._entry)
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """Return the Future of the list of tensors."""
        return self._result.future

    def result(self) -> list[torch.Tensor]:
        """Return the list of tensors of an operation that has ended."""
        return list(self._result.value())

    def is_completed(self) -> bool:
        return self._result.done()

    def is_success(self) -> bool:
        return self._entry.work.is_success() if self._entry.work is not None else self._result.succeeded()

    def exception(self) -> Exception | None:
        """Return the error, or None when there is none or the work is not done."""
        if not self.is_completed():
            return None
        try:
            self._result.wait()
        except Exception as error:
            return error
        return None

    def synchronize(self) -> None:
        self.wait()

    @property
    def timeout(self) -> timedelta:
        """The time after which the operation fails."""
        return timedelta(seconds=self._entry.seconds)

    def _get_op_type(self) -> int:
        return int(self._kind) if self._entry.work is None else self._entry.work._get_op_type()

    def _get_sequence_number(self) -> int:
        return self._entry.number
