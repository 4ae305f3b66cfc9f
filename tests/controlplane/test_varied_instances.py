"""`python -m evaluation.inart instances`: what it draws, that its check sees every kind of fault, and that plans are at
the bound on networks where the bound was loose."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from itertools import combinations
from typing import Any

import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings

from controlplane.planner.generators import parse_topology
from controlplane.planner.job import Job, parse_job
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.fabric.any_bound import all_reduce_bound
from controlplane.planner.strategies.fabric.bounds import cheap_bound
from controlplane.planner.topology import Topology
from evaluation.inart.__main__ import main
from evaluation.inart.checked import faults
from evaluation.inart.varied import draw
from tests.controlplane.instances import instances
from tests.support.examples import examples


def test_the_same_seed_draws_the_same_instance_and_seeds_differ():
    drawn = [draw(seed) for seed in range(30)]
    assert draw(7).topology.to_json() == drawn[7].topology.to_json()
    assert draw(7).job == drawn[7].job
    assert len({each.what[0].split()[0] for each in drawn}) >= 5
    assert all(2 <= len(each.job.workers) <= 60 and len(each.job.parameter_servers) >= 1 for each in drawn)
    assert any(each.job.both_roles for each in drawn) and any(each.topology.adding_servers for each in drawn)


def test_instances_are_measured_and_summed_up(capsys):
    assert main(["instances", "--count", "1", "--seed", "4"]) == 0
    text = capsys.readouterr().out
    assert "1 instances, 2 plans; 0 not feasible" in text
    assert "below a collective of hosts: 0 []" in text
    assert main(["instances", "--count", "1", "--seed", "4", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["seed"] == 4 and set(found["plans"]) == {"own", "workers"} and found["beaten_by"] == ""


def faster(plan: dict[str, Any]) -> None:
    plan["rate_mbps"] *= 1.001


def one_share_more(plan: dict[str, Any]) -> None:
    plan["trees"][0]["share"] += 0.01


def a_worker_less(plan: dict[str, Any]) -> None:
    del plan["trees"][0]["assignments"][0]


def a_result_less(plan: dict[str, Any]) -> None:
    tree = plan["trees"][0]
    leaf = next(child for _, child in tree["return_edges"] if child in plan["job"]["workers"])
    tree["return_edges"] = [edge for edge in tree["return_edges"] if edge[1] != leaf]


def a_jump(plan: dict[str, Any]) -> None:
    route = max((each["route"] for tree in plan["trees"] for each in tree["assignments"]), key=len)
    del route[1]


def a_dead_end(plan: dict[str, Any]) -> None:
    tree = next(tree for tree in plan["trees"] if tree["relays"])
    tree["relays"].clear()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (faster, "Mbit/s"),
        (one_share_more, "shares sum to"),
        (a_worker_less, "not every worker"),
        (a_result_less, "no result comes to"),
        (a_jump, "there is no link"),
        (a_dead_end, "does not come to the root"),
    ],
)
def test_the_independent_check_sees_what_is_wrong(change: Callable[[dict[str, Any]], None], says):
    topology = parse_topology("fattree:k=4")
    plan = get_strategy("inart")(topology, parse_job("workers=8,ps=2,seed=1", topology)).to_json()
    assert faults(topology.to_json(), plan) == []
    changed = copy.deepcopy(plan)
    change(changed)
    assert any(says in fault for fault in faults(topology.to_json(), changed))


def test_the_independent_check_counts_slots():
    topology = parse_topology("fattree:k=4")
    plan = get_strategy("inart")(topology, parse_job("workers=8,ps=2,seed=1", topology)).to_json()
    small = topology.replace(nodes={v: {"slots": 8} for v in topology.switches})
    assert any("slots" in fault for fault in faults(small.to_json(), plan))


@pytest.mark.parametrize(
    ("topology", "job"),
    [
        ("fattree:k=4,oversubscription=2", "workers=10,ps=workers,seed=7"),  # It was 30 % above the plan.
        ("fattree:k=4,oversubscription=4", "workers=12,ps=workers,seed=1"),
    ],
)
def test_servers_on_workers_behind_thin_links_are_planned_at_the_bound(topology, job):
    network = parse_topology(topology)
    placed = parse_job(job, network)
    assert get_strategy("inart")(network, placed).rate_mbps >= cheap_bound(network, placed).mbps * (1 - 1e-3)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(max_switches=4, max_workers=4))
def test_the_bound_of_any_all_reduce_looks_at_every_set_of_nodes(instance):
    topology, job = instance
    assert all_reduce_bound(topology, job).mbps <= least_cut(topology, job) * (1 + 1e-4)


def least_cut(topology: Topology, job: Job) -> float:
    """Return what the set of nodes that parts two workers and that least can leave lets out, by another library."""
    graph = nx.DiGraph()
    for u, v in topology.links:
        graph.add_edge(u, v, capacity=topology.residual_bandwidth_mbps(u, v))
    flows = [nx.maximum_flow_value(graph, *pair) for u, v in combinations(job.workers, 2) for pair in ((u, v), (v, u))]
    return min(flows, default=float("inf"))
