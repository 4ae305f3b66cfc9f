"""Calls functions at a given time: one thread for all timeouts of a server."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Timer:
    """Runs functions when they are due, one after the other; they must not block. Its thread starts with the first
    function.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Run ``call`` after so many seconds, unless the timer is stopped earlier."""
        with self._changed:
            if self._stopped:
                return
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), call))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="p4runtime-timer", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._due.clear()
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and (not self._due or self._due[0][0] > time.monotonic()):
                    rest = self._due[0][0] - time.monotonic() if self._due else None
                    self._changed.wait(None if rest is None else min(rest, threading.TIMEOUT_MAX))
                if self._stopped:
                    return
                _, _, call = heapq.heappop(self._due)
            try:
                call()
            except Exception:
                _log.exception("a timed call failed")
