"""Other traffic on the links, as plans make room for it: what switches count, smoothed. Pure.

The part of a link that plans leave to other traffic follows the measurements only when these differ from it by STEP of
the link's rate for HOLD_SECONDS, so that jobs migrate when traffic has come or gone, and not at each burst.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

Link = tuple[str, str]

SMOOTH_SECONDS = 3.0
"""Time constant of the exponential average of the measurements."""
STEP = 0.1
"""Part of a link's rate by which measurements must differ from what plans leave to others; smaller differences are
ignored."""
HOLD_SECONDS = 6.0
"""Seconds for which measurements must differ by STEP before plans follow them."""


@dataclass(frozen=True)
class Others:
    """Knowledge about other traffic on the links.

    Attributes:
        least: the part of each link that plans may use, whatever others take of it.
        smoothed: the average of the measurements, Mbit/s.
        used: what plans leave to others, Mbit/s.
        since: when a link's measurements began to differ from `used`, in seconds.
        seen: when the last measurement was made, in seconds.
    """

    least: float
    smoothed: Mapping[Link, float] = field(default_factory=dict)
    used: Mapping[Link, float] = field(default_factory=dict)
    since: Mapping[Link, float] = field(default_factory=dict)
    seen: float = -math.inf


def decide(
    state: Others, measured: Mapping[Link, float], rates: Mapping[Link, float], now: float
) -> tuple[Others, dict[Link, float]]:
    """Return the state after a measurement, and the links of which plans leave another part to others from now on, with
    it.

    `measured` is the Mbit/s of other traffic on each directed link that could be measured, on average since the last
    measurement. `rates` are those of the network's links, in Mbit/s. `now` is in seconds, of a clock that never goes
    back. A link that was not measured this time keeps what is known of it.
    """
    weight = 1.0 - math.exp((state.seen - now) / SMOOTH_SECONDS)
    smoothed = {link: mbps for link, mbps in state.smoothed.items() if link in rates}
    for link, mbps in measured.items():
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
