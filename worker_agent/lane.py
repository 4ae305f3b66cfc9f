"""Sends a process's operations to its agent in the order of the calls, whichever tensor is ready first.

A tensor may become ready later than the call: when it has been copied from a GPU, or summed over the ranks of the node.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from worker_agent.collectives import Collective
from worker_agent.errors import AllReduceError
from worker_agent.ordered_queue import OrderedQueue, Place
from worker_agent.work import Work

JOIN_SECONDS = 5.0


class Lane:
    """The path of one process's operations to one agent.

    Args:
        allreduce_async: the agent's method.
    """

    def __init__(self, allreduce_async: Callable[..., Work]) -> None:
        self._queue = OrderedQueue(allreduce_async)
        self._later: queue.SimpleQueue[tuple[Place, Callable[[], Any], Collective] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, tensor: Any, op: Collective) -> Work:
        """Submit a tensor that is ready, in place; the operation starts at once when no earlier one waits. Raise the
        errors of the agent's method.
        """
        return self._queue.submit(tensor, op)

    def submit_later(self, ready: Callable[[], Any], op: Collective, elements: int, item_bytes: int) -> Work:
        """Submit the tensor that `ready()` will return; `ready` may wait. Raise the errors of the agent's method.

        If `ready` raises an exception, the Work ends with that, and so do those that wait behind it. Later ones are
        refused, until the process joins the job's next epoch: the other workers are one operation ahead.
        """
        work = Work(elements, elements * item_bytes)
        with self._queue.lock:
            self._later.put((self._queue.reserve(work), ready, op))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="inart-lane", daemon=True)
                self._thread.start()
        return work

    def close(self) -> None:
        """End the lane's thread after its last operation. A thread inside torch must not outlive the interpreter, so
        this waits for it, but not for long.
        """
        with self._queue.lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._later.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        while (later := self._later.get()) is not None:
            place, ready, op = later
            try:
                tensor = ready()
            except Exception as error:
                failure = error if isinstance(error, AllReduceError) else AllReduceError(str(error) or repr(error))
                with self._queue.lock:
                    waiting = self._queue.take_waiting(place)
                    self._queue.close(f"an operation of this process could not begin before this one ({failure})")
                for work in waiting:
                    work.finish(failure)
            else:
                self._queue.fill(place, tensor, op)


_lanes_lock = threading.Lock()


def lane_of(reducer: Any) -> Lane:
    """Return the lane of this process to an agent; all states that use the agent share it."""
    with _lanes_lock:
        lane = getattr(reducer, "_inart_lane", None)
        if lane is None:
            lane = Lane(lambda tensor, op: reducer.allreduce_async(tensor, op))
            reducer._inart_lane = lane
        return lane


def close_lane(reducer: Any) -> None:
    """End the lane to this agent."""
    lane = getattr(reducer, "_inart_lane", None)
    if lane is not None:
        lane.close()
