"""The decisions of the service when agents join, leave and are lost: the core alone, without sockets, threads or
clocks.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from controlplane.service import journal
from controlplane.service.core import actions, membership
from controlplane.service.core import events as ev
from controlplane.service.core.journal import event_from_json, ordered_by, replay
from controlplane.service.core.mending import servers_to_use
from controlplane.service.core.state import RESERVE, NodeState, Phase, Stage
from tests.deploy.core_job import ROLES, CoreJob, places

DOCS = Path(__file__).parents[2] / "docs" / "controller.md"


def test_job_runs_when_all_have_joined_and_not_before():
    job = CoreJob()
    first = job.join("w1")
    assert job.told[first] == [actions.Waiting(("w2", "ps1", "ps2"))]
    for node in ("w2", "ps1", "ps2"):
        assert not job.state.running
        job.join(node)
    assert job.state.phase == Phase.RUNNING
    assert job.told[first][-1] == actions.Configure(job.state.epoch)


def test_what_happens_when_a_parameter_server_dies():
    job = CoreJob()
    agents = job.join_all()
    done = job.take(ev.Left(agents["ps1"]))
    assert actions.PlanWithout("ps1", "ps1 is gone (its connection ended)") in done
    assert job.state.phase == Phase.SHORT and job.state.lost() == {"ps1": "ps1 is gone (its connection ended)"}
    assert "Abort" not in job.kinds(agents["w1"]), "nobody is told to stop"
    job.change(["w1", "w2", "ps2"], "without ps1", w1=7, w2=5)
    assert actions.SwitchOver(2, 5, {}) in job.told[agents["w1"]], "from the first that a worker has no result of"
    assert job.state.phase == Phase.RUNNING and not job.state.lost()
    back = job.join("ps1")
    assert job.state.state_of("ps1") == NodeState.STANDBY
    job.change(list(ROLES), "with ps1 again")
    assert job.state.state_of("ps1") == NodeState.RUNNING and job.runs[back] == job.state.epoch


def test_a_server_that_is_back_serves_when_the_other_one_dies():
    """It was lost, and the job had not migrated yet: a plan with it was refused until the job stopped."""
    job = CoreJob()
    agents = job.join_all()
    job.take(ev.Left(agents["ps1"]))
    back = job.join("ps1")
    job.take(ev.Left(agents["ps2"]))
    assert job.state.state_of("ps1") == NodeState.RETURNED and job.state.phase == Phase.SHORT
    job.change(["w1", "w2", "ps1"], "without ps2")
    assert job.state.phase == Phase.RUNNING and job.runs[back] == job.state.epoch
    assert "Abort" not in job.kinds(agents["w1"])


def cut_off(nodes: tuple[str, ...]) -> tuple[CoreJob, dict[str, int]]:
    """Return a running job whose agents of these nodes have lost the controller for 11 s."""
    job = CoreJob()
    agents = job.join_all()
    for node in nodes:
        job.take(ev.Left(agents[node], 11.0))
    return job, agents


def rejoin(job: CoreJob, node: str) -> int:
    """Let the agent of a node join again, with what it runs."""
    one = job.state.nodes[node]
    return job.join(node, agent=one.agent, running=one.running)


@pytest.mark.parametrize("nodes", [("w1",), ("ps1",), tuple(ROLES)])
def test_operations_go_on_while_agents_are_cut_off_from_the_controller(nodes):
    """Only the network to the controller was lost. All were told to stop, because of "another process"."""
    job, agents = cut_off(nodes)
    assert job.state.phase == Phase.RUNNING and job.state.missing() == list(nodes) and not job.lost
    words = f"{nodes[0]} is out of reach (no report for 11 s, then its connection ended): operations go on"
    assert any(line.startswith(words) for line in job.said)
    for node in nodes:
        assert job.kinds(rejoin(job, node)) == ["Configure"]
    assert job.state.phase == Phase.RUNNING and job.state.epoch == 1 and not job.state.missing()
    assert not any("Abort" in job.kinds(connection) for connection in agents.values())
    assert not any("another process" in line for line in job.said)


def test_agent_whose_new_connection_arrives_before_the_old_one_ends_goes_on():
    job, agents = cut_off(())
    old = agents["w1"]
    new = rejoin(job, "w1")
    assert job.kinds(new) == ["Configure"] and old in job.ended
    job.take(ev.Left(old, 11.0))
    assert job.state.nodes["w1"].connection == new and job.state.phase == Phase.RUNNING
    assert "w1 has joined again after its connection was lost; its operations went on" in job.said


def test_agent_out_of_reach_that_others_wait_for_is_gone_and_its_node_is_free():
    job, agents = cut_off(("w1",))
    job.take(ev.Silent("w1", 21.0))
    assert job.state.phase == Phase.WAITING
    assert any("w1 is gone (no report for 21 s: the others wait for it)" in line for line in job.said)
    job, agents = cut_off(("w1",))
    job.join("w1")
    assert job.state.epoch == 2 and "Abort" in job.kinds(agents["w2"]), "a process that was started again"


def test_agent_that_was_told_nothing_of_a_migration_is_told_when_it_is_back():
    job, agents = cut_off(())
    job.change(["w1", "w2", "ps2"], "without ps1", until="prepared")
    old = job.state.nodes["w1"]
    job.take(ev.Left(agents["w1"], 11.0))
    job.take(ev.SwitchOrdered(job.state.migration.epoch))
    back = job.join("w1", agent=old.agent, running=old.running)
    assert job.kinds(back) == ["SwitchOver"] and job.runs[back] == job.state.epoch == 2
    job, agents = cut_off(())
    job.change(["w1", "w2", "ps2"], "without ps1", until="ordered")
    assert job.kinds(rejoin(job, "w1")) == ["Withdraw", "Configure"]
    assert job.failures == ["w1 lost its connection to the controller"]
    job.take(ev.Left(job.state.nodes["w1"].connection, 11.0))
    assert actions.RefuseMigration("the job does not run: waiting for w1") in job.take(
        ev.MigrationOrdered(places(["w1", "w2", "ps2"], "again"), False)
    )


def test_a_worker_that_is_back_joins_no_running_job():
    job = CoreJob(least_workers=1)
    agents = job.join_all()
    job.take(ev.Left(agents["w2"]))
    job.join("w2")
    assert actions.RefuseMigration("the job does not run: waiting for w2") in job.take(
        ev.MigrationOrdered(places(ROLES, "with w2"), False)
    )


def test_what_happens_when_the_last_parameter_server_or_a_worker_dies():
    for node in ("w2", "ps2"):
        job = CoreJob()
        agents = job.join_all()
        job.take(ev.Left(agents["ps1"]))
        job.take(ev.Left(agents[node]))
        assert job.state.phase == Phase.WAITING
        assert job.kinds(agents["w1"])[-2:] == ["Abort", "Waiting"] and job.runs[agents["w1"]] == 0


def test_job_that_may_lose_workers_goes_on_without_one():
    job = CoreJob(least_workers=1)
    agents = job.join_all()
    job.take(ev.Left(agents["w2"]))
    assert job.state.phase == Phase.SHORT
    job.take(ev.Left(agents["w1"]))
    assert job.state.phase == Phase.WAITING, "none is left"


def test_job_of_which_a_worker_is_done_does_not_go_on_without_a_server():
    """Operations in progress cannot be started again without that worker."""
    job = CoreJob(least_workers=1)
    agents = job.join_all()
    job.take(ev.LeaveAnnounced(f"agent {agents['w1']}", ""))
    job.take(ev.Left(agents["w1"]))
    assert job.state.state_of("w1") == NodeState.LEFT
    job.take(ev.Left(agents["ps1"]))
    assert job.state.phase == Phase.WAITING and not job.lost


def test_agent_that_is_lost_between_being_ready_and_changing_over_does_not_block_later_changes():
    """A migration that nobody ended once kept the controller from changing the job's plan ever again."""
    job = CoreJob()
    agents = job.join_all()
    job.change(list(ROLES), "second", until="prepared")
    epoch = job.state.migration.epoch
    job.take(ev.Left(agents["ps1"]))
    assert job.failures == ["ps1 is gone (its connection ended)"] and job.state.migration is None
    assert job.told[agents["w1"]][-1] == actions.Withdraw(epoch, job.failures[0])
    job.take(ev.SwitchOrdered(epoch))
    assert job.state.epoch < epoch, "an order that comes too late does nothing"
    job.change(["w1", "w2", "ps2"], "without ps1")
    assert job.state.phase == Phase.RUNNING


