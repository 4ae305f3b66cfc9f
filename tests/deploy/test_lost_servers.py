"""A parameter server that was lost and is back is used again, whatever else fails meanwhile, and is never forgotten."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controlplane.planner.generators import leaf_spine
from controlplane.planner.job import Job
from controlplane.service.core import membership, trust
from controlplane.service.core.disabled import Why
from controlplane.service.core.parts import mended
from controlplane.service.running import RunningJob
from tests.deploy.agents import Agents

NETWORK = leaf_spine(2, 2, 3, 300.0, uplink_mbps=300.0, aggregation_mbps=None, ingress_mbps=None)
WORKERS, ROOTS = ("h1", "h3", "h4", "h5"), ("h2", "h6")
JOB = Job("one", WORKERS, ROOTS, 1_000_000)


@pytest.fixture
def running(rig) -> RunningJob:
    return rig.add(JOB)


@pytest.fixture
def agents(running) -> Iterator[Agents]:
    made = Agents(running.roster)
    made.join()
    yield made
    running.roster.close()
    made.end()


def used(running: RunningJob) -> tuple[str, ...]:
    return running.migrator.plan.job.parameter_servers


def test_server_that_came_back_while_a_worker_was_lost_and_a_switch_was_off_is_used_again(rig, running, agents, until):
    """The issue reported this: s1 restarts; h2 is killed and started again; h3 is killed; both are back."""
    rig.network.failover.lose({"s1": "switch s1 does not answer"}, Why.LOST)
    running.roster.leave(agents.members["h2"])
    until(lambda: used(running) == ("h6",), "the job goes on without h2")
    agents.join_again("h2")
    running.roster.leave(agents.members["h3"])
    assert not running.roster.running
    rig.watch.look_at_lost_agents()
    rig.network.failover.take(mended, ("s1",), "answering again")
    agents.join_again("h3")
    until(lambda: set(used(running)) == set(ROOTS), "h2 is used again")
    until(lambda: running.roster.running, "the job runs")
    running.roster.leave(agents.members["h6"])
    until(lambda: used(running) == ("h2",), "and the job goes on with h2 alone")
    assert running.roster.running


def test_server_that_is_back_is_used_again_though_the_job_is_no_faster_with_it(
    rig, running, agents, until, monkeypatch
):
    """The workers' own links are the bottleneck: a second parameter server serves as a reserve for the first."""
    monkeypatch.setattr(trust, "STEADY_SECONDS", 0.0)
    before = running.migrator.plan.rate_mbps
    running.roster.leave(agents.members["h2"])
    until(lambda: used(running) == ("h6",), "the job goes on without h2")
    until(lambda: not running.roster.state.lost() and len(running.migrator.versions) == 1, "the change is over")
    agents.join_again("h2")
    rig.watch.look_at_lost_agents()
    until(lambda: set(used(running)) == set(ROOTS), "h2 is used again")
    assert running.migrator.plan.rate_mbps >= before * (1 - 1e-6)


def test_operator_can_take_a_server_back_that_the_plan_does_not_use(rig, running, agents, until):
    running.roster.leave(agents.members["h2"])
    until(lambda: used(running) == ("h6",), "the job goes on without h2")
    until(lambda: not running.roster.state.lost() and len(running.migrator.versions) == 1, "the change is over")
    agents.join_again("h2")
    running.without = {}  # The state may have become this way by any means.
    assert "h2" in rig.network.state.disabled, "status says that h2 is not used"
    rig.network.replan(restored=["h2"])
    assert set(used(running)) == set(ROOTS)


@pytest.mark.parametrize("stays", [True, False])
def test_servers_that_come_back_in_turn_leave_a_job_that_can_be_changed(rig, agents, until, monkeypatch, stays):
    """h6 joined before the plan with h2, which was back first, was ready: h6 worked, and no plan could ever use it."""
    running = rig.network.jobs.get()
    monkeypatch.setattr(trust, "STEADY_SECONDS", 0.0)
    running.roster.leave(agents.members["h2"])
    until(lambda: used(running) == ("h6",), "the job goes on without h2")
    until(lambda: not running.roster.state.lost() and len(running.migrator.versions) == 1, "the change is over")
    running.roster.leave(agents.members["h6"])
    with monkeypatch.context() as patch:
        patch.setattr(rig.network.replanning, "soon", lambda: None)  # the new plan is not ready
        agents.join_again("h2")
        rig.watch.look_at_lost_agents()
        agents.join_again("h6")
        assert running.roster.running and used(running) == ("h6",)
        if not stays:
            running.roster.leave(agents.members["h2"])
        rig.watch.look_at_lost_agents()
    rig.network.replan()
    assert set(used(running)) == (set(ROOTS) if stays else {"h6"})
    if not stays:
        agents.join_again("h2")
    rig.watch.look_at_lost_agents()
    until(lambda: set(used(running)) == set(ROOTS) and not running.without, "both are used again")


