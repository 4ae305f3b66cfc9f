"""A store that several controllers share: named values that change only if the values read before are still there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


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

    def compact(self, revision: int) -> None:
        """Drop what the names had before this revision, which nobody reads. Raise StoreError where that fails."""
        ...
