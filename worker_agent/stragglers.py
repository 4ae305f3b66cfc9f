"""Decides what a rank contributes to each sum of a job that does not wait for stragglers; without threads, clocks or
tensors.

A sum of n contributions needs all n, in the switches as everywhere: a sum that is closed early would have to be taken
out of every switch on the way, as one packet a worker. So no sum is closed early. Instead each rank has a *stand-in*, a
thread in the rank's process: when the others wait and the rank has not arrived by a deadline, the stand-in contributes
in its place, with the weight 0, and the sum is completed as usual. The gradient that comes too late is *carried*: it is
added to the rank's next contribution, or is what the stand-in contributes next. A contribution is a sum of `weight`
gradients; the weights are added up beside the gradients, and the mean is the sum over the sum of the weights. So every
gradient that is computed is in exactly one mean, and has the same weight in it as all others.

`python -m tests.model.straggler_search` explores all orders of events of these rules.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from typing import Any

SPREAD_OF_MEDIAN = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation."""


class Turns:
    """The sums of one rank in their order. It is not thread-safe.

    Sum `position` is of bucket `position % buckets` of a step.

    Args:
        buckets: number of sums of a step.
        most_behind: the most steps that the rank itself has not finished to which the stand-in contributes; after that
            the others wait for the rank.

    Attributes:
        own: the first sum that the rank itself has not arrived at.
        next: the first sum to which nobody has contributed for this rank; never before `own`.
    """

    def __init__(self, buckets: int, most_behind: int) -> None:
        self.buckets, self._most_behind = buckets, most_behind
        self.own = self.next = 0
        self.carried: dict[int, tuple[Any, int]] = {}

    @property
    def is_behind(self) -> bool:
        """Whether the stand-in has contributed to sums that the rank has not arrived at."""
        return self.own < self.next

    def arrive(self, gradient: Any) -> tuple[Any, int] | None:
        """Take the rank's gradient for sum `own`, and return its contribution and that one's weight.

        Return None where the stand-in has contributed to this sum before; the gradient is carried.
        """
        bucket, behind = self.own % self.buckets, self.is_behind
        self.own += 1
        value, weight = self.carried.pop(bucket, (None, 0))
        value, weight = gradient if value is None else value + gradient, weight + 1
        if behind:
            self.carried[bucket] = value, weight
            return None
        self.next = self.own
        return value, weight

    @property
    def may_stand_in(self) -> bool:
        """Whether the stand-in may contribute to sum `next`."""
        return self.next // self.buckets - self.own // self.buckets < self._most_behind

    def stand_in(self) -> tuple[Any, int]:
        """Return the stand-in's contribution to sum `next`: the carried gradients (None where there are none) and their
        weight.
        """
        value, weight = self.carried.pop(self.next % self.buckets, (None, 0))
        self.next += 1
        return value, weight

    def skip(self) -> range:
        """Pass over a step whose sums all have been contributed to, and return these sums.

        Return an empty range where there is no such step, or the rank has begun it.
        """
        if self.own % self.buckets or self.next < self.own + self.buckets:
            return range(0)
        first, self.own = self.own, self.own + self.buckets
        return range(first, self.own)


class Patience:
    """The rule for how long a rank that has not arrived is waited for, once enough others have.

    The time is some deviations of the times that ranks lately took, and the same on all ranks.

    Args:
        deviations: how many deviations.
        least: the fraction of the median time that is waited in any case: where all ranks take the same time, the
            deviation says nothing.
        sums: number of sums whose times are remembered.
    """

    def __init__(self, deviations: float, least: float = 0.1, sums: int = 100) -> None:
        self._deviations, self._least = deviations, least
        self._seconds: deque[tuple[float, ...]] = deque(maxlen=sums)
        self._found: tuple[float, float] | None = 0.0, 0.0  # median and seconds, as far as they are known

    def note(self, seconds: Sequence[float]) -> None:
        """Take note of the seconds of the ranks that were on time for a sum, from the results of the step before it."""
        if seconds:
            self._seconds.append(tuple(seconds))
            self._found = None

    @property
    def median(self) -> float:
        """The seconds that ranks take; 0 where no times are known."""
        return self._find()[0]

    @property
    def seconds(self) -> float:
        """The seconds that the others wait for a rank, once they are there."""
        return self._find()[1]

    def _find(self) -> tuple[float, float]:
        if self._found is None:
            usual = statistics.median(max(times) for times in self._seconds)
            middles = [statistics.median(times) for times in self._seconds]
            away = [abs(one - middle) for times, middle in zip(self._seconds, middles, strict=True) for one in times]
            spread = SPREAD_OF_MEDIAN * statistics.median(away)
            self._found = usual, max(self._deviations * spread, self._least * usual)
        return self._found
