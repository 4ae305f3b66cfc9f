"""Reductions go through the network on all ranks, or over torch.distributed on all ranks; and the way back.

    buckets of a step -> network -> the ranks agree: did all of them arrive everywhere?
                                      yes: that is the result
                                      no:  the gradients as they were, over torch.distributed; so are the next steps

An all-reduce may succeed on one rank and fail on another, so a rank cannot decide alone. The agreement is one
all-reduce of eight bytes per step over a gloo group of its own, from a thread of its own: the caller never waits for
it. Of small operations many are agreed on at once, after the caller has their results (early.py).

Steps are numbered. When one fails, or when all could return, each rank says how many it has begun, and the first step
that none has begun is the first to go the other way: on all ranks the same one, whatever each is doing at the time.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from worker_agent.collectives import Collective, Kind
from worker_agent.errors import AgentError, NotReadyError
from worker_agent.lane import Lane, lane_of
from worker_agent.metrics import Counts
from worker_agent.shared import Reducer
from worker_agent.torch.early import FIRST_LOOK_SECONDS, Window, is_early, settle
from worker_agent.torch.groups import agree, make_group, reduce_numbers
from worker_agent.torch.local_ranks import LocalRanks
from worker_agent.torch.parts import outside
from worker_agent.torch.passage import Passage, passage
from worker_agent.torch.staging import Completion, CudaStaging
from worker_agent.work import Work

_LOOK = "look"
"""To the thread: an early operation has failed, or is the first of a window."""
FIRST_PAUSE_SECONDS = 0.5
LAST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""In the network for so long: what failed before is forgotten, and the next way back begins quickly."""
JOIN_SECONDS = 2.0
LATE_SECONDS = 10.0
"""After so long, and then after twice as long each time, it is said who is waited for."""

logger = logging.getLogger("inart")


class Route:
    """Through the network: a tensor to the agent, from host memory or from a CUDA device."""

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = reducer
        self.lane: Lane = lane_of(reducer)
        self._staging: CudaStaging | None = None

    def staging(self) -> CudaStaging:
        """For CUDA tensors."""
        if self._staging is None:
            self._staging = CudaStaging(self.reducer.allreduce_async, self.lane)
        return self._staging

    def start(self, buffer: torch.Tensor, op: Collective) -> torch.futures.Future[torch.Tensor]:
        """The mean or sum over the workers, in place. Raises AgentError."""
        return self.begin(buffer, op)[0]

    def begin(self, buffer: torch.Tensor, op: Collective) -> tuple[torch.futures.Future[torch.Tensor], Work | None]:
        """The same, and the agent's part of it, where who waits for that has the result sooner."""
        if buffer.is_cuda:
            return self.staging().start(buffer, op), None
        completion = Completion(buffer)
        work = self.lane.submit(buffer, op)
        work.add_done_callback(lambda done: completion.finish(done.exception()))
        return completion.future, work

    def late(self) -> list[str]:
        """Who is waited for, where the agent can say."""
        ask = getattr(self.reducer, "late", None)
        return list(ask()) if ask is not None else []


@dataclass
class _Step:
    """network: through it, or over torch.distributed; None: not decided."""

    number: int
    network: bool | None
    began: float = field(default_factory=time.monotonic)
    items: list[_Item] = field(default_factory=list)
    problem: str = ""


@dataclass
class _Item:
    """buffer: replaced by its sum or mean. before: what it was, where the network works in place."""

    step: _Step
    buffer: torch.Tensor
    op: Collective
    last: bool
    completion: Completion
    written: torch.cuda.Event | None = None
    before: torch.Tensor | None = None
    reduced: torch.futures.Future[torch.Tensor] | None = None
    passage: Passage | None = None
    problem: str = ""
    early: bool = False
    kept: torch.Tensor | None = None
    work: Work | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    added: float = field(default_factory=time.monotonic)


