"""Reductions that all ranks run through the network, or all over torch.distributed, with the transitions between them.

    buckets of a step -> network -> the ranks agree: did all of them arrive everywhere?
                                      yes: that is the result
                                      no:  repeat it and the next steps over torch.distributed, from the own gradients

An all-reduce may succeed on one rank and fail on another, so a rank cannot decide alone. The agreement is one
all-reduce of 24 bytes per step over a gloo group of its own and in a thread of its own: the caller never waits for
it. The ranks agree on many small operations at once, after the caller has their results (early.py).

Steps are numbered. When one fails, or when all could return, each rank reports how many steps it has begun, and the
first step that none has begun is the first to use the other path: on all ranks the same step, whatever each is doing.
"""

from __future__ import annotations

import queue
import threading
from functools import partial

import torch
import torch.distributed as dist

from worker_agent.collectives import Collective
from worker_agent.errors import AbortedError, AgentError, AllReduceError
from worker_agent.flight import flight
from worker_agent.metrics import Counts
from worker_agent.shared import Reducer
from worker_agent.torch.control import Control
from worker_agent.torch.early import Window, is_early, settle
from worker_agent.torch.fallback import Fallback
from worker_agent.torch.groups import Ranks
from worker_agent.torch.lateness import Lateness
from worker_agent.torch.local_ranks import LocalRanks
from worker_agent.torch.passes import Passes
from worker_agent.torch.result import Completion, Result
from worker_agent.torch.returning import Joining, Returns
from worker_agent.torch.route import Route
from worker_agent.torch.schedule import Schedule
from worker_agent.torch.steps import Item, Step, explained, problem_of
from worker_agent.torch.submitter import Submitter
from worker_agent.torch.under_way import UnderWay
from worker_agent.torch.waiting import JOIN_SECONDS, end_at_exit
from worker_agent.ways import Ways

_LOOK = "look"
"""The message to the thread that an early operation has failed, or is the first of a window."""


