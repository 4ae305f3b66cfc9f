"""The rules for stragglers: every order of events, mistakes that the search finds, and the deadline."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.straggler_search import Found, search
from worker_agent.stragglers import Patience, Turns


@pytest.mark.parametrize(
    ("ranks", "buckets", "steps", "most_behind", "quorum"), [(2, 1, 3, 1, 1), (2, 2, 2, 2, 1), (3, 1, 2, 2, 2)]
)
def test_no_order_of_events_makes_a_wrong_sum(
    ranks: int, buckets: int, steps: int, most_behind: int, quorum: int
) -> None:
    assert search(ranks, buckets, steps, most_behind=most_behind, quorum=quorum) > 100


class LosesTheLate(Turns):
    """A mistake: the stand-in gives the weight of what is carried, and not its values."""

    def stand_in(self) -> tuple[Any, int]:
        _, weight = super().stand_in()
        return None, weight


class ForgetsWeights(Turns):
    """A mistake: a contribution with a carried gradient in it counts as one gradient."""

    def arrive(self, gradient: Any) -> tuple[Any, int] | None:
        contribution = super().arrive(gradient)
        return None if contribution is None else (contribution[0], 1)


class GivesTwice(Turns):
    """A late gradient is carried, and is contributed as if it were on time."""

    def arrive(self, gradient: Any) -> tuple[Any, int] | None:
        behind = self.is_behind
        contribution = super().arrive(gradient)
        return (gradient, 1) if behind else contribution


@pytest.mark.parametrize("mistake", [LosesTheLate, ForgetsWeights, GivesTwice])
def test_the_search_finds_mistakes(mistake: type[Turns]) -> None:
    with pytest.raises(Found):
        search(2, 1, 3, most_behind=2, quorum=1, turns=mistake)


def test_a_sum_of_nobody_is_found() -> None:
    """Where the stand-ins wait for no other rank, all may be passed over."""
    with pytest.raises(Found, match="of nobody"):
        search(2, 1, 2, most_behind=2, quorum=0)


@given(st.lists(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6), min_size=1, max_size=30), st.floats(0.5, 8.0))
def test_the_deadline_grows_with_the_spread_of_times(times: list[list[float]], deviations: float) -> None:
    less, more = Patience(deviations), Patience(2 * deviations)
    for one in times:
        less.note(one)
        more.note(one)
    assert 0.1 * less.median <= less.seconds <= more.seconds <= 2 * less.seconds + 1e-9
    assert min(map(max, times)) <= less.median <= max(map(max, times))


def test_one_rank_that_is_late_now_and_then_does_not_move_the_deadline() -> None:
    patience = Patience(4.0)
    assert patience.seconds == patience.median == 0.0
    for step in range(50):
        patience.note([1.0, 1.01, 0.99, 1.0 if step % 5 else 3.0])
    assert patience.seconds == pytest.approx(0.1, rel=0.05)