def test_normal_end_of_a_job_is_no_warning():
    """The log warned that the others stop until a worker is back, at the end of every training."""
    job = CoreJob()
    agents = job.join_all()
    for node in ("w1", "w2"):
        job.take(ev.LeaveAnnounced(f"agent {agents[node]}", ""))
        job.take(ev.Left(agents[node]))
    done = job.take(job.timers.pop(0))
    assert actions.Say("all workers have left: the job is done") in done
    assert not any(action.warning for action in done if isinstance(action, actions.Say))
    assert job.state.phase == Phase.WAITING


def test_a_draining_server_is_told_when_all_stop():
    """The agent was told nothing, and served an epoch that was over."""
    job = CoreJob()
    agents = job.join_all()
    job.change(["w1", "w2", "ps1"], "without ps2", until="switched")
    assert job.state.state_of("ps2") == NodeState.DRAINING and job.runs[agents["ps2"]] == 1
    job.take(ev.Left(agents["w1"]))
    assert job.state.phase == Phase.WAITING
    assert job.state.state_of("ps2") == NodeState.STANDBY and job.runs[agents["ps2"]] == 0


def test_an_agent_that_cannot_join_because_the_disk_is_full_leaves_the_job_unchanged():
    job = CoreJob()
    for node in ("w1", "ps1", "ps2"):
        job.join(node)
    job.disk_full = True
    job.join("w2")
    assert job.state.phase == Phase.WAITING and job.state.state_of("w2") == NodeState.EXPECTED
    job.disk_full = False
    job.join("w2")
    assert job.state.phase == Phase.RUNNING


