"""Tenants: what their jobs may have together, whoever adds them, and that no tenant touches another's jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.cli.controller import format_tenants
from controlplane.common.access import Access, Caller
from controlplane.common.log_lines import calling
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, ask, fetch_status
from controlplane.common.rpc.tls import Tls
from controlplane.planner.job import Job
from controlplane.planner.terms import UNLIMITED, Quota, Terms, parse_quotas, quota_of
from controlplane.service.core.state import Refused
from controlplane.service.running import JobsError, NoJobYet
from controlplane.service.tenants import QuotasFile
from p4src.protocol import ENCODING
from tests.deploy.memory_network import MemoryNetwork

A = Job("A", ("h1", "h4"), ("h2",), 10**6)
B = Job("B", ("h1", "h4"), ("h5",), 10**6)
C = Job("C", ("h3", "h6"), ("h2",), 10**6)
MINE, OTHERS = Terms(tenant="physics"), Terms(tenant="biology")


# -- what a quota says ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "others", "words"),
    [
        (Terms(tenant="t"), [], ""),
        (Terms(tenant="t"), [Terms(), Terms()], "it has 2 jobs and may have 2 at a time: remove one first"),
        (Terms(weight=3.0), [], "it may have a weight of 2 at most, and this would be 3"),
        (Terms(priority=1), [], "it may have a priority of 0 at most, and this would be 1"),
        (Terms(guarantee_mbps=60.0), [Terms(guarantee_mbps=30.0)], ""),
        (Terms(guarantee_mbps=80.0), [Terms(guarantee_mbps=30.0)],
         "it may have guarantees, Mbit/s, of 100 at most, and this would be 110"),
    ],
)  # fmt: skip
def test_what_is_too_much_is_said(wanted: Terms, others: list[Terms], words: str) -> None:
    assert Quota(jobs=2, rate_mbps=100.0, weight=2.0, priority=0).refusal(wanted, others) == words


def test_who_is_not_named_has_what_everybody_else_has_and_who_is_no_tenant_anything() -> None:
    quotas = parse_quotas('{"physics": {"jobs": 4, "rate_mbps": 100}, "*": {"jobs": 1}}')
    assert quota_of(quotas, "physics") == Quota(jobs=4, rate_mbps=100)
    assert quota_of(quotas, "biology") == Quota(jobs=1)
    assert quota_of(quotas, "") == quota_of({}, "biology") == UNLIMITED
    unnamed = quota_of({"physics": Quota()}, "physisc")
    assert unnamed.refusal(Terms(tenant="physisc"), []).startswith("the quotas name neither this tenant nor '*'")
    assert str(quotas["physics"]) == "4 jobs, 100 Mbit/s" and str(UNLIMITED) == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "quotas are an object by tenant"),
        ('{"t": 3}', "the quota of 't' is an object with jobs, rate_mbps"),
        ('{"t": {"rate": 3}}', "the quota of 't' has 'rate'; there are jobs, rate_mbps"),
        ('{"t": {"jobs": "many"}}', "the quota of 't': jobs is a number, got 'many'"),
        ('{"t": {"rate_mbps": 0}}', "the quota of 't': rate_mbps is above 0, got 0"),
        ('{"t": {"nodes": "h1"}}', "the quota of 't': nodes is a list of servers, got 'h1'"),
        ('{"t": {"nodes": [1]}}', r"the quota of 't': nodes is a list of servers, got \[1\]"),
        ('{"t": {"nodes": ["h1", "h9"]}}', "the quota of 't': nodes has 'h9', and the topology has no such server"),
        ('{"t": {"known": true}}', "the quota of 't' has 'known'; there are jobs, .*, nodes"),
        ("{", "Expecting property name"),
    ],
)
def test_a_file_of_quotas_that_is_none_says_why(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_quotas(text, ["h1"])


def test_the_file_is_read_again_and_what_held_holds_on_when_that_fails(tmp_path: Path) -> None:
    file, log = tmp_path / "quotas.json", list[str]()
    with pytest.raises(ValueError, match=r"quotas\.json cannot be used: .*No such file"):
        QuotasFile(file, calling(log.append), lambda: ())
    file.write_text('{"t": {"jobs": 1}}')
    quotas = QuotasFile(file, calling(log.append), lambda: ())
    assert quotas("t").jobs == 1
    file.write_text('{"t": {"jobs": 22}}')
    assert quotas("t").jobs == 22
    file.write_text('{"t": {"job": 333}}')
    assert quotas("t").jobs == quotas("t").jobs == 22
    assert len(log) == 1 and "has 'job'; there are" in log[0] and "what it said before holds on" in log[0]
    file.unlink()
    assert quotas("t").jobs == quotas("t").jobs == 22 and len(log) == 2
    file.write_text('{"t": {"jobs": 4}}')
    assert quotas("t").jobs == 4 and len(log) == 2


# -- on a network -----------------------------------------------------------------------------------------------------


def may_have(rig: MemoryNetwork, **limits: float) -> None:
    """From now on physics may have this, and others anything."""
    rig.network.tenants.quota = lambda tenant: Quota(**limits) if tenant == "physics" else UNLIMITED


def rates(rig: MemoryNetwork) -> dict[str, float]:
    return {job.name: job.plan.rate_mbps for job in rig.network.jobs}


def test_a_tenants_jobs_have_no_more_together_than_its_quota(rig: MemoryNetwork) -> None:
    may_have(rig, rate_mbps=6.0)
    admission, one, _ = rig.network.launch(A, "inart", terms=MINE)
    assert one.plan.rate_mbps == pytest.approx(6.0) and admission.bottleneck == "the quota of tenant physics"
    with pytest.raises(JobsError, match="tenant physics: its jobs have all of the 6 Mbit/s that they may have"):
        rig.network.launch(B, "inart", terms=MINE)
    _, other, _ = rig.network.launch(C, "inart", terms=OTHERS)
    assert other.plan.rate_mbps > 6.0, "another tenant's jobs do not count"


def test_what_fails_and_comes_back_gives_a_tenant_no_more_than_its_quota(rig: MemoryNetwork) -> None:
    """A job that is alone may otherwise have more than it was given when it is replanned."""
    may_have(rig, rate_mbps=6.0)
    job = rig.network.launch(A, "inart", terms=MINE)[1]
    assert rig.network.replanning.most_of(job) == pytest.approx(6.0)
    rig.network.replan(off=["s1"])
    rig.network.replan(restored=["s1"])
    assert job.plan.rate_mbps == pytest.approx(6.0)
    may_have(rig, rate_mbps=2.0)
    assert rig.network.replanning.most_of(job) == pytest.approx(6.0), "a smaller quota takes nothing from what runs"


def test_jobs_that_share_divide_their_tenants_quota_fairly_and_others_get_the_rest(rig: MemoryNetwork) -> None:
    """A and B send over the same links, of which the quota is a part."""
    may_have(rig, rate_mbps=6.0)
    rig.network.launch(A, "inart", together=True, terms=MINE)
    rig.network.launch(B, "inart", together=True, terms=Terms(2.0, tenant="physics"))
    assert rates(rig) == {"A": pytest.approx(2.0, rel=1e-3), "B": pytest.approx(4.0, rel=1e-3)}
    rival = Job("rival", A.workers, A.parameter_servers, 10**6)
    alone = rig.network.admissions.shared(rival, "inart").plan.rate_mbps
    admission, other, _ = rig.network.launch(rival, "inart", together=True, terms=OTHERS)
    assert other.plan.rate_mbps == pytest.approx(alone) and alone > 10.0, "what the quota leaves is not left unused"
    assert admission.bottleneck != "the quota of tenant physics"
    rig.network.remove("A")
    rig.network.replanning.rebalance()
    assert rates(rig)["B"] == pytest.approx(6.0, rel=1e-3), "what is left of the tenant has its quota"


def test_entries_and_slots_count_on_the_switch_that_has_the_most(rig: MemoryNetwork) -> None:
    rig.network.launch(A, "inart", terms=MINE)
    (held,) = rig.network.tenants.status()
    assert (held.name, held.jobs) == ("physics", 1) and held.entries > 0 and held.slots > 0
    before = {name: target.rules for name, target in rig.targets.items()}
    # Plans of jobs that share may have their slots on different switches, so one more job need not need more of one.
    for limits in ({"entries": held.entries}, {"slots": held.slots - 1}):
        may_have(rig, **limits)
        with pytest.raises(JobsError, match=rf"tenant physics: its jobs would have \d+ {next(iter(limits))} of "):
            rig.network.launch(Job("B", ("h1", "h4"), ("h2",), 10**6), "inart", together=True, terms=MINE)
    assert [job.name for job in rig.network.jobs] == ["A"] and rig.network.jobs.begun == []
    may_have(rig, entries=2 * held.entries + 10, slots=10**6)
    rig.network.launch(C, "inart", together=True, terms=MINE)
    assert before != {name: target.rules for name, target in rig.targets.items()}


# -- who may do what --------------------------------------------------------------------------------------------------

PHYSICS, BIOLOGY, ALICE = "physics" * 3, "biology" * 3, "alice" * 4


def test_a_tenant_adds_and_removes_its_own_jobs_and_no_others(rig: MemoryNetwork, tmp_path: Path) -> None:
    may_have(rig, jobs=1, rate_mbps=5.0)
    callers = {
        PHYSICS: Caller("tenant", "physics"),
        BIOLOGY: Caller("tenant", "biology"),
        ALICE: Caller("operator", "a"),
    }
    address = rig.serve(access=Access(callers))

    def order(token: str, method: str, request: object) -> object:
        (tmp_path / token).write_text(token)
        return ask(address, method, request, Tls(token=tmp_path / token))  # type: ignore[arg-type]

    def add(job: Job, tenant: str = "") -> pb.AddJobRequest:
        return pb.AddJobRequest(job=json.dumps(job.to_json()), tenant=tenant)

    with pytest.raises(ControllerError, match="tenant physics: it adds jobs for itself, not for tenant biology"):
        order(PHYSICS, "add_job", add(A, tenant="biology"))
    order(PHYSICS, "add_job", add(A, tenant="physics"))
    with pytest.raises(ControllerError, match="tenant physics: it has 1 jobs and may have 1 at a time"):
        order(PHYSICS, "add_job", add(B))
    with pytest.raises(ControllerError, match="tenant physics: it has 1 jobs"):
        order(ALICE, "add_job", add(B, tenant="physics"))  # As Slurm's prolog does.
    with pytest.raises(ControllerError, match="job A is none of tenant biology: an operator may remove it"):
        order(BIOLOGY, "remove_job", pb.RemoveJobRequest(name="A"))
    with pytest.raises(ControllerError, match="tenant biology may not change a plan"):
        order(BIOLOGY, "replan", pb.ReplanRequest(without=["s1"]))
    status = fetch_status(address, Tls(token=tmp_path / PHYSICS))
    (held,) = status.tenants
    assert (held.name, held.jobs, held.quota) == ("physics", 1, "1 jobs, 5 Mbit/s")
    assert held.rate_mbps == pytest.approx(5.0) and status.jobs[0].terms == "tenant physics"
    assert "physics" in format_tenants(status.tenants)[-1] and "1 jobs, 5 Mbit/s" in format_tenants(status.tenants)[-1]
    order(PHYSICS, "remove_job", pb.RemoveJobRequest(name="A"))
    assert len(rig.network.jobs) == 0


def test_a_tenants_name_is_a_word() -> None:
    with pytest.raises(ValueError, match="a tenant's name is a word"):
        Terms(tenant="two words")


# -- whose nodes ------------------------------------------------------------------------------------------------------

OWNED = """{"physics": {"nodes": ["h1", "h4", "h5"]}, "biology": {"nodes": ["h3", "h6", "h5"]}, "chemistry": {}}"""


@pytest.fixture
def owned(rig: MemoryNetwork) -> MemoryNetwork:
    """Return a network of whose servers h2 belongs to no tenant, and h5 to two."""
    quotas = parse_quotas(OWNED, rig.topology.servers)
    rig.network.tenants.quota = lambda tenant: quota_of(quotas, tenant)
    return rig


def tenants_client(rig: MemoryNetwork, folder: Path) -> Callable[..., Any]:
    """Return a function that sends a request to the network's controller as a tenant, or as the operator ""."""
    callers = {name * 20: Caller("tenant", name) for name in ("physics", "biology", "chemistry", "physisc")}
    address = rig.serve(access=Access({**callers, ALICE: Caller("operator", "alice")}))

    def add(who: str, job: str | Job, tenant: str = "", **more: Any) -> pb.AddJobReply:
        token = folder / f"token-{who}"
        token.write_text(who * 20 or ALICE)
        text = job if isinstance(job, str) else json.dumps(job.to_json())
        request = pb.AddJobRequest(job=text, tenant=tenant, **more)
        reply: pb.AddJobReply = ask(address, "add_job", request, Tls(token=token))
        return reply

    return add


