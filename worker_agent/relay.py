"""The engine that operations go to, and its successor while the plan changes under a running job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controlplane.agentconfig import AgentConfig
from worker_agent.engine import ITEM_BYTES, Engine, Operation, Work, host_array
from worker_agent.errors import AbortedError, AgentError, AllReduceError


@dataclass(frozen=True)
class _Held:
    """An operation that waits for the switch-over; `work` is what the caller got."""

    work: Work
    array: Any
    op: Operation
    dtype: str | None


class Relay:
    """Operations in order over one engine, then over the next.

        prepare -> operations are held -> switch_over(first) or withdraw -> they start

    Operations before number `first` of the old engine's go to it, the others to the new one. All workers switch at the
    same operation, so each is summed under one version of the plan. The old engine is closed once its operations are
    done. Nothing waits: a held operation is a Work like any other.

    Thread-safe. drained: called, from a thread of its own, when the old engine is closed.
    """

    def __init__(self, drained: Callable[[], None]) -> None:
        self.engine: Engine | None = None
        self._report_drained = drained
        self._lock = threading.RLock()  # an operation may end, and its callback come, while it is started
        self._next: Engine | None = None
        self._old: Engine | None = None
        self._started = 0
        self._first: int | None = None
        self._held: list[_Held] | None = None
        self._open: set[Work] = set()
        self._draining: set[Work] = set()

    def submit(self, array: Any, op: Operation, dtype: str | None) -> Work:
        """As Engine.allreduce_async."""
        with self._lock:
            if self._held is None:
                return self._start(array, op, dtype)
            memory = host_array(array, dtype)  # what cannot be reduced is refused now
            if op not in ("sum", "mean"):
                raise ValueError(f'op must be "sum" or "mean", not {op!r}')
            work = Work(memory.elements, memory.elements * ITEM_BYTES[memory.dtype])
            self._held.append(_Held(work, array, op, dtype))
            return work

    def configure(self, config: AgentConfig, make: Callable[[AgentConfig], Engine], reason: str) -> None:
        """Run `config` afresh, whatever ran before. Raises as Engine does."""
        self.abort(reason)
        with self._lock:
            if self.engine is None:
                self.engine = make(config)
            else:
                self.engine.reconfigure(config, reason)
            self._started = 0
            self._open = set()

    def prepare(self, config: AgentConfig, make: Callable[[AgentConfig], Engine]) -> int:
        """Hold operations back and make the next engine; the first operation that has not started."""
        with self._lock:
            if self.engine is None:
                raise AgentError("nothing runs that something could follow")
            if self._held is not None or self._old is not None:
                raise AgentError("the update before this one has not ended")
            self._next = make(config)
            self._held = []
            return self._started

    @property
    def holding(self) -> bool:
        """Whether operations are held back now."""
        with self._lock:
            return self._held is not None

    def switch_over(self, first: int) -> None:
        """Operations from number `first` on go to the next engine."""
        with self._lock:
            if self._next is None or first < self._started:
                raise AgentError(f"cannot switch over at operation {first}: {self._started} have started")
            self._first = first
            if self._started == first:
                self._turn()
            self._release()

    def withdraw(self) -> None:
        """No switch-over: everything goes on as before."""
        with self._lock:
            successor, self._next = self._next, None
            self._release()
        if successor is not None:
            successor.close()

    def abort(self, reason: str) -> None:
        """End all operations, also held ones, with AbortedError; new ones fail until `configure`."""
        with self._lock:
            held, self._held, self._first = self._held or [], None, None
            others = [engine for engine in (self._next, self._old) if engine is not None]
            self._next = self._old = None
            self._draining = set()
            if self.engine is not None:
                self.engine.abort(reason)
        for engine in others:
            engine.abort(reason)
            engine.close()
        for operation in held:
            operation.work.finish(AbortedError(reason))

    def close(self) -> None:
        """End everything."""
        self.abort("the agent is closed")
        with self._lock:
            engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()

    # -- with the lock held -----------------------------------------------------------------------------------------

    def _start(self, array: Any, op: Operation, dtype: str | None) -> Work:
        if self.engine is None:
            raise AbortedError("the agent is closed")
        work = self.engine.allreduce_async(array, op, dtype=dtype)
        self._started += 1
        self._open.add(work)
        if self._started == self._first:
            self._turn()
        work.add_done_callback(self._ended)
        return work

    def _release(self) -> None:
        held, self._held = self._held or [], None
        for operation in held:
            try:
                operation.work.follow(self._start(operation.array, operation.op, operation.dtype))
            except (AllReduceError, ValueError, TypeError) as error:
                operation.work.finish(error if isinstance(error, AllReduceError) else AllReduceError(str(error)))

    def _turn(self) -> None:
        self._old, self.engine, self._next = self.engine, self._next, None
        self._first, self._started = None, 0
        self._draining, self._open = self._open, set()
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
