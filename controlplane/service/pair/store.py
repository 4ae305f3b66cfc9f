"""A store that several controllers share: named values that change only if the values read before are still there."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from controlplane.common.whole_file import replace_file

NAME = re.compile(r"[a-z][a-z0-9.-]*")


class StoreError(OSError):
    """The store cannot be reached, or refuses; the message says which one, and why."""


@dataclass(frozen=True)
class Value:
    """The content that a store has under a name. `revision` is a number that grows with every change; it is 0 where the
    store has nothing under that name."""

    content: bytes = b""
    revision: int = 0


NOTHING = Value()


class Store(Protocol):
    """Named values. Thread-safe. A call takes a second at most."""

    def read(self, name: str) -> Value:
        """Return the value of this name. Raise StoreError where the store does not answer."""
        ...

    def commit(self, values: Mapping[str, bytes], expected: Mapping[str, int]) -> int:
        """Write all these values if the names in `expected` still have these revisions (0 for a name without a value).
        Return the new revision, or 0 where they do not, and nothing was written. Raise StoreError where the store does
        not answer; the values may have been written then."""
        ...


class FolderStore:
    """A store in a folder, for controllers on one machine, one of which takes over when the other ends or hangs.

    The file of each value has its revision in the first line.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> Value:
        with self._held():
            return self._read(name)

    def commit(self, values: Mapping[str, bytes], expected: Mapping[str, int]) -> int:
        with self._held():
            if any(self._read(name).revision != revision for name, revision in expected.items()):
                return 0
            revision = self._read("revision").revision + 1
            for name, content in {"revision": b"", **values}.items():
                self._write(name, revision, content)
            return revision

    @contextmanager
    def _held(self) -> Iterator[None]:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(self._folder / "store.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise StoreError(f"the store in {self._folder} cannot be used: {error.strerror or error}") from None

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a value")
        return self._folder / name

    def _read(self, name: str) -> Value:
        try:
            revision, _, content = self._path(name).read_bytes().partition(b"\n")
        except FileNotFoundError:
            return NOTHING
        if not revision.isdigit():
            raise OSError(f"{self._path(name)} is no value of a store")
        return Value(content, int(revision))

    def _write(self, name: str, revision: int, content: bytes) -> None:
        synced = len(content) > 64  # A beat comes several times a second, and is worth nothing after a power failure.
        replace_file(self._path(name), b"%d\n" % revision + content, synced=synced)
