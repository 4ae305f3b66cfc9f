"""A thread that calls a function every so often, until it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from controlplane.common.log_lines import failure

AFTER_ERROR_SECONDS = 1.0


class Periodic:
    """Calls `look` every `seconds`, from `start` to `close`. No error of `look` ends it: `log` gets the error, with
    what the thread does ("watching ports")."""

    def __init__(self, what: str, seconds: float, look: Callable[[], None], log: Callable[[str], None]) -> None:
        self._what, self._seconds, self._look, self._log = what, seconds, look, log
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)

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
        while not self._closed.wait(self._seconds):
            try:
                self._look()
            except Exception as error:
                self._log(failure(f"{self._what}: {type(error).__name__}: {error}"))
                self._closed.wait(AFTER_ERROR_SECONDS)
