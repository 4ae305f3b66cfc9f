"""A failure while a migration drains: operations in progress end or are started again; nobody waits for a lost
agent.

Only the core is tested, in every order of failure and drain: each failure comes before, between and after the agents'
reports that they have all results of the plan before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from controlplane.service.core import actions
from controlplane.service.core import events as ev
from controlplane.service.core.state import NodeState, Phase, Stage
from tests.deploy.core_job import ROLES, CoreJob, places

NEW = ("w1", "w2", "ps1")
"""The nodes of the new plan: ps2 only serves operations in progress of the plan before."""
SAID = ("w1 has drained", "w2 has drained", "failure")
ORDERS = list(itertools.permutations(SAID))


class Draining:
    """A job that has migrated to a plan without ps2 and has operations of the plan before in progress."""

    def __init__(self, least_workers: int | None = 2) -> None:
        self.job = CoreJob(least_workers)
        self.agents = self.job.join_all()
        self.job.change(NEW, "second", until="switched", w1=4, w2=4)
        assert self.job.state.migration is not None
        self.epoch = self.job.state.migration.epoch
        self.words = {node: len(self.job.told[one]) for node, one in self.agents.items()}

    def drained(self, node: str) -> None:
        self.job.take(ev.Drained(self.job.state.nodes[node].agent, self.epoch))

    def told(self, node: str) -> list[actions.Word]:
        """Return the seconds since all have migrated."""
        return self.job.told[self.agents[node]][self.words[node] :]

    def play(self, order: tuple[str, ...], failure: Callable[[Draining], None]) -> None:
        for one in order:
            if one == "failure":
                failure(self)
            elif self.job.state.nodes.get(one.split()[0]) is not None:
                self.drained(one.split()[0])

    def go_on(self, **operations: int) -> None:
        """Let the agents prepare and migrate once more, as they are told, until everything is retired."""
        change = self.job.state.migration
        assert change is not None
        if change.stage == Stage.PREPARING:
            for node in NEW:
                self.job.take(ev.Prepared(self.job.state.nodes[node].agent, change.epoch, operations.get(node, 0)))
            self.job.take(ev.SwitchOrdered(change.epoch))
            for node in ("w1", "w2"):
                self.job.take(ev.Drained(self.job.state.nodes[node].agent, change.epoch, 2, 800))
        self.job.take(ev.RetireOrdered(change.epoch))


def server_dies(draining: Draining) -> None:
    draining.job.take(ev.Left(draining.agents["ps2"]))


def server_is_started_anew(draining: Draining) -> None:
    draining.job.join("ps2", take_over=True)


def way_is_gone(draining: Draining) -> None:
    draining.job.take(
        ev.DrainBroken(draining.epoch, "tree 1 of the plan before cannot be rerouted around what is gone")
    )


FAILURES = [server_dies, server_is_started_anew, way_is_gone]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("order", ORDERS, ids=" - ".join)
def test_operations_that_cannot_end_any_more_are_started_again(order, failure):
    """A server that only the plan before needs is lost, or a path of that plan fails."""
    draining = Draining()
    job = draining.job
    draining.play(order, failure)
    change = job.state.migration
    assert change is not None, "the migration is not given up"
    if order[-1] == "failure":
        assert change.epoch == draining.epoch, "nothing was under way any more"
        draining.go_on()
        assert "Prepare" not in [type(word).__name__ for word in draining.told("w1")]
    else:
        assert (change.stage, change.again, change.instead_of) == (Stage.PREPARING, True, draining.epoch)
        for node in NEW:
            assert actions.Prepare(change.epoch, True) in draining.told(node)
        draining.go_on(w1=3, w2=2)
        assert actions.SwitchOver(change.epoch, 2, {}) in draining.told("w1"), "from the first that some worker lacks"
        assert job.state.epoch == change.epoch > draining.epoch
    assert job.state.migration is None and job.state.phase == Phase.RUNNING
    assert not job.failures
    assert all(not isinstance(word, actions.Abort) for node in NEW for word in draining.told(node)), "nobody stops"
    job.check_journal()


@pytest.mark.parametrize("failure", [*FAILURES, lambda draining: None])
@pytest.mark.parametrize("lost", ["ps1", "w2"])
@pytest.mark.parametrize("first", [True, False])
def test_member_that_is_lost_too_ends_the_change_in_every_order(failure, lost, first):
    """When ps1 is lost only the server that drains is left, so the job continues with it or is given up.

    When w2 is lost all wait.
    """
    draining = Draining()
    job = draining.job
    steps = [lambda: failure(draining), lambda: job.take(ev.Left(draining.agents[lost]))]
    for step in steps if first else reversed(steps):
        step()
    assert job.state.migration is None
    there = job.state.state_of("ps2") in (NodeState.STANDBY, NodeState.DRAINING)
    if lost == "ps1" and not there:
        job.take(ev.GivenUp("no parameter server is left"))
    assert job.state.phase == (Phase.SHORT if lost == "ps1" and there else Phase.WAITING)
    if job.state.phase == Phase.SHORT:
        job.change(["w1", "w2", "ps2"], "without ps1", w1=4, w2=3)
        assert job.state.phase == Phase.RUNNING
        assert any(isinstance(word, actions.Prepare) and word.again for word in draining.told("w1"))
    job.check_journal()


@pytest.mark.parametrize("lost", ["ps1", "w2"])
def test_member_that_is_lost_while_all_make_ready_to_start_again(lost):
    draining = Draining()
    way_is_gone(draining)
    job = draining.job
    job.take(ev.Left(draining.agents[lost]))
    assert job.state.migration is None
    assert job.state.phase == (Phase.SHORT if lost == "ps1" else Phase.WAITING)
    if lost == "ps1":
        assert any(isinstance(word, actions.Withdraw) for word in draining.told("w1"))
        assert job.state.repeat, "the workers have stopped what is under way"
        job.change(["w1", "w2", "ps2"], "without ps1")
        assert job.state.phase == Phase.RUNNING and not job.state.repeat


def test_server_that_waits_and_goes_disturbs_no_change():
    """It once counted as a failure of the change: entries that operations in progress needed were removed."""
    job = CoreJob()
    agents = job.join_all()
    job.change(["w1", "w2", "ps1"], "second")
    assert job.state.state_of("ps2") == NodeState.STANDBY
    for until in ("ordered", "prepared", "switched"):
        job.change(["w1", "w2", "ps1"], f"third, {until}", until=until)
        job.take(ev.Left(agents["ps2"]))
        assert job.state.migration is not None and not job.failures
        job.take(ev.Left(agents["w2"]))
        job = CoreJob()
        agents = job.join_all()
        job.change(["w1", "w2", "ps1"], "second")


def test_server_that_is_to_be_used_again_and_goes_ends_the_change():
    job = CoreJob()
    agents = job.join_all()
    job.change(["w1", "w2", "ps1"], "second")
    job.change(list(ROLES), "third", until="ordered")
    job.take(ev.Left(agents["ps2"]))
    assert job.failures == ["ps2 is gone"] and job.state.migration is None and job.state.phase == Phase.RUNNING


@pytest.mark.parametrize("late", [True, False])
def test_when_an_agent_cannot_repeat_operations_all_stop_at_once_and_begin_a_new_epoch(late):
    """Operations in progress can neither end nor be started again: nobody waits a minute for them."""
    draining = Draining()
    way_is_gone(draining)
    job = draining.job
    change = job.state.migration
    if late:
        job.take(ev.MigrationLate(change.epoch, 15.0))
    else:
        job.take(ev.Prepared(job.state.nodes["w1"].agent, change.epoch, 0, failure="was not kept"))
    assert job.state.migration is None
    assert [type(word).__name__ for word in draining.told("w1")][-3:] == ["Withdraw", "Abort", "Configure"]
    assert job.state.phase == Phase.RUNNING and job.state.epoch > change.epoch


def test_repeating_operations_is_retried_after_a_full_disk():
    draining = Draining()
    job = draining.job
    job.disk_full = True
    way_is_gone(draining)
    change = job.state.migration
    assert change is not None and change.stage == Stage.DRAINING and not change.broken, "it may still end by itself"
    job.disk_full = False
    for event in job.timers:
        job.take(event)
    assert job.state.migration is not None and job.state.migration.instead_of == draining.epoch
    draining.go_on()
    assert job.state.phase == Phase.RUNNING and job.state.migration is None


def test_operations_are_not_repeated_when_a_worker_has_left():
    """The others cannot get its contribution again; they may finish until the grace period ends, and are stopped
    then.
    """
    draining = Draining()
    job = draining.job
    job.take(ev.LeaveAnnounced(f"agent {draining.agents['w2']}", ""))
    job.take(ev.Left(draining.agents["w2"]))
    way_is_gone(draining)
    assert job.state.migration is not None and job.state.migration.epoch == draining.epoch
    for event in job.timers:
        job.take(event)
    assert job.state.phase == Phase.WAITING


def test_repeated_operations_are_not_repeated_twice():
    """Nothing runs on the plan before: it was stopped when all prepared."""
    job = CoreJob()
    agents = job.join_all()
    job.take(ev.MigrationOrdered(places(NEW, "second"), True))
    epoch = job.state.migration.epoch
    for node in NEW:
        job.take(ev.Prepared(job.state.nodes[node].agent, epoch, 2))
    job.take(ev.SwitchOrdered(epoch))
    job.take(ev.Left(agents["ps2"]))
    job.take(ev.DrainBroken(epoch, "no way"))
    assert job.state.migration is not None and job.state.migration.epoch == epoch
