"""Notices that links between sites have become faster, which rounds do not show: sites send at the rates of the plan.

Now and then all pairs of sites send at once for a moment, as they did at the end of the last survey: a *look*. The
bytes of looks stay within PROBED_PART of those that rounds have carried. Where a round runs meanwhile, the pairs carry
less: that can hide that a link is faster, and never makes it look so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from controlplane.common.numbers import short
from controlplane.planner.plan.task import Task

Pair = tuple[str, str]

PROBED_PART = 0.01
GROWN = 1.5
"""Factor by which a pair's rate must have grown for the network to be measured again. Smaller changes come and go by
themselves, and each survey holds rounds up.
"""

SHARED_PART = 0.5
"""Part of a pair's gain that all of its sender's pairs together, and all of its receiver's, must have gained, too.
Pairs that share a link take what others leave, so a pair alone may gain at the cost of another one.
"""


class Growth:
    """Keeps the account of the bytes that rounds carry, which pay for looks at the network, and finds links that have
    grown.

    Attributes:
        rates: what each pair carried when all sent at once (Mbit/s of payload); empty where that is not known.
    """

    def __init__(self) -> None:
        self.rates: dict[Pair, float] = {}
        self._allowed = 0.0  # bytes that looks may still send; below 0 after a look that took more

    def surveyed(self, together: Mapping[Pair, float]) -> None:
        """Take these rates of pairs of sites (Mbit/s of payload), measured all at once, as those to compare with."""
        self.rates = dict(together)

    def carried(self, task: Task) -> None:
        """Count the bytes of a task that is done: each edge of a tree has carried the tree's values."""
        self._allowed += PROBED_PART * sum(4 * tree.count * (len(tree.up) + len(tree.down)) for tree in task.trees)

    def due(self, seconds: float, sites: Collection[str], told: Collection[Pair]) -> list[Pair]:
        """Return the pairs to look at; none while the account does not allow that they send for `seconds` at the rates
        that they had last.

        Args:
            seconds: how long a look lasts.
            sites: the sites that are connected.
            told: pairs whose rates an operator has declared; they are left out.
        """
        pairs = [pair for pair in sorted(self.rates) if {*pair} <= {*sites} and pair not in told]
        return pairs if _bytes([self.rates[pair] for pair in pairs]) * seconds <= self._allowed else []

    def looked(self, now: Mapping[Pair, float], seconds: float) -> str | None:
        """Pay for a look in which pairs sent at once for `seconds`, at the rates `now` (Mbit/s). Return in words which
        link has grown; None where none has.
        """
        self._allowed -= _bytes(now.values()) * seconds
        both = sorted(now.keys() & self.rates.keys())
        for pair in both:
            gained = now[pair] - self.rates[pair]
            if now[pair] < GROWN * self.rates[pair]:
                continue
            sums = [sum(now[p] - self.rates[p] for p in both if p[end] == pair[end]) for end in (0, 1)]
            if min(sums) >= SHARED_PART * gained:
                return f"{pair[0]} -> {pair[1]} carries {short(now[pair])} Mbit/s instead of {short(self.rates[pair])}"
        return None


def _bytes(rates: Collection[float]) -> float:
    """Return the bytes that all of these rates (Mbit/s) together carry in a second."""
    return sum(rates) * 1e6 / 8
