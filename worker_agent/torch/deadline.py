"""Trains without waiting for stragglers: after a deadline a step goes on without the rank that is late.

    deadline = Deadline(ddp, InArtState(controller))      # registers the hook
    for batch in batches:
        optimizer.zero_grad()
        if not deadline.overtaken():                      # the others have ended this step: its gradients are there
            loss(ddp(batch)).backward()
        optimizer.step()

worker_agent/stragglers.py has the rules: each rank's stand-in contributes for it, with the weight 0 or with carried
gradients, so sums are exact, and the same on all ranks, over whichever path. The rank itself notices that it is late:
when it has taken longer than ranks usually do, it looks into the process group's store for the number of other ranks
that have contributed.
"""

# Annotations are not postponed here, because DDP compares the hook's annotations with the class itself.

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from worker_agent.collectives import SUM
from worker_agent.stragglers import Patience, Turns
from worker_agent.torch.feedback import Piece, pieces_of
from worker_agent.torch.groups import default_store, fresh_name
from worker_agent.torch.hook import InArtState, check

LOOK_SECONDS = 0.005
"""The shortest interval at which a rank that is late looks for the others."""
FIRST_STEPS = 2
"""Number of first steps in which all ranks are waited for, because DDP makes its buckets anew after the first one."""
MOST_SECONDS = 3600.0
"""The longest time that a rank reports: next to a longer one, the weights in the same array would not be exact."""

logger = logging.getLogger("inart")


