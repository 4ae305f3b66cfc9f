"""Writes the journal of a job's events (core/journal.py) to a file, one JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from controlplane.common.log_lines import failure
from controlplane.service.core.journal import Journal, Record


class JournalFile:
    """The file of one job's journal. Each part of the journal begins the file anew; the part before it is kept as
    "NAME.1".

    When the file cannot be written (the disk is full), the job goes on, `log` says so once, and writing begins again
    with the next part. Only this user can read the file.
    """

    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        self._path, self._log = path, log
        self._failed = False

    def journal(self) -> Journal:
        """Return a journal that is written to this file."""
        return Journal(self._write)

    def _write(self, record: Record, first: bool) -> None:
        if self._failed and not first:
            return
        try:
            if first:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                if self._path.exists():
                    self._path.replace(f"{self._path}.1")
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            with os.fdopen(os.open(self._path, flags, 0o600), "a") as file:
                file.write(json.dumps(record) + "\n")
            self._failed = False
        except OSError as error:
            if not self._failed:
                self._log(failure(f"events are not written to {self._path} any more: {error.strerror or error}"))
            self._failed = True