def test_epoch_that_could_not_be_stored_begins_when_the_disk_has_room_again():
    """All agents waited although none was missing: the job stood until one of its agents was started again."""
    job = CoreJob()
    agents = job.join_all()
    job.take(ev.Left(agents["ps1"]))
    job.join("ps1")
    job.disk_full = True
    job.take(ev.GivenUp("no way"))
    job.take(job.timers.pop())
    assert job.state.phase == Phase.WAITING and not job.state.missing()
    assert sum("no epoch can begin" in line for line in job.said) == 1
    job.disk_full = False
    job.take(job.timers.pop())
    assert job.state.phase == Phase.RUNNING


def test_agent_that_comes_again_while_the_disk_is_full_leaves_no_ghost_in_a_job_that_runs():
    """A worker that was done had left and joined again: it was refused, but still counted as joined."""
    job = CoreJob()
    agents = job.join_all()
    job.take(ev.LeaveAnnounced("agent 1", ""))
    job.take(ev.Left(agents["w1"]))
    job.disk_full = True
    job.join("w1")
    assert job.state.running and job.state.state_of("w1") == NodeState.LEFT
    job.take(job.timers.pop())
    assert job.state.phase == Phase.WAITING and job.state.missing() == ["w1"]


def test_server_that_was_killed_and_is_back_is_used_when_all_begin_anew():
    """A parameter server is killed and started again, then a worker is killed: when the worker is back, all agents are
    used.
    """
    job = CoreJob()
    agents = job.join_all()
    job.take(ev.Left(agents["ps1"]))
    job.join("ps1")
    assert job.state.state_of("ps1") == NodeState.RETURNED
    job.take(ev.Left(agents["w2"]))
    assert job.state.state_of("ps1") == NodeState.JOINED
    job.join("w2")
    assert {job.state.state_of(node) for node in ROLES} == {NodeState.RUNNING}


