"""The handle of an operation in progress, by which its caller waits for it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from worker_agent.errors import AllReduceError


class Work:
    """An all-reduce in progress.

    Attributes:
        seconds, first_send, last_answer: how long it took, and when its first packet was sent and its last answer came
            (time.monotonic); set when it is done.
        workers: number of workers that the sum or mean is of; valid when it is done, as a job may go on without workers
            that are lost.
    """

    def __init__(self, elements: int, nbytes: int, workers: int = 0) -> None:
        self.workers = workers
        self.elements = elements
        self.nbytes = nbytes
        self.seconds = math.nan
        self.first_send = math.nan
        self.last_answer = math.nan
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._error: AllReduceError | None = None
        self._fetch: Callable[[float | None], None] | None = None
        self._callbacks: list[Callable[[Work], None]] = []

    def done(self) -> bool:
        """Return whether the operation has ended, well or not."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the result is in place.

        Raise AllReduceError (see errors.py) when the operation failed, and TimeoutError when it is not done within
        `timeout` seconds (it goes on).
        """
        fetch, left = self._fetch, timeout
        if fetch is not None and not self._done.is_set():
            start = time.monotonic()
            fetch(timeout)
            left = None if timeout is None else max(0.0, timeout - (time.monotonic() - start))
        if not self._done.wait(left):
            raise TimeoutError(f"the all-reduce of {self.elements} elements is not done after {timeout} s")
        if self._error is not None:
            raise self._error

    def fetched_by(self, fetch: Callable[[float | None], None]) -> None:
        """Let every thread that waits for the operation call `fetch(seconds)` first, which saves the change to another
        thread.

        `fetch` waits for the operation's end and calls `finish`, or does nothing where another thread does that. The
        code that runs the operation calls this.
        """
        self._fetch = fetch

    def stands_for(self, other: Work) -> None:
        """Let every thread that waits for this operation wait for `other` first, whose end is this one's, too."""
        self._fetch = other.fetch

    def fetch(self, timeout: float | None) -> None:
        """Wait for the end in the way that `fetched_by` has set, if any; the operation need not have ended when this
        returns.
        """
        if self._fetch is not None and not self._done.is_set():
            self._fetch(timeout)

    def exception(self) -> AllReduceError | None:
        """Return the error with which the operation failed; None when it went well or is not done."""
        return self._error

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        """Call `callback(work)` from the engine's completion thread when the operation is done, or at once when it is
        done already.
        """
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def follow(self, other: Work) -> None:
        """End as `other` ends; this operation was the caller's handle until `other` could be started."""

        def ended(work: Work) -> None:
            self.seconds, self.first_send, self.last_answer = work.seconds, work.first_send, work.last_answer
            self.workers = work.workers
            self.finish(work.exception())

        self.stands_for(other)
        other.add_done_callback(ended)

    def finish(self, error: AllReduceError | None) -> None:
        """End the operation, well (None) or with an error. The code that runs the operation calls this."""
        with self._lock:
            self._error = error
            self._fetch = None
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception as failure:  # a callback's bug must not stop the other operations' completion
                threading.excepthook(
                    threading.ExceptHookArgs(
                        (type(failure), failure, failure.__traceback__, threading.current_thread())
                    )
                )
