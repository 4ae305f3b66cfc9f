"""The order in which jobs are replanned, when they are tried again, and what is said about those that could not be.

Pure: `service/replanning.py` plans, and tells this what came of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

PAUSES = (1.0, 2.0, 5.0, 15.0, 30.0)
"""Seconds until jobs that could not be planned again are tried once more; the last from then on."""
SAME = 1e-6
"""Rates that differ by less than this part are the same."""


@dataclass(frozen=True)
class Turns:
    """tries: how often planning has failed for some job since it was last asked for. said: by job, why."""

    tries: int = 0
    said: Mapping[str, str] = field(default_factory=dict)

    @property
    def pause(self) -> float | None:
        """Seconds until the jobs are tried again; None: only when something asks for it."""
        return PAUSES[min(self.tries, len(PAUSES)) - 1] if self.tries else None

    def asked(self) -> Turns:
        """Something has changed: whatever failed before may go now."""
        return replace(self, tries=0)

    def over(self, failures: Mapping[str, str]) -> tuple[Turns, list[str]]:
        """Return the state in which all were planned but these (why, by name), and lines for the log: each reason
        once."""
        lines = [
            f"job {name} was not planned again: {why}" for name, why in failures.items() if self.said.get(name) != why
        ]
        return Turns(self.tries + 1 if failures else 0, dict(failures)), lines


@dataclass(frozen=True)
class Rate:
    """Mbit/s that a job has, and that it was given."""

    now: float
    given: float

    @property
    def less(self) -> bool:
        """Whether the job has less than it was given."""
        return self.now < self.given * (1 - SAME)


def worst_first(rates: Mapping[str, Rate], late: Collection[str] = ()) -> list[str]:
    """Jobs in the order in which they are planned: those first that have the least of what they were given, and those
    last (`late`) that could not be planned before."""
    return sorted(rates, key=lambda name: (name in late, rates[name].now / max(rates[name].given, SAME)))


def in_two_steps(before: Mapping[str, float], wanted: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Divide jobs that migrate together into those that get less (or the same), which make room, and the others."""
    less = [name for name in before if wanted[name] <= before[name]]
    return less, [name for name in before if name not in less]


def goes_on(changed: bool, rates: Iterable[Rate]) -> bool:
    """Return whether planning once more may help: a job has changed over, which may have made room for one that has
    less than it was given."""
    return changed and any(rate.less for rate in rates)
