"""Bounds that are cheap to compute: no plan is faster, and plans reach them where the racks' shared uplinks are the
bottleneck.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.planner.evaluate import bound, evaluate
from controlplane.planner.generators import leaf_spine, parse_topology
from controlplane.planner.job import parse_job, place_job
from controlplane.planner.plan.separated import separated
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.fabric.bounds import cheap_bound
from controlplane.planner.strategies.fabric.parts_bound import divisions, parts_bound
from tests.controlplane.instances import instances, random_plan, shared_hosts, troubled_instances
from tests.controlplane.test_strategies import REFUSALS
from tests.support.examples import examples


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(instances(), troubled_instances(), shared_hosts()), st.integers(0, 10**6))
def test_no_tree_beats_the_bounds_of_parts(instance, seed):
    topology, job = instance
    most = bound(topology, job)
    found = [parts_bound(topology, job, most, division) for division in divisions(topology)] if most > 0 else []
    if not found:
        return
    try:
        rate = evaluate(random_plan(topology, job, seed), topology).rate_mbps
        assert all(each is None or rate <= each.mbps * (1 + 1e-6) for each in found)
    except REFUSALS:
        pass  # The job cannot reach every server.
    try:
        plan = get_strategy("inart")(topology, job)
    except REFUSALS:
        return
    assert plan.rate_mbps <= cheap_bound(topology, job).mbps * (1 + 1e-6) <= most * (1 + 2e-6)


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(2, 4), st.integers(1, 2), st.integers(2, 3), st.sampled_from([1.0, 4.0, 12.0]), st.integers(0, 50))
def test_thin_leaf_spines_are_planned_close_to_it(leaves, spines, servers, uplink, seed):
    topology = leaf_spine(leaves, spines, servers, uplink_mbps=uplink)
    job = place_job(topology, leaves * servers - 1, 1, seed=seed)
    plan = get_strategy("inart")(topology, job)
    least = cheap_bound(topology, job).mbps
    assert plan.rate_mbps <= least * (1 + 1e-6)
    assert plan.rate_mbps >= 0.9 * least


@pytest.mark.parametrize(
    ("topology", "job", "gap"),
    [
        ("leafspine:leaves=8,spines=2,servers=6,uplink=10", "workers=40,ps=4,seed=1", 0.002),
        ("testbed:results=1", "", 0.005),
    ],
)
def test_gaps_of_known_networks(topology, job, gap):
    network = parse_topology(topology)
    placed = parse_job(job, network)
    plan = get_strategy("inart")(network, placed)
    assert 1 - plan.rate_mbps / cheap_bound(network, placed).mbps == pytest.approx(0, abs=gap)


@pytest.mark.parametrize("job", ["workers=12,ps=3,seed=2", "workers=12,ps=workers,seed=2"])
def test_racks_that_are_alike_count_as_they_do_one_by_one(job):
    """Racks that are alike are merged in the program: its bound is that of racks that differ by next to nothing."""
    network = parse_topology("leafspine:leaves=5,spines=2,servers=4,uplink=12")
    placed = parse_job(job, network)
    thinner = {pair: network.bandwidth_mbps(*pair) * (1 - 1e-7 * i) for i, pair in enumerate(network.links)}
    differ = network.replace(links={pair: {"bandwidth_mbps": mbps} for pair, mbps in thinner.items()})
    found = [cheap_bound(topology, placed).mbps for topology in (network, differ)]
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_the_racks_bound_of_a_thousand_parameter_servers():
    network = parse_topology("fattree:k=16")
    parts = separated(network, parse_job("workers=1000,ps=workers,seed=1", network))
    scale = bound(network, parts.whole)
    racks, *_ = divisions(parts.topology)
    assert 0.99 * scale <= parts_bound(parts.topology, parts.job, scale, racks).mbps <= scale
