"""Waits for the signal that ends a process."""

from __future__ import annotations

import os
import signal


class EndSignal:
    """A wait for SIGINT or SIGTERM, from construction on; only in the main thread.

    It is not an Event that a handler sets: Python runs handlers between two instructions of the main thread, so the
    handler of a signal that comes just before an endless wait would never run, and that of a signal that comes while
    the main thread holds the Event's lock would wait for the lock for ever. A signal writes to the descriptor at once.
    """

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)

    def wait(self) -> None:
        """Wait until one of the signals has come."""
        os.read(self._reader, 1)
