"""Operations that may have to be started again: their inputs are kept until all workers have their results.

A worker has a result before another one has. How far it can be ahead is bounded: an answer to a chunk says that all
workers have sent theirs, and a worker sends no chunk whose window has not moved on. So a worker that has the answer to
a chunk two windows later knows that the earlier one has arrived everywhere.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.dealing import dealt
from worker_agent.collectives import Collective, Kind
from worker_agent.operands import HostArray
from worker_agent.split import lane_shares, part_sizes
from worker_agent.work import Work

SPARE_COPIES = 8
WINDOWS = 2
"""The number of windows after which a result is everywhere. The protocol bounds it by one, and one more is for
exponents, which may travel before.
"""


@dataclass(eq=False)
class Kept:
    """An operation whose input is kept.

    Attributes:
        number: its place among the operations since the last configuration.
        work: the caller's handle.
        memory: the caller's array.
        copy: the array's input.
        run: the number of the engine that it was started in.
        reach: for each lane of a tree that the operation uses, the number of the lane's chunks up to the operation's
            end.
        result: its result, where it may have to be given to other workers.
    """

    number: int
    work: Work
    op: Collective
    memory: HostArray
    copy: npt.NDArray[np.uint8]
    run: int
    reach: dict[int, int] = field(default_factory=dict)
    done: bool = False
    result: npt.NDArray[np.uint8] | None = None

    def restore(self) -> None:
        """Restore the array's input."""
        ctypes.memmove(self.memory.address, self.copy.ctypes.data, self.copy.size)

    def giving(self, gives: bool) -> npt.NDArray[np.float32]:
        """Return the array whose sum over the workers gives this worker's result to all, bit by bit.

        It has each byte of the result as a number, and after them the number of workers that the result is of. The
        workers that do not give (`gives` is false) contribute zeros. Raise ValueError where the result was not kept.
        """
        size = self.copy.size
        made = np.zeros(size + 2, np.float32)
        if gives:
            if self.result is None:
                raise ValueError(f"the result of operation {self.number} was not kept")
            made[:size] = self.result
            made[size:] = self.work.workers // 256, self.work.workers % 256
        return made

    def take(self, given: npt.NDArray[np.float32]) -> int:
        """Copy the sum of `giving` into the array, and return the number of workers that the result is of."""
        found = given[:-2].astype(np.uint8)
        if self.op.feedback:
            found[found.size // 2 :] = 0  # Another worker's residuals are not this one's.
        ctypes.memmove(self.memory.address, found.ctypes.data, found.size)
        return int(given[-2]) * 256 + int(given[-1])

    def again(self) -> HostArray:
        """Return a copy of the input, for an operation whose caller has the result while another worker lacks it."""
        copy = self.copy.copy()
        return self.memory._replace(address=copy.ctypes.data, owner=copy)


class Ledger:
    """The operations of one worker since its last configuration, as far as they are kept.

    It is not thread-safe. The operations go first to an engine with the configuration `config`.
    """

    def __init__(self, config: AgentConfig) -> None:
        self.started = 0
        self._kept: deque[Kept] = deque()
        self._spare: deque[npt.NDArray[np.uint8]] = deque(maxlen=SPARE_COPIES)
        self._run = 0
        self.follow(config)

    def follow(self, config: AgentConfig) -> None:
        """Take note that operations go to an engine with this configuration from now on."""
        self._run += 1
        self._config = config
        self._slots = [tree.slots // tree.lanes for tree in config.worker_trees for _ in range(tree.lanes)]
        self._at = [0] * len(self._slots)
        self._answered = [0] * len(self._slots)

    def add(self, work: Work, memory: HostArray, op: Collective) -> Kept:
        """Add the next operation before it is started. Raise ValueError when the engine would refuse it."""
        one = Kept(self.started, work, op, memory, self._copy(memory), self._run)
        self._place(one)
        self._kept.append(one)
        self.started += 1
        return one

    def ended(self, one: Kept) -> None:
        """Take note that the operation's result has arrived; the array belongs to the caller again."""
        if self._config.shrinks and not one.done:
            one.result = np.empty_like(one.copy)
            ctypes.memmove(one.result.ctypes.data, one.memory.address, one.result.size)
        one.done, one.memory = True, one.memory._replace(address=0, owner=None)
        if one.run == self._run:
            for lane, reach in one.reach.items():
                self._answered[lane] = max(self._answered[lane], reach)
        while self._kept and self._everywhere(self._kept[0]):
            self._forget()

    def retire(self) -> None:
        """Forget operations of earlier engines, whose results have arrived everywhere."""
        while self._kept and self._kept[0].run < self._run:
            self._forget()

    @property
    def oldest(self) -> int:
        """The first operation whose result has not arrived here."""
        return next((one.number for one in self._kept if not one.done), self.started)

    def again_from(self, first: int, config: AgentConfig) -> Iterator[Kept]:
        """Return an iterator over the operations from `first` on, each of which an engine with this configuration has
        to start again.

        The operations before `first` are done everywhere and forgotten. Raise ValueError when some are not kept any
        more, or cannot run with fewer workers.
        """
        while self._kept and self._kept[0].number < first and self._kept[0].done:
            self._forget()
        if (self._kept[0].number if self._kept else self.started) != first:
            raise ValueError(f"operation {first} is not kept any more")
        fewer = len(config.workers) != len(self._config.workers)
        if fewer and any(one.op.kind is not Kind.ALL_REDUCE for one in self._kept):
            raise ValueError("the operations in progress have a part for each worker, and one is lost")
        self.follow(config)
        for one in self._kept:
            one.run = self._run
            one.reach = {}
            self._place(one)
        return iter(list(self._kept))

    @property
    def results(self) -> list[int]:
        """The operations whose results are kept."""
        return [one.number for one in self._kept if one.result is not None]

    @property
    def undone(self) -> list[Kept]:
        """The operations whose results have not arrived here."""
        return [one for one in self._kept if not one.done]

    def drop_last(self) -> None:
        """Remove the operation that was added last, because it was refused."""
        self._spare.append(self._kept.pop().copy)
        self.started -= 1

    def __len__(self) -> int:
        return len(self._kept)

    def _place(self, one: Kept) -> None:
        memory = one.memory
        elements, values, at_once = part_sizes(one.op, self._config, memory.elements, memory.dtype)
        shares = lane_shares(self._config)
        counts = dealt(-(-elements // values), shares, at_once)
        largest = shares.index(max(shares))
        for lane, count in enumerate(counts):
            if count or lane == largest:
                self._at[lane] += max(count, 1)
                one.reach[lane] = self._at[lane]

    def _everywhere(self, one: Kept) -> bool:
        return (
            one.done
            and one.run == self._run
            and all(self._answered[lane] - at >= WINDOWS * self._slots[lane] for lane, at in one.reach.items())
        )

    def _forget(self) -> None:
        self._spare.append(self._kept.popleft().copy)

    def _copy(self, memory: HostArray) -> npt.NDArray[np.uint8]:
        size = memory.nbytes
        copy = next((one for one in self._spare if one.size == size), None)
        if copy is None:
            copy = np.empty(size, np.uint8)
        else:
            self._spare = deque((one for one in self._spare if one is not copy), SPARE_COPIES)
        ctypes.memmove(copy.ctypes.data, memory.address, size)
        return copy
