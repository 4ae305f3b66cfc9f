"""Reductions that all ranks run through the network, or all over torch.distributed, with the transitions between them.

    buckets of a step -> network -> the ranks agree: did all of them arrive everywhere?
                                      yes: that is the result
                                      no:  repeat it and the next steps over torch.distributed, from the own gradients

An all-reduce may succeed on one rank and fail on another, so a rank cannot decide alone. The agreement is one
all-reduce of eight bytes per step over a gloo group of its own and in a thread of its own: the caller never waits for
it. The ranks agree on many small operations at once, after the caller has their results (early.py).

Steps are numbered. When one fails, or when all could return, each rank reports how many steps it has begun, and the
first step that none has begun is the first to use the other path: on all ranks the same step, whatever each is doing.
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
from worker_agent.errors import AbortedError, AgentError, NotReadyError
from worker_agent.lane import Lane, lane_of
from worker_agent.metrics import Counts
from worker_agent.shared import Reducer
from worker_agent.torch.alike import TORCH_OPS, Done, can_be_alike, reduce_alike
from worker_agent.torch.early import FIRST_LOOK_SECONDS, Window, is_early, settle
from worker_agent.torch.groups import agree, exchange, make_group, reduce_numbers
from worker_agent.torch.local_ranks import LocalRanks
from worker_agent.torch.parts import outside
from worker_agent.torch.passage import Passage, passage
from worker_agent.torch.staging import Completion, CudaStaging
from worker_agent.ways import Ways
from worker_agent.work import Work

COMMON_VALUES = 256
_LOOK = "look"
"""Tells the thread that an early operation has failed, or is the first of a window."""
FIRST_PAUSE_SECONDS = 0.5
LAST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""After this many seconds in the network earlier failures are forgotten, and the next return begins quickly."""
JOIN_SECONDS = 2.0
LATE_SECONDS = 10.0
"""After this time, and then each time after twice as long, the log names the workers that are waited for."""

logger = logging.getLogger("inart")


class Route:
    """The path through the network: a tensor goes to the agent, from host memory or from a CUDA device."""

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = reducer
        self.lane: Lane = lane_of(reducer)
        self._staging: CudaStaging | None = None

    def staging(self) -> CudaStaging:
        """Return the staging for CUDA tensors."""
        if self._staging is None:
            self._staging = CudaStaging(self.reducer.allreduce_async, self.lane)
        return self._staging

    def start(self, buffer: torch.Tensor, op: Collective) -> torch.futures.Future[torch.Tensor]:
        """Start the mean or sum over the workers, in place; returns its Future. Raises AgentError."""
        return self.begin(buffer, op)[0]

    def begin(self, buffer: torch.Tensor, op: Collective) -> tuple[torch.futures.Future[torch.Tensor], Work | None]:
        """Start the mean or sum over the workers; returns its Future and the agent's Work, if waiting for that first
        gives the result sooner.
        """
        if buffer.is_cuda:
            return self.staging().start(buffer, op), None
        completion = Completion(buffer)
        work = self.lane.submit(buffer, op)
        work.add_done_callback(lambda done: completion.finish(done.exception()))
        return completion.future, work

    def late(self) -> list[str]:
        """Return the workers that are waited for, if the agent can tell."""
        ask = getattr(self.reducer, "late", None)
        return list(ask()) if ask is not None else []


@dataclass
class _Step:
    """A step. network: True through it, False over torch.distributed, None when not decided. aside: it goes over
    torch.distributed in any case, because that is faster."""

    number: int
    network: bool | None
    aside: bool = False
    began: float = field(default_factory=time.monotonic)
    items: list[_Item] = field(default_factory=list)
    problem: str = ""


