"""A store of controllers in memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from controlplane.service.pair.store import NOTHING, Value


class MemoryStore:
    """A `Store` whose values are in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Value] = {}
        self._revision = 0

    def read(self, name: str) -> Value:
        with self._lock:
            return self._values.get(name, NOTHING)

    def commit(self, values: Mapping[str, bytes], expected: Mapping[str, int]) -> int:
        with self._lock:
            if any(self._values.get(name, NOTHING).revision != revision for name, revision in expected.items()):
                return 0
            self._revision += 1
            self._values |= {name: Value(content, self._revision) for name, content in values.items()}
            return self._revision

    def compact(self, revision: int) -> None:
        """Do nothing: no value is kept that was replaced."""
