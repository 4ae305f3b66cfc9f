"""The last lines of a controller's log, which `status` and the page show."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from controlplane.common.log_lines import with_job

KEPT = 1000


@dataclass(frozen=True)
class LogEvent:
    """A line of the log, and its time in seconds since 1970."""

    time: float
    text: str


class EventLog:
    """The last events. It is called with a line, like any `log`, and hands it on. Thread-safe."""

    def __init__(self, log: Callable[[str], None] = lambda line: None) -> None:
        self._log = log
        self._kept: deque[LogEvent] = deque(maxlen=KEPT)
        self._lock = threading.Lock()
        self._record: Callable[[str], None] = lambda line: None
        self.count = 0
        """Number of all events so far."""

    def __call__(self, line: str) -> None:
        with self._lock:
            self.count += 1
            self._kept.append(LogEvent(time.time(), with_job(line)))
        self._log(line)
        self._record(line)

    def record_in(self, record: Callable[[str], None]) -> None:
        """Pass lines to `record`, too, from now on."""
        self._record = record

    def last(self, count: int = KEPT) -> list[LogEvent]:
        """Return the latest events, in order."""
        with self._lock:
            return list(self._kept)[-count:]
