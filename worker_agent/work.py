"""An operation that is under way: what whoever started it waits for."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from worker_agent.errors import AllReduceError


class Work:
    """An all-reduce under way. seconds, first_send, last_answer (time.monotonic) are set when it is done. workers: how
    many the sum or mean is of, known then: a job may go on without workers that are lost."""

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
        """Return whether it ended, well or not."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Returns when the result is in place. Raises AllReduceError (see errors.py) when the operation failed, and
        TimeoutError when it is not done within `timeout` seconds (it goes on)."""
        fetch = self._fetch
        if fetch is not None and not self._done.is_set():
            start = time.monotonic()
            fetch(timeout)
            timeout = None if timeout is None else max(0.0, timeout - (time.monotonic() - start))
        if not self._done.wait(timeout):
            raise TimeoutError(f"the all-reduce of {self.elements} elements is not done after {timeout} s")
        if self._error is not None:
            raise self._error

    def fetched_by(self, fetch: Callable[[float | None], None]) -> None:
        """Let whoever waits for the operation call `fetch(seconds)` first, which waits for its end and calls `finish`,
        or does nothing where another thread does: one thread fewer on the way. For whoever runs the operation."""
        self._fetch = fetch

    def stands_for(self, other: Work) -> None:
        """Let whoever waits for this operation wait for the other first, which it follows."""
        self._fetch = other.fetch

    def fetch(self, timeout: float | None) -> None:
        """Waits for the end where that is quicker than to wait to be told; it need not have ended then."""
        if self._fetch is not None and not self._done.is_set():
            self._fetch(timeout)

    def exception(self) -> AllReduceError | None:
        """Return the error with which the operation failed; None when it went well or is not done."""
        return self._error

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        """`callback(work)` from the engine's completion thread when it is done; at once when it is done already."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def follow(self, other: Work) -> None:
        """Ends as `other` ends: this one stood for it until it could be started."""

        def ended(work: Work) -> None:
            self.seconds, self.first_send, self.last_answer = work.seconds, work.first_send, work.last_answer
            self.workers = work.workers
            self.finish(work.exception())

        self.stands_for(other)
        other.add_done_callback(ended)

    def finish(self, error: AllReduceError | None) -> None:
        """Done, well (None) or not. For whoever runs the operation."""
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
