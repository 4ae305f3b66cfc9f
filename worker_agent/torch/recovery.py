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

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from worker_agent.collectives import Collective, Kind
from worker_agent.errors import AbortedError, AgentError
from worker_agent.metrics import Counts
from worker_agent.shared import Reducer
from worker_agent.torch import lateness
from worker_agent.torch.early import FIRST_LOOK_SECONDS, Window, is_early, settle
from worker_agent.torch.fallback import Fallback
from worker_agent.torch.groups import Ranks, agree, reduce_numbers
from worker_agent.torch.lateness import Lateness
from worker_agent.torch.local_ranks import LocalRanks
from worker_agent.torch.passage import passage
from worker_agent.torch.returning import FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS, Return
from worker_agent.torch.route import Route
from worker_agent.torch.staging import Completion
from worker_agent.torch.steps import Item, Step, explained, problem_of
from worker_agent.ways import Ways
from worker_agent.work import Work

_LOOK = "look"
"""Tells the thread that an early operation has failed, or is the first of a window."""
STEADY_SECONDS = 60.0
"""After this many seconds in the network earlier failures are forgotten, and the next return begins quickly."""


@dataclass(frozen=True)
class Joining:
    """How a sequence comes back to the network.

    join: returns a reducer that is ready and waits for at most the given seconds. Raises AgentError, OSError. valid:
    returns what is wrong with a reducer; empty: nothing. failed, returned: called with the reasons of all ranks when a
    step failed, and with the reducer when the network is used again.
    """

    join: Callable[[float], Reducer]
    valid: Callable[[Reducer], str]
    failed: Callable[[str], None]
    returned: Callable[[Reducer], None]


