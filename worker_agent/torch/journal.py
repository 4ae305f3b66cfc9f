"""The operations of a rank in a process group, numbered in the order of their calls.

All ranks must call the same operations in the same order, so operations with the same number belong together. Each rank
chooses the path of an operation by itself. If the ranks ask for different operations, they may therefore wait for each
other on different paths: the watch (presence.py) compares the operations that take long by their numbers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

OUTSIDE = "torch.distributed"
"""The path of operations that only gloo or NCCL see."""
NETWORK = "network"


@dataclass(eq=False)
class Entry:
    """An operation.

    Attributes:
        number: its place in the order of the calls, from 1.
        describe: returns the operation in words, which are the same on all ranks.
        seconds: the time after which it fails.
        path: NETWORK, also where a fallback is part of it, or OUTSIDE.
        done: whether it has ended.
        work: the Work of gloo, if it goes only there.
    """

    number: int
    describe: Callable[[], str]
    seconds: float
    path: str = NETWORK
    done: Callable[[], bool] = lambda: False
    work: Any = None
    began: float = field(default_factory=time.monotonic)

    @property
    def age(self) -> float:
        """The number of seconds since the call."""
        return time.monotonic() - self.began

    @property
    def what(self) -> str:
        """The operation in words."""
        return self.describe()

    def __str__(self) -> str:
        return f"operation {self.number} ({self.what})"


class Journal:
    """The operations in progress. It is thread-safe.

    Attributes:
        begun: number of operations that have begun.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, Entry] = {}
        self.begun = 0

    def begin(self, describe: Callable[[], str], seconds: float) -> Entry:
        """Add an operation, which is in progress until `end`, or until `done` returns True."""
        self.in_progress()
        with self._lock:
            self.begun += 1
            entry = self._entries[self.begun] = Entry(self.begun, describe, seconds)
        return entry

    def cancel(self, entry: Entry) -> None:
        """Remove an operation that could not begin, as if it had not been called."""
        self.end(entry)
        with self._lock:
            if entry.number == self.begun:
                self.begun -= 1

    def end(self, entry: Entry) -> None:
        """Remove an operation that has ended."""
        self._entries.pop(entry.number, None)

    def in_progress(self) -> list[Entry]:
        """Return the operations in progress, the oldest one first."""
        entries = list(self._entries.values())
        for entry in entries:
            if entry.done():
                self.end(entry)
        return [entry for entry in entries if entry.number in self._entries]
