"""A link or switch on probation after a failure is used at once when a second failure leaves a job no other path."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.planner.generators import fattree, leaf_spine
from controlplane.planner.job import Job
from controlplane.service.core.disabled import Why
from controlplane.service.core.parts import found_silent
from controlplane.service.core.ways import connected, only_ways
from controlplane.service.network_state import layout_of
from controlplane.service.running import RunningJob
from tests.support.examples import examples

NETWORK = leaf_spine(2, 2, 3, 300.0, aggregation_mbps=None, ingress_mbps=None)
JOB = Job("one", ("h1", "h2", "h4", "h5"), ("h3", "h6"), 1_000_000)
BIG = fattree(4, 100.0)
LAYOUT = layout_of(BIG)
THINGS = (*BIG.switches, *(f"{u}-{v}" for u, v in BIG.links if u < v))


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_only_links_that_help_a_job_are_used_again(data):
    servers = data.draw(st.lists(st.sampled_from(BIG.servers), min_size=2, max_size=4, unique=True))
    disabled = data.draw(st.lists(st.sampled_from(THINGS), max_size=16, unique=True))
    probation = data.draw(st.permutations(disabled))[: data.draw(st.integers(0, len(disabled)))]
    chosen = only_ways(LAYOUT, [(servers, disabled)], probation)
    assert set(chosen) <= set(probation)
    left = set(disabled) - set(chosen)
    if connected(LAYOUT, servers, disabled) or not connected(LAYOUT, servers, set(disabled) - set(probation)):
        assert not chosen
        return
    assert connected(LAYOUT, servers, left)
    for fewer in combinations(chosen, len(chosen) - 1):
        assert not connected(LAYOUT, servers, set(disabled) - set(fewer)), "all of it is needed"


def test_a_disabled_link_carries_in_neither_direction():
    layout = layout_of(NETWORK)
    for servers in (["h1", "h4"], ["h4", "h1"]):
        assert not connected(layout, servers, ["e1-s1", "e1-s2"])
        assert connected(layout, servers, ["e1-s1"])


def test_a_link_that_two_jobs_need_is_chosen_once():
    disabled = ["e1-s1", "e1-s2"]
    jobs = [(["h1", "h4"], disabled), (["h2", "h5"], disabled)]
    assert only_ways(layout_of(NETWORK), jobs, ["e1-s2", "e1-s1"]) == ["e1-s2"]


@pytest.fixture
def running(rig) -> RunningJob:
    return rig.add(JOB)


def switches_of(running: RunningJob) -> set[str]:
    return {node for tree in running.migrator.plan.trees for flow in tree.flows for node in flow.route}


def test_link_that_was_silent_and_is_mended_carries_the_job_when_the_other_spine_dies(rig, running, clock):
    """In a network of two spines, link e1-s1 is down for 11 s; then s2 is killed."""
    rig.network.failover.take(found_silent, ("e1-s1",))
    assert "s1" not in switches_of(running)
    clock.now += 11.0
    rig.network.failover.look()
    assert rig.network.state.off == {"e1-s1": Why.SILENT}, "there is another way: its probation goes on"
    rig.network.failover.lose({"s2": "switch s2 does not answer"}, Why.LOST)
    rig.network.failover.look()
    assert rig.network.state.off == {"s2": Why.LOST}
    assert "s2" not in switches_of(running) and "s1" in switches_of(running), "rerouted at once"


def test_switch_that_answers_again_carries_the_job_when_the_other_dies_before_it_is_trusted(rig, running, until):
    rig.targets["s1"].die()
    until(lambda: (rig.watch.look_at_switches(), rig.network.state.off == {"s1": Why.LOST})[1], "s1 is lost")
    rig.targets["s1"].down = False
    until(lambda: (rig.watch.look_at_switches(), "s1" in rig.network.state.parts.trust.back)[1], "s1 answers")
    assert rig.network.state.off == {"s1": Why.LOST}, "it must answer for some time first"
    rig.targets["s2"].die()
    until(lambda: (rig.watch.look_at_switches(), "s2" in rig.network.state.off)[1], "s2 is lost")
    rig.network.failover.look()
    assert rig.network.state.off == {"s2": Why.LOST}
    assert "s1" in switches_of(running) and "s2" not in switches_of(running)


def test_switches_that_all_stop_answering_are_not_lost_and_one_alone_is(rig, running, clock, until):
    """What all of them have in common is the controller's own machine, or its network."""

    def look_after(seconds: float) -> dict[str, Why]:
        clock.now += seconds
        rig.watch.look_at_switches()
        return dict(rig.network.state.off)

    for target in rig.targets.values():
        target.hang()
    keepers = rig.network.switches.keepers
    until(lambda: all(keeper.timed_out for keeper in keepers), "no switch answers")
    assert not any(look_after(1.0) for _ in range(100))
    for name, target in rig.targets.items():
        target.down = name == "s1"
    until(lambda: sum(keeper.ready for keeper in keepers) == len(keepers) - 1, "all but s1 answer")
    until(lambda: look_after(0.1) == {"s1": Why.LOST}, "s1 is lost")
