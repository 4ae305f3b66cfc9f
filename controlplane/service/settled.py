"""Choice of the jobs that are replanned when one comes or goes: those far from their fair share, and not too many at a
time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

STEADY = 0.05
"""A job whose rate is so near to its fair share, as a part of that, keeps its plan."""
MOST = 8
"""Jobs that change in one step; what is left to do then comes in the steps after it."""


def unsettled(
    rates: Mapping[str, float], fair: Mapping[str, float], broken: Collection[str], steady: float = STEADY
) -> list[str]:
    """Jobs whose plans are to change: those that have more than their fair share before those that have less, which
    need room, and the farthest from it first. broken: in any case, and before the others. rates, fair: Mbit/s, of the
    same jobs."""

    def distance(name: str) -> float:
        larger, less = max(rates[name], fair[name]), min(rates[name], fair[name])
        return (larger - less) / larger if larger > 0 else 0.0

    far = [name for name in rates if name not in broken and distance(name) > steady]
    far.sort(key=lambda name: (rates[name] > fair[name], distance(name)), reverse=True)
    return [*(name for name in rates if name in broken), *far]
