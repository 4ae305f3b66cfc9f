"""Changing the plan of a running job: switches in memory, and agents that answer, refuse or vanish."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.cli.controller import format_replan
from controlplane.common.agentconfig import AgentConfig
from controlplane.common.log_lines import calling
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.generators import testbed
from controlplane.planner.job import place_job
from controlplane.planner.plan import Plan
from controlplane.planner.plan.limits import DoesNotFit, Limits
from controlplane.planner.routing import Unreachable
from controlplane.planner.rules import Beside, Deployment, Taken, build
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology, TopologyError
from controlplane.service import migration
from controlplane.service.epochs import EpochStore
from controlplane.service.migration import Migrator
from controlplane.service.next_plan import Frame, MigrationError
from controlplane.service.replies import replan_reply
from controlplane.service.residual import apply_changes
from controlplane.service.room import build_beside, first_label, last_label
from controlplane.service.roster import Roster, Rules
from controlplane.service.switches import Switches
from controlplane.service.versions import Version
from controlplane.targets import fabric
from controlplane.targets.base import Operation, difference
from controlplane.targets.secret import SecretTarget
from p4src.protocol import ENCODING
from tests.deploy.agents import Agents
from tests.support.examples import examples
from tests.support.memory import MemoryTarget

SMALL = Limits(values_per_packet=4, slots=2048, label_table_size=8192, route_table_size=2048)
BUSY = ("V1.aggregation_mbps=20",)


class Rig:
    """The paper's testbed: two switches with a plan's rules, and agents."""

    def __init__(self, folder: Path) -> None:
        epochs = EpochStore(folder)
        self.labels = epochs.labels()
        self.switches = [MemoryTarget(name) for name in ("V1", "V2")]
        self.targets = [SecretTarget(switch, self.labels) for switch in self.switches]
        self.topology = testbed(switch_mbps=60, server_mbps=40, link_mbps=60)
        job = place_job(self.topology, 6, 2, seed=1)
        self.plan: Plan = get_strategy("inart")(self.topology, job, seed=1)
        self.deployment = build(self.plan, self.topology, SMALL, job_id=1, epoch=0)
        fabric.install(self.targets, self.deployment.rulesets)
        self.log: list[str] = []
        log = calling(self.log.append)
        self.roster = Roster(self.deployment.agents, epochs, Rules(ENCODING), log, labels=self.labels)
        installed = {1: self.deployment.rulesets}
        self.kept = Switches(self.targets, self.deployment.rulesets, installed, log)
        self.kept.watch()
        self.keepers = self.kept.keepers
        self.agents = Agents(self.roster)
        self.carries: int | None = None
        self.migrator = Migrator(
            Version(self.plan, self.deployment),
            self.topology,
            Frame(self.plan.job, SMALL, check=self._check),
            switches=self.kept,
            roster=self.roster,
            log=log,
        )

    def _check(self, plan: Plan, topology: Topology) -> None:
        if plan.version > self.plan.version and self.carries is not None:
            raise DoesNotFit("V1", "Mbit/s of loopback ports", 60, self.carries)

    def snapshots(self) -> list[tuple[set[Any], ...]]:
        """Return what each switch holds, in no order."""
        return [switch.snapshot() for switch in self.switches]

    def hold(self, deployment: Deployment) -> bool:
        """Return whether the switches have exactly these labels and groups."""
        for target in self.targets:
            wanted = replace(deployment.rulesets[target.name], routes=target.read().routes)
            if difference(target.read(), wanted):
                return False
        return True

    def close(self) -> None:
        self.roster.close()
        self.agents.end()
        self.kept.close()


@pytest.fixture
def rig(tmp_path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def labels_of(config: AgentConfig) -> set[int]:
    """Return the labels that an agent sends under."""
    up = {tree.up_label for tree in config.worker_trees}
    return up | {label for tree in config.root_trees for label in (tree.return_label, *tree.answer_labels)}


def test_job_changes_over_at_the_first_operation_that_nobody_has_started(rig):
    rig.agents.started = {"W1": 4, "W2": 7, "W3": 6}
    rig.agents.join()
    before = rig.roster.epoch
    update = rig.migrator.migrate(rig.migrator.state(changes=BUSY))
    assert update.changed
    assert update.first_operation == 7
    assert update.epoch == rig.roster.epoch > before
    assert update.rate_before < update.plan.rate_mbps < rig.plan.rate_mbps
    assert rig.roster.running
    assert {tuple(events[-3:]) for events in rig.agents.events.values()} <= {
        ("configuration", "prepare", "switch_over"),
        ("prepare", "switch_over", "retire"),
    }
    assert rig.hold(rig.migrator.deployment), "the old entries are gone, the new ones are there"
    # The agents' configuration matches the switches before and after the change.
    installed = {entry.label for target in rig.switches for entry in target.read().labels}
    assert installed and not installed & {e.label for target in rig.targets for e in target.read().labels}
    for node, (first, second) in rig.agents.told.items():
        assert first.digest != second.digest
        assert labels_of(first) and not labels_of(first) & installed, "the old plan's are gone"
        assert labels_of(second) <= installed, node
    words = format_replan(replan_reply(update, dry_run=False))
    assert words.startswith(f"job {update.plan.job.name}: the running plan")
    assert "migrated at operation 7" in words


def test_a_job_gets_another_epoch_with_the_plan_that_it_has(rig):
    """The plan to which the job returns after a failure is the same as before."""
    rig.agents.started = {"W1": 4, "W2": 7, "W3": 6}
    rig.agents.join()
    reduced = rig.migrator.migrate(rig.migrator.state(changes=BUSY), most=rig.plan.rate_mbps)
    home, installed = rig.migrator.home, rig.snapshots()
    assert home == rig.plan != reduced.plan
    renewed = rig.migrator.renew()
    assert renewed.epoch == rig.roster.epoch > reduced.epoch
    assert renewed.first_operation == 7
    assert rig.migrator.plan == replace(reduced.plan, version=reduced.plan.version + 1)
    assert rig.migrator.home == home
    assert rig.hold(rig.migrator.deployment) and rig.snapshots() != installed, "it has other labels and slots"
    rig.agents.unwilling = "W2"
    with pytest.raises(MigrationError, match="no memory"):
        rig.migrator.renew()
    assert rig.roster.epoch == renewed.epoch and rig.hold(rig.migrator.deployment)


def test_old_entries_stay_until_every_worker_is_done_with_them(rig, until):
    rig.agents.slow = "W4"
    rig.agents.join()
    result: list[object] = []
    state = rig.migrator.state(changes=BUSY)
    thread = threading.Thread(target=lambda: result.append(rig.migrator.migrate(state)))
    thread.start()
    until(lambda: "switch_over" in rig.agents.events["W4"], "the switch-over")
    until(lambda: rig.roster.status().update == "the old plan goes when W4 have all results of it", "W4 is named")
    for target in rig.targets:
        have = {(entry.ingress_port, entry.label) for entry in target.read().labels}
        assert have >= {(e.ingress_port, e.label) for e in rig.deployment.rulesets[target.name].labels}
    assert not result
    with pytest.raises(MigrationError, match="another migration is under way"):
        rig.migrator.migrate(state)
    rig.agents.slow = ""
    rig.agents.report("W4", pb.UpdateReport.DRAINED)
    thread.join(20)
    assert result
    assert rig.hold(rig.migrator.deployment)


def test_switch_that_refuses_an_entry_leaves_plan_and_agents_alone(rig):
    rig.agents.join()
    before = rig.snapshots()
    # The insert is refused again after the switch was read again, since one refusal may come from entries unknown to
    # us.
    inserts = count(1)
    rig.switches[1].refuses = lambda change: change.operation is Operation.INSERT and next(inserts) > 1
    with pytest.raises(MigrationError, match=r"the plan stays as it is: .*V2 refused"):
        rig.migrator.migrate(rig.migrator.state(changes=BUSY))
    rig.switches[1].refuses = lambda change: False
    assert rig.snapshots() == before
    assert all("prepare" not in events for events in rig.agents.events.values())
    assert rig.migrator.plan is rig.plan
    assert rig.migrator.migrate(rig.migrator.state(changes=BUSY)).changed, "and it can be tried again"


@pytest.mark.parametrize("dry_run", [True, False])
def test_plan_that_switches_cannot_carry_is_refused_before_anything_changes(rig, dry_run):
    rig.agents.join()
    before = rig.snapshots()
    rig.carries = 50
    with pytest.raises(MigrationError, match=r"the new plan does not fit: switch V1: .* 60 Mbit/s of loopback ports"):
        rig.migrator.migrate(rig.migrator.state(changes=BUSY), dry_run=dry_run)
    assert rig.snapshots() == before
    assert rig.migrator.plan is rig.plan
    rig.carries = None
    assert rig.migrator.migrate(rig.migrator.state(changes=BUSY)).changed


@pytest.mark.parametrize("problem", ["unwilling", "silent"])
def test_agent_that_cannot_follow_keeps_everybody_with_the_old_plan(rig, problem, monkeypatch, until):
    monkeypatch.setattr(migration, "PREPARE_SECONDS", 0.5)
    rig.agents.join()
    before, epoch = rig.snapshots(), rig.roster.epoch
    setattr(rig.agents, problem, "W2")
    words = {"unwilling": "no memory", "silent": "W2 did not make ready within 0.5 s"}[problem]
    with pytest.raises(MigrationError, match=words):
        rig.migrator.migrate(rig.migrator.state(changes=BUSY))
    until(lambda: all(events[-1] == "withdraw" for events in rig.agents.events.values()), "all go on as before")
    assert rig.snapshots() == before
    assert rig.roster.epoch == epoch
    assert rig.roster.running
    setattr(rig.agents, problem, "")
    assert rig.migrator.migrate(rig.migrator.state(changes=BUSY)).changed


@pytest.mark.parametrize("stage", ["prepare", "switch_over"])
def test_agent_lost_in_the_middle_stops_the_job_and_leaves_one_plan_installed(rig, stage, until):
    rig.agents.silent, rig.agents.slow = ("W2", "") if stage == "prepare" else ("", "W2")
    rig.agents.join()
    outcome: list[object] = []

    def change() -> None:
        try:
            outcome.append(rig.migrator.migrate(rig.migrator.state(changes=BUSY)))
        except MigrationError as error:
            outcome.append(error)

    thread = threading.Thread(target=change)
    thread.start()
    until(lambda: stage in rig.agents.events["W2"], "the middle of it")
    rig.roster.leave(rig.agents.members["W2"])
    thread.join(20)
    if stage == "prepare":
        assert isinstance(outcome[0], MigrationError)
        assert "W2 is gone" in str(outcome[0])
        assert rig.hold(rig.deployment)
    else:
        assert rig.hold(rig.migrator.deployment)
        assert rig.migrator.plan is not rig.plan
    until(lambda: "abort" in rig.agents.events["W1"], "the others are told")
    # After joining again, every agent gets the configuration that is on the switches.
    rig.agents.members["W2"] = rig.roster.join(
        pb.JoinRequest(node="W2", role="worker", version=ENCODING, agent="agent-W2")
    )
    assert rig.roster.running
    installed = rig.migrator.deployment.agents["W1"]
    assert rig.roster.configs["W1"].worker_trees == installed.worker_trees
    rig.agents.members["W2"].events.put(None)


@pytest.mark.parametrize("when", ["drains", "makes ready"])
def test_operations_are_repeated_where_the_plan_before_cannot_be_rerouted(rig, when, until):
    """Without this switch no agent reaches another: whenever it fails, the migration comes to its end."""
    rig.agents.slow = "W2"
    if when == "makes ready":
        rig.agents.silent = "W2"
    rig.agents.join()
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(rig.migrator.migrate(rig.migrator.state(changes=BUSY))))
    thread.start()
    until(lambda: ("switch_over" if when == "drains" else "prepare") in rig.agents.events["W2"], "the middle of it")
    if when == "drains":
        until(lambda: len(rig.migrator.versions) == 2 and rig.migrator.plan is not rig.plan, "it has migrated")
    with pytest.raises(MigrationError, match="cannot be rerouted around"):
        rig.migrator.reroute(rig.topology.replace(remove_nodes=["V1"]))
    if when == "makes ready":
        rig.agents.silent = ""
        rig.agents.report("W2", pb.UpdateReport.PREPARED)
    thread.join(20)
    assert not thread.is_alive(), "the migration does not wait for what cannot end"
    assert done[0].changed and rig.roster.epoch > done[0].epoch
    assert rig.agents.events["W1"][-4:] == ["switch_over", "prepare", "switch_over", "retire"]
    assert any("is started again with the one that runs" in line for line in rig.log)
    assert rig.hold(rig.migrator.deployment), "the old entries are gone"
    assert rig.roster.running and rig.roster.state.migration is None


def test_job_that_does_not_run_yet_starts_with_the_new_plan(rig):
    update = rig.migrator.migrate(rig.migrator.state(changes=BUSY))
    assert update.changed
    assert update.epoch == 0
    assert rig.hold(rig.migrator.deployment)
    rig.agents.join()
    assert rig.roster.running
    assert rig.roster.configs["W1"].worker_trees == rig.migrator.deployment.agents["W1"].worker_trees


def test_plan_that_is_right_stays_and_a_dry_run_changes_nothing(rig):
    rig.agents.join()
    before = rig.snapshots()
    assert not rig.migrator.migrate(rig.migrator.state()).changed
    planned = rig.migrator.migrate(rig.migrator.state(changes=BUSY), dry_run=True)
    assert not planned.changed
    assert planned.trees.added
    assert "nothing was changed" in format_replan(replan_reply(planned, dry_run=True))
    assert rig.snapshots() == before
    assert rig.migrator.topology is rig.topology or rig.migrator.topology.aggregation_mbps("V1") == 60


def test_switch_that_is_lost_can_be_disabled_or_the_error_says_so(rig, until):
    rig.agents.join()
    rig.switches[1].hang()
    until(lambda: rig.keepers[1].state == "reconnecting", "the keeper notices")
    with pytest.raises(MigrationError, match="needs switch V2, which does not answer: plan with --without V2"):
        rig.migrator.migrate(rig.migrator.state(changes=BUSY))
    with pytest.raises(Unreachable, match=r"no route from W5 to .*: W5 has no link"):  # W5 is connected to V2.
        rig.migrator.migrate(rig.topology.replace(remove_nodes=["V2"]))
    assert rig.migrator.plan is rig.plan


def test_states_that_are_not_of_this_network_are_refused(rig):
    state = rig.migrator.state
    assert state(changes=["V1-V2.used_bandwidth_mbps=5"]).used_bandwidth_mbps("V2", "V1") == 5
    for change, message in (
        ("V9.aggregation_mbps=1", "no node and no link 'V9'"),
        ("V1.aggregation_mbps=much", "is not a change"),
        ("V1.colour=1", "is not a change"),
        ("V1.aggregation_mbps=-1", "must not be negative"),
        ("V1.ingress_mbps=1", "does not belong on a switch"),
    ):
        with pytest.raises(TopologyError, match=message):
            state(changes=[change])
    other = rig.topology.to_json()
    other["edges"][0]["ports"] = {other["edges"][0]["source"]: 40, other["edges"][0]["target"]: 41}
    with pytest.raises(TopologyError, match="in the deployed network"):
        state(Topology.load(other))
    extra = rig.topology.to_json()
    extra["edges"].append({"source": "W1", "target": "V2", "bandwidth_mbps": 1})
    with pytest.raises(TopologyError, match="is not one of the deployed network"):
        state(Topology.load(extra))


@pytest.fixture(scope="module")
def plans() -> Callable[[str, float], Plan]:
    """Draw plans of all shapes for one job on one network."""
    topology = testbed(switch_mbps=60, server_mbps=40, link_mbps=60)
    job = place_job(topology, 6, 2, seed=1)

    def make(strategy: str, capacity: float) -> Plan:
        return get_strategy(strategy)(apply_changes(topology, [f"V1.aggregation_mbps={capacity}"]), job, seed=1)

    return make


@settings(max_examples=examples(30), deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["inart", "atp", "lbmm"]), st.sampled_from([7.0, 20.0, 60.0])), min_size=1, max_size=5
    ),
    slots=st.sampled_from([128, 256, 2048]),
    labels=st.sampled_from([100, 8192]),
    start=st.sampled_from([first_label(1), last_label(1) - 5]),
)
def test_no_two_versions_share_a_label_group_or_slot(plans, steps, slots, labels, start):
    topology = testbed(switch_mbps=60, server_mbps=40, link_mbps=60)
    limits = replace(SMALL, slots=slots, label_table_size=labels)
    try:
        old = build(plans("lbmm", 60.0), topology, limits, job_id=1, epoch=0, beside=Beside(first_label=start))
    except DoesNotFit:
        return
    for strategy, capacity in steps:
        try:
            new = build_beside(plans(strategy, capacity), topology, limits, old, job_id=1)
        except DoesNotFit:
            continue
        for switch in topology.switches:
            one, two = old.rulesets[switch], new.rulesets[switch]
            assert not {e.label for e in one.labels} & {e.label for e in two.labels}
            assert not {g.group for g in one.groups} & {g.group for g in two.groups}
            assert len(one.labels) + len(two.labels) <= limits.label_table_size
            ranges = sorted((*Taken.by(one).slots, *Taken.by(two).slots))
            assert all(end <= first for (_, end), (first, _) in pairwise(ranges)), "slots overlap"
            assert max((end for _, end in ranges), default=0) <= limits.slots
        old = new
