"""Losses of links and switches, and the placement of parameter servers, compared with independent
computations.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from controlplane.cli.plan.command import main
from controlplane.cli.plan.placement import place, placement_bound
from controlplane.planner.evaluate import evaluate
from controlplane.planner.generators import leaf_spine, parse_topology
from controlplane.planner.job import Job, parse_job, place_job
from controlplane.planner.plan.survive import losses
from controlplane.planner.strategies import get_strategy
from tests.controlplane.instances import instances
from tests.controlplane.test_strategies import REFUSALS
from tests.support.examples import examples

SLOW = [HealthCheck.too_slow]


def tree_uses(tree, topology):
    """Return how often a unit of the tree's rate uses each resource, counted here from its routes."""
    use: dict[object, float] = {}
    for flow in tree.flows:
        for pair in pairwise(flow.route):
            use[pair] = use.get(pair, 0.0) + 1
        use[flow.end] = use.get(flow.end, 0.0) + 1
    for pair in tree.return_edges if topology.results_on_links else ():
        use[pair] = use.get(pair, 0.0) + 1
    return use


def best_rate(trees, topology):
    """Return the best rate of these trees over all shares, computed by SciPy."""
    uses = [tree_uses(tree, topology) for tree in trees]
    names = sorted({name for use in uses for name in use}, key=str)
    matrix = np.array([[use.get(name, 0.0) for use in uses] for name in names])
    capacity = []
    for name in names:
        if isinstance(name, tuple):
            capacity.append(topology.residual_bandwidth_mbps(*name))
        elif topology.kind(name) == "switch":
            capacity.append(topology.residual_aggregation_mbps(name))
        else:
            capacity.append(topology.residual_ingress_mbps(name))
    finite = np.isfinite(capacity)
    result = linprog(-np.ones(len(trees)), A_ub=matrix[finite], b_ub=np.array(capacity)[finite])
    assert result.success
    return -result.fun


def needs(tree, what):
    nodes = what.split("-")
    links = {pair for flow in tree.flows for pair in pairwise(flow.route)} | set(tree.return_edges)
    if len(nodes) == 1:
        return any(what in pair for pair in links)
    return tuple(nodes) in links or tuple(nodes[::-1]) in links


@settings(max_examples=examples(20), deadline=None, suppress_health_check=SLOW)
@given(instances(max_switches=5, max_workers=5), st.sampled_from(["inart", "atp", "lbmm"]))
def test_rates_after_losses(instance, strategy):
    topology, job = instance
    try:
        plan = get_strategy(strategy)(topology, job)
    except REFUSALS:
        return
    found = losses(plan, topology)
    named = {loss.what for loss in found}
    for tree in plan.trees:
        for flow in tree.flows:
            assert all(v in named for v in flow.route[1:-1])
            assert all(f"{u}-{v}" in named or f"{v}-{u}" in named for u, v in pairwise(flow.route))
    for loss in found:
        left = [tree for tree in plan.trees if not needs(tree, loss.what)]
        assert len(plan.trees) - len(left) == loss.trees
        assert loss.rate_mbps == pytest.approx(best_rate(left, topology) if left else 0.0, rel=1e-5, abs=1e-9)
        if loss.cut:
            assert not left
        else:
            assert loss.rate_mbps <= loss.bound_mbps * (1 + 1e-6)
    assert [loss.rate_mbps for loss in found] == sorted(loss.rate_mbps for loss in found)


@settings(max_examples=examples(8), deadline=None, suppress_health_check=SLOW)
@given(st.integers(2, 3), st.integers(2, 3), st.sampled_from([2.0, 6.0, 20.0]), st.integers(1, 2), st.integers(0, 99))
def test_no_placement_beats_the_bound(leaves, servers, uplink, roots, seed):
    topology = leaf_spine(leaves, 1, servers, uplink_mbps=uplink)
    workers = place_job(topology, leaves * servers - roots - 1, roots, seed=seed)
    strategy = get_strategy("inart")
    limit = placement_bound(topology, workers).mbps
    free = [server for server in topology.servers if server not in workers.workers]
    rates = [
        strategy(topology, replace(workers, parameter_servers=chosen)).rate_mbps for chosen in combinations(free, roots)
    ]
    found = place(topology, workers, strategy)
    assert max(rates) <= limit * (1 + 1e-6)
    assert found.plan.rate_mbps == evaluate(found.plan, topology).rate_mbps <= found.bound.mbps * (1 + 1e-6)
    assert found.plan.rate_mbps >= 0.99 * max(rates)
    assert found.job.workers == workers.workers and set(found.job.parameter_servers) <= set(free)


def test_placed_parameter_servers_on_the_command_line(tmp_path, capsys):
    thin = "leafspine:leaves=4,spines=1,servers=4,uplink=5"
    topology = parse_topology(thin)
    job = Job("job", tuple(topology.servers[:6]), (topology.servers[-2], topology.servers[-1]), 1_000_000)
    file, placed = tmp_path / "job.json", tmp_path / "placed.json"
    file.write_text(json.dumps(job.to_json()))
    assert main(["place", "--topology", thin, "--job", str(file), "--output", str(placed), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["rate_mbps"] >= printed["rate_before_mbps"] * (1 - 1e-6)
    again = parse_job(str(placed), topology)
    assert get_strategy("inart")(topology, again).rate_mbps == pytest.approx(printed["rate_mbps"])
    crowded = Job("job", topology.servers[1:], topology.servers[:1], 1_000_000)
    file.write_text(json.dumps(crowded.to_json()))
    assert main(["place", "--topology", thin, "--job", str(file), "--apart"]) == 0
    assert "parameter servers  h1\n" in capsys.readouterr().out, "the only server without a worker"
    assert main(["place", "--topology", thin, "--job", str(file), "--json"]) == 0
    beside = json.loads(capsys.readouterr().out)
    assert beside["rate_mbps"] > beside["rate_before_mbps"], "a worker's server that hangs elsewhere is faster"
