"""Switches and links that change packets are found by the refusals of agents: no other is named, and a proven culprit
is disabled.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controlplane.common.agentconfig import suspect_key
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.generators import fattree, leaf_spine
from controlplane.planner.job import Job, place_job
from controlplane.planner.topology import Topology
from controlplane.service import culprits
from controlplane.service.core.disabled import Why
from controlplane.service.core.parts import mended
from controlplane.service.network import Network
from controlplane.service.running import RunningJob
from controlplane.service.suspicion import Group, Key, Suspect, Way, named, points_alone, suspects, ways_of
from tests.deploy.memory_network import Clock, MemoryNetwork

NETWORK = leaf_spine(2, 2, 3, 300.0, aggregation_mbps=None, ingress_mbps=None)
JOB = Job("one", ("h1", "h2", "h4", "h5"), ("h3", "h6"), 1_000_000)
BIG = fattree(4, 100.0)
FAILURES = 100
"""The number of failures of a tree of the whole model in the window."""


@pytest.fixture(params=["leaf-spine", "fat-tree"])
def rig(request, tmp_path) -> Iterator[tuple[MemoryNetwork, RunningJob]]:
    topology, job = (NETWORK, JOB) if request.param == "leaf-spine" else (BIG, place_job(BIG, 8, 2, seed=3))
    made = MemoryNetwork(tmp_path, topology)
    yield made, made.add(job)
    made.close()


def ways(job: RunningJob) -> dict[Key, Way]:
    (version,) = job.migrator.versions
    return ways_of(version.plan, version.deployment)


def failures(of: dict[Key, Way], culprit: Suspect) -> dict[Key, int]:
    """Return the counts of refused packets when this switch or link changes packets equally often for all senders."""
    return {key: round(FAILURES * way.share) for key, way in of.items() if culprit.on(way)}


def things(of: dict[Key, Way]) -> set[Suspect]:
    carried = {Suspect(what, "carried") for way in of.values() for what in way.carried}
    return carried | {Suspect(point, "added") for way in of.values() for point in way.added}


def own_names(culprit: Suspect, topology: Topology) -> set[str]:
    """Return the names that the culprit may have: for a link also its ends, since an end whose packets all cross the
    link cannot be told from it.
    """
    if isinstance(culprit.what, str):
        return {culprit.what}
    return {*culprit.what, "-".join(sorted(culprit.what))}


def test_only_the_culprit_is_named(rig):
    network, job = rig
    of = ways(job)
    clear = 0
    for culprit in things(of):
        group = Group(of, failures(of, culprit))
        found = suspects([group])
        assert culprit in found
        name = named(found, network.topology)
        if isinstance(culprit.what, str):
            links = {"-".join(sorted((culprit.what, other))) for other in network.topology.neighbours(culprit.what)}
            assert name in ("", culprit.what, *links)
        else:
            assert name in ("", *own_names(culprit, network.topology))
        clear += bool(name)
    print(f"{clear} of {len(things(of))} are named")
    assert clear


def spine(network: Network, job: RunningJob) -> str:
    """Return a switch that has no server connected and that the job's packets cross."""
    topology = network.topology
    access = {topology.access_switch(server) for server in topology.servers}
    carried = {what for way in ways(job).values() for what in way.carried if what in topology.switches}
    return min(carried - access)


def report(job: RunningJob, refused: dict[Key, int]) -> None:
    """Let every agent report what it has refused in this epoch."""
    for node in job.roster.configs:
        numbers = {}
        for (tree, label, worker), count in refused.items():
            root = job.migrator.plan.trees[tree].root
            if label and node == root:
                numbers[suspect_key(tree, label, worker)] = float(count)
            elif not label and node == worker:
                numbers[suspect_key(tree)] = float(count)
        job.roster.report(pb.ReportRequest(node=node, epoch=job.roster.epoch, statistics=numbers))