def test_controller_that_starts_again_goes_on_without_a_server_that_was_lost_meanwhile():
    """The others do not wait for it until their operations fail."""
    job = CoreJob()
    job.number = 41
    agents = [job.join(node, running=(40, f"first of {node}")) for node in ("w1", "w2", "ps2")]
    assert job.state.phase == Phase.WAITING and job.said[-1].endswith("waiting for ps1")
    assert job.timers == [ev.ReturnOver()]
    job.now = membership.RETURN_SECONDS / 2
    job.take(job.timers.pop())
    assert job.state.phase == Phase.WAITING and job.timers == [ev.ReturnOver()], "others may still come back"
    job.now = membership.RETURN_SECONDS
    job.take(job.timers.pop())
    assert job.state.phase == Phase.SHORT and job.state.epoch == 40
    assert {job.runs[one] for one in agents} == {40}
    assert job.lost == ["ps1"] and not any("Abort" in job.kinds(one) for one in agents)


def test_process_that_hangs_is_out_and_a_late_order_to_remove_it_again_does_nothing():
    job = CoreJob()
    agents = job.join_all()
    job.take(ev.Silent("ps1", 11.0))
    assert job.kinds(agents["ps1"])[-1] == "End"
    assert job.state.state_of("ps1") == NodeState.LOST
    before = job.state
    job.take(ev.Silent("ps1", 11.0))
    assert job.state == before


def test_second_process_waits_until_it_says_that_it_takes_the_place():
    job = CoreJob()
    agents = job.join_all()
    job.join("w1", process="another")
    assert "w1 has joined already" in job.refusals[-1]
    assert job.state.nodes["w1"].connection == agents["w1"]
    job.join("w1", process="process 4711 on b", take_over=True)
    assert "process 4711 on b" in job.told[agents["w1"]][-2].reason  # type: ignore[union-attr]
    assert job.state.phase == Phase.RUNNING and job.state.epoch == 2


def test_an_agent_that_does_not_prepare_in_time_is_named():
    job = CoreJob()
    agents = job.join_all()
    job.change(list(ROLES), "second", until="ordered")
    epoch = job.state.migration.epoch
    for node in ("w1", "w2", "ps1"):
        job.take(ev.Prepared(f"agent {agents[node]}", epoch, 3))
    job.take(ev.MigrationLate(epoch, 15.0))
    assert job.failures == ["ps2 did not make ready within 15 s"]
    assert job.state.running and job.state.epoch == 1


def test_a_change_of_plan_is_refused_while_another_one_is_under_way():
    job = CoreJob()
    job.join_all()
    job.change(list(ROLES), "second", until="ordered")
    before = job.state
    done = job.take(ev.MigrationOrdered(places(plan="third"), False))
    assert done == [actions.RefuseMigration("another migration is under way")] and job.state == before


def test_results_that_only_some_have_are_given_on_when_a_worker_is_lost():
    job = CoreJob(least_workers=1)
    agents = job.join_all()
    job.take(ev.Left(agents["w2"]))
    job.take(ev.MigrationOrdered(places(["w1", "ps1", "ps2"], "without w2"), False))
    for node in ("w1", "ps1", "ps2"):
        job.take(ev.Prepared(f"agent {agents[node]}", 2, 4, (4, 6)))
    job.take(ev.SwitchOrdered(2))
    assert actions.SwitchOver(2, 4, {4: 0, 6: 0}) in job.told[agents["w1"]]


# -- the journal -------------------------------------------------------------------------------------------------------


