"""The reactions to the loss of an agent: the core alone. The test decides whether a plan is found."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.service.core import mending
from controlplane.service.core.actions import Say
from controlplane.service.core.mending import Facts, FindPlan, GiveUp, Mending, NoPlanFound, PlanFound, Stage, UseAgain

DOCS = Path(__file__).parents[2] / "docs" / "controller.md"
THERE = Facts(runs=True, members=("w1", "w2", "ps2"), lost={"ps1": "gone"}, servers=("ps1", "ps2"))
MOVES: set[tuple[str, str]] = set()


class Job:
    """A job that has lost an agent or switch. facts: what is true of it now."""

    def __init__(self, facts: Facts = THERE) -> None:
        self.state, self.facts, self.now = Mending("one"), facts, 100.0

    def take(self, event: mending.Event) -> list[mending.Action]:
        before = self.state.stage
        self.state, done = mending.decide(self.state, event, self.facts, self.now)
        if self.state.stage != before:
            MOVES.add((before, self.state.stage))
        return done

    def lose(self, node: str = "ps1") -> list[mending.Action]:
        return self.take(mending.AgentLost(node, f"{node} is gone"))


@pytest.fixture
def job() -> Job:
    return Job()


def test_a_plan_without_the_lost_agent_is_made_at_once_and_the_agent_stays_out(job):
    done = job.lose()
    assert mending.DoWithout(("ps1",)) in done and done[-1] == FindPlan(crowded=False)
    assert job.take(PlanFound()) == [] and job.state.stage == Stage.IDLE


def test_a_job_waits_half_a_minute_for_what_may_come_back(job):
    """A switch does not answer while a server is lost: the job is rerouted around the switch soon, or the switch is
    back.
    """
    job.lose()
    job.facts = replace(THERE, missing=True)
    done = job.take(NoPlanFound("no way"))
    assert done == [Say("job one waits, to go on without ps1: no way"), mending.TryAgain(mending.AGAIN_SECONDS)]
    while job.now < 129:
        job.now += 1
        assert job.take(mending.TriedAgain())[-1] == FindPlan(crowded=True)
        assert job.take(NoPlanFound("no way")) == [mending.TryAgain(mending.AGAIN_SECONDS)], "that is said once"
    job.now += 2
    job.take(mending.TriedAgain())
    *_, last = job.take(NoPlanFound("no way"))
    assert last == GiveUp("ps1 is gone; the job cannot go on without it: no way")
    assert job.state.stage == Stage.IDLE


def test_job_with_nothing_missing_is_tried_twice_and_given_up(job):
    job.lose()
    assert job.take(NoPlanFound("full"))[-1] == mending.TryAgain(mending.AGAIN_SECONDS), "others may make room"
    job.take(mending.TriedAgain())
    done = job.take(NoPlanFound("full"))
    assert UseAgain(("ps1",)) in done and isinstance(done[-1], GiveUp)


def test_an_agent_that_is_back_meanwhile_is_used_again_without_a_stop(job):
    job.lose()
    job.facts = replace(THERE, members=("w1", "w2", "ps1", "ps2"), lost={})
    assert job.take(NoPlanFound("all stopped")) == [UseAgain(("ps1",))]
    assert job.state.stage == Stage.IDLE


def test_second_loss_while_a_plan_is_made_waits_for_its_turn_and_is_planned_without_too(job):
    job.lose("ps1")
    assert job.lose("w2") == []
    job.facts = replace(THERE, members=("w1", "ps2"), lost={"ps1": "gone", "w2": "gone"})
    assert job.take(NoPlanFound("w2 is gone"))[0] == mending.DoWithout(("ps1", "w2"))
    assert job.take(PlanFound()) == [mending.TakeNext()]
    assert mending.DoWithout(("w2",)) in job.take(mending.NextTurn())
    assert job.take(PlanFound()) == []


def test_losses_that_go_on_are_planned_for_three_times_at_most(job):
    job.lose("ps1")
    attempts = 1
    for node in ("w3", "w4", "w5", "w6"):
        job.facts = replace(job.facts, lost={**job.facts.lost, node: "gone"})
        done = job.take(NoPlanFound(f"{node} is gone"))
        if isinstance(done[-1], GiveUp):
            break
        attempts += 1
    assert attempts == mending.ATTEMPTS


def test_servers_that_came_back_and_are_not_steady_are_used_when_none_else_is_left():
    """Item 6 of the issue: a server had joined again and was never used."""
    job = Job(replace(THERE, members=("w1", "w2"), lost={"ps2": "gone"}, without={"ps1"}, waiting=("ps1",)))
    assert UseAgain(("ps1",)) in job.lose("ps2")


def test_job_that_is_being_removed_is_left_alone():
    job = Job(replace(THERE, runs=False))
    assert job.lose() == [] and job.state.stage == Stage.IDLE


def test_stages_change_as_documented(job):
    text = DOCS.read_text()
    table = text[text.index("### A lost agent") :].split("\n## ")[0]
    rows = set(re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", table, re.MULTILINE))
    job.lose()
    job.take(NoPlanFound("no way"))
    job.take(mending.TriedAgain())
    job.take(PlanFound())
    assert rows >= MOVES
    assert {(str(before), str(after)) for before, after in MOVES} == rows
