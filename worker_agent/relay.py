"""The engine that operations go to, and its successor while the plan changes under a running job.

Where a job can go on without an agent that is lost (`AgentConfig.repeats`), the operations in progress are started
again with the next engine, by all workers from the same operation on (kept.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from controlplane.common.agentconfig import AgentConfig, ReroutedTree
from worker_agent.collectives import SUM, Collective
from worker_agent.engine import Engine
from worker_agent.errors import AbortedError, AgentError, AllReduceError
from worker_agent.kept import Kept, Ledger
from worker_agent.operands import HostArray, host_array
from worker_agent.ordered_queue import OrderedQueue, Place
from worker_agent.work import Work


@dataclass(frozen=True)
class Repeated:
    """The number of operations that were started again, and their bytes."""

    operations: int = 0
    nbytes: int = 0


NOTHING = Repeated()


class Relay:
    """Runs operations in order over one engine, then over the next.

        prepare -> operations are held -> switch_over(first) or withdraw -> they start

    Operations before number `first` of the old engine's go to it, the others to the new one. All workers switch at the
    same operation, so each is summed under one version of the plan. The old engine is closed once its operations are
    done. No caller waits: a held operation is a Work like any other. After the loss of an agent there is instead

        prepare_again -> the engine is stopped, operations are held -> switch_again(first): they start again from there

    It is thread-safe.

    Args:
        drained: called, from a thread of its own, when the old engine is closed.
    """

    def __init__(self, drained: Callable[[], None]) -> None:
        self.engine: Engine | None = None
        self._report_drained = drained
        self._queue = OrderedQueue(self._start)
        self._lock = self._queue.lock
        self._hold: Place | None = None  # operations behind this place are held back
        self._next: Engine | None = None
        self._old: Engine | None = None
        self._started = 0
        self._first: int | None = None
        self._open: set[Work] = set()
        self._draining: set[Work] = set()
        self._ledger: Ledger | None = None  # where operations may have to be started again
        self._again = False  # operations are stopped and wait to be started again
        self._unkept = False  # the engine before this one still has operations that were not kept

    def submit(self, memory: HostArray, op: Collective) -> Work:
        """Submit an operation, as Engine.submit does."""
        return self._queue.submit(memory, op)

    def configure(self, config: AgentConfig, make: Callable[[AgentConfig], Engine], reason: str) -> None:
        """Run `config` afresh, whatever ran before. Raise Engine's errors where it cannot run."""
        self.abort(reason)
        with self._lock:
            self._ledger = Ledger(config) if getattr(config, "repeats", False) else None
            self._unkept = False
            if self.engine is None:
                self.engine = make(config)
            else:
                self.engine.reconfigure(config, reason)
            self._started = 0
            self._open = set()

    def prepare(self, config: AgentConfig, make: Callable[[AgentConfig], Engine]) -> int:
        """Hold operations back, make the next engine, and return the first operation that has not started. Raise
        AgentError where no engine runs, or the last update has not ended.
        """
        with self._lock:
            if self.engine is None:
                raise AgentError("the plan cannot change: this agent runs none yet")
            if self._hold is not None or self._old is not None:
                raise AgentError("the update before this one has not ended")
            self._next = make(config)
            self._hold = self._queue.reserve()
            return self._started

    @property
    def holding(self) -> bool:
        """Whether operations are held back now."""
        with self._lock:
            return self._hold is not None

    def switch_over(self, first: int) -> None:
        """Give operations from number `first` on to the next engine. Raise AgentError where that one has started
        already.
        """
        with self._lock:
            if self._next is None or first < self._started:
                raise AgentError(f"cannot switch over at operation {first}: {self._started} have started")
            self._first = first
            if self._started == first:
                self._turn()
        self._release()

    def withdraw(self) -> None:
        """Go on with the engine that runs, without a switch-over; operations that are to be started again still are."""
        with self._lock:
            if self._again:
                return
            successor, self._next = self._next, None
        self._release()
        if successor is not None:
            successor.close()

    def prepare_again(self, config: AgentConfig, make: Callable[[AgentConfig], Engine]) -> int:
        """Stop the engine, hold all operations back, make the next engine, and return the first operation, counted
        since `configure`, that has no result here. Raise AgentError where those in progress cannot be started again.
        """
        successor = make(config)
        with self._lock:
            if self._ledger is None or self._unkept or self.engine is None:
                successor.close()
                raise AgentError("the operations in progress were not kept, and cannot be started again")
            self._again = True
            stopped = [engine for engine in (self.engine, self._next, self._old) if engine is not None]
            self.engine, self._next, self._old, self._first = successor, None, None, None
            self._open, self._draining = set(), set()
            self._hold = self._hold or self._queue.reserve()
        for engine in stopped:
            engine.close()  # after this, all its completions have been delivered
        with self._lock:
            return self._ledger.oldest

    @property
    def results(self) -> list[int]:
        """The operations, counted since `configure`, whose results can be given to others."""
        with self._lock:
            return self._ledger.results if self._ledger is not None else []

    def switch_again(self, first: int, given: Mapping[int, int] | None = None) -> Repeated:
        """Start the operations from number `first` on again, counted since `configure`, then those that are held.
        `given` has the worker's number for each operation whose result one worker gives to the others. Raise AgentError
        where it is impossible.
        """
        with self._lock:
            if not self._again or self._ledger is None or self.engine is None:
                raise AgentError("no operations were stopped that could be started again")
            try:
                operations = self._ledger.again_from(first, self.engine.config)
            except ValueError as error:
                raise AgentError(str(error)) from None
            self._again, self._started = False, 0
            count = nbytes = 0
            for one in operations:
                giver = (given or {}).get(one.number)
                if not one.done:
                    one.restore()
                    count, nbytes = count + 1, nbytes + one.copy.size
                try:
                    if giver is not None:
                        self._give(self._ledger, one, one.giving(giver == self.engine.config.index))
                    else:
                        self._begin(self._ledger, one, one.again() if one.done else one.memory)
                except (AllReduceError, ValueError) as error:
                    raise AgentError(str(error)) from None
        self._release()
        return Repeated(count, nbytes)

    def retire(self) -> None:
        """Forget the operations from before the last switch-over, as all workers have all their results."""
        with self._lock:
            self._unkept = False
            if self._ledger is not None:
                self._ledger.retire()

    def rerouted(self, trees: Sequence[ReroutedTree]) -> None:
        """Pass new rates on to all engines, as Engine.rerouted does."""
        with self._lock:
            engines = [engine for engine in (self.engine, self._next, self._old) if engine is not None]
        for engine in engines:
            engine.rerouted(trees)

    @property
    def repeating(self) -> bool:
        """Whether operations are stopped and wait to be started again."""
        with self._lock:
            return self._again

    def abort(self, reason: str) -> None:
        """End all operations, also held ones, with AbortedError; new ones fail until `configure`."""
        with self._lock:
            stopped = [one.work for one in self._ledger.undone] if self._again and self._ledger is not None else []
            self._again = False
            hold, self._hold, self._first = self._hold, None, None
            waiting = self._queue.take_waiting()
            if hold is not None:
                self._queue.skip(hold)
            others = [engine for engine in (self._next, self._old) if engine is not None]
            self._next = self._old = None
            self._draining = set()
            if self.engine is not None:
                self.engine.abort(reason)
        for engine in others:
            engine.abort(reason)
            engine.close()
        for work in (*stopped, *waiting):
            work.finish(AbortedError(reason))

    def close(self) -> None:
        """End all operations and the engine."""
        self.abort("the agent is closed")
        with self._lock:
            engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()

    def _release(self) -> None:
        """Start the operations that are held; without the lock, as their callers may hear of their end at once."""
        with self._lock:
            hold, self._hold = self._hold, None
        if hold is not None:
            self._queue.skip(hold)

    # -- with the lock held -----------------------------------------------------------------------------------------

    def _start(self, memory: HostArray, op: Collective) -> Work:
        if self.engine is None:
            raise AbortedError("the agent is closed")
        if self._ledger is not None:
            work = Work(memory.elements, memory.nbytes)
            one = self._ledger.add(work, memory, op)
            try:
                self._begin(self._ledger, one, memory)
            except BaseException:
                self._ledger.drop_last()
                raise
        else:
            work = self.engine.submit(memory, op)
            self._started += 1
            self._open.add(work)
            work.add_done_callback(self._ended)
        if self._started == self._first:
            self._turn()
        return work

    def _give(self, ledger: Ledger, one: Kept, array: npt.NDArray[np.float32]) -> None:
        """Start an operation whose result one worker has: it gives the result to all."""

        def taken(work: Work) -> None:
            work.workers = one.take(array)

        self._begin(ledger, one, host_array(array), op=SUM, taken=taken)

    def _begin(
        self,
        ledger: Ledger,
        one: Kept,
        memory: HostArray,
        *,
        op: Collective | None = None,
        taken: Callable[[Work], None] = lambda work: None,
    ) -> None:
        """Give a kept operation to the engine, or one that stands for it (`op`)."""
        assert self.engine is not None, "it runs"
        run = one.run
        inner = self.engine.submit(memory, op or one.op)
        self._started += 1
        self._open.add(inner)

        def ended(work: Work) -> None:
            error = work.exception()
            with self._lock:
                self._ended(work)
                if one.run != run or (self._again and error is not None):
                    return  # the operation is started again
                if error is None:
                    if not one.done:
                        taken(work)
                        one.work.workers = work.workers
                    ledger.ended(one)
            if not one.work.done():
                one.work.follow(work)

        one.work.stands_for(inner)
        inner.add_done_callback(ended)

    def _turn(self) -> None:
        self._old, self.engine, self._next = self.engine, self._next, None
        self._first, self._started = None, 0
        self._draining, self._open = self._open, set()
        if self.engine is not None and getattr(self.engine.config, "repeats", False):
            if self._ledger is None:
                self._ledger, self._unkept = Ledger(self.engine.config), bool(self._draining)
            else:
                self._ledger.follow(self.engine.config)
        self._check_drained()

    def _ended(self, work: Work) -> None:
        with self._lock:
            self._open.discard(work)
            if work in self._draining:
                self._draining.discard(work)
                self._check_drained()

    def _check_drained(self) -> None:
        old = self._old
        if old is None or self._draining:
            return
        self._old = None

        def finish() -> None:
            old.close()
            self._report_drained()

        threading.Thread(target=finish, name="inart-drained", daemon=True).start()
