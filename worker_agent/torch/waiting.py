"""Waits for operations of gloo so that a wait can be ended, and no thread of torch's runs Python code.

gloo cannot abort an operation: it ends when all ranks have taken part, when the connection to one of them closes, or
after the group's timeout. A thread that waits for it inside torch, or a thread of gloo's that calls Python code, ends
the process with SIGABRT ("terminate called without an active exception") if the interpreter ends meanwhile. Therefore
waits return to Python from time to time, functions that depend on an operation run in a thread of Python's (Follower),
and groups whose operations are in progress outlive those who made them (retire).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import queue
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

from worker_agent.errors import AbortedError, ProgressTimeoutError
from worker_agent.torch.result import Completion, Result

SLICE = timedelta(seconds=0.25)
"""The longest time for which a thread waits inside torch."""
_SLICE_ENDED = "Operation timed out!"
"""The error of torch after the time for which a thread waits; the errors of gloo for its own timeout differ."""
JOIN_SECONDS = 20.0
"""Seconds for which the end of a group waits for a thread, which a store that does not answer may hold up."""


def wait_for(work: dist.Work, ended: Callable[[], Exception | None], seconds: float | None = None) -> None:
    """Wait for an operation of gloo, for at most `seconds` (None: no limit).

    Raise its error, the error that `ended` returns first, or ProgressTimeoutError.
    """
    left = seconds
    while True:
        if (error := ended()) is not None and not work.is_completed():
            raise error
        each = SLICE if left is None else min(SLICE, timedelta(seconds=max(left, 1e-3)))
        try:
            work.wait(each)
            return
        except RuntimeError as error:
            # Some works of gloo (reduce-scatter) never say that they are completed.
            if work.is_completed() or _SLICE_ENDED not in str(error):
                raise
        if left is not None:
            left -= each.total_seconds()
            if left <= 0:
                raise ProgressTimeoutError(f"Operation timed out after {seconds:g} s: some ranks do not take part")


class Follower:
    """Runs functions after operations of gloo, in the order in which they are given, in one thread.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._error: Exception | None = None
        self._closed: Exception | None = None
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[dist.Work, Callable[[Exception | None], None]] | None]
        self._queue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        end_at_exit(self)

    def then(self, work: dist.Work, function: Callable[[], object], value: Any) -> Result:
        """Return the result `value`, which is complete after the operation and `function`."""
        completion = Completion(value)

        def ended(error: Exception | None) -> None:
            try:
                if error is None:
                    function()
            except Exception as failure:
                error = failure
            completion.finish(error)

        self.call(work, ended)
        return completion

    def call(self, work: dist.Work, ended: Callable[[Exception | None], None]) -> None:
        """Call `ended` with the operation's error (None: it has succeeded) when the operation has ended.

        After `close` or `end`, the error is that of the closed group.
        """
        with self._lock:
            error = self._error or self._closed
            if error is None:
                self._queue.put((work, ended))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
                return
        ended(error)

    def close(self, seconds: float | None = None) -> None:
        """End the thread after the operations that it waits for, and wait for that for `seconds` (None: no limit)."""
        with self._lock:
            self._closed = self._closed or AbortedError("the process group is closed")
        self._stop(seconds)

    def end(self, error: Exception) -> None:
        """End all operations with this error, and the thread."""
        with self._lock:
            self._error = self._error or error
        self._stop(JOIN_SECONDS)

    def _stop(self, seconds: float | None) -> None:
        self._queue.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self) -> None:
        while (following := self._queue.get()) is not None:
            work, ended = following
            error: Exception | None = None
            try:
                wait_for(work, lambda: self._error)
            except Exception as failure:
                error = failure
            ended(error)


class Endable(Protocol):
    """An object whose threads must end before the interpreter does."""

    def end(self, error: AbortedError) -> None:
        """End the operations in progress with this error, and the threads."""


_endable: weakref.WeakSet[Endable] = weakref.WeakSet()


def end_at_exit(one: Endable) -> None:
    """Call `one.end(error)` before the interpreter ends, if `one` lives until then, and not in a forked process."""
    _endable.add(one)


_groups: weakref.WeakSet[Any] = weakref.WeakSet()
_retired: list[tuple[Any, list[dist.Work]]] = []
_retired_lock = threading.Lock()


def keep_when_forked(group: Any) -> None:
    """Keep a group in forked processes: its destructor would wait for threads that only the parent has."""
    _groups.add(group)


def retire(group: Any, works: list[dist.Work]) -> None:
    """Keep a group until these operations on it have ended: its destructor would wait for them."""
    with _retired_lock:
        entries = [*_retired, (group, works)]
        left = [(one, [work for work in each if not work.is_completed()]) for one, each in entries]
        _retired[:] = [(one, each) for one, each in left if each]


def _keep_forever(group: Any) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


@atexit.register
def _end_all() -> None:
    """End threads that are inside torch, and keep groups with operations in progress beyond the interpreter's end."""
    error = AbortedError("the process ends")
    for one in list(_endable):
        with contextlib.suppress(Exception):
            one.end(error)
    for group, works in _retired:
        if not all(work.is_completed() for work in works):
            _keep_forever(group)


def _forget() -> None:
    """Forget the parent's objects in a forked process, which has none of their threads."""
    global _retired_lock
    _retired_lock = threading.Lock()
    _endable.clear()
    for group in list(_groups):
        _keep_forever(group)


os.register_at_fork(after_in_child=_forget)