def test_the_journal_names_the_author_of_each_order():
    job = CoreJob()
    agents = job.join_all()
    token = ordered_by.set("operator alice")
    job.take(ev.MigrationOrdered(places(["w1", "w2", "ps1"], "second"), False))
    ordered_by.reset(token)
    job.take(ev.Left(agents["ps2"]))
    job.check_journal()
    by = [(record["by"], record["kind"]) for record in job.journal.records() if record["kind"] != "State"]
    assert ("agent of w1", "Joined") in by
    assert ("operator alice", "MigrationOrdered") in by
    assert ("the file of epochs", "EpochStored") in by
    assert by[-1] == ("agent of ps2", "Left")


def test_journal_is_bounded_and_its_rest_gives_the_same_state(monkeypatch):
    monkeypatch.setattr(journal, "SEGMENT_ENTRIES", 10)
    job = CoreJob()
    kinds = []
    for _ in range(20):
        for connection in job.join_all().values():
            job.take(ev.Left(connection))
            kinds.append(job.journal.records()[0]["kind"])
            job.check_journal()
    assert len(job.journal.journal.records()) <= 2 * (10 + 1)
    assert set(kinds) == {"State"}, "what is left begins with a state"


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([], "empty"),
        ([{"kind": "line", "job": "A"}], "empty"),
        ([{"kind": "Left", "job": "A", "data": {"connection": 1}, "now": 0.0}], "begins with the state"),
        ([{"kind": "Left", "job": "A", "now": 0.0}], "begins with the state"),
    ],
)
def test_journal_that_is_not_one_is_refused(records, words):
    with pytest.raises(ValueError, match=words):
        replay(records, "A")


def test_event_that_is_none_is_refused():
    for data in ({"kind": "Lift"}, {"kind": "Left", "data": {"conection": 1}}, {}):
        with pytest.raises(ValueError, match="not an event"):
            event_from_json(data)


# -- whatever happens, in any order ------------------------------------------------------------------------------------


LIVES, STEPS = 300, 60
SELDOM = 2
"""The changes of state that may be missing for some choices of seeds."""