class Sequence:
    """The reductions of one process group, in order. All ranks make the same calls.

    Args:
        name: of groups that are made, never used before, the same on all ranks.
        store, rank, size: of the process group.
        control: gloo, of all ranks, for this alone. Agreement and what is done again go over it.
        local: the ranks of this node; None: it is the only one.
        agreement: False: an error instead of doing it again.
        failed, returned: called with the reasons of all ranks when a step did not go through, and when the network is
            used again.
        join: gives a reducer that is ready, waiting for at most so many seconds. Raises AgentError, OSError.
    """

    def __init__(
        self,
        name: str,
        store: Any,
        rank: int,
        size: int,
        *,
        control: dist.ProcessGroup,
        local: LocalRanks | None,
        agreement: bool,
        join: Callable[[float], Reducer],
        valid: Callable[[Reducer], str],
        failed: Callable[[str], None],
        returned: Callable[[Reducer], None],
        counts: Counts,
    ) -> None:
        self._name, self._store, self._rank, self._size = name, store, rank, size
        self._control = control
        self._local = local
        self._agreement = agreement
        self._join = join
        self._valid = valid
        self._failed = failed
        self._returned = returned
        self._counts = counts
        self._lock = threading.RLock()
        self._route: Route | None = None
        self._now = False
        self._change: tuple[int, bool] | None = None  # the first step that goes the other way, and which
        self._paused = False
        self._begun = 0
        self._oldest = 0
        self._step: _Step | None = None
        self._latest: _Step | None = None
        self._held: list[_Item] = []
        self._copies: dict[int, torch.Tensor] = {}
        self._spares: dict[str, dist.ProcessGroup] = {"cpu": control}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._return: Return | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._since = time.monotonic()
        self._queue: queue.SimpleQueue[_Item | list[_Item] | str | None] = queue.SimpleQueue()
        self._window = Window(name, store, size)
        self._settled_to = 0  # steps before this one are settled one by one: they were begun when one failed
        self._late_at = 0.0
        self.order: list[int] = list(range(size))  # which worker each rank is, where that matters
        self._thread = threading.Thread(target=self._run, name="inart-agreement", daemon=True)
        self._thread.start()

    @property
    def in_network(self) -> bool:
        """Whether the last step went through the network, and the next one will."""
        with self._lock:
            last = self._latest is None or bool(self._latest.network)
            return last and self._mode(self._begun)

    def begin_in_network(self, reducer: Reducer) -> None:
        """Before the first step."""
        self._route, self._now = Route(reducer), True

    def begin_outside(self, reasons: str) -> None:
        """Before the first step, on all ranks: the network is not there yet."""
        self._fall(reasons)
        self._now, self._change = False, None

    def add(
        self, buffer: torch.Tensor, op: Collective, last: bool, before: torch.Tensor | None = None
    ) -> torch.futures.Future[torch.Tensor]:
        """The mean or sum of `buffer` over all ranks (or another collective), in place, when the Future is done. Does
        not wait. last: of its step. before: the buffer's content in other memory, which stays until then."""
        return self.start(buffer, op, last, before)[0]

    def start(
        self, buffer: torch.Tensor, op: Collective, last: bool, before: torch.Tensor | None = None
    ) -> tuple[torch.futures.Future[torch.Tensor], Work | None]:
        """The same, and the agent's part of it, where who waits for that has the result sooner."""
        with self._lock:
            step = self._step
            if step is None:
                mode = None if self._paused else self._mode(self._begun)
                step = _Step(self._begun, mode)
                self._begun += 1
                self._latest = step
            item = _Item(step, buffer, op, last, Completion(buffer), before=before)
            item.early = last and not step.items and self._agreement and self._local is None and is_early(buffer, op)
            step.items.append(item)
            self._step = None if last else step
            if buffer.is_cuda:
                item.written = torch.cuda.Event()
                item.written.record()
            if step.network is None:
                self._held.append(item)
            else:
                self._begin(item)
        return item.completion.future, item.work

    def close(self) -> None:
        """After the last step."""
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        if self._return is not None:
            self._return.close()
            self._return = None

    # -- with the lock held -------------------------------------------------------------------------------------------

    def _begin(self, item: _Item) -> None:
        """Start what goes through the network; and all is for the thread, in the order of the steps, of early ones many
        at a time."""
        if item.step.network:
            self._start(item)
        if item.early and item.step.network and item.step.number >= self._settled_to:
            if self._window.add(item):
                self._flush()
            elif len(self._window.items) == 1 or item.problem:
                self._queue.put(_LOOK)
        else:
            self._flush()
            self._queue.put(item)

    def _flush(self) -> None:
        if self._window.items:
            self._queue.put(self._window.take())

    def _start_early(self, item: _Item, route: Route) -> None:
        """The caller has the result at once, and the ranks agree later."""
        self._counts.step_begins(True)
        item.work = route.lane.submit(item.buffer, item.op)

        def ended(work: Work) -> None:
            error = work.exception()
            if error is not None:
                item.problem = str(error)
                item.ended.set()
                self._queue.put(_LOOK)
                return
            item.kept = item.buffer.clone()
            item.ended.set()
            self._counts.step_ends(item.step.began, item.added)
            self._finish(item, None)

        item.work.add_done_callback(ended)

    def _mode(self, number: int) -> bool:
        return self._change[1] if self._change is not None and number >= self._change[0] else self._now

    def _start(self, item: _Item) -> None:
        route = self._route
        assert route is not None, "it goes through the network"
        with _on_stream_of(item):
            try:
                if self._local is not None:
                    item.passage = passage(self._local, item.buffer, item.op, route.lane, route.staging)
                    item.reduced = item.passage.reduced
                elif item.early:
                    if not item.op.raw:
                        item.before = item.before if item.before is not None else item.buffer.clone()
                    self._start_early(item, route)
                else:
                    # What is broadcast or gathered is not changed where it comes from.
                    if self._agreement and item.before is None and not item.op.raw:
                        item.before = self._copy(item)
                    item.reduced = route.start(item.buffer, item.op)
            except AgentError as error:
                item.problem = str(error)
                item.ended.set()

    def _copy(self, item: _Item) -> torch.Tensor:
        """The buffer's content; in memory that is used again by the next step, where no other step is under way."""
        buffer, position = item.buffer, len(item.step.items) - 1
        if item.step.number != self._oldest:
            return buffer.clone()
        copy = self._copies.get(position)
        if copy is None or (copy.shape, copy.dtype, copy.device) != (buffer.shape, buffer.dtype, buffer.device):
            copy = self._copies[position] = torch.empty_like(buffer)
        return copy.copy_(buffer)

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._next()) is not None:
            if isinstance(item, list):
                self._agree_on(item)
                continue
            if item.early and item.step.network:
                self._agree_on([item])  # begun while others were settled
                continue
            step = item.step
            try:
                with self._stream(item.buffer.device):
                    if step.items[0] is item:
                        self._counts.step_begins(bool(step.network))
                    if step.network:
                        self._arrive(item)
                        if item.last:
                            self._settle(step)
                    else:
                        self._outside(item)
                        if item.last:
                            self._think_of_return()
            except Exception as error:  # a rank is gone: nobody can go on
                for one in step.items:
                    one.completion.finish_once(_explained(error))
            finally:
                if item.last:
                    self._pass(step)
        if self._window.await_close():
            self._agree_on(self._window.take())

    def _next(self) -> _Item | list[_Item] | None:
        """What is to be done next; None: nothing any more."""
        while True:
            with self._lock:
                seconds = self._window.wait_seconds
            try:
                item = self._queue.get(timeout=seconds)
            except queue.Empty:
                item = _LOOK
            if not isinstance(item, str):
                return item
            with self._lock:
                if any(one.problem for one in self._window.items) or self._window.somebody_failed():
                    return self._window.take()
                waiting = next((one for one in self._window.items if not one.ended.is_set()), None)
            if waiting is not None and time.monotonic() > max(self._late_at, waiting.added + LATE_SECONDS):
                seconds = time.monotonic() - waiting.added
                self._late_at = time.monotonic() + seconds
                self._say_late(waiting, seconds)

    def _agree_on(self, items: list[_Item]) -> None:
        """Early operations, of which the callers have the results where they went well."""
        try:
            one_by_one = items[0].step.number < self._settled_to
            if not one_by_one and not self._agreed(self._are_well(items)):
                self._leave(agree(next((item.problem for item in items if item.problem), ""), self._control))
                one_by_one = True
            for item in items:
                if one_by_one:
                    self._await(item, item.ended)
                    has = item.kept is not None
                    settle([item], has, rank=self._rank, control=self._control, again=self._again)
                    if not has:
                        self._counts.step_ends(item.step.began, item.added)
                self._pass(item.step)
                if item.kept is None:
                    self._finish(item, None)
                item.kept = item.before = None
        except Exception as error:  # a rank is gone: nobody can go on
            for item in items:
                item.completion.finish_once(_explained(error))
                self._pass(item.step)

    def _are_well(self, items: list[_Item]) -> bool:
        """Whether all of them end well. Where another rank has failed, they may wait for it: the agreement is first."""
        for item in items:
            seconds = LATE_SECONDS
            while not item.ended.wait(FIRST_LOOK_SECONDS):
                if self._window.is_failed():
                    return False
                if time.monotonic() - item.added > seconds:
                    self._say_late(item, time.monotonic() - item.added)
                    seconds *= 2
            if item.problem:
                return False
        return True

    def _agreed(self, good: bool) -> bool:
        """Whether it is good on all ranks."""
        self._window.begin_agreement(good)
        return bool(reduce_numbers(self._control, [int(good)], dist.ReduceOp.MIN)[0])

    def _leave(self, reasons: str) -> None:
        """All ranks leave the network at the first step that none has begun; those before it are settled."""
        if self._change is None:  # else it was under way when the one before it failed
            self._boundary(lambda first: (first, False))
            self._fall(reasons)

    def _again(self, item: _Item) -> None:
        if item.before is not None:
            item.buffer.copy_(item.before)
        self._reduce(item).wait()

    def _pass(self, step: _Step) -> None:
        """Nothing of this step is needed any more; before its Futures are done, so that the next finds it so."""
        with self._lock:
            self._oldest = step.number + 1
            if self._change is not None and self._oldest >= self._change[0]:
                self._now, self._change = self._change[1], None

    def _arrive(self, item: _Item) -> None:
        """Wait for the network's part of a bucket."""
        if item.reduced is not None and not item.problem:
            self._wait(item, item.reduced)
            item.problem = _problem(item.reduced)
        item.step.problem = item.step.problem or item.problem
        if item.passage is not None:
            item.passage.gather()

    def _wait(self, item: _Item, future: torch.futures.Future[torch.Tensor]) -> None:
        arrived = threading.Event()
        future.add_done_callback(lambda _: arrived.set())
        self._await(item, arrived)

    def _await(self, item: _Item, arrived: threading.Event) -> None:
        """Until a bucket has arrived, or failed."""
        seconds = LATE_SECONDS
        while not arrived.wait(seconds):
            seconds = time.monotonic() - item.added
            self._say_late(item, seconds)

    def _say_late(self, item: _Item, seconds: float) -> None:
        route = self._route
        late = ", ".join(route.late()) if route is not None else ""
        bucket, step = item.step.items.index(item), item.step.number
        if late:
            verb = "has" if "," not in late else "have"
            logger.warning("%s %s not submitted bucket %d of step %d for %.0f s", late, verb, bucket, step, seconds)
        else:
            logger.warning("no sum of bucket %d of step %d for %.0f s, and no word who is late", bucket, step, seconds)

    def _settle(self, step: _Step) -> None:
        """All buckets of a step have arrived here, or have failed: what of the other ranks?"""
        good = not step.problem
        if self._agreement:
            good = self._agreed(good)
        elif self._local is not None:
            group = self._local.groups("cpu")[1]
            good = bool(reduce_numbers(group, [int(good)], dist.ReduceOp.MIN)[0])
        for item in step.items:
            if item.passage is not None:
                item.passage.finish(good)
        if good:
            self._counts.step_ends(step.began, step.items[-1].added)
            self._pass(step)
            for item in step.items:
                assert item.reduced is not None, "it went well"
                item.reduced.wait()  # it is done: for CUDA this orders the streams
                self._finish(item, None)
            return
        if not self._agreement:
            error = AgentError(step.problem or "another rank of this node lost its part")
            for item in step.items:
                self._finish(item, error)
            return
        self._leave(agree(step.problem, self._control))
        for item in step.items:
            self._again(item)
        self._counts.step_ends(step.began, step.items[-1].added)
        self._pass(step)
        for item in step.items:
            self._finish(item, None)

    def _outside(self, item: _Item) -> None:
        if item.written is not None:
            item.written.wait()
        work = self._reduce(item)
        if item.buffer.is_cuda:
            work.wait()  # in stream order
            self._finish(item, None)
        else:
            work.get_future().add_done_callback(lambda future: self._finish(item, _error(future)))

    def _reduce(self, item: _Item) -> Any:
        group = self._spare(item.buffer.device.type)
        if item.op.kind is not Kind.ALL_REDUCE:
            return outside(group, item.buffer, item.op, self.order)
        if item.op.mean:
            item.buffer.div_(self._size)
        options = dist.AllreduceOptions()
        options.reduceOp = _TORCH_OPS.get(item.op.merge, dist.ReduceOp.SUM)  # type: ignore[assignment]
        return group.allreduce([item.buffer], options)

    def _finish(self, item: _Item, error: Exception | None) -> None:
        self._counts.reduced(item.buffer.numel() * item.buffer.element_size())
        item.completion.finish_once(error)
        if item.last and not item.step.network:
            self._counts.step_ends(item.step.began, item.added)

    def _spare(self, device: str) -> dist.ProcessGroup:
        """torch.distributed's way for tensors of a device. Made when it is first needed, by all ranks at one step."""
        if device not in self._spares:
            self._spares[device] = make_group(
                f"{self._name}/spare", self._store, self._rank, self._size, backend="nccl"
            )
        return self._spares[device]

    def _stream(self, device: torch.device) -> Any:
        if device.type != "cuda":
            return _NOTHING
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return torch.cuda.stream(self._streams[device])

    def _boundary(self, change: Callable[[int], tuple[int, bool]]) -> None:
        """The first step that no rank has begun; from it on `change` holds."""
        with self._lock:
            self._paused = True
            begun = self._begun
        try:
            first = reduce_numbers(self._control, [begun], dist.ReduceOp.MAX)[0]
        finally:
            with self._lock:
                self._paused = False
                held, self._held = self._held, []
        with self._lock:
            self._change = change(first)
            if not self._change[1]:
                self._settled_to = first
            self._flush()
            for item in held:
                if item.step.network is None:
                    item.step.network = self._mode(item.step.number)
                self._begin(item)

    def _fall(self, reasons: str) -> None:
        """What comes is over torch.distributed, on all ranks."""
        steady = time.monotonic() - self._since > STEADY_SECONDS
        again = self._counts.falls > 0 and not steady
        self._pause = min(2 * self._pause, LAST_PAUSE_SECONDS) if again else FIRST_PAUSE_SECONDS
        self._counts.falls += 1
        self._return = Return(self._join, self._valid, self._control, self._pause)
        self._failed(reasons)

    def _think_of_return(self) -> None:
        if self._return is None or self._change is not None:
            return
        reducer = self._return.poll()
        if reducer is None:
            return
        self._return.close()
        self._return = None

        def change(first: int) -> tuple[int, bool]:
            self._route = Route(reducer)
            return first, True

        self._boundary(change)
        self._since = time.monotonic()
        self._returned(reducer)


