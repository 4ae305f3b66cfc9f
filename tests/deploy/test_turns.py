"""When jobs are replanned, in which order, and what is logged: the core alone."""

from __future__ import annotations

from controlplane.service.core.turns import PAUSES, Rate, Turns, goes_on, in_two_steps, worst_first


def test_planning_is_retried_with_backoff_and_its_failure_is_logged_once():
    turns, pauses, said = Turns(), [], []
    for _ in range(7):
        turns, lines = turns.over({"a": "no way"})
        said += lines
        pauses.append(turns.pause)
    assert pauses == [*PAUSES, PAUSES[-1], PAUSES[-1]]
    assert said == ["job a was not replanned: no way"]
    assert turns.over({"a": "no room"})[1] == ["job a was not replanned: no room"], "another reason"


def test_change_of_the_network_is_answered_at_once_and_success_ends_the_tries():
    turns, _ = Turns().over({"a": "no way"})
    turns, _ = turns.over({"a": "no way"})
    assert turns.asked().over({"a": "no way"})[0].pause == PAUSES[0], "whatever failed before may go now"
    assert turns.over({})[0].pause is None


def test_the_job_with_the_smallest_part_of_its_rate_is_planned_first_and_failed_jobs_last():
    rates = {"full": Rate(10, 10), "half": Rate(5, 10), "none": Rate(0, 10), "failed": Rate(0, 10)}
    assert worst_first(rates, ["failed"]) == ["none", "half", "full", "failed"]


def test_jobs_that_get_less_make_room_for_the_others():
    assert in_two_steps({"a": 5, "b": 9, "c": 4}, {"a": 7, "b": 6, "c": 4}) == (["b", "c"], ["a"])


def test_planning_goes_on_while_a_job_has_less_than_it_was_given_and_room_was_made():
    assert goes_on(True, [Rate(9, 10)])
    assert not goes_on(True, [Rate(10, 10), Rate(10 - 1e-9, 10)]), "rounding is no loss"
    assert not goes_on(False, [Rate(9, 10)])