class Anything:
    """Agents, orders and the clock in an order that a seed gives. `CoreJob.check` holds after each event."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.job = CoreJob(self.random.choice([None, 1, 2]))
        self.rules = [self.joins, self.leaves, self.hangs, self.says_how_far_it_is, self.change_is_ordered]
        self.rules += [self.joins, self.plan_without_the_lost, self.change_goes_on, self.change_goes_on]
        self.rules += [self.time_passes, self.way_is_gone, self.is_cut_off, self.is_back]

    def run(self, steps: int) -> CoreJob:
        if self.random.random() < 0.7:
            self.job.join_all()
        for _ in range(steps):
            self.job.disk_full = self.random.random() < 0.05
            self.random.choice(self.rules)()
        if self.random.random() < 0.3:
            self.job.take(ev.Closed(self.random.choice(["", "removed"])))
            self.joins()
        self.job.check_journal()
        return self.job

    def node(self) -> str:
        return self.random.choice(list(ROLES))

    def joins(self) -> None:
        node, carried = self.node(), self.random.random() < 0.3
        running = (self.random.choice([7, self.job.state.epoch]), self.job.state.plan.get(node, "none"))
        take_over = self.random.random() < 0.3
        self.job.join(node, take_over=take_over, running=running if carried else (0, ""))

    def leaves(self) -> None:
        one = self.job.state.nodes.get(self.node())
        if one is not None and one.connection:
            word = self.random.choice(["done", "failed", None])
            if word:
                self.job.take(ev.LeaveAnnounced(one.agent, "no progress" if word == "failed" else ""))
            self.job.take(ev.Left(one.connection))

    def is_cut_off(self) -> None:
        one = self.job.state.nodes.get(self.node())
        if one is not None and one.connection:
            self.job.take(ev.Left(one.connection, 11.0))

    def is_back(self) -> None:
        """Let an agent join again over another connection, with what it runs or, if it is out of reach, has run."""
        node = self.node()
        one = self.job.state.nodes.get(node)
        if one is not None and one.agent:
            self.job.join(node, agent=one.agent, running=one.running)

    def hangs(self) -> None:
        self.job.take(ev.Silent(self.node(), 12.0))

    def says_how_far_it_is(self) -> None:
        one, change = self.job.state.nodes.get(self.node()), self.job.state.migration
        if one is not None and change is not None:
            kind = self.random.choice([ev.Drained, ev.Prepared])
            failure = self.random.choice(["", "", "", "no memory"])
            self.job.take(kind(one.agent, change.epoch, self.random.randrange(5), failure=failure))

    def change_is_ordered(self) -> None:
        servers = self.random.choice([("ps1",), ("ps2",), ("ps1", "ps2")])
        nodes = ("w1", "w2", *servers) if self.random.random() < 0.8 else ("w1", *servers)
        plan, again = places(nodes, f"plan for {nodes}"), self.random.random() < 0.3
        if self.job.state.running:
            self.job.take(ev.MigrationOrdered(plan, again))
        elif again:
            self.job.take(ev.PlanRestarted(plan, "begins anew"))
        else:
            self.job.take(ev.PlanReplaced(plan))

    def plan_without_the_lost(self) -> None:
        """Do what the service does when an agent is lost. A server that is back serves if no other one is left."""
        left = [node for node in self.job.state.plan if node not in self.job.state.lost()]
        if not {"ps1", "ps2"} & {*left}:
            left += sorted({"ps1", "ps2"} & {*self.job.state.having(RESERVE)})
        if self.job.state.phase == Phase.SHORT and self.random.random() < 0.8:
            self.job.take(ev.MigrationOrdered(places(left, f"plan for {left}"), False))
        else:
            self.job.take(ev.GivenUp("no way"))

    def change_goes_on(self) -> None:
        """Let all agents report their progress, and order them to continue."""
        change = self.job.state.migration
        if change is None:
            return
        kind = ev.Prepared if change.stage == Stage.PREPARING else ev.Drained
        for one in self.job.state.nodes.values():
            if one.connection and self.random.random() < 0.9:
                self.job.take(kind(one.agent, change.epoch, 3))
        order = self.random.choice([ev.SwitchOrdered, ev.SwitchOrdered, ev.RetireOrdered, ev.RetireOrdered, None])
        self.job.take(order(change.epoch) if order is not None else ev.MigrationLate(change.epoch, 15.0))

    def way_is_gone(self) -> None:
        """Report that the plan before has lost a path, whether or not operations of it are in progress."""
        self.job.take(ev.DrainBroken(self.job.state.epoch, "no way"))

    def time_passes(self) -> None:
        self.job.now += 6.0
        if self.job.timers:
            self.job.take(self.job.timers.pop(0))


def documented(title: str) -> set[tuple[str, str]]:
    """Return the changes of state in a table of docs/controller.md: its rows begin with "| from | to |"."""
    part = DOCS.read_text().partition(f"### {title}\n")[2].partition("\n#")[0]
    return set(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", part, re.MULTILINE))


def test_agents_agree_with_the_core_and_states_change_as_documented():
    """A failure names the seed, with which it can be reproduced."""
    moves: set[tuple[str, str]] = set()
    phases: set[tuple[str, str]] = set()
    for seed in range(LIVES):
        try:
            job = Anything(seed).run(STEPS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        moves |= {(str(a), str(b)) for a, b in job.moves if a != b}
        phases |= {(str(a), str(b)) for a, b in job.phases if a != b}
    for title, seen in (("Nodes", moves), ("Jobs", phases)):
        assert seen <= documented(title), f"docs/controller.md, {title}: the table lacks {seen - documented(title)}"
        never = documented(title) - seen
        assert len(never) <= SELDOM, f"docs/controller.md, {title}: no life has seen {never}"


class Servers(Anything):
    """Lives of which plans are made as the service makes them: without the agents in `without`."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.without: set[str] = set()
        self.rules = [self.joins, self.joins, self.leaves, self.change_goes_on, self.change_goes_on, self.time_passes]
        self.rules += [self.looks, self.plans, self.plans, self.gives_up, self.does_without_the_lost]
        self.rules += [self.is_cut_off, self.is_back]

    def looks(self) -> None:
        use = servers_to_use(self.job.state, ("ps1", "ps2"), self.without, {}, self.job.now)
        self.without = (self.without | {*use.without}) - {*use.again}

    def wanted(self) -> list[str]:
        """Return the nodes that the next plan needs; nothing if there is no such plan."""
        servers = [node for node in ("ps1", "ps2") if node not in self.without]
        return ["w1", "w2", *servers] if servers else []

    def plans(self) -> None:
        nodes, state = self.wanted(), self.job.state
        if nodes and state.running:
            there = all(node in state.nodes and state.nodes[node].connection for node in nodes)
            done = self.job.take(ev.MigrationOrdered(places(nodes, f"plan for {nodes}"), False))
            refused = [one.reason for one in done if isinstance(one, actions.RefuseMigration)]
            assert not (refused and there and state.migration is None), f"all agents are there: {refused}"
        elif nodes:
            self.job.take(ev.PlanReplaced(places(nodes, f"plan for {nodes}")))

    def does_without_the_lost(self) -> None:
        """Do without lost servers, except for those that are back if no other server is left (core/mending.py)."""
        self.without |= {*self.job.state.lost()}
        if self.without >= {"ps1", "ps2"}:
            self.without -= {*self.job.state.having(RESERVE)}

    def gives_up(self) -> None:
        if self.random.random() < 0.3:
            self.job.take(ev.GivenUp("no way"))

    def settle(self, there: list[str]) -> None:
        """Let these agents stay and all others leave, and the service look and plan until nothing changes any more."""
        self.job.disk_full = False
        for node in ROLES:
            one = self.job.state.nodes.get(node)
            if one is not None and one.connection and node not in there:
                self.job.take(ev.Left(one.connection))
            elif node not in there and node in self.job.state.out_of_reach():
                self.job.take(ev.Silent(node, 12.0))
            elif node in there and (one is None or not one.connection):
                self.job.join(node)
        for _ in range(8):
            self.job.now += 1000.0
            for _ in range(len(self.job.timers)):
                self.job.take(self.job.timers.pop(0))
            if self.job.state.phase == Phase.SHORT:
                self.does_without_the_lost()
            self.looks()
            self.plans()
            if self.job.state.phase == Phase.SHORT and self.job.state.migration is None:
                self.job.take(ev.GivenUp("no way"))
            for kind, order in ((ev.Prepared, ev.SwitchOrdered), (ev.Drained, ev.RetireOrdered)):
                change = self.job.state.migration
                if change is not None:
                    for one in [one for one in self.job.state.nodes.values() if one.connection]:
                        self.job.take(kind(one.agent, change.epoch, 3))
                    self.job.take(order(change.epoch))


def test_every_state_of_a_job_is_left_with_the_agents_that_are_there():
    """Whatever has happened, a job whose agents are all there runs with all. With fewer servers it runs with these, or
    waits for a lost one while no other stands by; and its plan can always be changed."""
    for seed in range(LIVES):
        life = Servers(seed)
        life.job = CoreJob()
        life.job.join_all()
        for _ in range(STEPS):
            life.random.choice(life.rules)()
        servers = life.random.choice([["ps1"], ["ps2"], ["ps1", "ps2"]])
        life.settle(["w1", "w2", *servers])
        state, nodes = life.job.state, ["w1", "w2", *servers]
        if not state.running:
            assert servers != ["ps1", "ps2"], f"seed {seed}: it waits for {state.missing()}"
            assert not state.having(RESERVE), f"seed {seed}: it waits for {state.missing()} while a server stands by"
            continue
        assert {*state.plan} == {*nodes} and life.wanted() == nodes, (
            f"seed {seed}: {state.plan}, without {life.without}"
        )