class Sequence:
    """The reductions of one process group, in order. All ranks make the same calls.

    Args:
        ranks: the ranks of the process group.
        network: how to come back to the network, and functions to call when that happens.
        control: a group of all ranks that nothing else uses, for agreements and repeated reductions.
        local: the ranks of this node; None: this is the only one.
        agreement: False: raise an error instead of repeating the reduction.
        counts: the counters of the process group.
        reproducible: True: operations over torch.distributed give the same bits as in the network (alike.py).
        passes: the forward passes of the models whose gradients are reduced.
    """

    def __init__(
        self,
        ranks: Ranks,
        network: Joining,
        *,
        control: Control,
        local: LocalRanks | None,
        agreement: bool,
        counts: Counts,
        reproducible: bool = False,
        passes: Passes,
    ) -> None:
        self._rank, self._control, self._local, self._passes = ranks.rank, control, local, passes
        flight.name_after_rank(ranks.rank)
        self._agreement, self._counts = agreement, counts
        self.fallback = Fallback(ranks, control, self._last_reducer, reproducible=reproducible)
        self._ways: Ways | None = None
        self._lock = (
            threading.RLock()
        )  # protects the schedule, the window, and the order in which operations are queued
        self._route: Route | None = None
        self._schedule = Schedule()
        self._step: Step | None = None
        self._held: list[Item] = []
        self._returns = Returns(network, control, counts)
        self._queue: queue.SimpleQueue[Item | list[Item] | str | None] = queue.SimpleQueue()
        self._window = Window(ranks.name, ranks.store, ranks.size)
        self._under_way = UnderWay(counts)
        self._lateness = Lateness(self.late, self._under_way.check)
        finish = partial(self._under_way.finish, error=None)
        self._submitter = Submitter(local, agreement, counts, finish, lambda: self._queue.put(_LOOK))
        self._thread = threading.Thread(target=self._run, name="inart-agreement", daemon=True)
        self._thread.start()
        end_at_exit(self)

    def _last_reducer(self) -> Reducer | None:
        return self._route.reducer if self._route is not None else None

    @property
    def in_network(self) -> bool:
        """Whether the last step went through the network, and the next one will."""
        with self._lock:
            return self._schedule.in_network

    def choose(self, ways: Ways | None) -> None:
        """Let each step take the faster way for the operation and size of its first buffer, from the next step on. All
        ranks give the same ways; with None each step takes the network, whenever that is available.
        """
        self._ways = ways

    def begin_in_network(self, reducer: Reducer) -> None:
        """Set the reducer before the first step."""
        self._route = Route(reducer)
        self._schedule.use(network=True)

    def begin_outside(self, reasons: str) -> None:
        """Begin without the network, which is not available yet; all ranks call this before the first step."""
        self._returns.fall(reasons)
        self._schedule.use(network=False)

    def start(self, buffer: torch.Tensor, op: Collective, last: bool, before: torch.Tensor | None = None) -> Result:
        """Start the mean or sum of `buffer` over all ranks (or another collective), in place, without waiting.

        `last` says that it is the last buffer of its step. `before` is a copy of the buffer's content, which stays
        unchanged until the Future is done.
        """
        with self._lock:
            self._under_way.check()
            step = self._step
            if step is None:
                aside = self._ways is not None and self._ways.is_faster_outside(op, buffer.nbytes)
                step = self._schedule.begin(aside)
                step.passes = self._passes.begun
            item = Item(step, buffer, op, last, Completion(buffer), before=before)
            item.early = last and not step.items and self._agreement and self._local is None and is_early(buffer, op)
            step.items.append(item)
            self._under_way.add(item)
            self._step = None if last else step
            if buffer.is_cuda:
                item.written = torch.cuda.Event()
                item.written.record()
            if step.network is None:
                self._held.append(item)
            else:
                self._begin(item)
        return item.completion

    def late(self) -> list[str]:
        """Return the workers that are waited for, if the agent can tell."""
        return self._route.late() if self._route is not None else []

    def abort(self, error: AllReduceError) -> None:
        """End all operations with an error, wherever they are, and accept no further ones. The caller then makes the
        agent give up its operations.
        """
        with self._lock:
            self._under_way.refuse(error)
        self._under_way.end_all()
        self.fallback.end(error)
        self._control.end(error)
        if self._local is not None:
            self._local.end(error)

    def end(self, error: AllReduceError) -> None:
        """End all operations with this error, and the threads, because the process ends."""
        self.abort(error)
        self._stop(JOIN_SECONDS)

    def close(self) -> None:
        """End the threads after the last step."""
        self._stop(None if self._under_way.aborted is None else JOIN_SECONDS)
        flight.at_end()

    def _stop(self, seconds: float | None) -> None:
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)
        self.fallback.close()
        self._returns.close()
        closed = AbortedError("the process group is closed")
        self._control.end(closed)
        if self._local is not None:
            self._local.end(closed)

    # -- with the lock held -------------------------------------------------------------------------------------------

    def _begin(self, item: Item) -> None:
        """Start operations of the network, and queue all operations for the thread in the order of the steps; early
        operations are queued many at a time.
        """
        if item.step.network:
            assert self._route is not None, "it goes through the network"
            self._submitter.submit(item, self._route, self._schedule.is_oldest(item.step))
        if item.early and item.step.network and item.step.number >= self._schedule.in_question:
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
                self._under_way.check()
                with self.fallback.stream(item.buffer.device):
                    if step.items[0] is item:
                        self._counts.step_begins(bool(step.network))
                    if step.network:
                        self._arrive(item)
                        if item.last:
                            self._settle(step)
                    else:
                        self.fallback.start(item, partial(self._under_way.finish, item))
                        if item.last:
                            self._think_of_return()
            except Exception as error:  # A rank is lost, so no rank can continue.
                for one in step.items:
                    self._under_way.end(one, explained(error))
            finally:
                if item.last:
                    self._pass(step)
        if self._under_way.aborted is None and self._window.await_close():
            self._agree_on(self._window.take())

    def _next(self) -> Item | list[Item] | None:
        """Return the next operations to settle; None where the sequence is closed."""
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
            one_by_one = items[0].step.number < self._schedule.in_question
            good = one_by_one or self._lateness.wait_for_all(items, self._window.is_failed)
            if not one_by_one and not self._agreed(good, items[-1].step):
                self._leave(self._control.agree(next((item.problem for item in items if item.problem), "")))
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
                    self._under_way.finish(item, None)
                item.kept = item.before = None
        except Exception as error:  # A rank is lost, so no rank can continue.
            for item in items:
                self._under_way.end(item, explained(error))
                self._pass(item.step)

    def _agreed(self, good: bool, step: Step) -> bool:
        """Return whether `good` holds on all ranks, which all have come to this step."""
        self._under_way.check()
        self._window.begin_agreement(good)
        numbers = [int(good), step.passes, -step.passes]
        agreed, fewest, negated = self._control.reduce(numbers, dist.ReduceOp.MIN)
        if self._passes.differ(fewest, -negated):
            self._passes.report(step.number, self._control.exchange(str(step.passes)))
        return bool(agreed)

    def _leave(self, reasons: str) -> None:
        """Make all ranks leave the network at the first step that none has begun; earlier steps are settled."""
        if not self._schedule.changing:  # Otherwise the step was in progress when the one before it failed.
            self._change(network=False)
            self._returns.fall(reasons)

    def _pass(self, step: Step) -> None:
        """Mark a step as finished.

        This happens before its Futures are done, so that the next step finds it finished.
        """
        with self._lock:
            self._schedule.end(step)

    def _arrive(self, item: Item) -> None:
        """Wait for the network's part of a bucket's operation."""
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
            good = self._agreed(good, step)
        elif self._local is not None:
            good = bool(self._local.groups("cpu")[1].reduce([int(good)], dist.ReduceOp.MIN)[0])
        for item in step.items:
            if item.passage is not None:
                item.passage.finish(good)
        if good:
            self._counts.step_ends(step.began, step.items[-1].added)
            self._pass(step)
            for item in step.items:
                assert item.reduced is not None, "it went well"
                item.reduced.wait()  # The reduction is done: for CUDA this orders the streams.
                self._under_way.finish(item, None)
            return
        if not self._agreement:
            error = AgentError(step.problem or "another rank of this node lost its part")
            for item in step.items:
                self._under_way.finish(item, error)
            return
        self._leave(self._control.agree(step.problem))
        for item in step.items:
            self.fallback.repeat(item)
        self._counts.step_ends(step.began, step.items[-1].added)
        self._pass(step)
        for item in step.items:
            self._under_way.finish(item, None)

    def _change(self, network: bool, reducer: Reducer | None = None) -> None:
        """Take the other path from the first step on that no rank has begun; `reducer` is the one for the network."""
        with self._lock:
            begun = self._schedule.pause()
        change = None
        try:
            change = self._control.reduce([begun], dist.ReduceOp.MAX)[0], network
        finally:  # Without a change a rank is lost: operations that were held fail like all later ones.
            with self._lock:
                if change is not None and reducer is not None:
                    self._route = Route(reducer)
                self._schedule.resume(change)
                held, self._held = self._held, []
                self._flush()
                for item in held:
                    self._schedule.decide(item.step)
                    self._begin(item)

    def _think_of_return(self) -> None:
        if self._schedule.changing:
            return
        reducer = self._returns.poll()
        if reducer is not None:
            self._change(network=True, reducer=reducer)
            self._returns.returned(reducer)