@dataclass(eq=False)
class _Item:
    """A buffer of a step.

    buffer: is replaced by its sum or mean. before: its original content, where the network works in place.
    """

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
        name: prefix of groups that are made, the same on all ranks and never used before.
        store, rank, size: of the process group.
        control: a gloo group of all ranks that nothing else uses, for agreements and repeated reductions.
        local: the ranks of this node; None: this is the only one.
        agreement: False: raise an error instead of repeating the reduction.
        reproducible: True: what is done over torch.distributed gives the same bits as in the network (alike.py).
        failed, returned: called with the reasons of all ranks when a step failed, and when the network is used again.
        join: returns a reducer that is ready and waits for at most the given seconds. Raises AgentError, OSError.
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
        reproducible: bool = False,
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
        self._reproducible = reproducible
        self._shape: tuple[list[int], int] | None = None
        self._ways: Ways | None = None
        self._lock = threading.RLock()
        self._route: Route | None = None
        self._now = False
        # This is the first step that uses the other path, and which path that is.
        self._change: tuple[int, bool] | None = None
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
        self._settled_to = 0  # Steps before this one are settled one by one: they had begun when one failed.
        self._late_at = 0.0
        self._open: set[_Item] = set()
        self._aborted: AbortedError | None = None
        self.order: list[int] = list(range(size))  # The number of each rank's worker, where that matters.
        self._thread = threading.Thread(target=self._run, name="inart-agreement", daemon=True)
        self._thread.start()

    @property
    def in_network(self) -> bool:
        """Whether the last step went through the network, and the next one will."""
        with self._lock:
            last = self._latest is None or bool(self._latest.network)
            return last and self._mode(self._begun)

    def choose(self, ways: Ways | None) -> None:
        """Let each step take the faster way for the operation and size of its first buffer, from the next step on. All
        ranks give the same ways. None: the network, whenever it can be had."""
        self._ways = ways

    def begin_in_network(self, reducer: Reducer) -> None:
        """Set the reducer before the first step."""
        self._route, self._now = Route(reducer), True

    def begin_outside(self, reasons: str) -> None:
        """Begin without the network, which is not available yet; all ranks call this before the first step."""
        self._fall(reasons)
        self._now, self._change = False, None

    def add(
        self, buffer: torch.Tensor, op: Collective, last: bool, before: torch.Tensor | None = None
    ) -> torch.futures.Future[torch.Tensor]:
        """Start the mean or sum of `buffer` over all ranks (or another collective), in place; returns its Future
        without waiting.

        last: it is the last buffer of its step. before: a copy of the buffer's content, which stays unchanged until the
        Future is done.
        """
        return self.start(buffer, op, last, before)[0]

    def start(
        self, buffer: torch.Tensor, op: Collective, last: bool, before: torch.Tensor | None = None
    ) -> tuple[torch.futures.Future[torch.Tensor], Work | None]:
        """Start a reduction as `add` does; also returns the agent's Work, if waiting for that first gives the result
        sooner.
        """
        with self._lock:
            if self._aborted is not None:
                raise self._aborted
            step = self._step
            if step is None:
                aside = self._ways is not None and self._ways.is_faster_outside(op, buffer.nbytes)
                mode = None if self._paused else self._mode(self._begun) and not aside
                step = _Step(self._begun, mode, aside)
                self._begun += 1
                self._latest = step
            item = _Item(step, buffer, op, last, Completion(buffer), before=before)
            item.early = last and not step.items and self._agreement and self._local is None and is_early(buffer, op)
            step.items.append(item)
            self._open.add(item)
            self._step = None if last else step
            if buffer.is_cuda:
                item.written = torch.cuda.Event()
                item.written.record()
            if step.network is None:
                self._held.append(item)
            else:
                self._begin(item)
        return item.completion.future, item.work

    def stuck_seconds(self) -> float:
        """Return for how long the oldest operation has been under way; 0: there is none."""
        return time.monotonic() - min((item.added for item in set(self._open)), default=time.monotonic())

    def abort(self, reason: str) -> None:
        """End all operations with an error, wherever they are, and take none any more. The caller then makes the agent
        give up what it has begun. The thread may still wait for other ranks over gloo: it ends when they go, too.
        """
        with self._lock:
            self._aborted = AbortedError(reason)
        for item in set(self._open):
            self._complete(item, self._aborted)

    def close(self) -> None:
        """End the thread, after the last step."""
        self._queue.put(None)
        if self._aborted is None and threading.current_thread() is not self._thread:
            self._thread.join()
        if self._return is not None:
            self._return.close()
            self._return = None

    # -- with the lock held -------------------------------------------------------------------------------------------

    def _begin(self, item: _Item) -> None:
        """Start operations of the network, and queue all operations for the thread in the order of the steps; early
        ones are queued many at a time.
        """
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
        """Start an operation whose result the caller has at once, and on which the ranks agree later."""
        self._counts.step_begins(True)
        item.work = route.lane.submit(item.buffer, item.op)

        def ended(work: Work) -> None:
            error = work.exception()
            if error is not None:
                item.problem = str(error)
                item.ended.set()
                self._queue.put(_LOOK)
                return
            scattered = item.op.kind is Kind.REDUCE_SCATTER
            item.kept = item.buffer.new_empty(0) if scattered else item.buffer.clone()
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
                    if not item.op.raw:  # The caller may write over its own copy as soon as it has the result.
                        item.before = item.buffer.clone()
                    self._start_early(item, route)
                else:
                    # Broadcasts and gathers do not change the source's data.
                    if self._agreement and item.before is None and not item.op.raw:
                        item.before = self._copy(item)
                    item.reduced = route.start(item.buffer, item.op)
            except AgentError as error:
                item.problem = str(error)
                item.ended.set()

    def _copy(self, item: _Item) -> torch.Tensor:
        """Return a copy of the buffer's content; its memory is reused by the next step when no other step is in
        progress.
        """
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
                self._agree_on([item])  # The operation began while others were settled.
                continue
            step = item.step
            try:
                self._check_aborted()
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
            except Exception as error:  # A rank is lost, so no rank can continue.
                for one in step.items:
                    self._complete(one, _explained(error))
            finally:
                if item.last:
                    self._pass(step)
        if self._aborted is None and self._window.await_close():
            self._agree_on(self._window.take())

    def _next(self) -> _Item | list[_Item] | None:
        """Return the next operations to settle; None: the sequence is closed."""
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
        """Settle early operations; the callers already have the results of those that succeeded."""
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
        except Exception as error:  # A rank is lost, so no rank can continue.
            for item in items:
                self._complete(item, _explained(error))
                self._pass(item.step)

    def _are_well(self, items: list[_Item]) -> bool:
        """Return whether all of them succeed.

        When another rank has failed, they may wait for that rank, so the agreement comes first.
        """
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
        """Return whether `good` holds on all ranks."""
        self._check_aborted()
        self._window.begin_agreement(good)
        return bool(reduce_numbers(self._control, [int(good)], dist.ReduceOp.MIN)[0])

    def _leave(self, reasons: str) -> None:
        """Make all ranks leave the network at the first step that none has begun; earlier steps are settled."""
        if self._change is None:  # Otherwise the step was in progress when the one before it failed.
            self._boundary(lambda first: (first, False))
            self._fall(reasons)

    def _again(self, item: _Item) -> None:
        if item.early and item.op.kind is Kind.REDUCE_SCATTER:
            assert item.before is not None, "kept since it began"
            self._reduce(item, item.before).wait()
            if item.kept is None:
                parts, own = (self._size, -1), self.order[self._rank]
                item.buffer.view(parts)[own].copy_(item.before.view(parts)[own])
            return
        if item.before is not None:
            item.buffer.copy_(item.before)
        self._reduce(item).wait()

    def _pass(self, step: _Step) -> None:
        """Mark a step as finished; this happens before its Futures are done, so that the next step finds it so."""
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
        """Wait until a bucket has arrived or failed."""
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
        """Complete a step all of whose buckets have arrived or failed here, after an agreement with the other ranks."""
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
                item.reduced.wait()  # The reduction is done: for CUDA this orders the streams.
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
            work.wait()  # This waits in stream order.
            self._finish(item, None)
        else:
            work.get_future().add_done_callback(lambda future: self._finish(item, _error(future)))

    def _reduce(self, item: _Item, buffer: torch.Tensor | None = None) -> Any:
        """Run it over torch.distributed, in place. buffer: instead of the item's, for what is no all-reduce."""
        group = self._spare(item.buffer.device.type)
        if item.op.kind is not Kind.ALL_REDUCE:
            return outside(group, item.buffer if buffer is None else buffer, item.op, self.order)
        if self._reproducible and can_be_alike(item.buffer, item.op):
            order, values = self._network_shape()
            reduce_alike(group, item.buffer, item.op, order, values)
            return Done(item.buffer)
        if item.op.mean:
            item.buffer.div_(self._size)
        options = dist.AllreduceOptions()
        options.reduceOp = TORCH_OPS.get(item.op.merge, dist.ReduceOp.SUM)  # type: ignore[assignment]
        return group.allreduce([item.buffer], options)

    def _network_shape(self) -> tuple[list[int], int]:
        """By rank, which worker it is; and the values of a packet, of the most common network where no rank has been in
        any. All ranks ask for it at the same step."""
        if self._shape is None:
            reducer = self._route.reducer if self._route is not None else None
            told = exchange(
                self._control, f"{getattr(reducer, 'index', -1)} {getattr(reducer, 'values_per_packet', 0)}"
            )
            order, sizes = zip(*((int(word) for word in text.split()) for text in told), strict=True)
            known = sorted(order) == list(range(len(order)))
            self._shape = list(order) if known else self.order, max(sizes) or COMMON_VALUES
        return self._shape

    def _finish(self, item: _Item, error: Exception | None) -> None:
        self._counts.reduced(item.buffer.numel() * item.buffer.element_size())
        self._complete(item, error)
        if item.last and not item.step.network:
            self._counts.step_ends(item.step.began, item.added)

    def _complete(self, item: _Item, error: Exception | None) -> None:
        self._open.discard(item)
        item.completion.finish(error)

    def _check_aborted(self) -> None:
        if self._aborted is not None:
            raise self._aborted

    def _spare(self, device: str) -> dist.ProcessGroup:
        """Return torch.distributed's group for tensors of a device; it is made at its first use, by all ranks at the
        same step.
        """
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
        """Find the first step that no rank has begun; `change` holds from that step on."""
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
                    item.step.network = self._mode(item.step.number) and not item.step.aside
                self._begin(item)

    def _fall(self, reasons: str) -> None:
        """Use torch.distributed for the following steps, on all ranks."""
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
    """The return to the network: joins again in the background; all ranks return at the same step.

    After a step the ranks start an all-reduce of "this rank could return", and use its result a step later, when it has
    long completed.

    Args:
        join: returns a reducer that is ready and waits for at most the given seconds. Raises AgentError, OSError.
        valid: returns what is wrong with a reducer; empty: nothing.
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
        """Return the reducer to use from now on, or None for not yet; called once a step, on all ranks alike."""
        if self._offer is not None:
            reducer, offer, work = self._offer
            work.wait()
            self._offer = None
            could, most, least = (int(number) for number in offer)
            if could and most == -least:  # All ranks are in the same epoch.
                return reducer
        reducer = self._reducer
        could = reducer is not None and getattr(reducer, "ready", True)
        epoch = getattr(reducer, "epoch", 0)
        offer = torch.tensor([int(could), epoch, -epoch], dtype=torch.int64)
        self._offer = reducer, offer, self._group.allreduce([offer], dist.ReduceOp.MIN)
        if not could and reducer is not None:
            self._reducer = None  # Its epoch has ended: the thread looks for the next one.
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
                # A rank is missing: another attempt costs nothing, and all ranks should notice the return soon.
                continue
            except (AgentError, OSError):
                pass
            self._pause = min(2 * self._pause, LAST_PAUSE_SECONDS)


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


_NOTHING = _Nothing()


def _on_stream_of(item: _Item) -> Any:
    """Make work that another thread starts later come after the work that wrote the buffer."""
    if item.written is not None:
        item.written.wait()
    return _NOTHING


def _explained(error: Exception) -> Exception:
    """Return an error that says what to do, since gloo's message for a lost rank does not."""
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
    # torch appends the Python stack to the text of an exception from a Future, and puts its class before it.
    text = str(error).partition("\n\nAt:")[0].strip()
    return re.sub(r"^(\w+Error|Error): ", "", text) or type(error).__name__
