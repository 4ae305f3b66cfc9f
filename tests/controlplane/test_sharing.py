"""Jobs that share a network have fair rates, and no capacity is used twice."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from controlplane.planner.evaluate import evaluate, unit_loads
from controlplane.planner.generators import fattree, parse_topology
from controlplane.planner.job import Job, place_job
from controlplane.planner.plan import Plan
from controlplane.planner.strategies import Infeasible, get_strategy
from controlplane.planner.strategies.fabric.sharing import TRICKLE, Demand, share
from controlplane.planner.topology import Topology
from controlplane.service.residual import with_loads
from tests.controlplane.instances import instances, shared_hosts
from tests.support.examples import examples

inart = get_strategy("inart")


def fullest(topology: Topology, plans: list[Plan], *, links_only: bool = False) -> float:
    """Return the largest ratio of load to capacity with all plans together, of links, switches and parameter servers,
    or of links only.
    """
    loads: dict[object, float] = {}
    for plan in plans:
        plan.check(topology)
        links, switches, roots = unit_loads(plan, topology.results_on_links)
        nodes = ((topology.residual_aggregation_mbps, switches), (topology.residual_ingress_mbps, roots))
        for capacity, found in (
            (lambda link: topology.residual_bandwidth_mbps(*link), links),
            *(() if links_only else nodes),
        ):
            for what, load in found.items():
                loads[capacity.__name__, what] = loads.get((capacity.__name__, what), 0.0) + load * plan.rate_mbps / (
                    capacity(what)
                )
    return max(loads.values())


def demand(topology: Topology, job: Job, weight: float = 1.0, **terms: Any) -> Demand:
    return Demand(job, (inart(topology, job),), weight, **terms)


def test_two_large_jobs_get_the_fair_bound():
    """Planned one after the other they get 19.39 and 1.82 Mbit/s; their servers' links bound the fair rate at 10.6
    Mbit/s.
    """
    tree = fattree(6)
    one = place_job(tree, 22, 2, seed=1, name="one")
    rest = tree.replace(remove_nodes=[*one.workers, *one.parameter_servers])
    two = place_job(rest, 22, 2, seed=2, name="two")
    first = inart(tree, one)
    after = inart(with_loads(tree, [first]), two)
    assert (first.rate_mbps, after.rate_mbps) == (pytest.approx(19.39, abs=0.01), pytest.approx(1.82, abs=0.01))
    plans = share(tree, [demand(tree, one), demand(tree, two)])
    assert min(plan.rate_mbps for plan in plans) >= 0.97 * 10.6
    assert fullest(tree, plans) <= 1 + 1e-6


def rivals(instance: tuple[Topology, Job]) -> tuple[Topology, Demand, Demand]:
    """Return two jobs that share everything, each with the plan that it would have alone."""
    topology, job = instance
    try:
        alone = demand(topology, job)
    except Infeasible:
        assume(False)
    return topology, alone, demand(topology, Job("rival", job.workers, job.parameter_servers, job.model_bytes))


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(), st.integers(1, 4))
def test_rates_are_in_the_ratio_of_weights_where_everything_is_shared(instance, weight):
    topology, alone, rival = rivals(instance)
    plans = share(topology, [alone, replace(rival, weight=float(weight))])
    assert fullest(topology, plans) <= 1 + 1e-6
    assert plans[1].rate_mbps >= weight * plans[0].rate_mbps * (1 - 1e-3)
    assert sum(plan.rate_mbps for plan in plans) >= alone.start[0].rate_mbps * (1 - 1e-3)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shared_hosts(), st.integers(1, 3))
def test_jobs_whose_workers_are_parameter_servers_share(instance, weight):
    """As jobs of Slurm are: their nodes are both. A rival that has the same hosts in one role each shares them, too."""
    topology, job = instance
    assume(len(job.workers) > 1)
    rival = Job("rival", job.workers[1:], job.workers[:1], job.model_bytes)
    try:
        demands = [demand(topology, job), demand(topology, rival, float(weight))]
    except Infeasible:
        assume(False)
    plans = share(topology, demands)
    assert fullest(topology, plans, links_only=True) <= 1 + 1e-6
    assert [plan.job for plan in plans] == [job, rival]
    assert min(plan.rate_mbps / one.start[0].rate_mbps for plan, one in zip(plans, demands, strict=True)) > 0.01
    (alone,) = share(topology, demands[:1])
    assert alone.rate_mbps >= demands[0].start[0].rate_mbps * (1 - 1e-3)


def test_a_slurm_job_joins_one_that_has_servers_of_its_own():
    topology = parse_topology("leafspine:leaves=2,spines=3,servers=5,bandwidth=10")
    first = Job("resident", ("h7", "h8"), ("h2", "h3"), 10**6)
    second = Job("slurm-1", ("h1", "h4", "h5"), ("h1", "h4", "h5"), 10**6)
    plans = share(topology, [demand(topology, first), demand(topology, second)])
    # What a host has for its own parameter server comes in over no link, and is no part of what its link takes in.
    assert fullest(topology, plans, links_only=True) <= 1 + 1e-6
    assert all(evaluate(plan, topology).rate_mbps >= plan.rate_mbps * (1 - 1e-6) for plan in plans)
    assert min(plan.rate_mbps for plan in plans) > 4


def test_a_frozen_split_stays():
    tree = fattree(4)
    one, two = place_job(tree, 4, 2, seed=1, name="one"), place_job(tree, 5, 1, seed=5, name="two")
    split = {one.parameter_servers[0]: 0.7, one.parameter_servers[1]: 0.3}
    start = inart(tree, one, frozen_split=split)
    plans = share(tree, [Demand(one, (start,), 1.0, start.split), demand(tree, two)])
    assert plans[0].split == pytest.approx(start.split)
    assert fullest(tree, plans) <= 1 + 1e-6
    assert min(plan.rate_mbps for plan in plans) >= 0.5 * min(start.rate_mbps, inart(tree, two).rate_mbps)


def test_capacity_that_no_other_job_can_use_is_given():
    nodes = {name: {"kind": "switch" if name[0] == "s" else "server"} for name in ("s1", "w1", "p1", "s2", "w2", "p2")}
    links = [(("w1", "s1"), 10.0), (("p1", "s1"), 10.0), (("w2", "s2"), 100.0), (("p2", "s2"), 100.0)]
    both = [(u, v, {"bandwidth_mbps": rate}) for ends, rate in links for u, v in (ends, ends[::-1])]
    apart = Topology(nodes, both)
    jobs = [Job("slow", ("w1",), ("p1",), 1), Job("fast", ("w2",), ("p2",), 1)]
    assert [plan.rate_mbps for plan in share(apart, [demand(apart, job) for job in jobs])] == pytest.approx([10, 100])


def test_what_rounding_leaves_of_a_full_link_is_nothing() -> None:
    """Jobs that keep their plans leave 3.6e-15 of 20 Mbit/s here: a job was admitted at that rate, and never ended."""
    nodes = {"s1": {"kind": "switch"}, "w1": {"kind": "server"}, "p1": {"kind": "server"}}
    ends = [("w1", "s1"), ("s1", "w1"), ("p1", "s1"), ("s1", "p1")]
    empty = Topology(nodes, [(u, v, {"bandwidth_mbps": 20.0}) for u, v in ends])
    full = empty.replace(links={end: {"used_bandwidth_mbps": math.nextafter(20.0, 0.0)} for end in ends})
    assert full.residual_bandwidth_mbps("w1", "s1") == full.residual_ingress_mbps("p1") == 0
    job = Job("late", ("w1",), ("p1",), 1)
    with pytest.raises(Infeasible, match="no rate above 0 is possible"):
        share(full, [Demand(job, (inart(empty, job),))])


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(), st.floats(0.05, 1.3), st.floats(0.05, 1.3), st.integers(1, 3))
def test_a_guarantee_holds_or_the_short_resource_is_named(instance, first, second, weight):
    topology, alone, rival = rivals(instance)
    wanted = [part * alone.start[0].rate_mbps for part in (first, second)]
    demands = [
        replace(alone, guarantee_mbps=wanted[0]),
        replace(rival, weight=float(weight), guarantee_mbps=wanted[1]),
    ]
    try:
        plans = share(topology, demands)
    except Infeasible as error:
        assert first + second > 0.99, "everything is shared: what one job could have alone is there for both"
        assert "is short" in str(error)
        told: list[str] = []
        plans = share(topology, demands, strict=False, short=told.append)
        assert told
        part = min(plan.rate_mbps / rate for plan, rate in zip(plans, wanted, strict=True))
        assert part * (first + second) >= 0.98, "as much of them as there is, by the same part"
    else:
        assert first + second < 1.2, "column generation has found more than the planner by a little at most"
        for plan, rate in zip(plans, wanted, strict=True):
            assert plan.rate_mbps >= rate * (1 - 2e-3)
        if max(first, second) < 0.1:
            assert plans[1].rate_mbps >= weight * plans[0].rate_mbps * (1 - 1e-2), "else it is fair"
    assert fullest(topology, plans) <= 1 + 1e-6


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(), st.integers(1, 4))
def test_a_job_of_higher_priority_has_its_rate_alone_and_no_job_stands_still(instance, weight):
    topology, alone, rival = rivals(instance)
    rate = alone.start[0].rate_mbps
    plans = share(topology, [replace(alone, priority=1), replace(rival, weight=float(weight))])
    assert plans[0].rate_mbps >= rate * 0.98
    assert plans[1].rate_mbps > 0.5 * TRICKLE * rate * weight / (1 + weight)
    assert fullest(topology, plans) <= 1 + 1e-6


def test_a_guarantee_takes_capacity_from_jobs_without_one():
    tree = fattree(4)
    one, two = place_job(tree, 4, 1, seed=1, name="one"), place_job(tree, 5, 1, seed=1, name="two")
    even = share(tree, [demand(tree, one), demand(tree, two)])
    wanted = 1.3 * even[0].rate_mbps
    plans = share(tree, [demand(tree, one, guarantee_mbps=wanted), demand(tree, two)])
    assert plans[0].rate_mbps >= wanted * (1 - 1e-6)
    assert fullest(tree, plans) <= 1 + 1e-6