class Deadline:
    """The steps of a DDP model that do not wait for stragglers. Making it is a collective call, and registers a hook.

    Gradients are on the CPU, and each node has one rank. Loss scaling that changes from step to step (GradScaler) would
    give the carried gradients another scale.

    Args:
        ddp: the model.
        state: how gradients are summed; it keeps no residuals (`bits`). The caller closes it, after this.
        deviations: a rank is given so many deviations of the times that ranks take, once `quorum` others have
            contributed; a tenth of the median time at least.
        quorum: number of ranks; None: half of all, rounded up, so that a pause of all (an evaluation) passes over no
            rank.
        most_behind: so many steps at most go on without a rank; then all wait for it. The rank keeps the results of
            these steps, a copy of the gradients each.

    Attributes:
        stood_in: number of sums to which the stand-in contributed for this rank.
        carried: number of gradients that came late.
        skipped: number of steps that had ended when this rank came to them (`overtaken`).

    Raises:
        ValueError: the model or the state cannot be used so; the message says why.
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        state: InArtState,
        *,
        deviations: float = 4.0,
        quorum: int | None = None,
        most_behind: int = 4,
    ) -> None:
        group = state.process_group
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        _check(ddp, state, self._size)
        self._network = state._network
        self._quorum = quorum if quorum is not None else -(-self._size // 2)
        if not 1 <= self._quorum < self._size:
            raise ValueError(f"quorum must be from 1 to {self._size - 1}, not {self._quorum}")
        if most_behind < 1:
            raise ValueError(f"most_behind must be 1 or more, not {most_behind}")
        self._most_behind, self._patience = most_behind, Patience(deviations)
        self._board = _Board(group, self._rank, self._size)
        self._lock = threading.RLock()  # protects the contributions and their order
        self._noted = (
            threading.Lock()
        )  # protects the times that results report; held for a moment, with or without the other lock
        self._first = FIRST_STEPS
        self._turns: Turns | None = None
        self._buckets: list[tuple[int, torch.dtype, list[Piece]]] = []
        self._results: dict[int, torch.futures.Future[torch.Tensor]] = {}
        self._ended, self._began = 0, 0.0  # steps whose results this rank has, and since when
        self._failure: Exception | None = None
        self.stood_in = self.carried = self.skipped = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inart-stand-in", daemon=True)
        ddp.register_comm_hook(self, deadline_hook)
        self._thread.start()

    def overtaken(self) -> bool:
        """Return whether the others have ended the step that this rank is about to begin.

        Then the parameters' `grad` are the step's gradients: go on with the optimizer, without a forward and backward
        pass.
        """
        with self._lock:
            positions = self._turns.skip() if self._turns is not None else range(0)
            results = [self._results.pop(position) for position in positions]
            self.skipped += bool(results)
        for result, (_, _, pieces) in zip(results, self._buckets, strict=False):
            values = result.wait()
            for piece in pieces:
                parameter: Any = piece.owner
                gradient = values[piece.first : piece.first + piece.count].view_as(parameter)
                parameter.grad = gradient.clone()
        return bool(results)

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Return a Future of the mean of a bucket over the gradients that are in the sum."""
        buffer = bucket.buffer()
        check(buffer)
        if self._failure is not None:
            raise self._failure
        with self._lock:
            self._learn_layout(bucket)
            if self._turns is None:
                return self._submit(buffer, 1, bucket.is_last(), self._seconds)
            position = self._turns.own
            contribution = self._turns.arrive(buffer if not self._turns.is_behind else buffer.clone())
            if contribution is None:
                self.carried += 1
                result = self._results.pop(position)
            else:
                result = self._submit(*contribution, bucket.is_last(), self._seconds)
        if contribution is not None:
            self._board.write(position)
            if contribution[0] is buffer:
                return result
        return result.then(lambda future: buffer.copy_(future.value()))

    def close(self) -> None:
        """End the stand-in, after the last backward pass and before the state is closed. A second call does nothing."""
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- with the lock held -------------------------------------------------------------------------------------------

    def _learn_layout(self, bucket: dist.GradBucket) -> None:
        """Remember the size and place of a bucket in the last of the first steps; later buckets must be the same.

        Raise RuntimeError where they are not.
        """
        index, mine = bucket.index(), (bucket.buffer().numel(), bucket.buffer().dtype)
        if self._turns is not None:
            if index != self._turns.own % self._turns.buckets or self._buckets[index][:2] != mine:
                raise RuntimeError(
                    "the buckets of the model's gradients have changed since its second step, which a Deadline does "
                    "not allow: make a new one, on all ranks"
                )
            return
        if index == 0:
            self._first -= 1
            if self._first < 0:
                self._turns = Turns(len(self._buckets), self._most_behind)
                self._learn_layout(bucket)
                return
            self._buckets = []
        self._buckets.append((*mine, pieces_of(bucket)))

    @property
    def _seconds(self) -> float:
        """The seconds for which this rank has had the results of the last step; 0 where it has had none yet."""
        with self._noted:
            return time.monotonic() - self._began if self._ended else 0.0

    def _submit(
        self, values: torch.Tensor, weight: int, last: bool, seconds: float = 0.0
    ) -> torch.futures.Future[torch.Tensor]:
        """Contribute to the next sum, and return a Future of the mean.

        The weights (whole numbers, and so exact) and the times that ranks took (0: not on time) travel beside the
        gradients in an array with a place for each rank.
        """
        told = torch.zeros(2 * self._size)
        told[self._rank], told[self._size + self._rank] = weight, min(seconds, MOST_SECONDS)
        sums = self._network.reduce(values, SUM, False)
        notes = self._network.reduce(told, SUM, last)

        def mean(done: torch.futures.Future[Any]) -> torch.Tensor:
            found, known = (future.value() for future in done.value())
            weights = [round(one) for one in known[: self._size].tolist()]
            with self._noted:
                self._patience.note([one for one in known[self._size :].tolist() if one > 0])
                if last:
                    self._began = time.monotonic()
                    self._ended += 1
            return found.div_(max(1, sum(weights)))

        return torch.futures.collect_all([sums, notes]).then(mean)

    # -- the stand-in's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            since: tuple[int, float] | None = None  # for which sum the others wait, and from when on
            pause = LOOK_SECONDS
            while not self._closed.wait(pause):
                with self._noted:
                    usual, patience, ended = self._patience.median, self._patience.seconds, self._ended
                with self._lock:
                    position, behind = self._late(usual, ended), self._is_behind
                pause = max(LOOK_SECONDS, patience / 8)
                if position is None or self._board.count(position) < self._quorum:
                    continue
                now = time.monotonic()
                if since is None or since[0] != position:
                    since = position, now
                if behind or now - since[1] >= patience:
                    self._stand_in(position)
                    pause = 0.0
        except Exception as error:  # The process that holds the store may have ended, after its last step.
            if not self._closed.is_set():
                logger.warning("stragglers are waited for from now on: %s", str(error).partition("\n")[0])

    @property
    def _is_behind(self) -> bool:
        return self._turns is not None and self._turns.is_behind

    def _late(self, usual: float, ended: int) -> int | None:
        """Return the sum at which the others may wait for this rank; None where it cannot be late yet, since it has
        taken less than the usual time, or has no results of the step before (`ended` steps).
        """
        turns = self._turns
        if turns is None or not turns.may_stand_in or ended < FIRST_STEPS + turns.next // turns.buckets:
            return None
        return turns.next if turns.is_behind or self._seconds >= usual else None

    def _stand_in(self, position: int) -> None:
        with self._lock:
            turns = self._turns
            if turns is None or turns.next != position or not turns.may_stand_in:
                return  # The rank has come meanwhile.
            count, dtype, _ = self._buckets[position % turns.buckets]
            values, weight = turns.stand_in()
            if values is None:
                values = torch.zeros(count, dtype=dtype)
            self.stood_in += 1
            last = position % turns.buckets == turns.buckets - 1
            try:
                self._results[position] = self._submit(values, weight, last)
            except Exception as error:
                self._failure = error
                raise


