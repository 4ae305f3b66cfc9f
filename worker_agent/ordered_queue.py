"""Starts operations in the order of their places, each as soon as all before it have started.

    submit           -> starts at once where no place is taken, else it gets the next place
    reserve ... fill -> a place first, its operation later: a tensor is not ready yet, or others' turns come before
    reserve ... skip -> a place that no operation gets: what is submitted meanwhile is held back

A process has such a queue (lane.py), a node that several trainers share (team.py), and each agent (relay.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from worker_agent.collectives import Collective
from worker_agent.errors import AbortedError, AllReduceError
from worker_agent.operands import operand
from worker_agent.work import Work


@dataclass(eq=False, slots=True)
class Place:
    """A place in the order.

    Attributes:
        work: the handle that the operation's caller got before it could start, if there is one.
        operation: the array, and what is done with it; None: the place is not filled yet.
    """

    work: Work | None = None
    operation: tuple[Any, Collective] | None = None


_Outcome = tuple[Work | None, Work | Exception]
"""The handle that an operation's caller got before it could start, and what `start` returned or raised."""


class OrderedQueue:
    """A queue of operations that start in one order.

    The caller of an operation that starts at once gets what `start` returns or raises, and otherwise a Work that ends
    as the operation does. An operation that cannot be (ValueError, TypeError) is passed over. Any other error with
    which one does not start ends the operations that wait behind it, too, with the same error; later ones are tried
    again.

    It is thread-safe. No Work ends while the lock is held, so callbacks may wait for other threads that submit.

    Args:
        start: starts an operation; it is called with the lock held.

    Attributes:
        lock: held while places are given and operations started; its owner may hold it to do more in one.
        closed: the reason for which the queue is closed; empty while it is not.
    """

    def __init__(self, start: Callable[[Any, Collective], Work]) -> None:
        self.lock = threading.RLock()  # an operation may end, and its callback come, while it is started
        self.closed = ""
        self._start = start
        self._places: deque[Place] = deque()

    def submit(self, array: Any, op: Collective) -> Work:
        """Submit an operation behind all others. Raise AbortedError when the queue is closed, TypeError or ValueError
        for an array that the operation cannot take.
        """
        with self.lock:
            if not self._places and not self.closed:
                return self._start(array, op)
            self._check()
            memory = operand(array, op)
            work = Work(memory.elements, memory.nbytes)
            self._places.append(Place(work, (array, op)))
            return work

    def reserve(self, work: Work | None = None) -> Place:
        """Return a place behind all others; those behind it wait until it is filled or skipped. `work` is the handle of
        the operation that will fill it, if the caller has made one. Raise AbortedError when the queue is closed.
        """
        with self.lock:
            self._check()
            place = Place(work)
            self._places.append(place)
            return place

    def fill(self, place: Place, array: Any, op: Collective) -> Work:
        """Give a place its operation, whose array the caller has checked. Raise what `submit` does, unless the place
        has a Work, which then ends with the error.
        """
        with self.lock:
            if place.work is None:
                self._check()
                if self._places[0] is not place:
                    memory = operand(array, op)
                    place.work = Work(memory.elements, memory.nbytes)
            place.operation = array, op
            outcomes = self._go_on()
        if place.work is not None:
            _tell(outcomes)
            return place.work
        (_, own), *others = outcomes
        _tell(others)
        if isinstance(own, Exception):
            raise own
        return own

    def skip(self, place: Place) -> None:
        """Give up a place, so that those behind it start. This does nothing where the place is not in the order."""
        with self.lock:
            if place in self._places:
                self._places.remove(place)
            outcomes = self._go_on()
        _tell(outcomes)

    def take_waiting(self, first: Place | None = None) -> list[Work]:
        """Remove the operations that wait, from place `first` on, and return their handles, which the caller ends when
        it does not hold the lock.
        """
        with self.lock:
            places, handles = list(self._places), []
            if first is not None:
                places = places[places.index(first) :] if first in places else []
            for place in places:
                if place.work is not None:
                    self._places.remove(place)
                    handles.append(place.work)
            return handles

    def close(self, reason: str) -> bool:
        """End the operations that wait, and all later ones, with AbortedError(reason). Return False, and do nothing,
        where the queue is closed already.
        """
        with self.lock:
            if self.closed:
                return False
            self.closed = reason
            waiting = self.take_waiting()
        for work in waiting:
            work.finish(AbortedError(reason))
        return True

    # -- with the lock held -------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.closed:
            raise AbortedError(self.closed)

    def _go_on(self) -> list[_Outcome]:
        """Start the operations up to the first place that is not filled."""
        outcomes: list[_Outcome] = []
        while self._places and (operation := self._places[0].operation) is not None:
            place = self._places.popleft()
            try:
                outcomes.append((place.work, self._start(*operation)))
            except (ValueError, TypeError) as error:
                outcomes.append((place.work, error))
            except Exception as error:
                outcomes += [(handle, error) for handle in (place.work, *self.take_waiting())]
        return outcomes


def _tell(outcomes: Iterable[_Outcome]) -> None:
    """Let the handles that callers got before end as their operations do."""
    for handle, outcome in outcomes:
        assert handle is not None, "only the caller of `fill` has none"
        if isinstance(outcome, Work):
            handle.follow(outcome)
        elif isinstance(outcome, AllReduceError):
            handle.finish(outcome)
        else:
            handle.finish(AllReduceError(str(outcome) or repr(outcome)))
