"""CREW's baselines as strategies: their plans are feasible on any topology and have closed forms on a full mesh."""

from __future__ import annotations

import json

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.cli.plan.command import main
from controlplane.planner.evaluate import evaluate
from controlplane.planner.job import Job
from controlplane.planner.plan import Plan
from controlplane.planner.plan.replan import replan
from controlplane.planner.simulate.plans import synchronisation_seconds
from controlplane.planner.strategies import Infeasible, get_strategy
from controlplane.planner.topology import Topology
from evaluation.wan.networks import overlay
from tests.controlplane.instances import instances
from tests.support.examples import examples

NAMES = ("crew", "crew-even", "opr", "ps", "ring", "blink", "topo-adopt")


@settings(max_examples=examples(50), deadline=None)
@given(instances(), st.sampled_from(NAMES), st.integers(0, 9))
def test_every_plan_is_feasible_and_reads_back_the_same(instance: tuple[Topology, Job], name: str, seed: int) -> None:
    topology, job = instance
    try:
        plan = get_strategy(name)(topology, job, seed=seed)
    except Infeasible as error:
        own = "no site with workers has a parameter server" if name == "opr" else "has no capacity left"
        # Every site of these trees has to aggregate.
        assert own in str(error) and name in ("opr", "ring", "blink", "topo-adopt")
        return
    plan.check(topology)
    evaluation = evaluate(plan, topology)
    assert 0 < plan.rate_mbps == evaluation.rate_mbps <= evaluation.bound_mbps * (1 + 1e-9)
    assert all(load.utilisation <= 1 + 1e-9 for load in evaluation.loads)
    assert sum(tree.share for tree in plan.trees) == pytest.approx(1)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert get_strategy(name)(topology, job, seed=seed) == plan
    again = replan(plan, topology, seed=seed)
    assert again.split == pytest.approx(plan.split, abs=1e-9)


def full_mesh(n: int, mbps: float) -> Topology:
    graph: nx.DiGraph = nx.complete_graph(n, nx.DiGraph)
    nx.set_edge_attributes(graph, mbps, "mbps")
    return overlay(graph)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(2, 6), st.data())
def test_rates_on_equal_links_are_the_textbooks(n: int, data: st.DataObject) -> None:
    """The closed forms hold for p workers on n sites with bandwidth b on every link. CREW b n / 2 (two blocks of 1 / n
    on each link), OPR b p / 2, PS and A2A b, the ring b p / (2 (p - 1)): each link carries (p - 1) / p of the model up
    and as much down.
    """
    p = data.draw(st.integers(2, n))
    group = data.draw(st.permutations(range(n)))[:p]
    topology = full_mesh(n, 12.0)
    job = Job("group", tuple(f"h{k}" for k in group), tuple(f"p{k}" for k in range(n)), 1_000_000)
    wanted = {"crew": n / 2, "crew-even": n / 2, "opr": p / 2, "ps": 1.0, "all-to-all": 1.0, "ring": p / (2 * (p - 1))}
    for name, times in wanted.items():
        plan = get_strategy(name)(topology, job, seed=3)
        assert plan.rate_mbps == pytest.approx(12.0 * times), name
        assert synchronisation_seconds(plan, topology) == pytest.approx(8 / (12.0 * times)), name
    for name in ("blink", "topo-adopt"):
        assert get_strategy(name)(topology, job).rate_mbps <= 12.0 * p / 2 * (1 + 1e-9)


def test_the_server_is_where_bandwidth_is_and_splits_know_the_network() -> None:
    graph: nx.DiGraph = nx.complete_graph(4, nx.DiGraph)
    nx.set_edge_attributes(graph, 10.0, "mbps")
    for other in (0, 1, 3):
        graph.edges[other, 2]["mbps"] = graph.edges[2, other]["mbps"] = 40.0
    topology = overlay(graph)
    job = Job("job", tuple(f"h{k}" for k in range(4)), tuple(f"p{k}" for k in range(4)), 1000)
    assert [tree.root for tree in get_strategy("ps")(topology, job).trees] == ["p2"]
    aware, even = (get_strategy(name)(topology, job) for name in ("crew", "crew-even"))
    assert aware.split["p2"] == pytest.approx(4 / 7) and even.split["p2"] == pytest.approx(1 / 4)
    assert aware.rate_mbps > even.rate_mbps


def test_a_frozen_split_is_kept_by_all() -> None:
    topology = full_mesh(4, 10.0)
    job = Job("job", ("h0", "h1"), ("p1", "p2", "p3"), 1000)
    for name in NAMES:
        plan = get_strategy(name)(topology, job, frozen_split={"p1": 0.25, "p2": 0.0, "p3": 0.75})
        plan.check(topology)
        assert plan.split == pytest.approx({"p1": 0.25, "p2": 0.0, "p3": 0.75}), name


def test_servers_away_from_all_workers_root_trees_but_opr_needs_one_beside_a_worker() -> None:
    topology = full_mesh(4, 10.0)
    job = Job("job", ("h0", "h1"), ("p3",), 1000)
    for name in NAMES:
        if name == "opr":
            with pytest.raises(Infeasible, match="no site with workers has a parameter server"):
                get_strategy(name)(topology, job)
        else:
            assert {tree.root for tree in get_strategy(name)(topology, job).trees} == {"p3"}


def test_the_command_line_compares_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    names = [*NAMES, "all-to-all"]
    command = ["--topology", "netstorm:seed=2", "--job", "workers=4,ps=4,seed=1", "--json"]
    assert main([*command, "--strategy", ",".join(names)]) == 0
    rows = json.loads(capsys.readouterr().out)["strategies"]
    assert [row["strategy"] for row in rows] == names and all(row["rate_mbps"] > 0 for row in rows)
    assert main(["--topology", "b4", "--job", "workers=1,ps=1", "--strategy", "all-to-all"]) == 2
    assert "one worker has nobody to send its model to" in capsys.readouterr().err