class _Board:
    """The ranks' notice board in the group's store, with the last sum to which each rank contributed gradients of its
    own.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int, size: int) -> None:
        name = fresh_name(group)
        self._store = default_store()
        self._keys = [f"inart/{name}/arrived/{number}" for number in range(size)]
        self._rank = rank
        self.write(-1)
        dist.all_gather_object([None] * size, None, group=group)  # Each key is there before anybody reads it.

    def write(self, position: int) -> None:
        """Write that this rank has contributed to a sum."""
        self._store.set(self._keys[self._rank], str(position))

    def count(self, position: int) -> int:
        """Return how many other ranks have contributed to a sum."""
        others = [key for number, key in enumerate(self._keys) if number != self._rank]
        return sum(int(text) >= position for text in self._read(others))

    def _read(self, keys: Sequence[str]) -> list[bytes]:
        if self._store.has_extended_api():
            return list(self._store.multi_get(list(keys)))
        return [self._store.get(key) for key in keys]


def _check(ddp: DistributedDataParallel, state: InArtState, size: int) -> None:
    """Check that a Deadline can work with the model and the state; raise ValueError otherwise."""
    problem = ""
    if size < 2:
        problem = "it needs two ranks or more"
    elif state._network.local is not None:
        problem = "each node must have one rank (several add up among themselves first, and wait for each other there)"
    elif state._bits is not None and state._bits < 32:
        problem = "the state must send values in the bits of their type (without bits=)"
    elif ddp.broadcast_buffers and any(True for _ in ddp.module.buffers()):
        problem = "the model has buffers, which DDP sends from rank 0 before each step: broadcast_buffers=False"
    elif ddp.find_unused_parameters:
        problem = "DDP asks all ranks for unused parameters in each step: find_unused_parameters=False"
    elif any(one.device.type != "cpu" or one.dtype == torch.float16 for one in ddp.module.parameters()):
        problem = "gradients must be float32 or bfloat16, on the CPU"
    if problem:
        raise ValueError(f"this model cannot train with a Deadline: {problem}")


def deadline_hook(deadline: Deadline, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket: the hook that a Deadline registers."""
    return deadline.reduce(bucket)
