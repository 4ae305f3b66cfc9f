"""Rules for how long a switch or a link is disabled: when it counts as lost, and when it is used again.

Pure: each function takes what is known (`Trust`) and what is seen now, and returns the new knowledge and what is to be
done.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from controlplane.service.core.disabled import Why

LOST_SECONDS = 0.3
"""Seconds for which a switch may be away before it counts as lost. One that restarts faster is filled again, and
nothing else happens."""
STEADY_SECONDS = 30.0
"""Seconds for which a switch must answer, or a lost parameter server must be back, before it is used again; for a
server twice as long after each further loss."""
PROBATION_SECONDS = 60.0
"""Seconds for which a silent link or switch is disabled at first; twice as long each time that it is silent again."""
LONGEST_PROBATION_SECONDS = 3600.0
NO_WAY_SECONDS = 1.0
"""Seconds for which a silent link or switch without which a job has no way is disabled, since trying it is better than
giving up; twice as long each time that it is still silent."""
LONGEST_NO_WAY_SECONDS = 4.0


@dataclass(frozen=True)
class Probation:
    """Probation of a link or switch that was silent: since when it is disabled, and for how many seconds (`pause`).
    `early` counts how many times it was used before that time was over, because a job had no other way."""

    since: float
    pause: float
    early: int = 0


@dataclass(frozen=True)
class Trust:
    """Knowledge about switches and links that failed.

    Attributes:
        away: by switch, since when it has not answered, in seconds.
        back: by switch, since when it has answered again, in seconds.
        probation: by link or switch that was silent; the entry stays while it is tried again.
    """

    away: Mapping[str, float] = field(default_factory=dict)
    back: Mapping[str, float] = field(default_factory=dict)
    probation: Mapping[str, Probation] = field(default_factory=dict)

    def may_carry(self, off: Mapping[str, Why], up: Iterable[str], now: float) -> list[str]:
        """Return what is disabled and may work again, the likeliest first: switches that answer, links whose ports are
        up (`up`), and then what has been silent longest."""
        answering = [name for name, why in off.items() if why == Why.LOST and name in self.back]
        since: dict[str, float] = {}
        for name in (name for name, why in off.items() if why == Why.SILENT):
            one = self.probation.get(name, Probation(now, PROBATION_SECONDS))
            if now - one.since >= min(NO_WAY_SECONDS * 2**one.early, LONGEST_NO_WAY_SECONDS):
                since[name] = one.since
        return [*answering, *up, *sorted(since, key=lambda name: since[name])]


def look_at_switches(
    trust: Trust,
    ready: Mapping[str, bool],
    off: Mapping[str, Why],
    now: float,
    *,
    timed_out: Collection[str] = (),
    prompt: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Trust, list[str], list[str]]:
    """Return the new state after all switches were asked whether they answer (`ready`), the switches that are lost now,
    and those that are to be used again.

    A switch that did not answer in time (`timed_out`) is lost only if most of the others were asked since then
    (`prompt`: when they were asked) and have answered at once. Otherwise this controller, or its network, is slow, and
    rerouting every job around switches that work would make that worse.
    """
    away = {name: trust.away.get(name, now) for name, answers in ready.items() if not answers}
    back = {name: trust.back.get(name, now) for name, answers in ready.items() if answers}
    others = [prompt.get(name, -math.inf) for name, answers in ready.items() if answers]

    def confirmed(name: str, since: float) -> bool:
        return name not in timed_out or len(ready) == 1 or 2 * sum(asked > since for asked in others) > len(others)

    lost = [
        name
        for name, since in away.items()
        if now - since >= LOST_SECONDS and name not in off and confirmed(name, since)
    ]
    steady = [name for name, since in back.items() if off.get(name) == Why.LOST and now - since >= STEADY_SECONDS]
    return replace(trust, away=away, back=back), lost, steady


def found_silent(trust: Trust, names: Iterable[str], now: float) -> Trust:
    """Take note that packets went into these, and none came out. `set_probation` says for how long they are
    disabled."""
    found = {name: replace(trust.probation.get(name, Probation(now, 0.0)), since=now) for name in names}
    return replace(trust, probation={**trust.probation, **found})


def set_probation(trust: Trust, names: Iterable[str], every_job_has_a_way: bool) -> Trust:
    """Set for how long something that was just found silent is disabled, and return the new state. What was tried early
    has not waited its time, so its time stays the same."""
    least = PROBATION_SECONDS if every_job_has_a_way else NO_WAY_SECONDS
    probation = dict(trust.probation)
    for name in names:
        one = probation[name]
        if not one.early:
            probation[name] = replace(one, pause=min(max(2 * one.pause, least), LONGEST_PROBATION_SECONDS))
    return replace(trust, probation=probation)


def tried_early(trust: Trust, names: Collection[str]) -> Trust:
    """Note that these are used before their probation ends, because a job has no other way."""
    again = {name: replace(one, early=one.early + 1) for name, one in trust.probation.items() if name in names}
    return replace(trust, probation={**trust.probation, **again})


def end_probation(trust: Trust, off: Mapping[str, Why], now: float) -> tuple[Trust, dict[str, float]]:
    """Return the new state, and what is to be tried again, with the seconds for which it was disabled: only a job's own
    packets tell whether it works. What has worked for twice that time is trusted like any other, and its probation
    forgotten. A pause of 0 is not set yet (`set_probation`).
    """
    over = {
        name: one.pause
        for name, one in trust.probation.items()
        if one.pause and now >= one.since + one.pause and off.get(name) == Why.SILENT
    }
    kept = {
        name: one
        for name, one in trust.probation.items()
        if not one.pause or now < one.since + 3 * one.pause or name in off
    }
    return replace(trust, probation=kept), over


def used_again(trust: Trust, name: str, why: Why, now: float) -> str:
    """Return, in words, when a switch or link that is disabled for this reason is used again."""
    if why == Why.LOST and name in trust.back:
        return f"it answers again, and is used in {_left(trust.back[name] + STEADY_SECONDS, now)} s"
    if why == Why.LOST:
        return f"it is used again when it has answered for {STEADY_SECONDS:g} s"
    if why == Why.SILENT and name in trust.probation:
        one = trust.probation[name]
        return f"it is tried again in {_left(one.since + one.pause, now)} s"
    return "it stays disabled until an operator enables it"


def _left(end: float, now: float) -> int:
    return max(1, math.ceil(end - now))


def seconds_until_steady(losses: int) -> float:
    """Return for how many seconds a parameter server that was lost so many times must be back before it is used."""
    return min(STEADY_SECONDS * 2 ** max(losses - 1, 0), LONGEST_PROBATION_SECONDS)
