"""A thread that calls a function every so often, and a lock that threads get in the order in which they asked."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque

from controlplane.common.log_lines import Log

AFTER_ERROR_SECONDS = 1.0


class Periodic(ABC):
    """Calls `look` every `seconds` from a thread, from `start` to `close`. No error of `look` ends it. `log` gets each
    error once, with what the thread does (`what`: "watching ports"), and a line when `look` works again."""

    def __init__(self, what: str, seconds: float, log: Log) -> None:
        self._what, self._seconds, self.log = what, seconds, log
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)

    @abstractmethod
    def look(self) -> None:
        """Do once what is done every `seconds`."""

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Have no further call of `look`. For `look` itself, which cannot wait for its own end."""
        self._closed.set()

    def close(self) -> None:
        """Have no further call of `look`, and wait for the one that is under way."""
        self.end()
        if self._thread.is_alive():
            self.ended(10)

    def ended(self, timeout: float) -> bool:
        """Return whether the thread, which has been started, ends within so many seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        problem = ""
        while not self._closed.wait(self._seconds):
            before = problem
            try:
                self.look()
                problem = ""
            except Exception as error:
                problem = f"{self._what}: {type(error).__name__}: {error}"
            if problem and problem != before:
                self.log.error(f"{problem}; tried again every {self._seconds + AFTER_ERROR_SECONDS:g} s")
            elif before and not problem:
                self.log.info(f"{self._what}: works again")
            if problem:
                self._closed.wait(AFTER_ERROR_SECONDS)


class InTurn:
    """A reentrant lock, first come, first served. A context manager.

    A thread that releases a `threading.RLock` and wants it again at once gets it before threads that wait have woken
    up. On a busy machine, a thread that replans all jobs over and over kept an operator's order waiting in that way.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._queue: deque[object] = deque()
        self._owner: int | None = None
        self._depth = 0

    @property
    def waiting(self) -> int:
        """The number of threads that wait for the lock."""
        with self._changed:
            return len(self._queue)

    def __enter__(self) -> InTurn:
        own, me = object(), threading.get_ident()
        with self._changed:
            if self._owner != me:
                self._queue.append(own)
                try:
                    self._changed.wait_for(lambda: self._owner is None and self._queue[0] is own)
                finally:
                    self._queue.remove(own)
                    self._changed.notify_all()
                self._owner = me
            self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._depth -= 1
            if not self._depth:
                self._owner = None
                self._changed.notify_all()