def test_job_that_waits_for_its_server_begins_with_one_that_stands_by(rig, running, agents, until):
    """h2 was lost and may be used again, but the plan does without it; h6 and a worker are lost, and h6 stays away."""
    running.roster.leave(agents.members["h2"])
    until(lambda: used(running) == ("h6",), "the job goes on without h2")
    until(lambda: not running.roster.state.lost() and len(running.migrator.versions) == 1, "the change is over")
    agents.join_again("h2")
    running.without = {}
    running.roster.leave(agents.members["h3"])
    running.roster.leave(agents.members["h6"])
    agents.join_again("h3")
    assert not running.roster.running
    rig.watch.look_at_lost_agents()
    until(lambda: used(running) == ("h2",) and running.roster.running, "the job begins with h2")


RUNNING_EPOCH = 4_000_000_000


def test_the_job_continues_without_a_server_that_was_lost_while_the_controller_was_down(
    rig, running, until, monkeypatch
):
    """Otherwise its workers would wait for it until their operations fail after a minute, and train over gloo."""
    monkeypatch.setattr(membership, "RETURN_SECONDS", 0.05)
    agents = Agents(running.roster)
    agents.carry_on(RUNNING_EPOCH, [node for node in (*WORKERS, *ROOTS) if node != "h2"])
    until(lambda: used(running) == ("h6",), "the job goes on without h2")
    until(lambda: running.roster.running and not running.roster.state.lost(), "it runs")
    assert running.roster.epoch > RUNNING_EPOCH
    for node in WORKERS:
        told = [kind for kind in agents.events[node] if kind != "waiting"]
        assert told[:2] == ["configuration", "prepare"], "nobody is told to stop"
    running.roster.close()
    agents.end()


@pytest.mark.parametrize("absent", [["h3"], ["h2", "h6"]])
def test_a_restarted_controller_waits_for_the_agents_that_the_job_needs(running, absent, until, monkeypatch):
    monkeypatch.setattr(membership, "RETURN_SECONDS", 0.05)
    agents = Agents(running.roster)
    agents.carry_on(RUNNING_EPOCH, [node for node in (*WORKERS, *ROOTS) if node not in absent])
    until(lambda: running.roster.journal.records()[-1]["kind"] == "ReturnOver", "they have waited long enough")
    assert not running.roster.running and not running.roster.state.lost()
    monkeypatch.setattr(membership, "RETURN_SECONDS", 60.0)  # those that come back now are waited for
    for node in absent:
        agents.carry_on(RUNNING_EPOCH, [node])
    assert running.roster.running
    assert running.roster.epoch == RUNNING_EPOCH, "undisturbed"
    running.roster.close()
    agents.end()


def restarted(running: RunningJob, agents: Agents, until) -> None:  # type: ignore[no-untyped-def]
    until(lambda: used(running) == ("h6",), "the job goes on without h2")
    until(lambda: running.roster.running and not running.roster.state.lost(), "it runs")
    for node in WORKERS:
        told = [kind for kind in agents.events[node] if kind != "waiting"]
        assert told[:2] == ["configuration", "prepare"], "nobody is told to stop"
    running.roster.close()
    agents.end()


def test_a_server_that_restarted_while_the_controller_was_down_stops_no_agent(rig, running, until):
    """The server has no state of the running operations: the others continue without it, and it is used again later."""
    agents = Agents(running.roster)
    agents.carry_on(RUNNING_EPOCH, [*WORKERS, "h6"])
    agents.join_again("h2")
    assert "h2" in running.roster.waiting()
    restarted(running, agents, until)


def test_a_server_lost_while_others_are_not_back_yet_stops_no_agent(rig, running, until, monkeypatch):
    monkeypatch.setattr(membership, "RETURN_SECONDS", 0.05)
    agents = Agents(running.roster)
    agents.carry_on(RUNNING_EPOCH, ["h2", *WORKERS[:2]])
    running.roster.leave(agents.members["h2"])
    agents.carry_on(RUNNING_EPOCH, [*WORKERS[2:], "h6"])
    restarted(running, agents, until)


def test_worker_that_was_started_anew_while_the_controller_was_away_begins_a_new_epoch(rig, running):
    """The server lacks state that the others have: using it again requires a stop."""
    agents = Agents(running.roster)
    agents.carry_on(RUNNING_EPOCH, [node for node in (*WORKERS, *ROOTS) if node != "h3"])
    agents.join_again("h3")
    assert running.roster.running and running.roster.epoch != RUNNING_EPOCH
    running.roster.close()
    agents.end()
