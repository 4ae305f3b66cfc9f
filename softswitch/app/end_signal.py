"""Waiting for the signal that ends a process."""

from __future__ import annotations

import os
import signal


class EndSignal:
    """SIGINT or SIGTERM, from now on; only in the main thread.

    Not an Event that a handler sets: Python runs handlers between two instructions of the main thread, so one for a
    signal that comes just before a wait without end begins would never run, and one that comes while the main thread
    holds the Event's lock would wait for it for ever. The descriptor is written to at once.
    """

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)

    def wait(self) -> None:
        """Return once there was one."""
        os.read(self._reader, 1)
