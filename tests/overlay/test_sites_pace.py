"""The delay of Streaming DiLoCo's fragments, in virtual time: training never waits, and results come no later than that
takes.
"""

from __future__ import annotations

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.sites.pace import MARGIN, Pace
from tests.support.examples import examples

EVERY = 100
HEARD = -1.0
"""When a round was sent of which the site knows already how long it took."""


class Virtual:
    """A site that trains, and a network that does one round after the other."""

    def __init__(self, fragments: int, seed: int) -> None:
        self.interval, self.pace, self.rng = EVERY // fragments, Pace(fragments, EVERY - 1), random.Random(seed)
        self.fragments, self.now, self.steps, self.free = fragments, 0.0, 0, 0.0
        self.pending: list[tuple[int, float, float]] = []  # (due step, sent, done), in seconds
        self.delays: list[int] = []

    def train(self, rounds: int, step: float, seconds: float) -> tuple[float, float]:
        """Send so many rounds; returns which part of the time training stood still, and the network was busy."""
        began, stood, busy = self.now, 0.0, 0.0
        for number in range(rounds * self.interval):
            took = step * self.rng.uniform(0.98, 1.02)
            self.now += took
            self.steps += 1
            self.pace.stepped(took)
            for index, (due, sent, done) in enumerate(self.pending):
                if done <= self.now and sent > HEARD:
                    self.pace.took(done - sent)
                    self.pending[index] = due, HEARD, done
            if (number + 1) % self.interval == 0:
                takes = seconds * self.rng.uniform(0.97, 1.0)
                self.free = max(self.now, self.free) + takes
                busy += takes
                self.delays.append(self.pace.delay())
                self.pending.append((self.steps + self.delays[-1], self.now, self.free))
            while self.pending and self.pending[0][0] <= self.steps:
                _, sent, done = self.pending.pop(0)
                stood += max(0.0, done - self.now)
                self.now = max(self.now, done)
                if sent > HEARD:
                    self.pace.took(done - sent)
        return stood / (self.now - began), busy / (self.now - began)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from([1, 2, 4, 5]), st.floats(0.01, 2.0), st.lists(st.floats(0.02, 0.8), min_size=2, max_size=4),
    st.integers(0, 99),
)  # fmt: skip
def test_training_stands_still_for_no_round_and_results_are_no_later_than_they_must(fragments, step, fills, seed):
    """fills: the parts of the time between two rounds that a round takes, one network after the other."""
    site = Virtual(fragments, seed)
    for fill in fills:
        seconds = fill * site.interval * step
        site.train(3 * fragments + 1, step, seconds)  # it learns what the network is like now
        before = len(site.delays)
        stood, busy = site.train(4 * fragments, step, seconds)
        assert stood == 0.0
        least = seconds / step
        assert all(0.95 * least <= delay <= math.ceil(1.03 * MARGIN * least) + 1 for delay in site.delays[before:])
        assert busy >= 0.95 * fill


def test_a_network_that_hardly_changes_does_not_change_the_delay():
    site = Virtual(4, 1)
    site.train(9, 0.1, 1.04)
    before = len(site.delays)
    for seconds in (1.0, 1.04, 0.98, 1.04):
        site.train(8, 0.1, seconds)
    assert len(set(site.delays[before:])) == 1


def test_the_delay_is_never_longer_than_a_fragments_turn():
    pace = Pace(4, 9)
    for _ in range(8):
        pace.stepped(0.1)
        pace.took(60.0)
    assert pace.delay() == 9


def test_the_delay_lasts_for_the_longest_of_the_last_rounds():
    pace = Pace(2, EVERY)
    for seconds in (1.0, 3.0, 1.0):
        pace.stepped(0.1)
        pace.took(seconds)
    assert 30 <= pace.delay() <= 34
    for _ in range(3):
        pace.took(1.0)
    assert 10 <= pace.delay() <= 12, "the long round is none of the last four"
