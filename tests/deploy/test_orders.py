"""Orders of operators at the same time as other orders and failures: none is lost or half done, and none waits in
vain.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.evaluate import evaluate
from controlplane.planner.generators import fattree
from controlplane.planner.job import Job
from controlplane.planner.plan.limits import DoesNotFit
from controlplane.planner.strategies import Infeasible
from controlplane.planner.terms import Terms
from controlplane.service import migration, network
from controlplane.service.admission import AdmissionControl
from controlplane.service.core import events as ev
from controlplane.service.core.disabled import Why
from controlplane.service.core.parts import mended, switches_seen
from controlplane.service.core.state import Phase
from controlplane.service.next_plan import MigrationError
from controlplane.service.replanning import Late
from controlplane.service.residual import with_loads
from controlplane.service.running import JobsError, RunningJob
from controlplane.targets import fabric
from controlplane.targets.base import Operation
from controlplane.targets.fabric import FabricError
from p4src.protocol import ENCODING
from tests.deploy.agents import Agents
from tests.support.waiting import wait_until as until

NETWORK = fattree(4, 100.0, aggregation_mbps=None, ingress_mbps=None)
SERVERS = NETWORK.servers
ONE = Job("one", SERVERS[:3] + SERVERS[8:10], SERVERS[5:6], 1_000_000)
TWO = Job("two", SERVERS[10:13], SERVERS[3:4], 1_000_000)
THREE = Job("three", SERVERS[6:8] + SERVERS[13:15], SERVERS[4:5], 1_000_000)


def test_switch_that_dies_while_a_job_is_added_gets_its_entries_when_it_is_back(rig):
    victim = rig.adding(rig.add(ONE))
    rig.network.remove("one")
    victim.dies_after = 1
    rig.add(ONE)
    assert victim.name in rig.network.switches.off()
    victim.down = False
    until(lambda: victim.name not in rig.network.switches.off() and rig.as_wanted(), "the switch is filled again")


def test_switch_that_dies_while_a_job_is_removed_does_not_keep_the_job(rig):
    one, two = rig.add(ONE), rig.add(TWO)
    victim = rig.adding(one)
    victim.dies_after = 1
    rig.network.remove("one")
    assert [job.name for job in rig.network.jobs] == ["two"]
    assert two.job_id in rig.network.switches.jobs()
    assert one.job_id not in rig.network.switches.jobs()
    victim.down = False
    until(rig.as_wanted, "nothing of the job is left")
    with pytest.raises(JobsError, match="no job 'one'"):
        rig.network.remove("one")


def test_switch_that_will_not_give_an_entry_up_gives_it_up_later(rig):
    one = rig.add(ONE)
    victim = rig.adding(one)
    victim.refuses = lambda change: change.operation is Operation.DELETE
    rig.network.remove("one")
    assert len(rig.network.jobs) == 0
    assert not rig.as_wanted()
    victim.refuses = lambda change: False
    until(rig.as_wanted, "its keeper tries again")


def test_switch_that_refuses_an_entry_leaves_everything_as_it_was(rig):
    victim = rig.adding(rig.add(ONE))
    rig.network.remove("one")
    rig.add(TWO)
    before = {name: target.rules for name, target in rig.targets.items()}
    victim.refuses = lambda change: change.operation is Operation.INSERT
    with pytest.raises(FabricError, match=r"it is full(.|\n)*all switches are as they were before"):
        rig.add(ONE)
    assert {name: target.rules for name, target in rig.targets.items()} == before
    assert rig.as_wanted()
    victim.refuses = lambda change: False
    rig.add(ONE)
    assert rig.as_wanted()


def test_unchanged_rules_are_not_written(rig):
    rig.add(ONE)
    before = {name: target.writes for name, target in rig.targets.items()}
    two = rig.add(TWO)
    touched = {v for v, rules in two.migrator.deployment.rulesets.items() if rules.labels or rules.groups}
    assert {name for name, target in rig.targets.items() if target.writes != before[name]} == touched


def test_a_keeper_does_not_complete_an_order_in_progress(rig, monkeypatch):
    """Otherwise a switch's refusal would be reported to nobody, and the order would count as carried out."""
    everywhere = fabric.everywhere

    def looked(switches, work, **how):  # type: ignore[no-untyped-def]
        for keeper in rig.network.switches.keepers:
            keeper.catch_up()
        return everywhere(switches, work, **how)

    monkeypatch.setattr(fabric, "everywhere", looked)
    victim = rig.adding(rig.add(ONE))
    rig.network.remove("one")
    assert not any("that it lacked" in line for line in rig.log), rig.log
    victim.refuses = lambda change: change.operation is Operation.INSERT
    with pytest.raises(FabricError, match="it is full"):
        rig.add(ONE)
    victim.refuses = lambda change: False
    rig.add(ONE)
    assert rig.as_wanted()