class Sequence:
    """The reductions of one process group, in order. All ranks make the same calls.

    Args:
        control: a gloo group of all ranks that nothing else uses, for agreements and repeated reductions.
        local: the ranks of this node; None: this is the only one.
        agreement: False: raise an error instead of repeating the reduction.
        reproducible: True: what is done over torch.distributed gives the same bits as in the network (alike.py).
        network: how to come back to it, and who hears of that.
    """

    def __init__(
        self,
        ranks: Ranks,
        network: Joining,
        *,
        control: dist.ProcessGroup,
        local: LocalRanks | None,
        agreement: bool,
        counts: Counts,
        reproducible: bool = False,
    ) -> None:
        self._rank, self._control, self._local = ranks.rank, control, local
        self._agreement, self._network, self._counts = agreement, network, counts
        self.fallback = Fallback(ranks, control, self._last_reducer, reproducible=reproducible)
        self._lateness = Lateness(lambda: self._route.late() if self._route is not None else [])
        self._ways: Ways | None = None
        self._lock = threading.RLock()
        self._route: Route | None = None
        self._now = False
        # This is the first step that uses the other path, and which path that is.
        self._change: tuple[int, bool] | None = None
        self._paused = False
        self._begun = 0
        self._oldest = 0
        self._step: Step | None = None
        self._latest: Step | None = None
        self._held: list[Item] = []
        self._copies: dict[int, torch.Tensor] = {}
        self._return: Return | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._since = time.monotonic()
        self._queue: queue.SimpleQueue[Item | list[Item] | str | None] = queue.SimpleQueue()
        self._window = Window(ranks.name, ranks.store, ranks.size)
        self._settled_to = 0  # Steps before this one are settled one by one: they had begun when one failed.
        self._open: set[Item] = set()
        self._aborted: AbortedError | None = None
        self._thread = threading.Thread(target=self._run, name="inart-agreement", daemon=True)
        self._thread.start()

    def _last_reducer(self) -> Reducer | None:
        return self._route.reducer if self._route is not None else None

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
                step = Step(self._begun, mode, aside)
                self._begun += 1
                self._latest = step
            item = Item(step, buffer, op, last, Completion(buffer), before=before)
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

    def _begin(self, item: Item) -> None:
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

    def _start_early(self, item: Item, route: Route) -> None:
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

    def _start(self, item: Item) -> None:
        route = self._route
        assert route is not None, "it goes through the network"
        if item.written is not None:  # what another thread starts comes after the work that wrote the buffer
            item.written.wait()
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

    def _copy(self, item: Item) -> torch.Tensor:
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
                with self.fallback.stream(item.buffer.device):
                    if step.items[0] is item:
                        self._counts.step_begins(bool(step.network))
                    if step.network:
                        self._arrive(item)
                        if item.last:
                            self._settle(step)
                    else:
                        self.fallback.start(item, partial(self._finish, item))
                        if item.last:
                            self._think_of_return()
            except Exception as error:  # A rank is lost, so no rank can continue.
                for one in step.items:
                    self._complete(one, explained(error))
            finally:
                if item.last:
                    self._pass(step)
        if self._aborted is None and self._window.await_close():
            self._agree_on(self._window.take())

    def _next(self) -> Item | list[Item] | None:
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
            if waiting is not None:
                self._lateness.consider(waiting)

    def _agree_on(self, items: list[Item]) -> None:
        """Settle early operations; the callers already have the results of those that succeeded."""
        try:
            one_by_one = items[0].step.number < self._settled_to
            if not one_by_one and not self._agreed(self._are_well(items)):
                self._leave(agree(next((item.problem for item in items if item.problem), ""), self._control))
                one_by_one = True
            for item in items:
                if one_by_one:
                    self._lateness.wait_for(item, item.ended)
                    has = item.kept is not None
                    settle([item], has, rank=self._rank, control=self._control, again=self.fallback.repeat)
                    if not has:
                        self._counts.step_ends(item.step.began, item.added)
                self._pass(item.step)
                if item.kept is None:
                    self._finish(item, None)
                item.kept = item.before = None
        except Exception as error:  # A rank is lost, so no rank can continue.
            for item in items:
                self._complete(item, explained(error))
                self._pass(item.step)

    def _are_well(self, items: list[Item]) -> bool:
        """Return whether all of them succeed.

        When another rank has failed, they may wait for that rank, so the agreement comes first.
        """
        for item in items:
            seconds = lateness.LATE_SECONDS
            while not item.ended.wait(FIRST_LOOK_SECONDS):
                if self._window.is_failed():
                    return False
                if time.monotonic() - item.added > seconds:
                    self._lateness.say(item, time.monotonic() - item.added)
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

    def _pass(self, step: Step) -> None:
        """Mark a step as finished; this happens before its Futures are done, so that the next step finds it so."""
        with self._lock:
            self._oldest = step.number + 1
            if self._change is not None and self._oldest >= self._change[0]:
                self._now, self._change = self._change[1], None

    def _arrive(self, item: Item) -> None:
        """Wait for the network's part of a bucket."""
        if item.reduced is not None and not item.problem:
            self._lateness.wait(item, item.reduced)
            item.problem = problem_of(item.reduced)
        item.step.problem = item.step.problem or item.problem
        if item.passage is not None:
            item.passage.gather()

    def _settle(self, step: Step) -> None:
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
            self.fallback.repeat(item)
        self._counts.step_ends(step.began, step.items[-1].added)
        self._pass(step)
        for item in step.items:
            self._finish(item, None)

    def _finish(self, item: Item, error: Exception | None) -> None:
        self._counts.reduced(item.buffer.numel() * item.buffer.element_size())
        self._complete(item, error)
        if item.last and not item.step.network:
            self._counts.step_ends(item.step.began, item.added)

    def _complete(self, item: Item, error: Exception | None) -> None:
        self._open.discard(item)
        item.completion.finish(error)

    def _check_aborted(self) -> None:
        if self._aborted is not None:
            raise self._aborted

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
        self._return = Return(self._network.join, self._network.valid, self._control, self._pause)
        self._network.failed(reasons)

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
        self._network.returned(reducer)
