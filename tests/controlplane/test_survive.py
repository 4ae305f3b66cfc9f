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
from controlplane.planner.plan.losses import kept, losses, weakened
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


def rate_of_shares(plan, topology):
    """Return the rate of the plan with its shares as they are, counted here from its routes."""
    total: dict[object, float] = {}
    for tree in plan.trees:
        for name, use in tree_uses(tree, topology).items():
            total[name] = total.get(name, 0.0) + use * tree.share
    rates = [np.inf]
    for name, use in total.items():
        if isinstance(name, tuple):
            rates.append(topology.residual_bandwidth_mbps(*name) / use)
        elif topology.kind(name) == "switch":
            rates.append(topology.residual_aggregation_mbps(name) / use)
        else:
            rates.append(topology.residual_ingress_mbps(name) / use)
    return min(rates)


def with_one_slower(topology, link, loses):
    """Return the network in which both directions of the link "u-v" have lost a part."""
    pairs = [(u, v) for u, v in topology.links if link in (f"{u}-{v}", f"{v}-{u}")]
    return topology.replace(
        links={pair: {"bandwidth_mbps": topology.bandwidth_mbps(*pair) * (1 - loses)} for pair in pairs}
    )


@settings(max_examples=examples(20), deadline=None, suppress_health_check=SLOW)
@given(instances(max_switches=5, max_workers=5), st.sampled_from(["inart", "atp"]), st.sampled_from([0.1, 0.3, 0.9]))
def test_what_is_kept_when_a_link_loses_a_part(instance, strategy, loses):
    topology, job = instance
    try:
        plan = get_strategy(strategy)(topology, job)
    except REFUSALS:
        return
    rate = evaluate(plan, topology).rate_mbps
    links = {"-".join(sorted(pair)) for pair in topology.links}
    after = {link: rate_of_shares(plan, with_one_slower(topology, link, loses)) for link in links}
    left = kept(plan, topology, rate, loses)
    assert left.rate_mbps == pytest.approx(min(after.values()), rel=1e-6, abs=1e-9)
    assert left.part == pytest.approx(left.rate_mbps / rate if rate > 0 else 1.0)
    found = weakened(plan, topology, rate, loses)
    costly = {link for link, mbps in after.items() if mbps < rate * (1 - 1e-6)}
    assert costly <= {item.link for item in found}
    assert left.link == "" or left.link in {item.link for item in found}
    for item in found:
        slower = with_one_slower(topology, item.link, loses)
        assert item.unchanged_mbps == pytest.approx(after[item.link], rel=1e-6, abs=1e-9)
        assert item.rate_mbps == pytest.approx(best_rate(plan.trees, slower), rel=1e-5, abs=1e-9)
        assert item.unchanged_mbps <= item.rate_mbps * (1 + 1e-6) <= item.bound_mbps * (1 + 1e-5) + 1e-9


def test_parts_of_links_on_the_command_line(capsys) -> None:
    network = ["--topology", "fattree:k=4,bandwidth=10-30,seed=1", "--job", "workers=12,ps=2,seed=1"]
    assert main(["plan", *network, "--losses", "20%", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    now, again = printed["kept"], printed["kept_with_new_shares"]
    assert now["loses"] == 0.2 and now["link"] == printed["slower_links"][0]["link"]
    assert now["rate_mbps"] == pytest.approx(now["part"] * printed["rate_mbps"]) and now["part"] <= again["part"] <= 1
    assert main(["plan", *network, "--losses", "20%", "--strategy", "inart,atp", "--json"]) == 0
    rows = {row["strategy"]: row for row in json.loads(capsys.readouterr().out)["strategies"]}
    assert rows["inart"]["kept"] == now and 0.8 - 1e-9 <= rows["atp"]["kept"]["part"] <= 1
    assert main(["compare", *network, "--losses", "20%", "--strategy", "inart"]) == 0
    assert f"; keeps {100 * now['part']:.1f} %" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--losses", "0%"], "--losses must be a part of links' capacity, like 90% or 0.9, got '0%'"),
        (["--losses", "100%"], "--losses must be less than 100%: a link that is lost is `--losses` without a part"),
        (["compare", "--losses"], "several strategies: --losses needs a part of links' capacity, like --losses 20%"),
    ],
)
def test_parts_of_links_that_say_nothing(words, message, capsys) -> None:
    assert main([*words, "--topology", "testbed"]) == 2
    assert message in capsys.readouterr().err


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