def test_failure_is_answered_while_an_order_waits_for_a_job(rig):
    one = rig.add(ONE)
    victim = rig.adding(one)
    with rig.network.replanning.changing:  # An order is in progress, and may be for a long time.
        done = threading.Event()
        lose = rig.network.failover.lose
        thread = threading.Thread(target=lambda: (lose({victim.name: "it died"}, Why.LOST), done.set()))
        thread.start()
        assert done.wait(60), "the failure waits for the order"
        thread.join()
        assert victim.name not in {node for tree in one.migrator.plan.trees for node in tree.points}


def test_a_job_without_a_path_is_rerouted_as_soon_as_there_is_one(rig, monkeypatch):
    monkeypatch.setattr(rig.network.replanning, "soon", lambda: None)
    one = rig.add(ONE)
    victim = rig.adding(one).name
    others = [name for name in NETWORK.switches if name.startswith("c") and name != victim]
    assert rig.network.failover.lose({others[0]: "it died"}, Why.SILENT)
    spines = dict.fromkeys([victim, *others[1:]], "it died")
    assert not rig.network.failover.lose(spines, Why.SILENT), "no spine is left"
    rig.network.failover.take(mended, tuple(others), "tried again")
    assert victim not in {node for tree in one.migrator.plan.trees for flow in tree.flows for node in flow.route}
    assert rig.as_wanted()


def test_job_is_removed_though_a_change_of_its_plan_waits_for_it(rig):
    one = rig.add(ONE)
    rig.join(one)
    state = one.migrator.state(changes=["c1.aggregation_mbps=1"])
    change = threading.Thread(target=lambda: _quietly(lambda: one.migrator.migrate(state, "atp")))
    change.start()
    until(lambda: one.roster.state.migration is not None, "the change is being prepared")
    rig.network.remove("one")
    change.join(60)
    assert not change.is_alive()
    assert rig.as_wanted()
    assert not rig.network.switches.jobs()


def test_a_job_that_is_about_to_be_over_holds_up_nobody(rig, monkeypatch):
    """A worker is done and has left: it could not migrate, and whoever planned with it planned twice."""
    monkeypatch.setattr(rig.network.replanning, "soon", lambda: None)
    one = rig.add(ONE, together=True)
    rig.add(Job("rival", ONE.workers, ONE.parameter_servers, 1_000_000), together=True)
    members = {
        node: one.roster.join(pb.JoinRequest(node=node, role=config.role, version=ENCODING, agent=node))
        for node, config in one.roster.configs.items()
    }
    before = one.plan
    rig.network.remove("rival")
    one.roster.announce_leave(ONE.workers[0])
    one.roster.leave(members[ONE.workers[0]])
    assert one.roster.running and one.leaving
    assert rig.network.replanning.rebalance() == {}
    assert one.plan is before