class Return:
    """The way back into the network: joins again in the background; all ranks return at the same step.

    After a step the ranks start an all-reduce of "I could", and act on it a step later, when it is long done.

    Args:
        join: gives a reducer that is ready, waiting for at most so many seconds. Raises AgentError, OSError.
        valid: what is wrong with a reducer; empty: nothing.
    """

    def __init__(
        self,
        join: Callable[[float], Reducer],
        valid: Callable[[Reducer], str],
        group: dist.ProcessGroup,
        pause: float,
    ) -> None:
        self._join = join
        self._valid = valid
        self._group = group
        self._pause = pause
        self._stop = threading.Event()
        self._reducer: Reducer | None = None
        self._offer: tuple[Reducer | None, torch.Tensor, Any] | None = None
        self._thread = threading.Thread(target=self._run, name="inart-return", daemon=True)
        self._thread.start()

    def poll(self) -> Reducer | None:
        """Once a step, on all ranks alike: what to use from now on; None: not yet."""
        if self._offer is not None:
            reducer, offer, work = self._offer
            work.wait()
            self._offer = None
            could, most, least = (int(number) for number in offer)
            if could and most == -least:  # all are in the same epoch
                return reducer
        reducer = self._reducer
        could = reducer is not None and getattr(reducer, "ready", True)
        epoch = getattr(reducer, "epoch", 0)
        offer = torch.tensor([int(could), epoch, -epoch], dtype=torch.int64)
        self._offer = reducer, offer, self._group.allreduce([offer], dist.ReduceOp.MIN)
        if not could and reducer is not None:
            self._reducer = None  # its epoch has ended: the thread looks for the next
        return None

    def close(self) -> None:
        """Stop trying."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._pause):
            if self._reducer is not None:
                continue
            try:
                reducer = self._join(JOIN_SECONDS)
                if not self._valid(reducer):
                    self._reducer = reducer
                    continue
            except NotReadyError:
                continue  # somebody is missing: to look again costs nothing, and all ranks are to see the return soon
            except (AgentError, OSError):
                pass
            self._pause = min(2 * self._pause, LAST_PAUSE_SECONDS)


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


_NOTHING = _Nothing()

_TORCH_OPS = {
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
    "and": dist.ReduceOp.BAND,
    "or": dist.ReduceOp.BOR,
    "xor": dist.ReduceOp.BXOR,
}


def _on_stream_of(item: _Item) -> Any:
    """What is started later, in another thread, still comes after what wrote the buffer."""
    if item.written is not None:
        item.written.wait()
    return _NOTHING


def _explained(error: Exception) -> Exception:
    """gloo's words for a rank that is gone say nothing of what to do."""
    if not isinstance(error, RuntimeError) or isinstance(error, AgentError):
        return error
    return AgentError(
        f"the ranks cannot agree on a step over torch.distributed: {str(error).partition(chr(10))[0]} A process group "
        "does not survive the loss of a rank: let the launcher start all of them again. A job that may lose workers "
        "(at_least) goes on without one with InArtState(fallback=False)"
    )


def _error(future: Any) -> Exception | None:
    try:
        future.value()
    except Exception as error:
        return error
    return None


def _problem(future: torch.futures.Future[torch.Tensor]) -> str:
    error = _error(future)
    if error is None:
        return ""
    # torch puts the Python stack behind the text of an exception that came through a Future, and its class before it.
    text = str(error).partition("\n\nAt:")[0].strip()
    return re.sub(r"^(\w+Error|Error): ", "", text) or type(error).__name__
