"""The reactions to the loss of an agent: the core alone. The test decides whether a plan is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.service.core import mending
from controlplane.service.core.mending import Facts, FindPlan, Over, Step, Wait, mend

THERE = Facts(100.0, runs=True, members=("w1", "w2", "ps2"), lost={"ps1": "gone"}, servers=("ps1", "ps2"))
STOPS = "ps1 is gone; the job cannot go on without it: no way"


class Job:
    """A job that has lost an agent. facts: what is true of it now."""

    def __init__(self, facts: Facts = THERE, node: str = "ps1") -> None:
        self.facts = facts
        self.steps = mend("one", node, f"{node} is gone", facts)
        self.first = next(self.steps, None)

    def take(self, error: str = "", seconds: float = 0.0) -> Step | None:
        """Return the step after the last one, of which this came, and which has taken so many seconds."""
        self.facts = replace(self.facts, now=self.facts.now + seconds)
        try:
            return self.steps.send((error, self.facts))
        except StopIteration:
            return None


@pytest.fixture
def job() -> Job:
    return Job()


def test_a_plan_without_the_lost_agent_is_made_at_once_and_the_agent_stays_out(job):
    assert job.first == FindPlan(("ps1", "ps1"), (), crowded=False)
    assert job.take() is None


def test_a_job_waits_half_a_minute_for_what_may_come_back(job):
    """A switch does not answer while a server is lost: the job is rerouted around the switch soon, or the switch is
    back.
    """
    job.facts = replace(THERE, missing=True)
    line = "job one waits, to go on without ps1: no way"
    assert job.take("no way") == Wait(mending.AGAIN_SECONDS, line)
    while job.facts.now < 129:
        step = job.take(seconds=1.0)
        assert isinstance(step, FindPlan) and step.crowded
        assert job.take("no way") == Wait(mending.AGAIN_SECONDS), "that is said once"
    job.take(seconds=2.0)
    assert job.take("no way") == Over(("ps1",), STOPS, "job one cannot go on without ps1: no way")
    assert job.take() is None


def test_job_with_nothing_missing_is_tried_twice_and_given_up(job):
    assert isinstance(job.take("no way"), Wait), "others may make room"
    job.take()
    step = job.take("no way")
    assert isinstance(step, Over) and (step.again, step.reason) == (("ps1",), STOPS)


def test_agent_of_a_job_that_was_stopped_meanwhile_is_used_when_it_is_back(job):
    job.facts = replace(THERE, members=("w1", "ps2"), lost={})
    job.take("a worker is gone")
    job.take()
    step = job.take("a worker is gone")
    assert isinstance(step, Over) and step.again == ("ps1",)


def test_an_agent_that_is_back_meanwhile_is_used_again_without_a_stop(job):
    job.facts = replace(THERE, members=("w1", "w2", "ps1", "ps2"), lost={})
    assert job.take("all stopped") == Over(("ps1",))
    assert job.take() is None


def test_an_agent_that_is_lost_while_a_plan_is_made_is_planned_without_too(job):
    job.facts = replace(THERE, members=("w1", "ps2"), lost={"ps1": "gone", "w2": "gone"})
    step = job.take("w2 is gone")
    assert isinstance(step, FindPlan) and set(step.without) == {"ps1", "w2"}
    assert job.take() is None


def test_losses_that_go_on_are_planned_for_three_times_at_most(job):
    attempts = 1
    for node in ("w3", "w4", "w5", "w6"):
        job.facts = replace(job.facts, lost={**job.facts.lost, node: "gone"})
        if isinstance(job.take(f"{node} is gone"), Over):
            break
        attempts += 1
    assert attempts == mending.ATTEMPTS


def test_servers_that_came_back_and_are_not_steady_are_used_when_none_else_is_left():
    """Item 6 of the issue: a server had joined again and was never used."""
    facts = replace(THERE, members=("w1", "w2"), lost={"ps2": "gone"}, without={"ps1"}, waiting=("ps1",))
    first = Job(facts, "ps2").first
    assert isinstance(first, FindPlan) and first.again == ("ps1",)


def test_job_that_is_being_removed_or_whose_agent_is_back_is_left_alone():
    assert Job(replace(THERE, runs=False)).first is None
    assert Job(THERE, "ps2").first is None
