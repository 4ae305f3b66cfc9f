"""Reservations: jobs that are to be added at a time to come, with what they are promised then."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from controlplane.common.times import clock
from controlplane.planner.job import Job
from controlplane.planner.terms import Terms

LATEST_SECONDS = 366 * 86400.0
"""Most seconds from now until a reservation begins."""


@dataclass(frozen=True)
class Reservation:
    """A job from `start` to `until` (seconds since 1970; inf: as long as it runs).

    notice: so many seconds before it begins, those that give way are told. preempt: jobs of a lower priority are taken
    off where it is not admitted beside them. told, running: how far it is. Raises ValueError for times that are none.
    """

    job: Job
    strategy: str
    seed: int
    terms: Terms
    start: float
    until: float = math.inf
    notice: float = 0.0
    preempt: bool = False
    told: bool = False
    running: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.start) or not self.until > self.start:
            raise ValueError(f"a reservation ends after it begins: {self}")
        if not 0 <= self.notice < math.inf:
            raise ValueError(f"a notice is a number of seconds, got {self.notice}")

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self.job.name

    def overlaps(self, other: Reservation) -> bool:
        """Return whether both hold at some time."""
        return self.start < other.until and other.start < self.until

    def gives_way(self, terms: Terms) -> bool:
        """Return whether a job with these terms gives way to it."""
        return terms.priority < self.terms.priority

    def __str__(self) -> str:
        return f"{self.name} from {clock(self.start)}" + (f" until {clock(self.until)}" if self.ends else "")

    @property
    def ends(self) -> bool:
        """Return whether it has an end."""
        return self.until < math.inf

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        data = {key: value for key, value in vars(self).items() if key not in ("job", "terms", "until")}
        terms = {key: value for key, value in asdict(self.terms).items() if value != ""}
        return data | {"job": self.job.to_json(), "terms": terms, "until": self.until if self.ends else None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reservation:
        """Return what to_json gave. Raises ValueError, LookupError, TypeError."""
        until = data["until"]
        given = {**data, "job": Job.from_json(data["job"]), "terms": Terms(**data["terms"])}
        return cls(**given | {"until": math.inf if until is None else until})


def beside(reservation: Reservation, others: Iterable[Reservation]) -> list[Reservation]:
    """Return those of others that hold while it does, and do not give way to it."""
    return [one for one in others if one.overlaps(reservation) and not reservation.gives_way(one.terms)]
