"""Limits of planning, of time or of work, and listeners for results on the way.

A search asks `deadline()` between two steps, and ends with the best so far once it has passed. Where there is no result
yet, `check` raises OutOfTime, up to a caller that has a plan, or can make one quickly.

The command line limits time (--time-limit, Ctrl-C), and shows what is reported. A plan that time cut short is marked,
since it depends on the machine. Searches limit themselves by work (`limited_work`), and so end at the same step on
every machine, however busy it is. Unless a limit is set, no deadline passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Report = Callable[[str, float, float], None]  # (what is being done, best rate so far, bound), Mbit/s
Clock = Callable[[], float]  # seconds

SECOND = 1e8
"""Units of work that take about a second of processor time: a simplex iteration is as many as its program has entries
that are not 0 (measured: 0.6e8 to 2.7e8 a second), and other steps count about as long as they take.
"""


class OutOfTime(Exception):
    """The deadline passed in the middle of a step that is worth nothing by half."""


class Deadline:
    """A limit of time, of work, or of both, from its making on.

    Args:
        seconds: Seconds until it passes; None for no limit.
        work: Units of work (`spend`) until it passes; None for no limit.
        outer: A deadline around this one, which never ends later than that. It counts the same work.
    """

    def __init__(
        self,
        seconds: float | None = None,
        report: Report | None = None,
        *,
        clock: Clock = time.monotonic,
        work: float | None = None,
        outer: Deadline | None = None,
    ) -> None:
        self.clock, self._outer = clock, outer
        self._end = None if seconds is None else clock() + seconds
        self._work = work
        self._report = report
        self._stopped = False
        self.cut_short = False
        """Whether a search has ended early because time was over."""

    @property
    def left(self) -> float | None:
        """The seconds that are left; None for no limit."""
        if self._stopped:
            return 0.0
        own = None if self._end is None else max(0.0, self._end - self.clock())
        return _least(own, None if self._outer is None else self._outer.left)

    @property
    def wall_left(self) -> float | None:
        """The seconds that are left of wall time, which other processes take, too; None where no limit counts it."""
        if self._stopped:
            return 0.0
        counts = self._end is not None and self.clock is time.monotonic
        own = max(0.0, self._end - self.clock()) if counts and self._end is not None else None
        return _least(own, None if self._outer is None else self._outer.wall_left)

    @property
    def work_left(self) -> float | None:
        """The units of work that are left; None for no limit."""
        return _least(self._work, None if self._outer is None else self._outer.work_left)

    def spend(self, work: float) -> None:
        """Count so many units of work."""
        if self._work is not None:
            self._work = max(0.0, self._work - work)
        if self._outer is not None:
            self._outer.spend(work)

    def passed(self) -> bool:
        """Return whether the caller has to end now; if that is because of the time, take note that it does."""
        over = self.left == 0.0
        self.cut_short |= over
        return over or self.work_left == 0.0

    def check(self) -> None:
        """Check that the deadline has not passed; raise OutOfTime otherwise."""
        if self.passed():
            raise OutOfTime

    def stop(self) -> None:
        """Make the deadline pass at once."""
        self._stopped = True

    def report(self, what: str, rate_mbps: float, bound_mbps: float) -> None:
        if self._report is not None:
            self._report(what, rate_mbps, bound_mbps)


def _least(own: float | None, around: float | None) -> float | None:
    return own if around is None else around if own is None else min(own, around)


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


def deadline() -> Deadline:
    """Return the present deadline; one without a limit where none is set."""
    return _current.get() or Deadline()


@contextmanager
def _set(limit: Deadline, outer: Deadline | None) -> Iterator[Deadline]:
    token = _current.set(limit)
    try:
        yield limit
    finally:
        _current.reset(token)
        if outer is not None:
            outer.cut_short |= limit.cut_short


@contextmanager
def limited_time(
    seconds: float | None = None, report: Report | None = None, *, clock: Clock = time.monotonic
) -> Iterator[Deadline]:
    """Set the deadline for the code inside of the block; it is never later than one that is set already."""
    outer = _current.get()
    with _set(Deadline(seconds, report, clock=clock, outer=outer), outer) as limit:
        yield limit


@contextmanager
def limited_work(work: float) -> Iterator[Deadline]:
    """Limit the work of the code inside of the block; it ends no later than a deadline that is set already."""
    outer = deadline()
    with _set(Deadline(clock=outer.clock, work=work, outer=outer), outer) as limit:
        yield limit


@contextmanager
def part_of_time(part: float) -> Iterator[Deadline]:
    """Give a search a deadline after this part of the time that is left, as working up its result takes time, too."""
    outer = deadline()
    left = outer.left
    if left is None:
        yield outer
        return
    with limited_time(left * part, outer.report, clock=outer.clock) as limit:
        try:
            yield limit
        except OutOfTime:  # a solver may have ended because of it, without noting that
            limit.cut_short |= limit.left == 0.0
            raise


@contextmanager
def without_deadline() -> Iterator[None]:
    """Let no deadline end the code inside of the block, which takes little time and whose result is needed."""
    token = _current.set(Deadline())
    try:
        yield
    finally:
        _current.reset(token)
