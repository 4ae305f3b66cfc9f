"""Plans and bounds beside the best trees, which an exact search with code of its own finds (optimum.py)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.planner.generators import parse_topology
from controlplane.planner.job import Job, parse_job
from controlplane.planner.plan.limits import Needs
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.common import prepare
from controlplane.planner.strategies.fabric.bounds import cheap_bound
from controlplane.planner.strategies.fabric.exact_pricing import CheapestTrees
from controlplane.planner.strategies.fabric.master import Prices
from controlplane.planner.strategies.fabric.pricing import Pricing
from controlplane.planner.strategies.fabric.prove import closer_bound
from controlplane.planner.topology import Topology
from evaluation.inart import kinds, optimum
from evaluation.inart.checked import faults
from evaluation.inart.instances import measure
from tests.controlplane.instances import instances
from tests.support.examples import examples


def test_the_best_trees_of_the_papers_example():
    """Fig. 1, six workers; with results on links, 65/22 was the best rate that was known."""
    workers = tuple(f"W{i}" for i in range(1, 7))
    job = Job("j", workers, ("S1", "S2"), 1000).to_json()
    for topology, rate in (("testbed", 3.0), ("testbed:results=1", 65 / 22)):
        found = optimum.optimum(parse_topology(topology).to_json(), job)
        assert found is not None
        assert found.reached_mbps == pytest.approx(rate) and found.proven_mbps == pytest.approx(rate)


@pytest.mark.parametrize("seed", [4809, 9602, 9606, 9610, 9616, 9617, 9620])
def test_plans_are_feasible_and_bounds_hold(seed):
    """Networks of some kinds, planned in three ways; `evaluation.inart instances --kinds` measures many."""
    found = measure(kinds.draw(seed), on_hosts=True)
    assert not found.refuted and not found.beaten_by
    for row in found.plans.values():
        assert not row.faults and not row.refused
        assert row.optimum_mbps > 0 and row.true_gap < 0.01


def test_links_that_all_ways_of_results_have_are_paid_once():
    """A worker with two links hung on a switch that the results reach over one link in any case, and the search paid
    that link twice for it: the bound of seed 9609 was below the best trees."""
    instance = kinds.draw(9609)
    best = optimum.optimum(instance.topology.to_json(), instance.job.to_json())
    plan = get_strategy("inart")(instance.topology, instance.job)
    bound = closer_bound(plan, instance.topology)
    assert best is not None and bound is not None
    assert bound.mbps == pytest.approx(best.proven_mbps, rel=1e-4)
    assert plan.rate_mbps == pytest.approx(best.reached_mbps, rel=1e-3)


def test_results_are_searched_over_further_switches_before_the_search_ends():
    """Workers with two links got their results over the nearest switches, and 9.83 of 10 Mbit/s were found."""
    instance = kinds.draw(4809)
    job = replace(instance.job, parameter_servers=instance.job.workers)
    plan = get_strategy("inart")(instance.topology, job)
    assert plan.rate_mbps >= cheap_bound(instance.topology, job).mbps * (1 - 1e-4)


@st.composite
def with_several_links(draw: st.DrawFn) -> tuple[Topology, Job]:
    """Draw an instance in which some servers have a second link."""
    topology, job = draw(instances(max_switches=4, max_workers=4))
    added = draw(st.lists(st.tuples(st.sampled_from(topology.servers), st.sampled_from(topology.switches)), max_size=4))
    links = [(u, v, dict(topology.graph.edges[u, v])) for u, v in topology.links]
    for server, switch in dict.fromkeys(added):
        if not topology.has_link(server, switch):
            links += [(u, v, {"bandwidth_mbps": 7.0}) for u, v in ((server, switch), (switch, server))]
    nodes = {node: dict(topology.graph.nodes[node]) for node in topology.nodes}
    return Topology(nodes, links), job


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(with_several_links(), st.integers(0, 10**6))
def test_the_cheapest_trees_are_those_that_other_code_finds(instance, seed):
    topology, job = instance
    network = prepare(topology, job)
    pricing, generator = Pricing(network, job), np.random.default_rng(seed)
    counts = len(network.ends), len(topology.switches), len(job.parameter_servers)
    prices = Prices(
        *(generator.random(n) * (generator.random(n) < 0.7) for n in counts), np.ones(len(job.parameter_servers))
    )
    pricing.update(prices, np.zeros(len(network.ends)), tie=0.0)
    links = {("link", u, v): price for (u, v), price in zip(topology.links, pricing.price.tolist(), strict=True)}
    points = {("point", v): price for v, price in zip(topology.switches, pricing.switch_price.tolist(), strict=True)}
    roots = {("root", s): price for s, price in zip(job.parameter_servers, pricing.root_price.tolist(), strict=True)}
    other = optimum._Network(topology.to_json(), job.to_json())
    search = CheapestTrees(pricing)
    for number, root in enumerate(job.parameter_servers):
        found = other.cheapest(root, {**links, **points, **roots})
        assert found is not None
        assert search.of(number).least == pytest.approx(found[1], rel=1e-5, abs=1e-9)


def one_tree_more(plan: dict[str, Any]) -> None:
    plan["trees"].append({**copy.deepcopy(plan["trees"][0]), "share": 0.0})


def over_two_links(plan: dict[str, Any]) -> None:
    tree = plan["trees"][0]
    tree["return_edges"].append([tree["root"], "elsewhere"])


SMALL = parse_topology("leafspine:leaves=2,spines=1,servers=3")


@pytest.mark.parametrize(("change", "says"), [(one_tree_more, "the job may have"), (over_two_links, "over 2 links")])
def test_the_independent_check_counts_trees_and_links_of_results(change: Callable[[dict[str, Any]], None], says):
    plan = get_strategy("inart")(SMALL, parse_job("workers=4,ps=1,seed=1,trees=1", SMALL)).to_json()
    assert faults(SMALL.to_json(), plan) == []
    change(plan)
    assert any(says in fault for fault in faults(SMALL.to_json(), plan))


@pytest.mark.parametrize(("limit", "says"), [("label_entries", "entries of 0"), ("multicast_groups", "groups of 0")])
def test_the_independent_check_counts_what_limited_switches_hold(limit, says):
    job = parse_job("workers=4,ps=1,seed=1", SMALL)
    plan = get_strategy("inart")(SMALL, job).to_json()
    limits = Needs.of(get_strategy("inart")(SMALL, job))
    most = {name: getattr(limits, name) for name in ("label_entries", "multicast_groups")}
    full = SMALL.replace(
        nodes={v: {name: count[v] for name, count in most.items() if v in count} for v in SMALL.switches}
    )
    assert faults(full.to_json(), plan) == []
    none = SMALL.replace(nodes={v: {limit: 0} for v in SMALL.switches})
    assert any(says in fault for fault in faults(none.to_json(), plan))
    one_less = full.replace(nodes={v: {limit: most[limit][v] - 1} for v in most[limit]})
    assert len([fault for fault in faults(one_less.to_json(), plan) if limit.split("_")[1] in fault]) == len(
        most[limit]
    )
