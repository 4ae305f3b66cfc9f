"""Several jobs on one network: no job takes resources from another when it comes, goes, changes or fails."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.cli.controller import main as operate
from controlplane.cli.deploy import main as deploy
from controlplane.cli.serve import main as serve
from controlplane.common.agentconfig import AgentConfig
from controlplane.common.log_lines import calling
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import fetch_status
from controlplane.planner.entries import RuleSet
from controlplane.planner.generators import fattree
from controlplane.planner.job import Job, JobError
from controlplane.planner.plan.limits import DoesNotFit
from controlplane.planner.rules import NOTHING, Taken
from controlplane.planner.strategies import Infeasible, get_strategy
from controlplane.planner.terms import Terms
from controlplane.planner.topology import TopologyError
from controlplane.service import admission, failures
from controlplane.service.admission import unsettled
from controlplane.service.core import trust
from controlplane.service.core.disabled import Why
from controlplane.service.core.state import Refused
from controlplane.service.epochs import EpochStore
from controlplane.service.members import Member
from controlplane.service.network import Network
from controlplane.service.next_plan import MigrationError
from controlplane.service.replies import job_statuses
from controlplane.service.room import JOB_IDS, deployment_of, first_label, found, job_of, last_label, split
from controlplane.service.running import JobsError
from controlplane.service.state import Keeps, Kept, StateError, StateFolder, Stored
from controlplane.targets.base import difference, empty
from controlplane.targets.p4runtime.kind import P4RuntimeKind
from controlplane.targets.secret import SecretTarget
from p4src.protocol import ENCODING
from tests.deploy.agents import Agents
from tests.deploy.fake_switch import FakeSwitch
from tests.support.examples import examples
from tests.support.memory import MemoryTarget

ROOT = Path(__file__).resolve().parents[2]
END_SECONDS = 120.0
"""How long a controller may take to end: some seconds on a busy machine; one that hangs does not end at all."""
TREE = fattree(4, 100.0)
SERVERS = TREE.servers
ONE = Job("one", SERVERS[:5], SERVERS[5:6], 1_000_000)
TWO = Job("two", SERVERS[8:13], SERVERS[13:14], 1_000_000)
ACROSS = Job("across", (SERVERS[6], SERVERS[14], SERVERS[15]), (SERVERS[7],), 1_000_000)


class Rig:
    """A fat-tree whose switches are in memory, with secret labels; its controller can start again."""

    def __init__(self, folder: Path, kind: P4RuntimeKind) -> None:
        self.folder, self.kind = folder, kind
        self.switches = {name: MemoryTarget(name) for name in TREE.switches}
        self.labels = EpochStore(folder).labels()
        self.targets = [SecretTarget(switch, self.labels) for switch in self.switches.values()]
        self.log: list[str] = []
        self.network = self.open()

    def open(self) -> Network:
        epochs = EpochStore(self.folder)
        there = found(self.targets)
        log = calling(self.log.append)
        return Network(TREE, self.kind, self.targets, epochs=epochs, labels=self.labels, found=there, log=log)

    def add(self, job: Job, strategy: str = "inart"):
        return self.network.add(self.network.admissions.admit(job, strategy).plan)[0]

    def entries(self, job_id: int) -> dict[str, RuleSet]:
        """Return the rules of a job on the switches, read from them."""
        return {t.name: split(t.read())[job_id] for t in self.targets if job_id in split(t.read())}

    def snapshot(self) -> dict[str, tuple[set[Any], ...]]:
        """Return what each switch holds, in no order."""
        return {name: switch.snapshot() for name, switch in self.switches.items()}


@pytest.fixture
def rig(tmp_path, kind) -> Iterator[Rig]:
    made = Rig(tmp_path, kind)
    yield made
    made.network.close()


def test_job_with_the_name_and_the_number_of_a_removed_one_inherits_nothing(rig):
    """`replan --set` of the removed job was applied to every later job of that name."""
    one = rig.add(ONE)
    rig.network.replan("one", changes=["c1.aggregation_mbps=1"])
    assert rig.network.state.of(one).aggregation_mbps("c1") == 1
    rig.network.remove("one")
    again = rig.add(ONE)
    assert again.job_id == one.job_id
    assert rig.network.state.of(again).aggregation_mbps("c1") == TREE.aggregation_mbps("c1") != 1


def test_jobs_come_and_go_without_touching_an_entry_of_another(rig):
    one = rig.add(ONE)
    before = rig.entries(one.job_id)
    assert before
    two = rig.add(TWO)
    across = rig.add(ACROSS, "atp")
    assert rig.entries(one.job_id) == before
    assert len({one.job_id, two.job_id, across.job_id}) == 3
    of_two = rig.entries(two.job_id)
    rig.network.remove("across")
    assert rig.entries(across.job_id) == {}
    assert (rig.entries(one.job_id), rig.entries(two.job_id)) == (before, of_two)
    update = one.migrator.migrate(one.migrator.state(changes=["c1.aggregation_mbps=1", "c2.aggregation_mbps=1"]), "atp")
    assert update.changed
    assert rig.entries(two.job_id) == of_two
    assert rig.entries(one.job_id) != before
    rig.network.remove("one")
    rig.network.remove("two")
    left = [target.read() for target in rig.targets]
    assert not any(rules.labels or rules.groups for rules in left)
    assert all(rules.routes for rules in left), "IPv4 is the network's, not a job's"


def test_a_job_gets_the_resources_that_the_others_leave(rig):
    alone = rig.network.admissions.admit(ONE, "inart").plan.rate_mbps
    rig.add(ONE)
    same_links = Job("rival", ONE.workers, ONE.parameter_servers, 1_000_000)
    try:
        rate = rig.network.admissions.admit(same_links, "inart").plan.rate_mbps
    except JobsError as error:
        assert "has nothing left beside one" in str(error)
    except ValueError as error:  # A strategy that finds no path reports that itself.
        assert "no route" in str(error) or "left" in str(error)
    else:
        assert rate < 0.5 * alone
    assert rig.network.admissions.admit(TWO, "inart").plan.rate_mbps == pytest.approx(
        get_strategy("inart")(TREE, TWO).rate_mbps, rel=0.2
    )


def test_a_job_whose_workers_are_parameter_servers_runs_with_one_agent_a_host(rig):
    """A host of both roles joins once, as a worker, and the job can do without it while another host adds up."""
    both = Job("both", ONE.workers, ONE.workers, 1_000_000, at_least=len(ONE.workers) - 1)
    rig.add(both)
    (job,) = rig.network.jobs
    assert set(job.roster.configs) == set(ONE.workers)
    assert all(config.role == "worker" and config.both_roles for config in job.roster.configs.values())
    known = job.roster.state.known
    assert all(known[node].role == "worker" and known[node].serves for node in ONE.workers)
    assert job.roster.state.suffices(ONE.workers[1:]) and not job.roster.state.suffices(ONE.workers[2:])


def test_job_that_does_not_fit_names_the_resource_and_installs_nothing(rig):
    rig.add(ONE)
    before = rig.snapshot()
    taken = rig.network.switches.taken()
    assert any(by != NOTHING for by in taken.values())
    full = {v: Taken(slots=((0, rig.kind.limits.slots),)) for v in TREE.switches}
    plan = get_strategy("atp")(TREE, TWO)
    with pytest.raises(DoesNotFit, match="aggregation slots, available are 0"):
        deployment_of(plan, TREE, rig.kind, 2, taken=full)
    with pytest.raises(JobsError, match="a job named 'one' runs already"):
        rig.network.admissions.admit(ONE, "inart")
    assert rig.snapshot() == before


def test_agents_find_their_job(rig):
    rig.add(ONE)
    rig.add(TWO)
    node = TWO.workers[0]
    join = pb.JoinRequest(node=node, role="worker", version=ENCODING)
    assert rig.network.jobs.of(join).name == "two"
    by_address = pb.JoinRequest(addresses=[TREE.address(node)], role="worker", version=ENCODING)
    assert rig.network.jobs.of(by_address).name == "two"
    rig.add(Job("three", (node, SERVERS[6]), SERVERS[7:8], 1_000_000))
    with pytest.raises(Refused, match=r"is in several jobs \(two, three\): say which with INART_JOB=NAME"):
        rig.network.jobs.of(join)
    join.job = "three"
    assert rig.network.jobs.of(join).name == "three"
    with pytest.raises(Refused, match="is not a node of any job"):
        rig.network.jobs.of(pb.JoinRequest(node="nobody"))
    join.job = "four"
    with pytest.raises(Refused, match="there is no job 'four'; the jobs are: one, two, three"):
        rig.network.jobs.of(join)


def test_agents_of_a_job_that_is_removed_are_told_and_no_others(rig):
    one, two = rig.add(ONE), rig.add(TWO)
    members = {}
    for job in (one, two):
        for node, config in job.roster.configs.items():
            members[node] = job.roster.join(pb.JoinRequest(node=node, role=config.role, version=ENCODING))
    assert one.roster.running
    assert two.roster.running
    assert one.roster.epoch != two.roster.epoch, "no two jobs ever have an epoch in common"
    rig.network.remove("one")
    said = []
    while (event := members[ONE.workers[0]].events.get(timeout=5)) is not None:
        said.append(event)
    assert said[-1].refused.reason == "job one was removed"
    assert two.roster.running
    with pytest.raises(Refused, match="job one was removed"):
        one.roster.join(pb.JoinRequest(node=ONE.workers[0], role="worker", version=ENCODING))


def test_controller_that_starts_again_finds_its_jobs_as_they_were(rig):
    with StateFolder(rig.folder / "state") as state:
        rig.network.changed = lambda: state.save(rig.network.keeps())
        one, two = rig.add(ONE), rig.add(TWO)
        one.migrator.migrate(one.migrator.state(changes=["c1.aggregation_mbps=1"]), "atp")
        with pytest.raises(StateError, match="another controller of this network runs"):
            StateFolder(rig.folder / "state")
    snapshots = rig.snapshot()
    configs = {job.name: job.roster.configs for job in (one, two)}
    rig.network.close()
    with StateFolder(rig.folder / "state") as state:
        rig.network = rig.open()
        rig.network.start(state.load())
    assert rig.snapshot() == snapshots
    assert {job.name: job.roster.configs for job in rig.network.jobs} == configs
    # A switch lost its memory meanwhile: its rules are installed again.
    rig.network.close()
    wiped = next(iter(rig.switches.values()))
    wiped.rules = empty(wiped.name)
    with StateFolder(rig.folder / "state") as state:
        rig.network = rig.open()
        rig.network.start(state.load())
    assert rig.snapshot() == snapshots


def told(member: Member) -> AgentConfig:
    """Return the configuration that an agent has got."""
    got = [member.events.get_nowait() for _ in range(member.events.qsize())]
    (last,) = [event for event in got if event is not None and event.HasField("configuration")][-1:]
    return AgentConfig.from_json(last.configuration.agent_config)


def test_controller_that_starts_again_adopts_agents_that_run_with_secret_labels(rig):
    """Labels on the wire are the same after a restart, so the job continues in its epoch, and the switches' rules and
    the agents' configurations stay.
    """
    with StateFolder(rig.folder / "state") as state:
        rig.network.changed = lambda: state.save(rig.network.keeps())
        one = rig.add(ONE)
    roles = {node: config.role for node, config in one.roster.configs.items()}
    joined = {
        node: one.roster.join(pb.JoinRequest(node=node, role=role, version=ENCODING)) for node, role in roles.items()
    }
    before = {node: told(member) for node, member in joined.items()}
    numbers = {tree.up_label for config in one.roster.configs.values() for tree in config.worker_trees}
    assert numbers
    assert not numbers & {tree.up_label for config in before.values() for tree in config.worker_trees}, "secret"
    snapshots, epoch = rig.snapshot(), one.roster.epoch
    rig.network.close()
    with StateFolder(rig.folder / "state") as state:
        rig.network = rig.open()
        rig.network.start(state.load())
        (again,) = rig.network.jobs
        for node, role in roles.items():
            running = pb.JoinRequest(
                node=node, role=role, version=ENCODING,
                running_epoch=before[node].epoch, running_digest=before[node].digest,
            )  # fmt: skip
            joined[node] = again.roster.join(running)
        assert again.roster.running
        assert again.roster.epoch == epoch
        assert {node: told(member) for node, member in joined.items()} == before
    assert rig.snapshot() == snapshots


def test_a_job_that_cannot_be_kept_is_not_added_and_the_others_run_on(rig, until, monkeypatch):
    monkeypatch.setattr("controlplane.service.state.RETRY_SECONDS", 0.01)
    full = threading.Event()

    def sync(file):
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("controlplane.common.whole_file.os.fsync", sync)
    with StateFolder(rig.folder / "state") as state:
        kept = Kept(state, rig.network.keeps, calling(rig.log.append))
        rig.network.changed, rig.network.unkept = kept.save, kept.problem
        one = rig.add(ONE)
        snapshots = rig.snapshot()
        full.set()
        with pytest.raises(JobsError, match=r"two was not added: jobs cannot be kept in .*: No space left on"):
            rig.add(TWO)
        assert rig.snapshot() == snapshots
        # The running plan continues.
        one.migrator.migrate(one.migrator.state(changes=["c1.aggregation_mbps=1"]), "atp")
        assert sum("cannot be kept" in line for line in rig.log) == 1
        full.clear()
        until(lambda: any("are kept in" in line for line in rig.log), "it is tried again")
        assert [(stored.plan.job.name, stored.plan.version) for stored in state.load().jobs] == [
            ("one", one.plan.version)
        ]
        rig.add(TWO)
        assert len(state.load().jobs) == 2


def test_a_folder_that_cannot_be_made_is_reported():
    with pytest.raises(StateError, match=r"jobs cannot be kept in /proc/none: .*; another place: --state DIR"):
        StateFolder(Path("/proc/none"))


def test_switches_in_maintenance_stay_so_after_a_restart_of_the_controller(rig):
    """A switch in maintenance gets no tree of a job that comes after an upgrade of the controller. A parameter server
    that was taken out is not used again merely because it is present.
    """
    both = Job("both", TWO.workers, (*TWO.parameter_servers, *ACROSS.parameter_servers), 1_000_000)
    with StateFolder(rig.folder / "state") as state:
        rig.network.changed = lambda: state.save(rig.network.keeps())
        with pytest.raises(JobsError, match="there is no job; c2 disabled all the same, until --with c2"):
            rig.network.replan(off=["c2"])
        assert state.load().disabled == ["c2"], "also where no plan changes"
        rig.add(both)
        server = both.parameter_servers[0]
        rig.network.replan(off=["c1", "a2-c3", server])
        rig.network.replan(restored=["c2"])
        rig.network.failover.lose({"c4": "switch c4 does not answer"}, Why.LOST)  # The failure is detected anew.
        rig.network.replanning.rebalance()
    rig.network.close()
    with StateFolder(rig.folder / "state") as state:
        rig.network = rig.open()
        kept = state.load()
        rig.network.start(replace(kept, disabled=[*kept.disabled, "x9"]))
    assert rig.network.state.disabled == dict.fromkeys(["a2-c3", "c1", server], "operator")
    assert any("disabled as before, until replan --with: a2-c3, c1" in line for line in rig.log)
    assert any("not in the topology any more: x9" in line for line in rig.log)
    (job,) = rig.network.jobs
    assert not job.without, "nobody to take back"
    added = rig.add(ONE)
    assert not rig.entries(added.job_id).get("c1", RuleSet("c1", (), (), ())).labels
    rig.network.replan("both", restored=["c1", "a2-c3", server])
    assert rig.network.state.disabled == {}
    assert job.migrator.plan.job.parameter_servers == both.parameter_servers


def test_unreadable_state_is_reported(tmp_path):
    with StateFolder(tmp_path) as state:
        assert state.load().jobs == []
        (tmp_path / "jobs.json").write_text('{"jobs": [{}]}')
        with pytest.raises(StateError, match="move it away to begin without jobs"):
            state.load()


def test_stored_reservations_are_rejected_and_not_dropped(tmp_path):
    with StateFolder(tmp_path) as state:
        (tmp_path / "jobs.json").write_text('{"jobs": [], "reserved": []}')
        assert state.load() == Keeps([], [], [])
        text = '{"jobs": [], "reserved": [{"job": {"name": "night"}, "start": 1800000000.0}]}'
        (tmp_path / "jobs.json").write_text(text)
        with pytest.raises(StateError, match=r"has reservations \(night\).*inart job remove NAME"):
            state.load()
        assert (tmp_path / "jobs.json").read_text() == text


@settings(max_examples=examples(40), deadline=None)
@given(
    plans=st.lists(
        st.tuples(st.sampled_from(["inart", "atp", "lbmm"]), st.sampled_from([ONE, TWO, ACROSS])),
        min_size=1,
        max_size=6,
    ),
    gone=st.sets(st.integers(0, 5)),
)
def test_no_two_jobs_share_a_label_group_or_slot(kind, plans, gone):
    installed: dict[int, dict[str, RuleSet]] = {}
    for job_id, (strategy, job) in enumerate(plans, 1):
        taken = {v: Taken.by(_union(v, installed)) for v in TREE.switches}
        try:
            made = deployment_of(get_strategy(strategy)(TREE, job), TREE, kind, job_id, taken=taken)
        except DoesNotFit:
            continue
        installed[job_id] = made.rulesets
        if job_id in gone:
            installed.pop(min(installed))
        for switch in TREE.switches:
            parts = [rulesets[switch] for rulesets in installed.values()]
            keys = [(e.ingress_port, e.label) for part in parts for e in part.labels]
            groups = [group.group for part in parts for group in part.groups]
            ranges = sorted(slots for part in parts for slots in Taken.by(part).slots)
            assert len(set(keys)) == len(keys)
            assert len(set(groups)) == len(groups)
            assert all(end <= first for (_, end), (first, _) in pairwise(ranges))
            assert max((end for _, end in ranges), default=0) <= kind.limits.slots
            whole = _union(switch, installed)
            for number, part in split(whole).items():
                assert not difference(part, _bare(installed[number][switch])), "whose an entry is can be read from it"


def _bare(rules: RuleSet) -> RuleSet:
    return RuleSet(rules.switch, rules.labels, rules.groups, ())


def _union(switch: str, installed: dict[int, dict[str, RuleSet]]) -> RuleSet:
    parts = [rulesets[switch] for rulesets in installed.values()]
    labels = tuple(entry for part in parts for entry in part.labels)
    return RuleSet(switch, labels, tuple(group for part in parts for group in part.groups), ())


@given(st.integers(0, JOB_IDS - 1))
def test_labels_identify_their_job(job_id):
    assert job_of(first_label(job_id)) == job_of(last_label(job_id)) == job_id
    assert 0 < first_label(job_id) <= last_label(job_id) < 1 << 32


def test_jobs_avoid_a_failed_switch_and_use_it_again_when_it_is_back(rig, until, monkeypatch):
    monkeypatch.setattr(trust, "LOST_SECONDS", 0.3)
    monkeypatch.setattr(trust, "STEADY_SECONDS", 0.3)
    one, two = rig.add(ONE, "atp"), rig.add(ACROSS, "inart")
    hosts = {TREE.access_switch(server) for server in SERVERS}
    used = [switch for switch, rules in rig.entries(two.job_id).items() if rules.labels and switch not in hosts]
    switch = used[0]
    configs = two.roster.configs
    rig.network.switches.watch()
    watch = failures.Watch(rig.network, calling(rig.log.append))
    watch.start()
    try:
        rig.switches[switch].die()
        until(lambda: rig.network.state.off == {switch: "lost"}, "it is noticed")
        until(lambda: any("rerouted around it" in line for line in rig.log), "the job is rerouted around it")
        until(lambda: all(switch not in flow.route for tree in two.migrator.plan.trees for flow in tree.flows))
        assert set(two.roster.configs) == set(configs)
        rig.switches[switch].down = False
        until(lambda: rig.network.state.off == {}, "it is used again", 30)
        until(lambda: any(f"{switch} can be used again" in line for line in rig.log), "that is said")
    finally:
        watch.close()
    assert one.migrator.plan.job == ONE


def test_operator_keeps_things_off_and_takes_that_back(rig):
    one = rig.add(ONE)
    before = one.migrator.plan
    update = rig.network.replan(off=["c1", "c2-a1"])
    assert rig.network.state.off == {"c1": "operator", "c2-a1": "operator"}
    routes = [flow.route for tree in one.migrator.plan.trees for flow in tree.flows]
    assert not any("c1" in route for route in routes)
    assert not any({u, v} == {"c2", "a1"} for route in routes for u, v in pairwise(route))
    with pytest.raises(JobsError, match="c3 is not disabled; disabled: c1, c2-a1"):
        rig.network.replan(restored=["c3"])
    with pytest.raises(TopologyError, match="no switch, link"):
        rig.network.replan(off=["c99"])
    rig.network.replan(restored=["c1", "c2-a1"])
    assert rig.network.state.off == {}
    assert one.migrator.plan.rate_mbps == pytest.approx(before.rate_mbps, rel=1e-3)
    assert update.plan.job == ONE


def test_parameter_server_that_is_disabled_gives_its_part_to_the_others(rig, until):
    job = Job("two-roots", SERVERS[:4], (SERVERS[6], SERVERS[10]), 1_000_000)
    running = rig.add(job)
    agents = Agents(running.roster)
    agents.join()
    epoch = running.roster.epoch
    rig.network.replan(off=[SERVERS[10]])
    assert running.migrator.plan.job.parameter_servers == (SERVERS[6],)
    assert running.roster.epoch > epoch
    assert running.roster.running, "those that are left go on at once, in a new epoch"
    until(lambda: agents.events[SERVERS[6]][-1] == "retire", "the others migrate without a stop")
    assert agents.events[SERVERS[6]][-4:] == ["configuration", "prepare", "switch_over", "retire"]
    until(lambda: agents.events[SERVERS[10]][-1] == "abort", "the one that is taken out stops when nobody needs it")
    rig.network.replan(restored=[SERVERS[10]])
    assert set(running.migrator.plan.job.parameter_servers) == {SERVERS[6], SERVERS[10]}
    until(lambda: agents.events[SERVERS[10]][-3:] == ["prepare", "switch_over", "retire"], "and is used again")
    running.roster.close()
    agents.end()


def test_order_that_leaves_a_job_without_servers_is_refused_and_changes_nothing(rig):
    rig.add(ONE)
    two = rig.add(Job("two-roots", SERVERS[:4], (SERVERS[6], SERVERS[5]), 1_000_000))
    before = two.migrator.plan
    with pytest.raises(JobError, match="job 'one' has no parameter server left"):
        rig.network.replan(off=[SERVERS[5]])
    assert not rig.network.state.off
    assert two.migrator.plan is before


def test_worker_that_its_job_waits_for_cannot_be_disabled(rig):
    running = rig.add(ONE)
    with pytest.raises(JobsError, match=f"{SERVERS[0]} is a worker of job one, which waits for each of its workers"):
        rig.network.replan(off=[SERVERS[0]])
    assert not rig.network.state.off
    assert rig.network.replan(dry_run=True).plan.job == running.migrator.plan.job, "later orders are planned as before"


def test_order_that_a_job_cannot_follow_says_that_it_holds_all_the_same(rig):
    rig.add(ONE)
    edge = TREE.access_switch(SERVERS[0])
    with pytest.raises(MigrationError, match=f"no route .*; {edge} disabled all the same, until --with {edge}"):
        rig.network.replan(off=[edge])
    assert rig.network.state.off == {edge: "operator"}


def test_a_job_that_finds_no_path_beside_others_is_told_their_names(rig):
    rig.add(replace(ONE, parameter_servers=(SERVERS[7],)))
    full = Job("late", (SERVERS[8], SERVERS[9]), (SERVERS[7],), 1_000_000)
    with pytest.raises((Infeasible, JobsError), match=r"beside one \(--share plans all jobs together\)"):
        rig.network.admissions.admit(full, "inart")


def test_job_that_lost_all_its_servers_begins_with_the_first_that_is_back(rig, until):
    running = rig.add(Job("two-roots", SERVERS[:4], (SERVERS[6], SERVERS[10]), 1_000_000))
    agents = Agents(running.roster)
    agents.join()
    for root in (SERVERS[6], SERVERS[10]):
        running.roster.leave(agents.members[root])
    until(lambda: not running.roster.running, "everybody stops")
    until(lambda: running.without, "the first was done without")
    (first,) = running.without
    mending = "mend-two-roots"
    until(lambda: all(one.name != mending for one in threading.enumerate()), "and nothing more can be done")
    running.roster.join(pb.JoinRequest(node=first, role="parameter_server", version=ENCODING))
    failures.Watch(rig.network).look_at_lost_agents()
    until(lambda: running.plan.job.parameter_servers == (first,), "it is planned with the one that is back")
    until(lambda: running.roster.running, "and begins again")
    running.roster.close()
    agents.end()


def test_job_goes_on_without_a_server_though_others_have_taken_the_links(rig, until):
    """The job gets a little until the others make room for it."""
    running = rig.add(Job("two-roots", SERVERS[:4], (SERVERS[6], SERVERS[10]), 1_000_000))
    agents = Agents(running.roster)
    agents.join()
    left = rig.network.state.left
    own = [link for link in TREE.links if SERVERS[6] in link]
    everything = {link: {"used_bandwidth_mbps": TREE.bandwidth_mbps(*link)} for link in own}
    rig.network.state.left = lambda topology, job_id: left(topology, job_id).replace(links=everything)
    running.roster.leave(agents.members[SERVERS[10]])
    until(lambda: running.migrator.plan.job.parameter_servers == (SERVERS[6],), "the other goes on alone", 60)
    assert running.migrator.plan.rate_mbps == pytest.approx(5.0), "of 100"
    assert running.roster.running
    running.roster.close()
    agents.end()


def test_worker_that_is_lost_for_good_is_back_when_an_operator_says_so(rig, until):
    running = rig.add(Job("may-lose", SERVERS[:4], (SERVERS[6],), 1_000_000, at_least=3))
    agents = Agents(running.roster)
    agents.join()
    first = running.roster.epoch
    lost = SERVERS[2]
    running.roster.leave(agents.members[lost])
    until(lambda: running.migrator.plan.job.workers == (SERVERS[0], SERVERS[1], SERVERS[3]), "the others go on")
    until(lambda: running.roster.epoch > first and agents.events[SERVERS[0]][-1] == "retire", "without a stop")
    assert "abort" not in agents.events[SERVERS[0]]
    assert rig.network.state.disabled == {lost: "lost, job may-lose"}
    until(lambda: rig.network.answers["agents gone on without"] == 1, "it is counted")
    back = running.roster.join(pb.JoinRequest(node=lost, role="worker", version=ENCODING))
    with pytest.raises(JobsError, match="h9 is not disabled; disabled: h3"):
        rig.network.replan(restored=["h9"])
    rig.network.replan(restored=[lost])
    assert running.migrator.plan.job.workers == SERVERS[:4]
    assert running.roster.running
    until(lambda: agents.events[SERVERS[0]][-2:] == ["abort", "configuration"], "all begin anew")
    assert back.events.qsize() >= 1
    running.roster.close()
    agents.end()


def test_jobs_that_share_get_fair_rates_and_keep_their_key_ranges(rig):
    one = rig.add(ONE)
    before, split = one.migrator.plan.rate_mbps, one.migrator.plan.split
    rival = Job("rival", ONE.workers, ONE.parameter_servers, 1_000_000)
    admission = rig.network.admissions.shared(rival, "inart", terms=Terms(2.0))
    assert admission.others["one"][0] == before
    two, _ = rig.network.add(admission.plan, terms=Terms(2.0), others=admission.plans)
    assert two.plan.rate_mbps == pytest.approx(2 * one.plan.rate_mbps, rel=1e-3)
    assert one.migrator.plan.split == pytest.approx(split)
    assert one.plan.rate_mbps < before
    rig.network.remove("rival")
    assert rig.network.replanning.rebalance()["one"][1] == pytest.approx(before, rel=1e-3)


def test_a_guaranteed_rate_is_kept_or_refused_with_the_short_resource(rig):
    one = rig.add(ONE)
    alone = one.plan.rate_mbps
    rival = Job("rival", ONE.workers, ONE.parameter_servers, 1_000_000)
    before = rig.entries(one.job_id)
    with pytest.raises(Infeasible, match=r"do not fit together.* is short"):
        rig.network.launch(rival, "inart", together=True, terms=Terms(guarantee_mbps=1.2 * alone))
    with pytest.raises((JobsError, Infeasible), match=r"what the others leave|nothing left|capacity left"):
        rig.network.launch(rival, "inart", terms=Terms(guarantee_mbps=0.9 * alone))
    assert rig.entries(one.job_id) == before
    assert len(rig.network.jobs) == 1
    wanted = 0.8 * alone
    _, two, _ = rig.network.launch(rival, "inart", together=True, terms=Terms(guarantee_mbps=wanted))
    assert two.plan.rate_mbps >= wanted * (1 - 1e-6)
    assert one.plan.rate_mbps == pytest.approx(alone - wanted, rel=1e-2)
    third = Job("third", ONE.workers, ONE.parameter_servers, 1_000_000)
    rig.network.launch(third, "inart", together=True, terms=Terms(priority=1))
    assert two.plan.rate_mbps >= wanted * (1 - 1e-6), "a guarantee holds against any priority"
    assert one.plan.rate_mbps < 0.02 * alone


@pytest.mark.parametrize("terms", [{"weight": 0.0}, {"weight": float("nan")}, {"guarantee_mbps": -1.0}])
def test_terms_that_are_none_are_refused(terms):
    with pytest.raises(ValueError, match="number"):
        Terms(**terms)


# -- as operators run it ----------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Start `inart serve` on the paper's testbed; returns (its address, the switches, the command)."""
    switches = {name: FakeSwitch(number) for number, name in enumerate(("V1", "V2"), 1)}
    file = tmp_path / "switches.json"
    file.write_text(json.dumps({n: {"address": s.address, "device_id": s.device_id} for n, s in switches.items()}))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    command = [sys.executable, "-m", "inart", "serve", "--topology", "testbed:switch=60,server=40,link=60"]
    command += ["--bmv2", "--switches", str(file), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().removeprefix("controller serves on ").strip()
    yield address, switches, command, process, file
    process.kill()
    process.communicate()
    for switch in switches.values():
        switch.stop()


def test_operator_adds_lists_and_removes_jobs(served, capsys):
    address, switches, command, process, file = served
    there = ["--controller", address]
    assert operate(["job", "add", *there, "--job", "workers=2,ps=1,name=a", "--dry-run"]) == 0
    assert "nothing was installed" in capsys.readouterr().out
    assert operate(["job", "add", *there, "--job", "workers=2,ps=1,name=a"]) == 0
    assert "installed as job 1" in capsys.readouterr().out
    first = {name: switch.snapshot() for name, switch in switches.items()}
    assert operate(["job", "add", *there, "--job", "workers=3,ps=1,name=b"]) == 0
    said = capsys.readouterr().out
    assert "installed as job 2" in said
    assert "job a:" in said
    assert operate(["job", "list", *there]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["job", "a", "b"]
    assert operate(["status", *there]) == 0
    assert "more of one job: --job NAME" in capsys.readouterr().out
    assert operate(["job", "show", "b", *there]) == 0
    assert "job b, strategy inart" in capsys.readouterr().out
    # A second controller is refused: on this machine by the folder, from another machine by the switches.
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert "another controller of this network runs on this machine" in second.stderr
    plan = ["--topology", "testbed:switch=60,server=40,link=60", "--job", "workers=2,ps=1", "--bmv2"]
    assert deploy([*plan, "--switches", str(file)]) == 1
    assert "has a controller that lives" in capsys.readouterr().err
    assert deploy(["remove", "--bmv2", "--switches", str(file)]) == 1
    assert "has a controller that lives" in capsys.readouterr().err
    assert operate(["job", "remove", "b", *there]) == 0
    assert "job b removed" in capsys.readouterr().out
    assert {name: switch.snapshot() for name, switch in switches.items()} == first
    assert operate(["job", "remove", "b", *there]) == 1
    assert "there is no job 'b'; the jobs are: a" in capsys.readouterr().err
    assert operate(["job", "add", *there, "--job", "workers=99"]) == 1
    assert "needs" in capsys.readouterr().err
    # The controller ends and comes back with its job; without a controller, deploy asks which job to remove.
    process.send_signal(signal.SIGINT)
    assert process.wait(END_SECONDS) == 0
    again = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert again.stdout is not None
        address = again.stdout.readline().removeprefix("controller serves on ").strip()
        assert [job.name for job in fetch_status(address).jobs] == ["a"]
        assert {name: switch.snapshot() for name, switch in switches.items()} == first
        operate(["job", "add", "--controller", address, "--job", "workers=3,ps=1,name=b"])
        again.send_signal(signal.SIGINT)
        assert again.wait(END_SECONDS) == 0
    finally:
        again.kill()
        again.communicate()
    capsys.readouterr()
    assert deploy(["remove", "--bmv2", "--switches", str(file)]) == 2
    assert "entries of job 1, 2: say which: remove N, or remove all" in capsys.readouterr().err
    assert deploy(["remove", "3", "--bmv2", "--switches", str(file)]) == 2
    assert "none of job 3" in capsys.readouterr().err
    assert deploy(["remove", "2", "--bmv2", "--switches", str(file)]) == 0
    assert {name: switch.snapshot() for name, switch in switches.items()} == first
    assert deploy(["remove", "all", "--bmv2", "--switches", str(file)]) == 0
    assert not any(switch.entities for switch in switches.values())


def test_job_of_the_command_line_is_there_from_the_start_and_kept(served):
    """The job is added once: a controller that starts again continues with the state that it has kept."""
    _, switches, command, process, _ = served
    process.send_signal(signal.SIGINT)
    assert process.wait(END_SECONDS) == 0
    entries = []
    for _ in range(2):
        again = subprocess.Popen(
            [*command, "--job", "workers=2,ps=1,name=a"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert again.stdout is not None
            address = again.stdout.readline().removeprefix("controller serves on ").strip()
            assert [(job.name, job.plan_version) for job in fetch_status(address).jobs] == [("a", 1)]
            entries.append({name: switch.snapshot() for name, switch in switches.items()})
            again.send_signal(signal.SIGINT)
            assert again.wait(END_SECONDS) == 0
        finally:
            again.kill()
            again.communicate()
    assert entries[0] == entries[1]
    other = [*command, "--job", "workers=3,ps=1,name=a"]
    refused = subprocess.run(other, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "another job named 'a' is there as before: remove it" in refused.stderr


def test_port_is_bound_before_a_switch_is_touched(served, tmp_path, capsys):
    address, switches, *_, file = served
    plan = ["--topology", "testbed", "--job", "workers=2,ps=1", "--bmv2", "--switches", str(file), "--take-over"]
    plan += ["--no-state"]
    before = {name: (switch.snapshot(), switch.pipelines, switch.primary) for name, switch in switches.items()}
    assert serve([*plan, "--listen", address]) == 1
    assert "is the port free" in capsys.readouterr().err
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "epoch").write_text("a word")
    assert serve([*plan[:-1], "--listen", "127.0.0.1:0", "--state", str(tmp_path / "demo")]) == 1
    assert "does not hold an epoch" in capsys.readouterr().err
    assert {n: (s.snapshot(), s.pipelines, s.primary) for n, s in switches.items()} == before


def test_stored_jobs_round_trip_through_a_file(tmp_path, kind):
    plan = get_strategy("inart")(TREE, ONE)
    deployment = deployment_of(plan, TREE, kind, 7)
    with StateFolder(tmp_path) as state:
        state.save(Keeps([Stored(7, plan, deployment)]))
        (back,) = state.load().jobs
    assert back.plan == plan
    assert back.deployment.agents == deployment.agents
    assert back.deployment.next_label == deployment.next_label
    for switch, rules in deployment.rulesets.items():
        assert back.deployment.rulesets[switch] == _bare(rules)


def test_adding_or_removing_a_job_changes_only_jobs_that_share_with_it(rig):
    """ONE and TWO have no link in common; a job that shares links with ONE does not concern TWO: none of TWO's entries
    is written.
    """
    one, two = rig.add(ONE), rig.add(TWO)
    of_two, alone = rig.entries(two.job_id), one.plan.rate_mbps
    rival = Job("rival", ONE.workers, ONE.parameter_servers, 1_000_000)
    admission = rig.network.admissions.shared(rival, "inart")
    assert admission.bottleneck.endswith("shared with one"), "what is full, and with whom"
    assert admission.others["two"] == (two.plan.rate_mbps, two.plan.rate_mbps)
    rig.network.launch(rival, "inart", together=True)
    assert one.plan.rate_mbps == pytest.approx(alone / 2, rel=1e-2)
    said = {status.name: status.bottleneck for status in job_statuses(rig.network)}
    for name in ("one", "rival"):
        assert re.search(r", 100 % full, [45]\d % of that its own$", said[name]), said[name]
    assert two.plan.version == 1
    assert any(re.match(r"1 of 2 jobs migrate: \d+ entries added, \d+ removed", line) for line in rig.log)
    assert rig.entries(two.job_id) == of_two
    rig.network.remove("rival")
    rig.network.replanning.rebalance()
    assert one.plan.rate_mbps > 0.9 * alone
    of_both = rig.entries(one.job_id), rig.entries(two.job_id)
    assert not rig.network.replanning.rebalance(), "as it shall be"
    assert (rig.entries(one.job_id), rig.entries(two.job_id)) == of_both


def test_at_most_so_many_jobs_migrate_in_one_step(rig, until, monkeypatch):
    monkeypatch.setattr(admission, "MOST", 1)
    jobs = [rig.network.launch(replace(ONE, name=name), "inart", together=True)[1] for name in ("a", "b", "c")]

    def spread() -> float:
        rates = [job.plan.rate_mbps for job in jobs]
        return max(rates) / min(rates)

    until(lambda: spread() < 1.1, "all is fair", 60.0)
    steps = [int(line.split()[0]) for line in rig.log if "jobs migrate" in line]
    assert steps
    assert set(steps) == {1}


@settings(max_examples=examples(50), deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.floats(0, 100), st.floats(0, 100), st.booleans())))
def test_jobs_above_their_share_are_replanned_first(drawn):
    rates, fair = ({name: given[i] for name, given in drawn.items()} for i in (0, 1))
    broken = [name for name, given in drawn.items() if given[2]]
    order = unsettled(rates, fair, broken)
    assert order[: len(broken)] == broken
    assert [rates[name] > fair[name] for name in order[len(broken) :]] == sorted(
        (rates[name] > fair[name] for name in order[len(broken) :]), reverse=True
    )
    for name in drawn.keys() - set(order):
        assert abs(rates[name] - fair[name]) <= 0.05 * max(rates[name], fair[name])
