"""The WAN strategies on every kind of topology, through the planner's command line, and the loads of their plans."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.cli.plan.command import main
from controlplane.planner.generators import parse_topology
from controlplane.planner.job import parse_job
from controlplane.planner.plan.model import Plan, PlanError
from controlplane.planner.strategies import STRATEGIES, Infeasible
from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.tree_packing.algorithm import pack
from controlplane.planner.topology import TopologyError
from evaluation.wan.compare import promised
from evaluation.wan.networks import overlay, whole_job
from tests.support.examples import examples
from tests.wan.test_apsp import networks
from tests.wan.test_packing import NAMES

TOPOLOGIES = ("internet2:seed=2", "netstorm:seed=1", "aws", "testbed", "fattree:k=4", "random:switches=4,servers=7")


@pytest.mark.parametrize("spec", TOPOLOGIES)
def test_every_strategy_plans_or_says_why_not(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = "workers=4,ps=2,seed=1"
    assert main(["--topology", spec, "--job", job, "--json", "--strategy", ",".join(NAMES)]) == 0
    rows = json.loads(capsys.readouterr().out)["strategies"]
    assert [row["strategy"] for row in rows] == list(NAMES)
    for row in rows:
        assert row["rate_mbps"] > 0 if "rate_mbps" in row else len(row["refused"]) > 10
    proven = rows[-1]["proven_mbps"]
    for row in rows:
        if "rate_mbps" in row:
            assert row["gap"] == pytest.approx(max(0.0, 1 - row["rate_mbps"] / min(proven, row["bound_mbps"])))
    assert rows[-1]["rate_mbps"] <= proven * (1 + 1e-9)
    if parse_topology(spec).name in ("internet2", "netstorm", "aws"):
        assert all(row["rate_mbps"] <= proven * (1 + 1e-6) for row in rows)
        assert rows[-1]["rate_mbps"] >= proven * (1 - 1e-3)


def test_the_command_line_compares_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--topology", "testbed", "--job", "workers=3,ps=2", "--strategy", "all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(STRATEGIES)]] == list(STRATEGIES)
    assert lines[-1].startswith("bound for any trees over these links, proven by wan")


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_names_unreachable_nodes(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The topology lacks a link, has a link without bandwidth, or has a link in one direction only."""
    for broken in ([], [(1, 2, 0.0), (2, 1, 0.0)], [(1, 2, 5.0), (2, 1, 0.0)]):
        graph = nx.DiGraph()
        graph.add_nodes_from(range(3))
        for u, v, mbps in ((0, 1, 5.0), (1, 0, 5.0), *broken):
            graph.add_edge(u, v, mbps=mbps)
        file = tmp_path / "cut.json"
        file.write_text(json.dumps(overlay(graph).to_json()))
        assert main(["--topology", str(file), "--strategy", name]) == 2
        said = capsys.readouterr().err
        assert ("no route with bandwidth left from h2 to p0" if broken else "no path of links leads there") in said


@pytest.mark.parametrize("name", NAMES)
def test_a_single_site_needs_no_network(name: str) -> None:
    graph: nx.DiGraph = nx.DiGraph(name="one")
    graph.add_node(0)
    plan = STRATEGIES[name](overlay(graph), whole_job(graph, 1000))
    plan.check(overlay(graph))
    assert len(plan.trees) == 1 and plan.rate_mbps > 0


@settings(max_examples=examples(12), deadline=None)
@given(networks(5), st.sampled_from(NAMES))
def test_equal_links_are_no_trouble(graph: nx.DiGraph, name: str) -> None:
    """All choices tie: plans are nevertheless complete, and the same in two runs."""
    for _, _, data in graph.edges(data=True):
        data["mbps"] = 4.0
    topology, job = overlay(graph), whole_job(graph, 1000)
    plan = STRATEGIES[name](topology, job, seed=3)
    plan.check(topology)
    assert sum(tree.share for tree in plan.trees) == pytest.approx(1)
    assert plan == STRATEGIES[name](topology, job, seed=3)


@pytest.mark.parametrize("name", NAMES)
def test_a_site_that_is_cut_off_is_named(name: str) -> None:
    graph = nx.DiGraph()
    for u, v in ((0, 1), (1, 0), (1, 2)):
        graph.add_edge(u, v, mbps=5.0)
    with pytest.raises((Infeasible, ValueError), match=r"h2|dc2|h0|dc0|p2|p0"):
        STRATEGIES[name](overlay(graph), whole_job(graph, 1000))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("b4:law=cubic", "known: linear"),
        ("b4:least=0", "0 < least"),
        ("aws:seed=1", "unknown part"),
        ("b5", "b4, internet2"),
    ],
)
def test_wrong_networks_are_refused(spec: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_topology(spec)


def test_netstorms_plan_carries_its_auxiliary_paths() -> None:
    topology = parse_topology("netstorm:seed=1")
    job = parse_job("", topology)
    plan = STRATEGIES["netstorm"](topology, job)
    plan.check(topology)
    assert plan == Plan.from_json(json.loads(json.dumps(plan.to_json())))
    talking = {relay.route for tree in plan.trees for relay in tree.relays}
    assert plan.detours and all(len(path) > 2 for path in plan.detours)
    assert {(path[0], path[-1]) for path in plan.detours} <= talking | {route[::-1] for route in talking}
    broken = Plan(plan.job, "x", 1.0, plan.trees, detours=(("dc0", "dc8"),))
    with pytest.raises(PlanError, match="dc0 -> dc8 does not exist"):
        broken.check(topology)


def test_a_packing_needs_its_roots_within_reach() -> None:
    graph = nx.DiGraph()
    graph.add_edge(0, 1, mbps=5.0)
    graph.add_edge(1, 0, mbps=5.0)
    graph.add_edge(2, 0, mbps=5.0)
    assert pack(graph, [0], terminals=[0, 1]).rate == pytest.approx(5.0, rel=1e-3)
    with pytest.raises(WanError, match="not both ways: 2"):
        pack(graph, [0], terminals=[0, 1, 2])


def test_the_bounds_of_compare_are_checked() -> None:
    row = {"network": "x", "strategy": "wan", "worst_gap_%": 1.0, "ahead": 1.2}
    assert promised([row, {**row, "strategy": "crew", "ahead": 0.5}]) == []
    assert "bound" in promised([{**row, "worst_gap_%": 6.0}])[0]
    assert "another" in promised([{**row, "ahead": 0.9}])[0]
