"""Results of operations: a Future for torch, beside the original error for Python.

A Future of torch only keeps the text of an error that a continuation raises, with another layer of text for each
further continuation. Therefore the original error travels beside the Futures, and each of them raises that one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from worker_agent.errors import ProgressTimeoutError
from worker_agent.work import Work


class Result:
    """The result of an operation in progress.

    Attributes:
        future: is done when the operation is. If that has failed, the Future raises a RuntimeError whose text contains
            the original error.
        error: the original error; None while the operation is in progress and after it has succeeded.
        work: the agent's Work, if waiting for it first gives the result sooner.
    """

    def __init__(self, future: torch.futures.Future[Any], work: Work | None = None) -> None:
        self.future = future
        self.work = work
        self.error: Exception | None = None

    def then(self, function: Callable[[Any], Any]) -> Result:
        """Return the result of `function(value)`, which is called if the operation succeeds."""

        def run(future: torch.futures.Future[Any]) -> Any:
            try:
                if self.error is not None:
                    raise self.error
                return function(future.value())
            except Exception as error:
                following.error = error
                raise

        following = Result.__new__(Result)
        following.error, following.work = None, self.work
        following.future = self.future.then(run)
        return following

    def done(self) -> bool:
        """Return whether the operation has ended."""
        return self.future.done()

    def succeeded(self) -> bool:
        """Return whether the operation has ended with a value."""
        return self.done() and self.error is None

    def value(self) -> Any:
        """Return the value of an operation that has ended."""
        return self.wait()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the value, for at most `timeout` seconds (None: no limit), and return it.

        Raise the operation's original error, or ProgressTimeoutError after `timeout`; the operation continues.
        """
        if timeout is not None:
            ended = threading.Event()
            self.future.add_done_callback(lambda _: ended.set())
            if not ended.wait(timeout):
                raise ProgressTimeoutError(f"Operation timed out: it has no result after {timeout:g} s, and continues")
        elif self.work is not None:
            self.work.fetch(None)
        try:
            return self.future.wait()
        except Exception:
            if self.error is not None:
                raise self.error from None
            raise


class Completion(Result):
    """A result that any thread may complete, once.

    Future.set_exception only works for waiters in Python: DDP, in C++, would take the exception for the result. A
    continuation that raises makes a Future that has failed for both.

    Args:
        value: the value: the tensor that the operation changes in place, or several on the CPU.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self._lock = threading.Lock()
        self._finished = False
        on_device = isinstance(value, torch.Tensor) and value.device.type != "cpu"
        devices: list[int | str | torch.device] = [value.device] if on_device else []
        self._ended: torch.futures.Future[Any] = torch.futures.Future(devices=devices)
        super().__init__(self._ended.then(self._give))

    def finish(self, error: Exception | None) -> None:
        """Complete the Future, unless it is done already: the value is complete, or `error` occurred.

        On a device the current stream must be the one that writes the value.
        """
        with self._lock:
            if self._finished:
                return
            self._finished = True
        self.error = error
        self._ended.set_result(self._value)

    def _give(self, _: torch.futures.Future[Any]) -> Any:
        if self.error is not None:
            raise self.error
        return self._value
