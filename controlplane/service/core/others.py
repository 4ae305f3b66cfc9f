"""Other traffic on the links, as plans make room for it: what switches count, without what comes and goes. Pure.

A link's part that plans leave to others follows what was measured only when that differs by STEP of the link for
HOLD_SECONDS, so that jobs change over when traffic has come or gone, and not at each burst.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

Link = tuple[str, str]

SMOOTH_SECONDS = 3.0
"""Time constant of the average of what was measured."""
STEP = 0.1
"""Part of a link's rate by which measurements must differ from what plans are made with; less than that is nothing."""
HOLD_SECONDS = 6.0
"""Seconds for which they must differ."""


@dataclass(frozen=True)
class OthersSeen:
    """Mbit/s of other traffic on each directed link that could be measured, since the last time."""

    mbps: Mapping[Link, float]


@dataclass(frozen=True)
class Others:
    """least: part of each link that plans are made for, whatever others take of it. smoothed: what was measured on
    average, Mbit/s. used: what plans leave to others. since: when a link's measurements began to differ from that.
    seen: when was last measured."""

    least: float
    smoothed: Mapping[Link, float] = field(default_factory=dict)
    used: Mapping[Link, float] = field(default_factory=dict)
    since: Mapping[Link, float] = field(default_factory=dict)
    seen: float = -math.inf


def decide(
    state: Others, event: OthersSeen, rates: Mapping[Link, float], now: float
) -> tuple[Others, dict[Link, float]]:
    """The state after a measurement, and the links of which plans leave another part to others from now on, with it.

    rates: of the network's links, Mbit/s. now: seconds of a clock that never goes back. A link that was not measured
    this time keeps what is known of it."""
    weight = 1.0 - math.exp((state.seen - now) / SMOOTH_SECONDS)
    smoothed = {link: mbps for link, mbps in state.smoothed.items() if link in rates}
    for link, mbps in event.mbps.items():
        if link in rates:
            before = smoothed.get(link, 0.0)
            smoothed[link] = before + weight * (mbps - before)
    since: dict[Link, float] = {}
    changed: dict[Link, float] = {}
    for link, mbps in smoothed.items():
        step = STEP * rates[link]
        level = min(mbps, (1.0 - state.least) * rates[link])
        if abs(level - state.used.get(link, 0.0)) < step:
            continue
        since[link] = state.since.get(link, now)
        if now - since[link] >= HOLD_SECONDS:
            changed[link] = level if level >= step else 0.0
            del since[link]
    used = {link: mbps for link, mbps in {**state.used, **changed}.items() if mbps > 0 and link in rates}
    return Others(state.least, smoothed, used, since, now), changed
