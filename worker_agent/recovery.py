"""A training step goes through the network on all ranks, or over torch.distributed on all ranks; and the way back.

    buckets of a step -> network -> the ranks agree: did all of them arrive everywhere?
                                      yes: that is the result
                                      no:  the gradients as they were, over torch.distributed; so are the next steps

An all-reduce may succeed on one rank and fail on another, so a rank cannot decide alone. The agreement is one
all-reduce of four bytes per step over a gloo group of its own, from a thread of its own: the hook never waits for it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist

from worker_agent.engine import Operation, Work
from worker_agent.errors import AgentError
from worker_agent.staging import Completion

FIRST_PAUSE_SECONDS = 0.5
LAST_PAUSE_SECONDS = 30.0
JOIN_SECONDS = 2.0


class Reducer(Protocol):
    """What the hook needs of an agent: worker_agent.Agent, or a LocalAgent over a socket."""

    @property
    def world_size(self) -> int: ...

    def allreduce_async(self, array: Any, op: Operation = "sum", *, dtype: str | None = None) -> Work: ...

    def close(self) -> None: ...


@dataclass
class _Bucket:
    """buffer: the gradients, replaced by their mean. before: what they were. reduced: from the network."""

    buffer: torch.Tensor
    before: torch.Tensor
    reduced: torch.futures.Future[torch.Tensor] | None
    completion: Completion


@dataclass
class _Step:
    buckets: list[_Bucket] = field(default_factory=list)
    problem: str = ""
    left: int = 0
    complete: bool = False  # all buckets of the step have been started


class Steps:
    """Steps through the network whose outcome the ranks agree on.

    Args:
        process_group: of the model; what failed in the network is reduced there.
        failed: called with the reasons of all ranks, before the step's Futures are done, when one did not go through.
    """

    def __init__(self, process_group: dist.ProcessGroup, failed: Callable[[str], None]) -> None:
        self._process_group = process_group
        ranks = dist.get_process_group_ranks(process_group)
        self.group: Any = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        self._world = len(ranks)
        self._failed = failed
        self._lock = threading.Lock()
        self._step = _Step()
        self._copies: dict[int, torch.Tensor] = {}
        self._queue: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="inart-agreement", daemon=True)
        self._thread.start()

    def add(
        self,
        buffer: torch.Tensor,
        start: Callable[[torch.Tensor], torch.futures.Future[torch.Tensor]],
        last: bool,
    ) -> torch.futures.Future[torch.Tensor]:
        """A bucket of the present step. start: begins its all-reduce in the network. last: of the step."""
        step = self._step
        bucket = _Bucket(buffer, self._copy(len(step.buckets), buffer), None, Completion(buffer))
        with self._lock:
            step.buckets.append(bucket)
            step.left += 1
        try:
            bucket.reduced = start(buffer)
        except AgentError as error:
            self._ended(step, str(error))
        else:
            bucket.reduced.add_done_callback(lambda future: self._ended(step, _problem(future)))
        if last:
            self._step = _Step()
            with self._lock:
                step.complete = True
                over = step.left == 0
            if over:
                self._queue.put(step)
        return bucket.completion.future

    def close(self) -> None:
        """After the last step."""
        self._queue.put(None)
        self._thread.join()

    def _copy(self, position: int, buffer: torch.Tensor) -> torch.Tensor:
        """The bucket's content, in memory that is used again in the next step."""
        copy = self._copies.get(position)
        if copy is None or (copy.shape, copy.dtype, copy.device) != (buffer.shape, buffer.dtype, buffer.device):
            copy = self._copies[position] = torch.empty_like(buffer)
        return copy.copy_(buffer)

    def _ended(self, step: _Step, problem: str) -> None:
        with self._lock:
            step.problem = step.problem or problem
            step.left -= 1
            over = step.complete and step.left == 0
        if over:
            self._queue.put(step)

    def _run(self) -> None:
        while (step := self._queue.get()) is not None:
            try:
                self._agree(step)
            except Exception as error:  # a rank is gone: nobody can go on
                for bucket in step.buckets:
                    bucket.completion.finish(error)

    def _agree(self, step: _Step) -> None:
        fine = torch.tensor([0 if step.problem else 1], dtype=torch.int32)
        dist.all_reduce(fine, dist.ReduceOp.MIN, group=self.group)
        if fine.item():
            for bucket in step.buckets:
                assert bucket.reduced is not None, "it went well"
                bucket.reduced.wait()  # it is done: for CUDA this orders the streams
                bucket.completion.finish(None)
            return
        self._failed(agree(step.problem, self.group))
        for bucket in step.buckets:
            bucket.buffer.copy_(bucket.before)
            dist.all_reduce(bucket.buffer.div_(self._world), group=self._process_group)
            bucket.completion.finish(None)


def _problem(future: torch.futures.Future[torch.Tensor]) -> str:
    try:
        future.value()
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def agree(problem: str, group: dist.ProcessGroup) -> str:
    """The problems of all ranks, in words; empty when there are none. A collective call."""
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, problem, group=group)
    found = {rank: text for rank, text in enumerate(everyone) if text}
    # Often the same for all: a controller that is not there.
    causes = sorted(set(found.values()), key=list(found.values()).index)
    lines = []
    for cause in causes[:4]:
        ranks = [str(rank) for rank, text in found.items() if text == cause]
        which = "all ranks" if len(ranks) == len(everyone) else f"rank {', '.join(ranks)}"
        lines.append(f"{which}: {cause}")
    return "; ".join(lines) + ("; ..." if len(causes) > 4 else "")


class Return:
    """The way back into the network: joins again in the background; all ranks return at the same step.

    At the first bucket of a step the ranks start an all-reduce of "I could", and act on it a step later, when it is
    long done.

    Args:
        join: gives a reducer that is ready, waiting for at most so many seconds. Raises AgentError, OSError.
        world: ranks of the model's process group.
    """

    def __init__(self, join: Callable[[float], Reducer], group: dist.ProcessGroup, world: int, pause: float) -> None:
        self._join = join
        self._group = group
        self._world = world
        self._pause = pause
        self._stop = threading.Event()
        self._reducer: Reducer | None = None
        self._offer: tuple[torch.Tensor, Any] | None = None
        self._thread = threading.Thread(target=self._run, name="inart-return", daemon=True)
        self._thread.start()

    def poll(self) -> Reducer | None:
        """Once a step, on all ranks alike: what to use from this step on; None: not yet."""
        if self._offer is not None:
            ready, work = self._offer
            work.wait()
            self._offer = None
            if ready.item():
                return self._reducer
        could = self._reducer is not None and getattr(self._reducer, "ready", True)
        ready = torch.tensor([int(could)], dtype=torch.int32)
        self._offer = ready, dist.all_reduce(ready, dist.ReduceOp.MIN, group=self._group, async_op=True)
        return None

    def close(self) -> None:
        """Stop trying."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._pause):
            try:
                reducer = self._join(JOIN_SECONDS)
                if reducer.world_size == self._world:
                    self._reducer = reducer
                    return
            except (AgentError, OSError):
                pass
            self._pause = min(2 * self._pause, LAST_PAUSE_SECONDS)