def test_a_job_on_another_tenants_nodes_is_refused(owned: MemoryNetwork, tmp_path: Path) -> None:
    """The owner's jobs keep their rates, and its restarted worker joins its own job, though it names none."""
    add = tenants_client(owned, tmp_path)
    add("physics", Job("mine", ("h1", "h4"), ("h5",), 10**6))
    before, entries = rates(owned), {name: target.rules for name, target in owned.targets.items()}
    for who, tenant in (("biology", ""), ("chemistry", ""), ("", "biology")):
        for job in (Job("theirs", ("h1", "h3"), ("h6",), 10**6), Job("theirs", ("h3", "h6"), ("h1",), 10**6)):
            for share in (True, False):
                with pytest.raises(
                    ControllerError, match=r"job theirs would use h1.*, which the quotas do not give it"
                ):
                    add(who, job, tenant, share=share, weight=100.0)
    assert (before, entries) == (rates(owned), {name: target.rules for name, target in owned.targets.items()})
    worker = pb.JoinRequest(node="h1", role="worker", version=ENCODING)
    assert owned.network.jobs.of(worker).name == "mine"
    add("biology", Job("shares", ("h3", "h6"), ("h5",), 10**6), share=True)  # h5 belongs to both.
    add("", Job("operators", ("h1", "h3"), ("h2",), 10**6), share=True)