def test_jobs_are_shared_anew_while_one_of_them_is_being_removed(rig):
    one = rig.add(ONE, together=True)
    rig.add(TWO, together=True)
    rig.join(one)
    outcome: list[object] = []
    with rig.network.replanning.changing:
        removal = threading.Thread(target=lambda: rig.network.remove("one"))
        removal.start()
        until(lambda: not one.roster.running or one.ending, "the removal has begun, and waits for the order")
        until(lambda: one.roster.state.phase == Phase.CLOSED, "its agents were told")
        outcome.append(rig.network.replanning.rebalance())
    removal.join(60)
    assert not removal.is_alive()
    assert outcome
    assert "one" not in outcome[0]
    assert rig.as_wanted()


def _quietly(work: Callable[[], object]) -> None:
    try:
        work()
    except MigrationError:
        pass


def test_jobs_added_together_from_several_sides_all_run(rig):
    problems: list[BaseException] = []

    def add(job: Job) -> None:
        try:
            rig.add(job, together=True)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=add, args=(job,)) for job in (ONE, TWO, THREE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert {job.name for job in rig.network.jobs} == {"one", "two", "three"}
    assert rig.as_wanted()


def test_job_that_is_cut_off_waits_and_the_others_are_rerouted(rig):
    one, two = rig.add(ONE, together=True), rig.add(TWO, together=True)
    access = NETWORK.access_switch(ONE.workers[0])
    rig.network.failover.lose({access: "it died"}, Why.LOST)
    victim = rig.adding(two)
    rig.network.failover.lose({victim.name: "it died"}, Why.LOST)
    for job in (one, two):
        for tree in job.migrator.plan.trees:
            assert all(victim.name not in flow.route for flow in tree.flows)
    with pytest.raises(JobsError, match=f"hangs on {access}, which is disabled .* has answered for 30 s"):
        rig.add(Job("late", SERVERS[1:2], SERVERS[15:], 1_000_000))
    rig.network.replanning.rebalance()
    assert rig.as_wanted()


def test_job_whose_switch_was_off_is_told_when_it_can_be_added_and_how_to_have_it_at_once(rig):
    """The switch answers again, and is used when it has done so for a while: hosts that have no other one wait."""
    access = NETWORK.access_switch(ONE.workers[0])
    rig.network.failover.lose({access: "it was off"}, Why.LOST)
    rig.network.failover.take(switches_seen, dict.fromkeys(NETWORK.switches, True))
    words = rf"answers again, and is used in \d+ s; inart undrain {access} enables it now"
    for add in (rig.network.launch, rig.network.admissions.admit, rig.network.admissions.shared):
        with pytest.raises(JobsError, match=words):
            add(ONE, "inart")
    with pytest.raises(JobsError, match=r"there is no job; .* can be used again all the same"):
        rig.network.replan(restored=[access])
    rig.add(ONE)


def test_state_that_changes_while_a_job_is_planned_is_planned_for_again(rig, monkeypatch):
    first = rig.adding(rig.add(ONE))
    rig.network.remove("one")
    admit = AdmissionControl.admit

    def slow(self: AdmissionControl, *arguments: object, **options: object):  # type: ignore[no-untyped-def]
        admission = admit(self, *arguments, **options)  # type: ignore[arg-type]
        if first.name not in self.state.off:
            rig.network.failover.lose({first.name: "it does not answer, just now"}, Why.LOST)
        return admission

    monkeypatch.setattr(AdmissionControl, "admit", slow)
    one = rig.add(ONE)
    assert all(first.name not in flow.route for tree in one.migrator.plan.trees for flow in tree.flows)


def test_a_job_with_late_agents_keeps_its_rate_and_delays_no_other_job(rig, monkeypatch):
    monkeypatch.setattr(migration, "PREPARE_SECONDS", 0.3)
    rival = Job("rival", ONE.workers, SERVERS[14:15], 1_000_000)
    one, two = rig.add(ONE, together=True), rig.add(TWO, together=True)
    rig.add(rival, together=True)
    rig.network.remove("rival")  # One job then has half of the rate that it could have.
    rig.join(one)  # The job does not answer.
    before = one.plan
    admission, third, _ = rig.network.launch(rival, "inart", together=True, terms=Terms(weight=3.0))
    assert one.plan == before
    assert "one" not in admission.others
    assert any("planned without taking from those that do not migrate: job one" in line for line in rig.log)
    plans = [job.migrator.plan for job in (one, two, third)]
    for plan in plans:
        others = [other for other in plans if other is not plan]
        left = evaluate(plan, with_loads(NETWORK, others)).rate_mbps
        assert left >= plan.rate_mbps * (1 - 1e-6), "nothing is used twice"
    assert rig.as_wanted()


@pytest.mark.parametrize("problem", ["late", "no room"])
def test_job_that_is_refused_changes_no_other_job(rig, monkeypatch, problem):
    """The guarantee could not be held beside a job that did not migrate, but another job had made room already."""
    monkeypatch.setattr(migration, "PREPARE_SECONDS", 0.3)
    one, two = rig.add(ONE, together=True), rig.add(TWO, together=True)
    jobs, before = [one, two], rates([one, two])
    if problem == "late":
        rig.join(one)  # The job does not answer.
    else:
        monkeypatch.setattr(rig.network, "install", Mock(side_effect=DoesNotFit("c1", "slots", 2, 1)))
    seen: list[dict[str, float]] = []
    monkeypatch.setattr(network, "time", SimpleNamespace(sleep=lambda seconds: seen.append(rates(jobs))))
    monkeypatch.setattr(rig.network.replanning, "soon", lambda: None)
    rival = Job("rival", (*ONE.workers[:2], *TWO.workers[:2]), SERVERS[14:15], 1_000_000)
    with pytest.raises((Infeasible, DoesNotFit)):
        rig.network.launch(rival, "inart", together=True, terms=Terms(guarantee_mbps=0.5 * before["one"]))
    for rates_now in (*seen, rates(jobs)):
        assert rates_now == pytest.approx(before)
    assert nothing_twice(jobs) and rig.as_wanted()


@pytest.mark.parametrize("stage", ["plan", "move", "agents", "quota", "store"])
def test_job_that_is_refused_before_others_move_leaves_their_entries(rig, monkeypatch, stage):
    """Each stage of the decision refuses once: no other job has migrated by then, also if the last of several jobs is
    the one that cannot be moved."""
    jobs = [rig.add(ONE, together=True), rig.add(TWO, together=True), rig.add(THREE, together=True)]
    for job in jobs:
        rig.join(job)  # Agents that do not answer: no migration succeeds.
    last, error = jobs[-1], JobsError("it is refused")
    monkeypatch.setattr(network, "ATTEMPTS", 1)
    monkeypatch.setattr(rig.network.replanning, "soon", lambda: None)
    if stage == "plan":
        monkeypatch.setattr(rig.network.admissions, "shared", Mock(side_effect=error))
    elif stage == "move":
        monkeypatch.setattr(last.migrator, "migrate", Mock(side_effect=MigrationError("it is refused")))
    elif stage == "agents":
        last.roster._effects.post(ev.Left(last.roster.members()[THREE.workers[0]].connection, 11.0))
    elif stage == "quota":
        monkeypatch.setattr(rig.network.tenants, "check_rules", Mock(side_effect=error))
    else:
        monkeypatch.setattr(rig.network, "unkept", lambda: "it is refused")
    migrated = Mock(side_effect=AssertionError("a job migrates"))
    monkeypatch.setattr(rig.network.replanning, "rebalance", migrated)
    before = [(job.plan, rig.network.switches.rules(job.job_id)) for job in jobs]
    rival = rival_of(jobs)
    admission = rig.network.admissions.shared(rival, "inart") if stage != "plan" else None
    assert admission is None or set(admission.plans) == {job.name for job in jobs}
    with pytest.raises((JobsError, Late), match=r"it is refused|waiting for h"):
        if admission is None:
            rig.network.launch(rival, "inart", together=True)
        else:
            rig.network.add(admission.plan, others=admission.plans)
    assert [(job.plan, rig.network.switches.rules(job.job_id)) for job in jobs] == before
    assert not migrated.called and rig.as_wanted() and not rig.network.jobs.begun


def rival_of(jobs: list[RunningJob]) -> Job:
    """Return a job that takes from each of these jobs, since it shares a worker's link with each."""
    return Job("rival", tuple(job.plan.job.workers[0] for job in jobs), SERVERS[15:], 1_000_000)


@pytest.mark.parametrize("ready_again", [True, False])
def test_a_job_for_which_nothing_is_left_asks_jobs_again_that_could_not_migrate(rig, monkeypatch, ready_again):
    """Agents of the job before may only be starting. Where they stay so, the refusal says that they did not."""
    monkeypatch.setattr(migration, "PREPARE_SECONDS", 0.3)
    one = rig.add(ONE, together=True)
    agents = Agents(one.roster)
    agents.silent = ONE.workers[0]
    agents.join()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        agents.silent = "" if ready_again else agents.silent

    monkeypatch.setattr(network, "time", SimpleNamespace(sleep=pause))
    rival = Job("rival", ONE.workers, ONE.parameter_servers, 1_000_000)
    try:
        if ready_again:
            _, two, _ = rig.network.launch(rival, "inart", together=True)
            assert two.plan.rate_mbps == pytest.approx(one.plan.rate_mbps, rel=0.01)
            assert pauses == [network.LATE_PAUSE_SECONDS]
        else:
            with pytest.raises(Infeasible, match=f"as others cannot migrate now .job one: .*{ONE.workers[0]} did not"):
                rig.network.launch(rival, "inart", together=True)
        assert rig.as_wanted()
    finally:
        one.roster.close()
        agents.end()


def test_a_job_that_waits_for_room_delays_no_other_order(rig, monkeypatch):
    monkeypatch.setattr(migration, "PREPARE_SECONDS", 0.3)
    one = rig.add(ONE, together=True)
    rig.join(one)  # The job does not answer.
    added: list[str] = []

    def pause(seconds: float) -> None:
        order = threading.Thread(target=lambda: added.append(rig.add(TWO).name), daemon=True)
        order.start()
        order.join(30.0)
        assert added, "the other order waits"
        rig.network.remove("two")
        added.clear()

    monkeypatch.setattr(network, "time", SimpleNamespace(sleep=pause))
    rival = Job("rival", ONE.workers, ONE.parameter_servers, 1_000_000)
    with pytest.raises(Infeasible, match="add it again"):
        rig.network.launch(rival, "inart", together=True)
    assert [job.name for job in rig.network.jobs] == ["one"]


@pytest.mark.parametrize("busy", ["another job is added", "the reroute needs the switch itself"])
def test_a_reroute_waits_for_no_switch_that_another_job_writes_to(rig, busy):
    """A switch takes the entries of a new job, and does not answer yet, while another switch fails."""
    two, added = rig.add(TWO), rig.add(ONE)
    ones, twos = (rig.network.switches.rules(job.job_id) for job in (added, two))
    access = {NETWORK.access_switch(node) for node in two.servers}
    failing = next(name for name in NETWORK.switches if name not in access and twos[name].labels)
    needed = busy == "the reroute needs the switch itself"
    others = [name for name in NETWORK.switches if ones[name].labels and name != failing]
    slow = next(name for name in others if (name in access) == needed)
    rig.network.remove("one")
    apply, asked, answers = rig.targets[slow].apply, threading.Event(), threading.Event()

    def applies(changes) -> None:
        asked.set()
        assert answers.wait(60.0)
        apply(changes)

    rig.targets[slow].apply = applies
    order = threading.Thread(target=rig.add, args=(ONE,), daemon=True)
    order.start()
    assert asked.wait(60.0)
    lost = threading.Thread(target=rig.network.failover.lose, args=({failing: "it does not answer"}, Why.LOST))
    lost.start()
    lost.join(60.0)
    assert not lost.is_alive() and not answers.is_set()
    assert not any(failing in flow.route for tree in two.plan.trees for flow in tree.flows)
    answers.set()
    order.join(60.0)
    until(rig.as_wanted, "all entries are written")


def test_entries_that_are_refused_take_nothing_from_a_job_that_was_added_meanwhile(rig):
    """All switches return to what they held, but with the entries that another job has got since."""
    victim = rig.adding(rig.add(ONE))
    rig.network.remove("one")
    two = rig.add(TWO)
    rules = {name: found for name, found in rig.network.switches.rules(two.job_id).items() if name != victim.name}
    rig.network.remove("two")
    added: list[int] = []

    def refuses(change) -> bool:
        if not added:
            added.append(rig.network.switches.install(77, rules))
        return True

    victim.refuses = refuses
    with pytest.raises(FabricError, match="it is full"):
        rig.add(ONE)
    assert added[0] > 0 and rig.network.switches.jobs() == [77]
    for name, found in rules.items():
        assert set(rig.targets[name].rules.labels) == set(found.labels)


WIDE = Job("wide", (SERVERS[4], SERVERS[6], SERVERS[7], SERVERS[13], SERVERS[14]), SERVERS[15:], 1_000_000)


def rates(jobs: list[RunningJob]) -> dict[str, float]:
    return {job.name: job.migrator.plan.rate_mbps for job in jobs}


def nothing_twice(jobs: list[RunningJob]) -> bool:
    plans = [job.migrator.plan for job in jobs]
    return all(
        evaluate(plan, with_loads(NETWORK, [other for other in plans if other is not plan])).rate_mbps
        >= plan.rate_mbps * (1 - 1e-6)
        for plan in plans
    )


@pytest.mark.parametrize("ordered", ["", "one"])
def test_jobs_that_do_not_share_keep_their_plans_during_maintenance(rig, ordered):
    jobs = [rig.add(job) for job in (ONE, WIDE, TWO)]
    given = rates(jobs)
    out = ["a1", "c1"]
    rig.network.replan(ordered, off=out)
    assert all(rate <= given[name] * (1 + 1e-6) for name, rate in rates(jobs).items()), "nobody takes from another"
    rig.network.replan(ordered, restored=out)
    until(lambda: rates(jobs) == pytest.approx(given, rel=1e-6) and nothing_twice(jobs), "each has what it had")
    until(rig.as_wanted, "nothing is left of what was between")


def test_jobs_that_do_not_share_keep_their_plans_after_a_failure(rig):
    jobs = [rig.add(job) for job in (ONE, WIDE, TWO)]
    given = rates(jobs)
    rig.network.failover.lose({"a1": "it died", "c2-a3": "nothing comes out"}, Why.SILENT)
    until(lambda: rig.network.answers["plans changed"] > 0 or rates(jobs) == given, "replanned")
    assert all(rate <= given[name] * (1 + 1e-6) for name, rate in rates(jobs).items())
    rig.network.failover.take(mended, ("a1", "c2-a3"), "they are back")
    until(lambda: rates(jobs) == pytest.approx(given, rel=1e-6), "each has what it had")


def test_replanning_by_an_operator_gives_a_job_all_free_resources(rig):
    """This is not because of a failure: the job keeps this plan from then on."""
    one = rig.add(ONE)
    rig.network.replan(changes=["c1.aggregation_mbps=1", "a1.aggregation_mbps=1", "e1.aggregation_mbps=1"])
    less = rates([one])
    rig.add(TWO)
    assert rates([one]) == {"one": one.migrator.home.rate_mbps} == less
    rig.network.replan("one", given=NETWORK)
    assert one.migrator.home.rate_mbps == one.migrator.plan.rate_mbps
