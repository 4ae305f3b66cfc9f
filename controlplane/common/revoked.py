"""Certificates that were revoked before their end: a file with a line `SERIAL ROLE NAME` for each (# begins a comment).

`inart certificates --revoke` writes it; the controller reads it again whenever it has changed.
"""

from __future__ import annotations

import threading
from pathlib import Path

REVOKED_FILE = "revoked"
"""Name of the file of revoked certificates, beside the controller's certificate."""


class Unreadable(ValueError):
    """The list cannot be used. Nobody with a certificate is let in then, since any certificate may be on it."""


class Revoked:
    """The serial numbers in a file, which may have none. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._serials: frozenset[int] = frozenset()

    def __contains__(self, serial: int) -> bool:
        """Return whether this serial number was revoked. Raise Unreadable where the file cannot be used."""
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
    """Return the serial numbers of a list. Raise ValueError where a line does not begin with one."""
    lines = [line.partition("#")[0].split() for line in text.splitlines()]
    return [int(words[0], 16) for words in lines if words]
