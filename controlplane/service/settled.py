"""Choice of the jobs that are replanned when one comes or goes: those far from their fair share, and only some at a
time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

STEADY = 0.05
"""Largest distance between a job's rate and its fair share, as a part of the larger one, at which the job keeps its
plan."""
MOST = 8
"""Most jobs that migrate in one step; the rest follows in later steps."""


def unsettled(
    rates: Mapping[str, float], fair: Mapping[str, float], broken: Collection[str], steady: float = STEADY
) -> list[str]:
    """Return the jobs whose plans are to change.

    Those in `broken` come first, in any case. Then come those that have more than their fair share, and last those that
    have less and need room, each time the farthest from it first. `rates` and `fair` are Mbit/s, of the same jobs.
    """

    def distance(name: str) -> float:
        larger, less = max(rates[name], fair[name]), min(rates[name], fair[name])
        return (larger - less) / larger if larger > 0 else 0.0

    far = [name for name in rates if name not in broken and distance(name) > steady]
    far.sort(key=lambda name: (rates[name] > fair[name], distance(name)), reverse=True)
    return [*(name for name in rates if name in broken), *far]