def test_words_choose_among_the_nodes_that_the_tenant_may_use(owned: MemoryNetwork, tmp_path: Path) -> None:
    add = tenants_client(owned, tmp_path)
    with pytest.raises(ControllerError, match="beside those of other tenants"):
        add("physics", "workers=4,ps=1,name=a")
    add("physics", "workers=2,ps=1,name=a")
    assert set(owned.network.jobs.get("a").servers) == {"h1", "h4", "h5"}
    hosts = [pb.Host(name="h3"), pb.Host(name="h6")]
    with pytest.raises(ControllerError, match="the job needs 1 parameter servers, and 0 servers are free"):
        add("biology", "ps=1,name=b", hosts=hosts)


def test_a_tenant_that_the_quotas_do_not_name_is_refused(owned: MemoryNetwork, tmp_path: Path) -> None:
    """A mistyped tenant is refused: its job would otherwise have no quota."""
    add = tenants_client(owned, tmp_path)
    for who, tenant in (("", "physisc"), ("physisc", "")):
        with pytest.raises(ControllerError, match=r"tenant physisc: the quotas name neither this tenant nor '\*'"):
            add(who, "workers=2,ps=1", tenant)
    assert len(owned.network.jobs) == 0


def test_an_agent_of_a_removed_job_does_not_join_another_one(rig: MemoryNetwork) -> None:
    """The agent was away when its job was removed, and then another job was added on its node."""
    rig.network.launch(A, "inart")
    rig.network.remove("A")
    agent = pb.JoinRequest(node="h1", role="worker", version=ENCODING, running_epoch=7, job="A")
    with pytest.raises(NoJobYet, match="there is no job 'A'"):
        rig.network.jobs.of(agent)
    rig.network.launch(B, "inart")
    with pytest.raises(Refused, match="its job A was removed, and B has its node now") as refused:
        rig.network.jobs.of(agent)
    assert not isinstance(refused.value, NoJobYet), "which would let it wait"
