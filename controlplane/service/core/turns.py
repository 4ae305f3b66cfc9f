"""The order in which jobs are replanned, when that is tried again, and what the log says about failures.

Pure: `service/replanning.py` plans, and reports the outcome here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

PAUSES = (1.0, 2.0, 5.0, 15.0, 30.0)
"""Seconds until jobs that could not be replanned are tried once more, after the first failure, the second and so on;
the last one repeats."""
SAME = 1e-6
"""Relative difference below which two rates are the same."""


@dataclass(frozen=True)
class Turns:
    """The state of replanning. `tries` counts how many times planning has failed for some job since it was last asked
    for; `said` has, by job, the failure that the log already has."""

    tries: int = 0
    said: Mapping[str, str] = field(default_factory=dict)

    @property
    def pause(self) -> float | None:
        """Seconds until the jobs are tried again; None where that happens only when something asks for it."""
        return PAUSES[min(self.tries, len(PAUSES)) - 1] if self.tries else None

    def asked(self) -> Turns:
        """Return the state after something has changed: what failed before may work now, so the pauses begin with the
        first one."""
        return replace(self, tries=0)

    def over(self, failures: Mapping[str, str]) -> tuple[Turns, list[str]]:
        """Return the state after all jobs were planned but those in `failures` (by name, why), and lines for the log,
        with each reason once."""
        lines = [f"job {name} was not replanned: {why}" for name, why in failures.items() if self.said.get(name) != why]
        return Turns(self.tries + 1 if failures else 0, dict(failures)), lines


@dataclass(frozen=True)
class Rate:
    """Mbit/s that a job has now, and that it was given when it was admitted."""

    now: float
    given: float

    @property
    def less(self) -> bool:
        """Whether the job has less than it was given."""
        return self.now < self.given * (1 - SAME)


def worst_first(rates: Mapping[str, Rate], late: Collection[str] = ()) -> list[str]:
    """Return the jobs in the order in which they are planned: those first that have the least of what they were given,
    and those last that could not be planned before (`late`)."""
    return sorted(rates, key=lambda name: (name in late, rates[name].now / max(rates[name].given, SAME)))


def in_two_steps(before: Mapping[str, float], wanted: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Divide jobs that migrate together into those that get less than before (or the same), which make room, and the
    others, which follow. Both are Mbit/s by job."""
    less = [name for name in before if wanted[name] <= before[name]]
    return less, [name for name in before if name not in less]


def goes_on(changed: bool, rates: Iterable[Rate]) -> bool:
    """Return whether planning once more may help: a job has migrated, which may have made room for one that has less
    than it was given."""
    return changed and any(rate.less for rate in rates)