def refuse(rig: tuple[MemoryNetwork, RunningJob], clock: Clock, culprit: Suspect) -> dict[Key, int]:
    """Let a plan run for some time, then have packets refused as in the reports, until all have reported."""
    network, job = rig
    network.join(job)
    network.watch.following.culprits.look()
    clock.now += 5.0
    refused = failures(ways(job), culprit)
    report(job, refused)
    network.watch.following.culprits.look()
    clock.now += culprits.SETTLE_SECONDS
    network.watch.following.culprits.look()
    return refused


def test_switch_that_corrupts_is_disabled_until_an_operator_takes_it_back(rig, clock):
    network, job = rig
    bad = spine(network.network, job)
    refused = refuse(rig, clock, Suspect(bad, "carried"))
    assert network.network.state.off == {bad: Why.CORRUPTS}
    assert any(f"switch {bad} corrupts" in line for line in network.log), network.log
    assert not any(bad in way.carried for way in ways(job).values()), "the job is rerouted around it"
    assert network.network.keeps().disabled == [bad], "also when the controller starts again"
    report(job, refused)
    network.watch.following.look()
    assert bad in network.network.state.off
    network.network.failover.take(mended, (bad,), "an operator says so")
    clock.now += 1.0
    network.watch.following.culprits.look()
    assert not network.network.state.off, "what it did before says nothing any more"


def test_a_corrupting_host_is_named_and_nothing_is_disabled(rig, clock):
    network, job = rig
    worker = job.migrator.plan.job.workers[0]
    refuse(rig, clock, Suspect(worker, "carried"))
    assert not network.network.state.off
    assert any(f"host {worker}, or its link" in line for line in network.log), network.log


def test_only_switch_of_a_server_is_named_and_stays_in_use(rig, clock):
    network, job = rig
    leaf = network.topology.access_switch(job.migrator.plan.job.workers[0])
    refuse(rig, clock, Suspect(leaf, "carried"))
    assert not network.network.state.off
    said = [line for line in network.log if f"switch {leaf} corrupts" in line or "one of" in line]
    assert said and leaf in said[0], network.log


def test_two_failures_are_not_enough_and_reports_of_some_are_not(rig, clock):
    """A root's report comes before the workers': by that report alone, results would seem right."""
    network, job = rig
    bad = spine(network.network, job)
    network.join(job)
    network.watch.following.culprits.look()
    clock.now += 5.0
    refused = failures(ways(job), Suspect(bad, "carried"))
    report(job, {key: count for key, count in refused.items() if key[1]})
    network.watch.following.culprits.look()
    clock.now += 1.0
    network.watch.following.culprits.look()
    assert not network.network.state.off
    report(job, refused)
    clock.now += culprits.SETTLE_SECONDS
    network.watch.following.culprits.look()
    assert network.network.state.off == {bad: Why.CORRUPTS}


def test_point_that_adds_wrongly_is_left_when_single_packets_are_right():
    """A tree uses one switch: the server's link carries its sums alone, and no other flows clear it of suspicion."""
    up = Way(frozenset({"w1", "w2", "s1", ("w1", "s1"), ("w2", "s1"), ("s1", "p"), "p"}), frozenset({"s1"}), 0.5)
    other = Way(frozenset({"w1", "w2", "s2", ("w1", "s2"), ("w2", "s2"), ("s2", "q"), "q"}), frozenset({"s2"}), 0.5)
    down = Way(frozenset({"p", "s1", "w1", ("p", "s1"), ("s1", "w1")}), frozenset(), 0.5)
    group = Group({(0, 7, ""): up, (1, 8, ""): other, (0, 0, "w1"): down}, {(0, 7, ""): 30})
    found = suspects([group])
    assert Suspect(("s1", "p"), "carried") in found
    assert points_alone([group], found) == [Suspect("s1", "added")]
    assert not points_alone([Group(group.ways, {(0, 7, ""): 30, (0, 0, "w1"): 30})], found)
