"""APSP compared with enumeration, with its own bound, and on small networks whose answer is known."""

from __future__ import annotations

import itertools
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.planner.strategies.wan.apsp import algorithm as apsp
from controlplane.planner.strategies.wan.errors import WanError
from evaluation.wan.networks import aws, by_distance, netstorm_draw
from tests.support.examples import examples


@st.composite
def networks(draw: st.DrawFn, largest: int = 5) -> nx.DiGraph:
    """Return a connected graph with both directions of each link and bandwidths from 1 to 9."""
    n = draw(st.integers(1, largest))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    links = [(int(rng.integers(v)), v) for v in range(1, n)]
    links += [(u, v) for u, v in itertools.combinations(range(n), 2) if rng.random() < 0.4]
    for u, v in dict.fromkeys(links):
        graph.add_edge(u, v, mbps=float(rng.integers(1, 10)))
        graph.add_edge(v, u, mbps=float(rng.integers(1, 10)))
    return graph


def check(placement: apsp.Placement, graph: nx.DiGraph, volume: float, delay: apsp.Delay) -> None:
    """Check that every node has one path to the root, and that the bandwidths fit on all links and give every node the
    same time.
    """
    assert set(placement.paths) == set(graph.nodes) - {placement.root}
    load: dict[tuple[int, int], float] = {}
    for node, path in placement.paths.items():
        assert (path[0], path[-1]) == (node, placement.root) and len(set(path)) == len(path)
        hops = len(path) - 1 if delay == "stored" else 1
        assert 2 * hops * volume / placement.bandwidth[node] == pytest.approx(placement.time)
        for link in pairwise(path):
            load[link] = load.get(link, 0.0) + placement.bandwidth[node]
    assert all(amount <= graph.edges[link]["mbps"] * (1 + 1e-9) for link, amount in load.items())
    assert placement.bound <= placement.time * (1 + 1e-6)


@settings(max_examples=examples(25), deadline=None)
@given(networks(), st.sampled_from(["stored", "fluid"]), st.integers(0, 99))
def test_placements_are_feasible_and_no_choice_of_paths_is_below_the_bound(
    graph: nx.DiGraph, delay: apsp.Delay, seed: int
) -> None:
    placements = [apsp.place(graph, 3.0, seed=seed, roots=[root], delay=delay) for root in graph.nodes]
    for placement in placements:
        check(placement, graph, 3.0, delay)
    for placement in placements:
        best = np.inf
        choices = apsp.paths_to(graph, placement.root)
        for paths in itertools.islice(itertools.product(*choices.values()), 20000):
            best = min(best, apsp.epoch_time(graph, dict(zip(choices, paths, strict=True)), 3.0, delay))
        assert placement.bound * (1 - 1e-6) <= best <= placement.time * (1 + 1e-9)


def test_a_star_puts_the_server_in_the_middle() -> None:
    graph = nx.DiGraph()
    for leaf in range(1, 5):
        graph.add_edge(leaf, 0, mbps=10.0)
        graph.add_edge(0, leaf, mbps=10.0)
    placement = apsp.place(graph, 100.0)
    assert placement.root == 0 and placement.time == pytest.approx(2 * 100 / 10)


def test_hops_count_when_stored_and_not_when_pipelined() -> None:
    graph = nx.DiGraph()
    for u, v in ((0, 1), (1, 2)):
        graph.add_edge(u, v, mbps=10.0)
        graph.add_edge(v, u, mbps=10.0)
    routes = {0: (0, 1, 2), 1: (1, 2)}
    assert apsp.epoch_time(graph, routes, 10.0, "stored") == pytest.approx(2 * (2 + 1))
    assert apsp.epoch_time(graph, routes, 10.0, "fluid") == pytest.approx(2 * 2)


def test_one_node_needs_no_network() -> None:
    graph = nx.DiGraph()
    graph.add_node(0)
    placement = apsp.place(graph, 5.0)
    assert (placement.root, placement.time, placement.paths) == (0, 0.0, {})


def test_unreachable_nodes_and_links_without_bandwidth_are_named() -> None:
    graph = nx.DiGraph()
    graph.add_edge("a", "b", mbps=0.0)
    graph.add_edge("b", "a", mbps=1.0)
    with pytest.raises(WanError, match="node a cannot reach b"):
        apsp.place(graph, 1.0, roots=["b"])
    with pytest.raises(WanError, match=r"node a cannot reach b"):
        apsp.shortest_routes(apsp.usable(graph), "b")
    with pytest.raises(WanError, match='link a -> b needs "mbps"'):
        apsp.usable(nx.DiGraph([("a", "b")]))
    with pytest.raises(WanError, match="candidate"):
        apsp.place(graph, 1.0, roots=[])


@settings(max_examples=examples(25), deadline=None)
@given(networks())
def test_baselines_route_everyone(graph: nx.DiGraph) -> None:
    for root in graph.nodes:
        for routes in (apsp.shortest_routes(graph, root), apsp.balanced_routes(graph, root)):
            assert set(routes) == set(graph.nodes) - {root}
            for node, path in routes.items():
                assert nx.is_path(graph, list(path)) and (path[0], path[-1]) == (node, root)


def test_rounding_repeats_exactly() -> None:
    graph = by_distance("internet2", seed=3)
    assert apsp.place(graph, 1.0, seed=4, roots=[5]) == apsp.place(graph, 1.0, seed=4, roots=[5])


@pytest.mark.parametrize(("name", "nodes", "links"), [("b4", 12, 19), ("internet2", 9, 13)])
def test_networks_are_the_papers(name: str, nodes: int, links: int) -> None:
    graph = by_distance(name, seed=1)
    rates = [data["mbps"] for _, _, data in graph.edges(data=True)]
    assert (len(graph), len(rates)) == (nodes, 2 * links)
    assert (min(rates), max(rates)) == (500, 5000)
    assert nx.is_strongly_connected(graph)


def test_other_networks() -> None:
    assert len(aws()) == 10 and len(aws().edges) == 90
    drawn = netstorm_draw(np.random.default_rng(1))
    assert len(drawn.edges) == 26 and all(20 <= d["mbps"] <= 155 for _, _, d in drawn.edges(data=True))
