"""A lock that threads get in the order in which they asked for it."""

from __future__ import annotations

import threading
from collections import deque


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
