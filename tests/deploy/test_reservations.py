"""Jobs that are reserved for a time to come: booked where they fit, told of, added, and ended."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from controlplane.cli.controller import main
from controlplane.cli.log import parse_time
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.generators import leaf_spine
from controlplane.planner.job import Job
from controlplane.planner.reservations import Reservation
from controlplane.planner.strategies import Infeasible
from controlplane.planner.terms import Quota, Terms
from controlplane.service.reservations import AGAIN_SECONDS, Reservations
from controlplane.service.running import JobsError
from controlplane.service.state import StateFolder
from controlplane.targets.base import TargetError
from tests.deploy.memory_network import MemoryNetwork

NETWORK = leaf_spine(2, 2, 3, 20.0)
NOON = 1_800_000_000.0


class Clock:
    now = NOON


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reservations(rig: MemoryNetwork, clock: Clock) -> Reservations:
    return Reservations(rig.network, rig.log.append, lambda: clock.now)


def reserved(name: str = "later", **given) -> Reservation:
    """A job of h1 and h4 with a server h5, from one hour to two hours after noon."""
    terms = given.pop("terms", Terms(guarantee_mbps=8.0, priority=1))
    times = {"start": NOON + 3600, "until": NOON + 7200} | given
    return Reservation(Job(name, ("h1", "h4"), ("h5",), 1_000_000), "inart", 0, terms, **times)


def names(rig: MemoryNetwork) -> list[str]:
    return sorted(job.name for job in rig.network.jobs)


def low(name: str = "low", guarantee: float = 0.0) -> Job:
    return Job(name, ("h1", "h4"), ("h2",), 1_000_000)


def test_a_reserved_job_is_there_in_its_time_and_not_before_or_after(rig, clock, reservations):
    assert reservations.book(reserved()) >= 8.0
    reservations.look()
    assert names(rig) == []
    (shown,) = reservations.status()
    assert (shown.name, shown.running, shown.until) == ("later", False, NOON + 7200)
    clock.now = NOON + 3600
    reservations.look()
    (job,) = rig.network.jobs
    assert job.name == "later" and job.terms.guarantee_mbps == 8.0
    assert reservations.status()[0].running
    clock.now = NOON + 7199
    reservations.look()
    assert names(rig) == ["later"]
    clock.now = NOON + 7200
    reservations.look()
    assert names(rig) == [] and reservations.status() == []


def test_one_without_an_end_runs_until_it_is_removed(rig, clock, reservations):
    reservations.book(reserved(until=math.inf))
    clock.now = NOON + 1e6
    reservations.look()
    assert names(rig) == ["later"]
    rig.network.remove("later")
    reservations.look()
    assert names(rig) == [] and reservations.status() == []


def test_what_does_not_fit_beside_other_reservations_of_its_time_is_refused_at_once(rig, reservations):
    reservations.book(reserved("first"))
    with pytest.raises(Infeasible):
        reservations.book(reserved("second", terms=Terms(guarantee_mbps=15.0, priority=1), start=NOON + 7000))
    reservations.book(reserved("after", terms=Terms(guarantee_mbps=15.0), start=NOON + 7200, until=NOON + 9000))
    assert [one.name for one in reservations.status()] == ["first", "after"]


def test_running_jobs_of_the_same_priority_count_and_lower_ones_give_way(rig, reservations):
    rig.network.launch(low(), "inart", together=True, terms=Terms(guarantee_mbps=12.0))
    with pytest.raises(Infeasible):
        reservations.book(reserved(terms=Terms(guarantee_mbps=12.0)))
    reservations.book(reserved(terms=Terms(guarantee_mbps=12.0, priority=1), preempt=True))


def test_names_and_times_that_are_none_are_refused(rig, reservations):
    reservations.book(reserved())
    with pytest.raises(JobsError, match="is reserved already"):
        reservations.book(reserved())
    with pytest.raises(JobsError, match="between now and a year"):
        reservations.book(reserved("past", start=NOON - 60))
    with pytest.raises(ValueError, match="ends after it begins"):
        reserved("none", until=NOON)
    with pytest.raises(ValueError, match=r"ends after it begins: late from 1e\+300 seconds after 1970"):
        reserved("late", start=1e300, until=NOON)
    rig.network.launch(low("later2"), "inart", together=True)
    with pytest.raises(JobsError, match="runs already"):
        reservations.book(reserved("later2"))


def test_a_tenants_reservations_of_one_time_are_within_its_quota(rig, reservations):
    rig.network.tenants.quota = lambda tenant: Quota(rate_mbps=10.0)
    mine = Terms(guarantee_mbps=6.0, tenant="physics")
    reservations.book(reserved("first", terms=mine))
    with pytest.raises(JobsError, match="tenant physics: it may have guarantees"):
        reservations.book(reserved("second", terms=mine))
    reservations.book(reserved("other", terms=replace(mine, tenant="biology")))
    with pytest.raises(JobsError, match="is none of tenant biology"):
        reservations.cancel("first", "biology")
    assert reservations.cancel("first", "physics")


def test_who_gives_way_is_told_before_and_keeps_running_at_less(rig, clock, reservations):
    job = rig.network.launch(low(), "inart", together=True)[1]
    members = rig.join(job)
    before = job.plan.rate_mbps
    reservations.book(reserved(terms=Terms(guarantee_mbps=12.0, priority=1), notice=600.0))
    clock.now = NOON + 2999
    reservations.look()
    assert not any("has less from then on" in line for line in rig.log)
    clock.now = NOON + 3000
    reservations.look()
    reservations.look()
    (told,) = [line for line in rig.log if "has less from then on" in line]
    assert "later (priority 1) begins at" in told and told.job == "low"
    events = [member.events.get_nowait() for member in members.values() for _ in range(member.events.qsize())]
    assert sum(event.WhichOneof("kind") == "notice" for event in events) == len(members), "each agent, once"
    assert job.plan.rate_mbps == before
    for member in members.values():
        rig.network.jobs.get("low").roster.leave(member)
    clock.now = NOON + 3600
    reservations.look()
    assert names(rig) == ["later", "low"]
    assert rig.network.jobs.get("low").plan.rate_mbps < before
    assert rig.network.jobs.get("later").plan.rate_mbps >= 12.0


@pytest.mark.parametrize("preempt", [False, True])
def test_lower_jobs_are_taken_off_only_where_they_must_and_may(rig, clock, reservations, preempt):
    """Two of a lower priority have guarantees that do not fit beside what is reserved; one is enough to make room."""
    rig.network.launch(low("old"), "inart", together=True, terms=Terms(guarantee_mbps=4.0))
    rig.network.launch(low("new"), "inart", together=True, terms=Terms(guarantee_mbps=9.0))
    reservations.book(reserved(terms=Terms(guarantee_mbps=12.0, priority=1), preempt=preempt, notice=60.0))
    clock.now = NOON + 3600
    reservations.look()
    if not preempt:
        assert names(rig) == ["new", "old"]
        assert "is reserved from now on, and is not admitted" in rig.log[-1]
        assert reservations.status()[0].problem
        rig.network.remove("new")
        clock.now += AGAIN_SECONDS
        reservations.look()
    assert names(rig) == ["later", "old"]
    assert any("or is taken off the network" in line for line in rig.log) == preempt


def test_nobody_is_taken_off_for_one_that_is_not_admitted_even_then(rig, clock, reservations):
    """A job of its own priority is in the way; those below it could all go, and it would change nothing."""
    reservations.book(reserved(terms=Terms(guarantee_mbps=12.0, priority=1), preempt=True))
    rig.network.launch(low("below"), "inart", together=True, terms=Terms(guarantee_mbps=2.0))
    rig.network.launch(low("equal"), "inart", together=True, terms=Terms(guarantee_mbps=15.0, priority=1))
    clock.now = NOON + 3600
    reservations.look()
    assert names(rig) == ["below", "equal"]
    assert "is reserved from now on, and is not admitted" in rig.log[-1]
    assert not any("is taken off the network for" in line for line in rig.log)


def test_who_is_not_in_the_way_stays_though_it_would_go_first(rig, clock, reservations):
    rig.network.launch(low("needed"), "inart", together=True, terms=Terms(guarantee_mbps=12.0))
    rig.network.launch(Job("aside", ("h3",), ("h6",), 1_000_000), "inart", together=True)
    reservations.book(reserved(terms=Terms(guarantee_mbps=12.0, priority=1), preempt=True))
    clock.now = NOON + 3600
    reservations.look()
    assert names(rig) == ["aside", "later"]


def test_who_was_taken_off_in_vain_is_put_back(rig, clock, reservations, monkeypatch):
    """A switch refuses the entries of the new job only."""
    rig.network.launch(low("low"), "inart", together=True, terms=Terms(guarantee_mbps=12.0))
    reservations.book(reserved(terms=Terms(guarantee_mbps=12.0, priority=1), preempt=True))
    install = rig.network.install

    def refuse(plan, job_id, terms):
        if plan.job.name == "later":
            raise TargetError("switch leaf0 refused 1 of 8 changes")
        return install(plan, job_id, terms)

    monkeypatch.setattr(rig.network, "install", refuse)
    clock.now = NOON + 3600
    reservations.look()
    assert names(rig) == ["low"] and rig.network.jobs.get("low").terms.guarantee_mbps == 12.0
    assert any("low is put back: later is not admitted without it either" in line for line in rig.log)
    clock.now += AGAIN_SECONDS
    reservations.look()
    assert sum("is taken off the network for later" in line for line in rig.log) == 1, (
        "it is not taken off in vain again"
    )
    assert reservations.cancel("later")
    again = NOON + 5400
    reservations.book(reserved(start=again, terms=Terms(guarantee_mbps=12.0, priority=1), preempt=True))
    clock.now = again
    reservations.look()
    assert sum("is taken off the network for later" in line for line in rig.log) == 2, "it is another reservation"


def test_one_that_never_fitted_says_so_at_its_end(rig, clock, reservations):
    reservations.book(reserved())
    rig.network.launch(low(), "inart", together=True, terms=Terms(guarantee_mbps=15.0, priority=2))
    for clock.now in (NOON + 3600, NOON + 7200):
        reservations.look()
    assert names(rig) == ["low"] and reservations.status() == []
    assert "later was never added in the time reserved for it" in rig.log[-1]


def test_a_reservation_can_be_cancelled_before_and_is_dropped_with_its_job(rig, clock, reservations):
    reservations.book(reserved())
    assert reservations.cancel("later") and not reservations.cancel("later")
    reservations.book(reserved())
    clock.now = NOON + 3600
    reservations.look()
    assert not reservations.cancel("later"), "its job runs: that is removed"
    rig.network.remove("later")
    reservations.look()
    assert names(rig) == []


def test_a_controller_that_starts_again_knows_what_is_reserved(rig, clock, reservations, tmp_path):
    with StateFolder(tmp_path / "state") as state:
        rig.network.changed = lambda: state.save(rig.network.keeps())
        reservations.book(reserved(preempt=True, notice=60.0))
        reservations.book(reserved("open", until=math.inf, start=NOON + 9000))
        clock.now = NOON + 3600
        reservations.look()
        rig.network.reserved = state.load().reserved
    again = Reservations(rig.network, rig.log.append, lambda: clock.now)
    assert [(one.name, one.running, one.until) for one in again.status()] == [
        ("later", True, NOON + 7200), ("open", False, 0.0),
    ]  # fmt: skip
    clock.now = NOON + 7200
    again.look()
    assert names(rig) == []


def test_what_cannot_be_kept_is_not_reserved(rig, reservations):
    rig.network.unkept = lambda: "the disk is full"
    with pytest.raises(JobsError, match="was not reserved: the disk is full"):
        reservations.book(reserved())
    assert reservations.status() == []


def test_times_are_read_as_people_give_them():
    assert parse_time("2026-11-25T08:00") > 1.79e9
    assert parse_time("2h") - parse_time("0s") == pytest.approx(7200, abs=5)
    with pytest.raises(ValueError, match="a time is like 90s, 30m, 2h"):
        parse_time("tomorrow")
    assert pb.AddJobRequest().start == 0.0


def test_orders_reserve_list_and_cancel(rig, capsys):
    where = ["--controller", rig.serve()]
    add = ["job", "add", "--job", "workers=2,ps=1,name=night", "--guarantee", "5", *where]
    assert main([*add, "--at", "1h", "--until", "2h", "--notice", "10m"]) == 0
    assert "reserved: night from " in capsys.readouterr().out
    assert main([*add, "--at", "2h", "--until", "1h"]) != 0
    assert main([*add, "--preempt"]) != 0
    assert "belong to a reservation: give --at" in capsys.readouterr().err
    assert main(["job", "list", *where]) == 0
    assert "night" in capsys.readouterr().out
    assert main(["job", "remove", "night", *where]) == 0
    assert not rig.controllers[0].reservations.status()
