"""Certificates that hold no more before their end: a file with a line `SERIAL ROLE NAME` for each (# begins a comment).

`inart certificates --revoke` writes it; the controller looks at it again whenever it has changed.
"""

from __future__ import annotations

import threading
from pathlib import Path

REVOKED_FILE = "revoked"
"""Name of the file of revoked certificates, beside the controller's certificate."""


class Unreadable(ValueError):
    """The list cannot be used: nobody with a certificate is let in, as it may be one of those."""


class Revoked:
    """The serial numbers in a file; there may be none. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._serials: frozenset[int] = frozenset()

    def __contains__(self, serial: int) -> bool:
        """Raises Unreadable."""
        with self._lock:
            try:
                status = self.path.stat()
                if (status.st_mtime_ns, status.st_size) != self._seen:
                    self._serials = frozenset(serials(self.path.read_text()))
                    self._seen = status.st_mtime_ns, status.st_size
            except FileNotFoundError:
                self._seen, self._serials = None, frozenset()
            except (OSError, ValueError) as error:
                raise Unreadable(f"the list of revoked certificates {self.path} cannot be used: {error}") from None
            return serial in self._serials


def serials(text: str) -> list[int]:
    """Return the serial numbers of a list. Raises ValueError for a line that does not begin with one."""
    lines = [line.partition("#")[0].split() for line in text.splitlines()]
    return [int(words[0], 16) for words in lines if words]
