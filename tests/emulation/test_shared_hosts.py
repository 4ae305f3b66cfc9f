"""Hosts that are worker and parameter server at once, in namespaces: one agent a host does both."""

from __future__ import annotations

import pytest

from controlplane.planner.generators import fattree
from tests.emulation.rig import Rig
from tests.emulation.test_lifetime import poll
from tests.emulation.test_migration import change

pytestmark = pytest.mark.usefixtures("patient")
MBIT = 4.0
SIZE = 400_000


def network(mbit: float = MBIT):
    """A fat-tree whose switches add as much of their links' rate as the paper's do."""
    return fattree(4, bandwidth_mbps=mbit, aggregation_mbps=mbit * 9 / 20)


def test_sums_are_right_as_fast_as_planned_and_stay_so_while_packets_are_lost_and_the_plan_changes():
    """Eight workers that are all parameter servers: the plan is as fast as their links, and so is what is measured."""
    with Rig("softswitch", network(), "inart", workers=8, roots=None) as rig:
        rig.start_all()
        assert rig.job.both_roles == set(rig.job.workers) and not rig.roots
        assert rig.plan.rate_mbps == pytest.approx(MBIT, rel=1e-3)
        done = rig.allreduce(SIZE)
        done.check()
        print(f"{done.seconds:.3f} s, planned {SIZE * 8e-6 / rig.plan.rate_mbps:.3f} s without headers")
        assert done.workers == {8} and done.resent < 10, "nothing is lost on the links or on the way inside of a host"
        rig.shape_all(loss=0.05)
        rig.allreduce(SIZE // 8).check()
        rig.shape_all(loss=0.0)
        added = {relay.node for tree in rig.plan.trees for relay in tree.relays}
        switch = sorted(added & {v for v in rig.topology.switches if v.startswith("a")})[0]
        rig.submit(SIZE // 2)
        thread, answers = change(rig, changes=[f"{switch}.aggregation_mbps=0.1"])
        rig.collect().check()
        rig.allreduce(SIZE // 8).check()
        thread.join(60)
        assert answers[0].outcome == "updated" and answers[0].epoch
        rig.allreduce(SIZE // 8).check()
        assert not any("gave up" in line or "is gone" in line for line in rig.log), rig.log


def test_hosts_add_inside_of_trees_also_when_packets_and_their_memory_are_lost_and_the_plan_changes():
    """No switch of the fabric adds, hosts do, each with a switch of its own."""
    plain = network()
    nodes = {switch: {"aggregation_mbps": 0.0} for switch in plain.switches}
    nodes |= {host: {"aggregation_mbps": 2 * MBIT} for host in plain.servers}
    topology = plain.replace(nodes=nodes)
    with Rig("softswitch", topology, "inart", workers=6, roots=2) as rig:
        points = {point for tree in rig.plan.trees for point in tree.points}
        assert points and all(point.endswith("-adds") for point in points)
        rig.start_all()
        done = rig.allreduce(SIZE)
        done.check()
        print(f"{done.seconds:.3f} s, planned {SIZE * 8e-6 / rig.plan.rate_mbps:.3f} s without headers")
        assert done.workers == {6}
        nodes = {*rig.job.workers, *rig.job.parameter_servers}
        poll(
            lambda: set(rig.service.network.state.adding()) >= nodes,
            "every agent says what its host's switch adds",
            60.0,
        )
        rig.shape_all(loss=0.05)
        rig.allreduce(SIZE // 8).check()
        rig.shape_all(loss=0.0)
        rig.submit(SIZE)
        rig.emulation.reboot(sorted(points)[0])
        rig.collect().check()
        thread, answers = change(rig, changes=[f"{sorted(points)[-1]}.aggregation_mbps=0.1"])
        rig.allreduce(SIZE // 2).check()
        thread.join(60)
        assert answers[0].outcome == "updated"
        rig.allreduce(SIZE // 8).check()


def test_a_job_that_may_goes_on_without_a_host_of_both_roles():
    """Its gradients and its part of the sums go with it: the others are one worker fewer and add up its part."""
    with Rig("softswitch", network(20.0), "inart", workers=6, roots=None, answers_failures=True, at_least=4) as rig:
        rig.start_all()
        rig.allreduce(SIZE).check()
        others = rig.job.workers[1:]  # The first worker is the one that compares sums.
        lost = max(others, key=lambda node: rig.plan.split.get(node, 0.0))
        index = rig.job.workers.index(lost)
        rig.submit(4 * SIZE)
        rig.workers.pop(lost).kill()
        outcome = rig.collect()
        assert len(outcome.digests) == 1 and len(outcome.workers) == 1
        left = [number for number in range(6) if number != index]
        outcome = rig.allreduce(SIZE // 4, among=left)
        outcome.check()
        assert outcome.workers == {5}
        poll(lambda: any(f"5 workers go on without {lost}" in line for line in rig.log), "said", 60.0)
        assert lost not in rig.service.roster.configs
        assert any(f"that {lost} added up moved to" in line for line in rig.log), rig.log
