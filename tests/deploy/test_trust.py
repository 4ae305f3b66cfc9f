"""The conditions under which a failed switch or link counts as lost, and is used again: the core alone, in
microseconds.
"""

from __future__ import annotations

from controlplane.service.core import trust
from controlplane.service.core.disabled import Why
from controlplane.service.core.trust import Trust


def test_switch_that_restarts_at_once_is_not_lost_and_one_that_stays_away_is():
    seen, lost, _ = trust.look_at_switches(Trust(), {"s1": False, "s2": True}, {}, 10.0)
    assert not lost
    seen, lost, _ = trust.look_at_switches(seen, {"s1": True, "s2": True}, {}, 10.2)
    seen, lost, _ = trust.look_at_switches(seen, {"s1": False, "s2": True}, {}, 10.4)
    assert not lost, "it was back meanwhile"
    seen, lost, _ = trust.look_at_switches(seen, {"s1": False, "s2": True}, {}, 10.8)
    assert lost == ["s1"]
    _, lost, _ = trust.look_at_switches(seen, {"s1": False, "s2": True}, {"s1": Why.LOST}, 10.9)
    assert not lost, "that is known already"


def test_a_switch_that_times_out_is_lost_when_most_others_have_answered_since():
    ready = {"s1": False, "s2": True, "s3": True, "s4": True}

    def lost_at(now: float, timed_out: set[str], prompt: dict[str, float]) -> list[str]:
        seen, _, _ = trust.look_at_switches(Trust(), ready, {}, 10.0)
        return trust.look_at_switches(seen, ready, {}, now, timed_out=timed_out, prompt=prompt)[1]

    assert lost_at(10.5, set(), {}) == ["s1"], "it refuses connections: nobody else is asked"
    assert not lost_at(1000.0, {"s1"}, {"s2": 9.9, "s3": 9.9, "s4": 10.1}), "most have not answered since"
    assert lost_at(10.5, {"s1"}, {"s2": 9.9, "s3": 10.1, "s4": 10.1}) == ["s1"]
    alone, _, _ = trust.look_at_switches(Trust(), {"s1": False}, {}, 10.0)
    assert trust.look_at_switches(alone, {"s1": False}, {}, 11.0, timed_out={"s1"})[1] == ["s1"], "it is the only one"


def test_switch_is_used_again_when_it_has_answered_for_some_time_unless_an_operator_took_it_out():
    for why, used in ((Why.LOST, ["s1"]), (Why.OPERATOR, []), (Why.CORRUPTS, [])):
        seen, _, steady = trust.look_at_switches(Trust(), {"s1": True}, {"s1": why}, 0.0)
        assert not steady
        _, _, steady = trust.look_at_switches(seen, {"s1": True}, {"s1": why}, trust.STEADY_SECONDS)
        assert steady == used, why


def silent_again(seen: Trust, now: float, *, every: bool = True) -> Trust:
    return trust.set_probation(trust.found_silent(seen, ["a-b"], now), ["a-b"], every)


def test_link_that_was_silent_is_tried_again_after_a_minute_then_two_and_an_hour_at_most():
    seen, now, pauses = Trust(), 0.0, []
    for _ in range(9):
        seen = silent_again(seen, now)
        pause = seen.probation["a-b"].pause
        before, over = trust.end_probation(seen, {"a-b": Why.SILENT}, now + pause - 0.1)
        assert not over and before == seen
        now += pause
        seen, over = trust.end_probation(seen, {"a-b": Why.SILENT}, now)
        assert over == {"a-b": pause}
        pauses.append(pause)
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_link_that_has_carried_for_twice_its_probation_is_as_good_as_any():
    seen = silent_again(Trust(), 0.0)
    seen, _ = trust.end_probation(seen, {}, 179.0)
    assert "a-b" in seen.probation
    seen, _ = trust.end_probation(seen, {}, 180.0)
    assert not seen.probation


def test_two_failures_within_a_minute_link_that_was_mended_is_there_when_the_other_way_dies():
    """The job stood for 50 s: a link was down for 11 s, and then the only other spine was killed."""
    seen = silent_again(Trust(), 0.0)
    off = {"e1-s1": Why.LOST, "a-b": Why.SILENT}
    assert seen.may_carry(off, [], 0.5) == [], "it has just been seen that it carries nothing"
    assert seen.may_carry(off, [], 11.0) == ["a-b"]


def test_only_way_that_is_dead_is_tried_again_every_few_seconds_and_not_every_minute():
    seen, now, waits = silent_again(Trust(), 0.0, every=False), 0.0, []
    for _ in range(5):
        began = now
        while not seen.may_carry({"a-b": Why.SILENT}, [], now):
            now = round(now + 0.1, 1)
        waits.append(round(now - began, 1))
        seen = silent_again(trust.tried_early(seen, ["a-b"]), now, every=False)
    assert waits == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_trying_early_does_not_lengthen_the_probation():
    """Otherwise a link that a job had to try ten times would stay disabled for an hour afterwards."""
    seen = silent_again(Trust(), 0.0)
    for now in (10.0, 20.0, 30.0):
        seen = silent_again(trust.tried_early(seen, ["a-b"]), now)
    assert seen.probation["a-b"].pause == trust.PROBATION_SECONDS


def test_what_is_likeliest_to_carry_is_tried_first():
    seen = trust.found_silent(trust.found_silent(Trust(back={"s1": 3.0}), ["newer"], 5.0), ["older"], 1.0)
    off = {"newer": Why.SILENT, "older": Why.SILENT, "s1": Why.LOST, "s2": Why.LOST, "s3": Why.OPERATOR}
    assert seen.may_carry(off, ["port is up"], 20.0) == ["s1", "port is up", "older", "newer"]


def test_server_must_stay_twice_as_long_after_each_further_loss():
    assert [trust.seconds_until_steady(losses) for losses in (0, 1, 2, 3)] == [30.0, 30.0, 60.0, 120.0]
    assert trust.seconds_until_steady(50) == trust.LONGEST_PROBATION_SECONDS


def test_probation_does_not_end_before_its_length_is_set() -> None:
    """Packets are followed by one thread, and the ends of probation are found by another one."""
    found = trust.found_silent(Trust(), ["a-b"], 10.0)
    for off in ({}, {"a-b": Why.SILENT}):
        seen, over = trust.end_probation(found, off, 10.1)
        assert not over and "a-b" in seen.probation
