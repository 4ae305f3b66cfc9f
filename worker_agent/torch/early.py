"""Small operations whose results the caller has before the ranks have agreed that all of them have theirs.

An agreement over gloo takes longer than a small operation does. So the ranks agree on many at once, in the background,
and keep until then what each operation's array was, and what came of it. If one of them has failed on some rank, the
ranks go through them one by one: whoever lacks a result gets it, to the bit, from a rank that has it; only what nobody
has is done again over torch.distributed. Nobody ever acts on a result that the others do not get.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from worker_agent.collectives import Collective, Kind
from worker_agent.torch.groups import reduce_numbers

EARLY_BYTES = 64 * 1024
"""Of an operation at most."""
MOST_EARLY = 64
"""So many, or so many bytes, are agreed on at once."""
MOST_EARLY_BYTES = 1 << 20
FIRST_LOOK_SECONDS = 0.1
LAST_LOOK_SECONDS = 2.0
"""While nothing new comes, a rank looks now and then whether another has failed at what this one has the result of."""
CLOSE_SECONDS = 10.0


def is_early(buffer: torch.Tensor, op: Collective) -> bool:
    """Whether its result is handed out before the ranks agree: the same on all ranks. Of a reduce-scatter each rank has
    another part, which no other rank could give it."""
    nbytes = buffer.numel() * buffer.element_size()
    return buffer.device.type == "cpu" and nbytes <= EARLY_BYTES and op.kind is not Kind.REDUCE_SCATTER


class Operation(Protocol):
    """What there is of one: its array, and the result as it came (None: this rank has none)."""

    buffer: torch.Tensor
    kept: torch.Tensor | None


class Window:
    """Of the operations since the last agreement. Not thread-safe.

    Args:
        name, store: as of Sequence.
    """

    def __init__(self, name: str, store: Any, size: int) -> None:
        self._name, self._store, self._size = name, store, size
        self._bytes = 0
        self._agreements = 0
        self._look_at = 0.0
        self._look_after = FIRST_LOOK_SECONDS
        self.items: list[Any] = []

    def add(self, item: Operation) -> bool:
        """Whether it is full now: the same on all ranks."""
        self.items.append(item)
        self._bytes += item.buffer.numel() * item.buffer.element_size()
        self._look_after = FIRST_LOOK_SECONDS
        self._look_at = time.monotonic() + FIRST_LOOK_SECONDS
        return len(self.items) >= MOST_EARLY or self._bytes >= MOST_EARLY_BYTES

    def take(self) -> list[Any]:
        """Its operations, to be agreed on."""
        items, self.items, self._bytes = self.items, [], 0
        return items

    @property
    def wait_seconds(self) -> float | None:
        """How long the thread may wait for something new; None: for ever."""
        return max(0.0, self._look_at - time.monotonic()) if self.items else None

    def somebody_failed(self) -> bool:
        """Whether another rank waits for the next agreement. Looks less and less often."""
        if not self.items or time.monotonic() < self._look_at:
            return False
        self._look_after = min(2 * self._look_after, LAST_LOOK_SECONDS)
        self._look_at = time.monotonic() + self._look_after
        return self.is_failed()

    def is_failed(self) -> bool:
        """The same, asked at once."""
        return bool(self._store.check([self._key("failed")]))

    def begin_agreement(self, good: bool) -> None:
        """Before each; the ranks count them alike. Those that have nothing to agree on yet come when one has failed."""
        if not good:
            self._store.set(self._key("failed"), "1")
        self._agreements += 1

    def await_close(self) -> bool:
        """At the end: True when all ranks have come to it, or one waits for an agreement; False after a while."""
        if not self.items:
            return False
        closed = self._key("closed")
        self._store.add(closed, 1)
        end = time.monotonic() + CLOSE_SECONDS
        while time.monotonic() < end:
            if self.is_failed():
                return True
            if self._store.add(closed, 0) >= self._size:
                return False  # nobody has failed, and nobody will
            time.sleep(FIRST_LOOK_SECONDS / 10)
        return False

    def _key(self, what: str) -> str:
        return f"inart/{self._name}/{what}/{self._agreements}"


def settle(
    items: list[Any],
    has: bool,
    *,
    rank: int,
    control: dist.ProcessGroup,
    again: Callable[[Any], None],
) -> None:
    """After a failure, on all ranks alike: one step's operations, of which this rank has the results or not, are right
    everywhere. again: does one of them over torch.distributed, by all ranks."""
    gives = has and all(item.kept is not None for item in items)
    giver, lacking = reduce_numbers(control, [(rank + 1) * gives, not has], dist.ReduceOp.MAX)
    if not lacking:
        return
    for item in items:
        if not giver:
            again(item)
            continue
        result = item.kept if giver == rank + 1 else torch.empty_like(item.buffer)
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = giver - 1, 0
        control.broadcast([result], options).wait()
        if not has:
            item.buffer.copy_(result)
