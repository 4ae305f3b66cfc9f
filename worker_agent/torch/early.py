"""Operations whose results the caller gets before the ranks have agreed that all of them have theirs.

An agreement over gloo takes longer than a small operation does. So the ranks agree on many at once in the background,
and until then keep the input and the result of each operation. If one of them has failed on some rank, the ranks go
through them one by one: a rank that lacks a result gets it bit by bit from a rank that has it; an operation whose
result no rank has is repeated over torch.distributed. So no rank ever acts on a result that the others do not get. A
reduce-scatter gives each rank another part, which no other rank has: where a rank lacks its part, all repeat the
operation from copies of their inputs, and only the ranks that lack their parts take the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from worker_agent.collectives import Collective, Kind
from worker_agent.torch.control import Control

EARLY_BYTES = 64 * 1024
"""The most bytes of an early all-reduce or broadcast."""
EARLY_PARTS_BYTES = 4 << 20
"""The most bytes of an early reduce-scatter or all-gather. They are many, because fully sharded training waits for each
of many such operations.
"""
MOST_EARLY = 64
"""Number of operations after which the ranks agree, unless MOST_EARLY_BYTES come first."""
MOST_EARLY_BYTES = 1 << 20
FIRST_LOOK_SECONDS = 0.1
LAST_LOOK_SECONDS = 2.0
"""Longest seconds between a rank's looks, while no new operation comes, at whether another rank has failed at an
operation whose result this rank has.
"""
CLOSE_SECONDS = 10.0


def is_early(buffer: torch.Tensor, op: Collective) -> bool:
    """Return whether the result is handed out before the ranks agree; this is the same on all ranks."""
    most = EARLY_PARTS_BYTES if op.in_parts else EARLY_BYTES
    return buffer.device.type == "cpu" and buffer.numel() * buffer.element_size() <= most


class Operation(Protocol):
    """An early operation: its array, and a copy of the result (None where this rank has none).

    For a reduce-scatter `kept` is empty, since no other rank can use the result.
    """

    buffer: torch.Tensor
    op: Collective
    kept: torch.Tensor | None


class Window:
    """The operations since the last agreement. It is not thread-safe.

    Args:
        name, store, size: the name, the store and the number of ranks of the process group; see groups.Ranks.
    """

    def __init__(self, name: str, store: Any, size: int) -> None:
        self._name, self._store, self._size = name, store, size
        self._bytes = 0
        self._agreements = 0
        self._look_at = 0.0
        self._look_after = FIRST_LOOK_SECONDS
        self.items: list[Any] = []

    def add(self, item: Operation) -> bool:
        """Add an operation, and return whether the window is full now, which is the same on all ranks."""
        self.items.append(item)
        self._bytes += item.buffer.numel() * item.buffer.element_size()
        self._look_after = FIRST_LOOK_SECONDS
        self._look_at = time.monotonic() + FIRST_LOOK_SECONDS
        return len(self.items) >= MOST_EARLY or self._bytes >= MOST_EARLY_BYTES

    def take(self) -> list[Any]:
        """Remove and return the operations, for an agreement."""
        items, self.items, self._bytes = self.items, [], 0
        return items

    @property
    def wait_seconds(self) -> float | None:
        """The seconds that the thread may wait for a new operation; None where it may wait without limit."""
        return max(0.0, self._look_at - time.monotonic()) if self.items else None

    def somebody_failed(self) -> bool:
        """Return whether another rank waits for the next agreement. The store is asked less and less often; in between
        this returns False.
        """
        if not self.items or time.monotonic() < self._look_at:
            return False
        self._look_after = min(2 * self._look_after, LAST_LOOK_SECONDS)
        self._look_at = time.monotonic() + self._look_after
        return self.is_failed()

    def is_failed(self) -> bool:
        """Return whether another rank waits for the next agreement; the store is asked now."""
        return bool(self._store.check([self._key("failed")]))

    def begin_agreement(self, good: bool) -> None:
        """Count an agreement, as all ranks do; `good` says whether this rank has all results.

        Ranks that have nothing to agree on yet take part when one has failed.
        """
        if not good:
            self._store.set(self._key("failed"), "1")
        self._agreements += 1

    def await_close(self) -> bool:
        """Wait at the end, and return whether a rank waits for an agreement.

        Return False once all ranks have arrived without a failure, or after CLOSE_SECONDS.
        """
        if not self.items:
            return False
        closed = self._key("closed")
        self._store.add(closed, 1)
        end = time.monotonic() + CLOSE_SECONDS
        while time.monotonic() < end:
            if self.is_failed():
                return True
            if self._store.add(closed, 0) >= self._size:
                return False  # No rank has failed, and none will.
            time.sleep(FIRST_LOOK_SECONDS / 10)
        return False

    def _key(self, what: str) -> str:
        return f"inart/{self._name}/{what}/{self._agreements}"


def settle(
    items: list[Any],
    has: bool,
    *,
    rank: int,
    control: Control,
    again: Callable[[Any], None],
) -> None:
    """Make one step's operations right on all ranks after a failure; all ranks call this alike.

    Args:
        items: the operations.
        has: whether this rank has their results.
        rank: this rank.
        control: the agreements of all ranks.
        again: repeats an operation over torch.distributed on all ranks; results that a rank has stay.
    """
    gives = has and all(item.kept is not None and item.op.kind is not Kind.REDUCE_SCATTER for item in items)
    giver, lacking = control.reduce([(rank + 1) * gives, not has], dist.ReduceOp.MAX)
    if not lacking:
        return
    for item in items:
        if not giver:
            again(item)
            continue
        result = item.kept if giver == rank + 1 else torch.empty_like(item.buffer)
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = giver - 1, 0
        control.wait(control.group.broadcast([result], options))
        if not has:
            item.buffer.copy_(result)
