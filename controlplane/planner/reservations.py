"""Reservations: jobs that are to be added at a later time, with the terms that they are promised for then."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from controlplane.common.log_lines import clock
from controlplane.planner.job import Job
from controlplane.planner.terms import Terms

LATEST_SECONDS = 366 * 86400.0
"""Most seconds from now until a reservation begins."""


@dataclass(frozen=True)
class Reservation:
    """A job from `start` to `until`. Raises ValueError where it ends before it begins, or its notice is no number of
    seconds.

    Attributes:
        start: When it begins, in seconds since 1970.
        until: When it ends, in seconds since 1970; infinity for as long as the job runs.
        notice: How many seconds before it begins the jobs that give way to it are told.
        preempt: Whether jobs of a lower priority are removed where it is not admitted beside them.
        told: Whether those jobs have been told.
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
        """The job's name."""
        return self.job.name

    def overlaps(self, other: Reservation) -> bool:
        """Return whether there is a time at which both reservations hold."""
        return self.start < other.until and other.start < self.until

    def gives_way(self, terms: Terms) -> bool:
        """Return whether a job with these terms gives way to this reservation, as it has a lower priority."""
        return terms.priority < self.terms.priority

    def __str__(self) -> str:
        return f"{self.name} from {clock(self.start)}" + (f" until {clock(self.until)}" if self.ends else "")

    @property
    def ends(self) -> bool:
        """Whether the reservation has an end."""
        return self.until < math.inf

    def to_json(self) -> dict[str, Any]:
        """Return the reservation as a JSON object."""
        data = {key: value for key, value in vars(self).items() if key not in ("job", "terms", "until")}
        terms = {key: value for key, value in asdict(self.terms).items() if value != ""}
        return data | {"job": self.job.to_json(), "terms": terms, "until": self.until if self.ends else None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reservation:
        """Return the reservation that `to_json` wrote. Raise ValueError, LookupError or TypeError for anything else."""
        until = data["until"]
        given = {**data, "job": Job.from_json(data["job"]), "terms": Terms(**data["terms"])}
        return cls(**given | {"until": math.inf if until is None else until})


def beside(reservation: Reservation, others: Iterable[Reservation]) -> list[Reservation]:
    """Return those of `others` that hold at a time of this reservation and do not give way to it."""
    return [one for one in others if one.overlaps(reservation) and not reservation.gives_way(one.terms)]
