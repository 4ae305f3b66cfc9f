"""Chooses the steps until a round's result is mixed in: the fewest with which training never waits.

Mixing in late costs quality, and mixing in before the round is done makes training stand still. So the delay follows
measurements: how long rounds take from when they are sent, also behind others, and how long steps take. Each site may
have its own delay, since it determines when the site's own model gets the result, and not the result.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

FIRST = 5
"""The delay of the paper, in steps, for the first rounds, of which nothing is known."""

MARGIN = 1.1
"""A round is expected to take this many times as long as the longest of the last rounds."""

STEPS = 16


class Pace:
    """The delay of one site's rounds.

    Args:
        fragments: number of rounds in which the model travels.
        most: the largest delay, in steps.
    """

    def __init__(self, fragments: int, most: int) -> None:
        self._most, self._delay = most, min(FIRST, most)
        self._rounds: deque[float] = deque(maxlen=2 * fragments)
        self._steps: deque[float] = deque(maxlen=STEPS)

    def stepped(self, seconds: float) -> None:
        """Take note of the seconds of a step of training, without the time in which it waited for the network."""
        self._steps.append(seconds)

    def took(self, seconds: float) -> None:
        """Take note of the seconds between the sending of a round and its end."""
        self._rounds.append(seconds)

    def delay(self) -> int:
        """Return the delay, in steps, of the round that is sent now. It grows at once when rounds take longer; it
        becomes smaller by two steps or more only, so that it does not change with every small difference.
        """
        step = median(self._steps) if self._steps else 0.0
        if self._rounds and step > 0:
            wanted = min(self._most, math.ceil(MARGIN * max(self._rounds) / step))
            if wanted > self._delay or wanted < self._delay - 1:
                self._delay = wanted
        return self._delay
