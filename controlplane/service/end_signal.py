"""A wait for the signal that ends a process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


class EndSignal:
    """Catches SIGINT or SIGTERM from now on; it works in the main thread only. `hangup` is called for each SIGHUP
    before that, and may wait.

    A signal handler that sets an Event would not do: Python runs handlers between two instructions of the main thread.
    One for a signal that comes just before a wait without end would never run, and one that comes while the main thread
    holds the Event's lock would wait for it for ever. A descriptor is written to at once.
    """

    def __init__(self, hangup: Callable[[], None] | None = None) -> None:
        self._hangup = hangup
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        for number in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hangup is not None else [])):
            signal.signal(number, lambda *_: None)

    def wait(self) -> None:
        """Return once such a signal has come. The next one ends the process as it would any other."""
        while os.read(self._reader, 1) == bytes([signal.SIGHUP]) and self._hangup is not None:
            self._hangup()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
