"""A switch or a link fails in the middle of an all-reduce: the controller notices, and no trainer gets an error."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from controlplane.planner.generators import leaf_spine
from controlplane.planner.plan.reroute import CannotReroute, Rerouted
from controlplane.planner.topology import Topology
from controlplane.service import versions
from controlplane.service.core import trust
from tests.emulation.rig import Rig
from tests.emulation.test_allreduce import SIZE
from tests.emulation.test_lifetime import poll
from tests.support.examples import nightly

pytestmark = pytest.mark.usefixtures("patient")
RATE = 30.0


def dead(rig: Rig, switch: str) -> None:
    """Drop everything that the switch sends or receives; its controller can still talk to it."""
    for neighbour in rig.topology.neighbours(switch):
        rig.emulation.shape(switch, neighbour, loss=1.0)
        if neighbour in rig.topology.switches:
            rig.emulation.shape(neighbour, switch, loss=1.0)


def spine(rig: Rig) -> str:
    """Return the switch that aggregates the most trees and has no server connected to it."""
    hosts = {rig.topology.access_switch(node) for node in (*rig.job.workers, *rig.job.parameter_servers)}
    adding = [point for tree in rig.plan.trees for point in tree.points if point not in hosts]
    return max(set(adding), key=adding.count)


def tree() -> Topology:
    """Return a network in which only spines can aggregate."""
    network = leaf_spine(2, 2, 4, RATE, uplink_mbps=RATE, aggregation_mbps=None)
    return network.replace({leaf: {"aggregation_mbps": 0.0} for leaf in ("e1", "e2")})


def test_jobs_are_rerouted_around_a_switch_that_dies_and_no_sum_is_lost() -> None:
    with Rig("softswitch", tree(), "inart", answers_failures=True) as rig:
        rig.start_all()
        rig.allreduce(SIZE // 4).check()
        before = time.monotonic()
        rig.allreduce(4 * SIZE).check()
        usual = time.monotonic() - before
        switch = spine(rig)
        before = time.monotonic()
        rig.submit(4 * SIZE)
        time.sleep(usual / 4)  # This is in the middle of the all-reduce; whenever the failure comes, the sum is right.
        dead(rig, switch)
        rig.collect().check()
        took = time.monotonic() - before
        rig.allreduce(SIZE // 4).check()
        print(f"{switch} died: {took:.2f} s instead of {usual:.2f} s")
        assert any("rerouted around it" in line for line in rig.log), rig.log
        assert not any("gave up" in line or "is gone" in line for line in rig.log), "no agent noticed"


def test_operations_are_repeated_when_no_switch_can_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Rerouted:
        raise CannotReroute("no switch has room to add")

    monkeypatch.setattr(versions, "reroute", full)
    with Rig("softswitch", tree(), "inart", answers_failures=True) as rig:
        rig.start_all()
        rig.submit(SIZE)
        dead(rig, spine(rig))
        rig.collect().check()
        rig.allreduce(SIZE // 4).check()
        assert any("no switch has room to add" in line for line in rig.log), rig.log
        assert not any("gave up" in line or "has left" in line for line in rig.log), "no agent noticed"


def test_operations_are_repeated_when_their_path_fails_during_a_change_of_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Operations of the plan before end while the job migrates to one for half of the rate; a switch dies that they
    need, and cannot be rerouted around. One worker submits its part of the operation after that, so that the operation
    cannot have ended before.
    """

    def full(*_: object) -> Rerouted:
        raise CannotReroute("no switch has room to add")

    with Rig("softswitch", tree(), "inart", answers_failures=True) as rig:
        rig.start_all()
        rig.allreduce(SIZE // 4).check()
        (job,) = rig.service.network.jobs
        victim = spine(rig)
        (other,) = {"s1", "s2"} - {victim}
        state = job.migrator.state(changes=[f"{other}.aggregation_mbps=0"])
        plan = job.migrator.migrate(state, dry_run=True).plan
        monkeypatch.setattr(versions, "reroute", full)
        before = rig.verdicts().get("absorbed", 0)
        *early, late = rig.job.workers
        for node in early:
            rig.workers[node].send({"size": 8 * SIZE})
        poll(lambda: rig.verdicts().get("absorbed", 0) > before, "the operation has begun", 60.0)
        with ThreadPoolExecutor(1) as pool:
            changed = pool.submit(job.migrator.migrate, state, plan=plan)
            poll(lambda: getattr(job.roster.state.migration, "switched", 0) > 0, "the migration drains", 60.0)
            dead(rig, victim)
            rig.workers[late].send({"size": 8 * SIZE})
            rig.collect().check()
            assert changed.result(60.0).changed
        rig.allreduce(SIZE // 4).check()
        assert any("is started again with the one that runs" in line for line in rig.log), rig.log
        assert not any("gave up" in line or "has left" in line for line in rig.log), "no agent noticed"


@pytest.mark.parametrize("way", ["up", nightly("down")])
def test_link_that_swallows_everything_is_found(way: str) -> None:
    with Rig("softswitch", tree(), "inart", answers_failures=True) as rig:
        rig.start_all()
        one = rig.plan.trees[0]
        switches = rig.topology.switches
        up = [(u, v) for flow in one.flows for u, v in zip(flow.route, flow.route[1:], strict=False)]
        links = up if way == "up" else list(one.return_edges)
        u, v = next((u, v) for u, v in links if u in switches and v in switches)
        rig.submit(SIZE)
        rig.emulation.shape(u, v, loss=1.0)
        rig.collect().check()
        rig.allreduce(SIZE // 4).check()
        assert any(line == f"lost: nothing comes out of link {u}-{v}" for line in rig.log), rig.log
        assert not any("gave up" in line or "is gone" in line for line in rig.log)


@pytest.mark.timeout(300)
def test_a_link_on_probation_carries_the_job_when_the_other_path_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link is cut and mended, and while it is on probation the only other spine fails."""
    monkeypatch.setattr(trust, "PROBATION_SECONDS", 600.0)
    with Rig("softswitch", leaf_spine(2, 2, 3, RATE), "inart", workers=4, roots=1, answers_failures=True) as rig:
        rig.start_all()
        points = [point for one in rig.plan.trees for flow in one.flows for point in flow.route]
        first, other = sorted(("s1", "s2"), key=points.count, reverse=True)
        rig.submit(SIZE)
        rig.emulation.cut("e1", first)
        rig.collect().check()
        rig.emulation.mend("e1", first)
        rig.allreduce(SIZE // 4).check()
        assert [name for name in rig.service.network.state.off if first in name], rig.log
        before = time.monotonic()
        rig.allreduce(SIZE).check()
        usual = time.monotonic() - before
        before = time.monotonic()
        rig.submit(SIZE)
        rig.emulation.fail(other)
        rig.collect().check()
        print(f"{other} died: {time.monotonic() - before:.2f} s instead of {usual:.2f} s")
        rig.allreduce(SIZE // 4).check()
        print("\n".join(rig.log[-12:]))
        assert any("a job has no other way" in line for line in rig.log), rig.log
        assert not any("gave up" in line or "its connection ended" in line for line in rig.log), "no agent noticed"
