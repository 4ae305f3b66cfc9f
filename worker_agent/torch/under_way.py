"""Keeps the operations of a process group that are in progress, each from its start until the caller has its result."""

from __future__ import annotations

import time

from worker_agent.errors import AllReduceError
from worker_agent.flight import flight
from worker_agent.metrics import Counts
from worker_agent.torch.steps import Item


class UnderWay:
    """The operations in progress. One thread at a time adds them; any thread may end them."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._items: set[Item] = set()
        self.aborted: AllReduceError | None = None

    def add(self, item: Item) -> None:
        self._items.add(item)

    def check(self) -> None:
        """Check that operations are accepted; raise the error that `refuse` was called with."""
        if self.aborted is not None:
            raise self.aborted

    def finish(self, item: Item, error: Exception | None) -> None:
        """End an operation, and count it; `error` is the reason for which it has no result, or None."""
        self._counts.reduced(item.buffer.numel() * item.buffer.element_size())
        self.end(item, error)
        if item.last and not item.step.network:
            self._counts.step_ends(item.step.began, item.added)

    def end(self, item: Item, error: Exception | None) -> None:
        """End an operation; this does nothing where it has ended."""
        if item in self._items:
            self._items.discard(item)
            _recorded(item, error)
        item.completion.finish(error)

    def refuse(self, error: AllReduceError) -> None:
        """Accept no further operation: `check` raises this error."""
        self.aborted = error

    def end_all(self) -> None:
        """End all operations with the error with which they are refused."""
        for item in set(self._items):
            self.end(item, self.aborted)


def _recorded(item: Item, error: Exception | None) -> None:
    """Keep a bucket's time in the flight recorder, from its start to its result."""
    step = item.step
    number = next((number for number, one in enumerate(step.items) if one is item), 0)
    about: dict[str, object] = {"bytes": item.buffer.numel() * item.buffer.element_size()}
    about["way"] = "network" if step.network and not item.problem else "torch.distributed"
    if words := str(error) if error is not None else item.problem:
        about["error"] = words
    flight.span("buckets", f"step {step.number} bucket {number}", item.added, time.monotonic(), **about)
