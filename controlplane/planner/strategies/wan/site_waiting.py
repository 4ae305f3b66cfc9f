"""Waiting times of the sites in a round for each other (site_rounds.py has the rules)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf

from controlplane.planner.plan.task import Task
from controlplane.planner.strategies.wan.policy import Ready

HALF, LATE = 0.5, 0.75
"""Parts of a round's time after which no site waits any longer for sites that say nothing at all, and for those that
live and have submitted nothing. The rest of the time is for the round.
"""


@dataclass(frozen=True)
class Submitted:
    """A submission that no task contains yet; its site waits for it until the time `ends`."""

    ready: Ready
    ends: float


@dataclass
class Running:
    """A task under way.

    Attributes:
        task: The task.
        waiting: Participants that wait for its result.
        half: The time at which half of the round's time is over.
        version: Version of the planner's knowledge from which the task was made.
        have: Participants that have the result.
        slow: Whether half of the time has passed and no participant was silent.
    """

    task: Task
    waiting: set[str]
    half: float
    version: int
    have: set[str] = field(default_factory=set)
    slow: bool = False


class Waiting:
    """Submissions of one round that wait, for other sites or for measurements.

    Attributes:
        patience: As for SiteRounds.
        silent: Sites that are connected and say nothing.
        since: When the first of the submissions that wait at present came; None where none waits.
    """

    def __init__(self, patience: float | None) -> None:
        self.patience = patience
        self.silent: frozenset[str] = frozenset()
        self.since: float | None = None

    def deadline(self, heads: dict[str, Submitted], awaited: Collection[str]) -> float:
        """Return the time at which half of the sites that live will have waited for as long as they do; infinity where
        fewer have submitted yet. `heads` has the submissions that wait, by site, `awaited` the sites that take part if
        they come.
        """
        half = (len((set(awaited) - self.silent) | heads.keys()) + 1) // 2
        ends = sorted(head.ends for head in heads.values())
        return ends[half - 1] if len(ends) >= half else inf

    def passed(self, part: float, heads: dict[str, Submitted], awaited: Collection[str], now: float) -> bool:
        """Return whether this part of the round's time is over, which began when the first of these submissions
        came.
        """
        assert self.since is not None, "a submission waits"
        return now >= self.since + part * (self.deadline(heads, awaited) - self.since)

    def complete(
        self, heads: dict[str, Submitted], sites: Collection[str], awaited: Collection[str], now: float
    ) -> bool | None:
        """Return whether all sites that have agreed on the scales of a round have submitted what they add now
        (`heads`); None where the others may still come, as they are awaited; False where they never will.
        """
        if not heads.keys() <= set(sites) or any(site not in heads and site not in awaited for site in sites):
            return False
        if heads.keys() == set(sites):
            return True
        return False if self.passed(HALF, heads, sites, now) else None

    def goes_on(self, heads: dict[str, Submitted], awaited: Collection[str], now: float) -> bool:
        """Return whether the round still waits for those of the awaited sites that have submitted nothing."""
        assert self.since is not None, "a submission waits"
        missing = set(awaited) - heads.keys()
        if not missing or (self.patience is not None and now >= self.since + self.patience):
            return False
        return not self.passed(HALF if self.silent >= missing else LATE, heads, awaited, now)
