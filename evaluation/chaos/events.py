"""Events of a run: the drawn schedule, the kinds of events, and the observed effect of each event."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from topologies.command import Say

AFTER_SECONDS = 6.0
"""Seconds after an event in which its consequences may still be felt."""


@dataclass(frozen=True)
class Event:
    """A planned event of the schedule.

    Attributes:
        at: seconds after the beginning of the run.
        target: a node, a link "V1-V2", or "" for the whole network.
        seed: seed of the event's own random choices.
    """

    number: int
    at: float
    seconds: float
    kind: str
    target: str = ""
    seed: int = 0

    @property
    def until(self) -> float:
        return self.at + self.seconds

    @property
    def name(self) -> str:
        return f"{self.kind} {self.target}".rstrip()

    @property
    def order(self) -> str:
        return self.name + (f" for {self.seconds:.1f} s" if self.seconds else "")

    def __str__(self) -> str:
        return f"{self.at:7.1f} s  {self.order}"


@dataclass(frozen=True)
class Kind:
    """A kind of event.

    Attributes:
        where: the kind of its target.
        seconds: minimum and maximum duration.
        waits: no job that needs the target can go on meanwhile: outages are counted from when the target is back.
        meaning: description for --help and the docs.
        needs_controller: only a controller recovers the network afterwards: it reroutes, or installs entries again.
        stops_controller: no controller acts during the event.
        lane: events of all kinds of a lane happen one after the other ("": concurrently with all others).
    """

    where: str
    seconds: tuple[float, float]
    waits: bool
    meaning: str
    needs_controller: bool = False
    stops_controller: bool = False
    lane: str = ""


@dataclass
class Happening:
    """An event as it happened.

    Attributes:
        event: the event.
        began, ended: times of time.monotonic(); `ended` is inf until it has ended.
        happened: whether its effect was seen; None where it has not been tried yet.
        evidence: the observations by which its effect was seen.
        outage: the longest time that a job stood still because of it, in seconds.
        jobs: jobs that cannot go on while it lasts.
        problem: why it could not be made to happen, in words.
    """

    event: Event
    began: float = float("inf")
    ended: float = float("inf")
    happened: bool | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    outage: float = 0.0
    jobs: frozenset[str] = frozenset()
    problem: str = ""

    def felt(self, start: float, end: float) -> bool:
        return self.began < end and start < self.ended + AFTER_SECONDS


Steps = Iterator[None]
"""Steps of an event: it has begun when the first step is done; the code after the `yield` ends it."""
Act = Callable[[Happening], Steps]
"""A function that makes an event happen, and records whether its effect was seen."""


def happen(one: Happening, act: Act, over: threading.Event, say: Say) -> None:
    """Make an event happen, and end it after its duration, or as soon as the run is over. An error is a finding."""
    event = one.event
    one.began = time.monotonic()
    say(event.order)
    try:
        steps = act(one)
        next(steps)
        over.wait(max(0.0, one.began + event.seconds - time.monotonic()))
        next(steps, None)
    except Exception as error:  # of the emulation, or of a process that has ended
        one.problem = f"{type(error).__name__}: {error}"
        one.happened = bool(one.happened)
        say(f"{event.name}: {one.problem}")
    one.ended = time.monotonic()


def described(kinds: Mapping[str, Kind]) -> str:
    """Return all kinds in words, one line per kind."""
    return "\n".join(f"  {name:16}{kind.meaning}" for name, kind in kinds.items())
