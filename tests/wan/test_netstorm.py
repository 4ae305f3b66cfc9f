"""NetStorm's trees and paths compared with brute force, and its training with closed forms."""

from __future__ import annotations

import itertools
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.netstorm import algorithm as netstorm
from evaluation.netstorm.figures import speed
from evaluation.netstorm.training import MILLION, Setup, Training
from evaluation.wan.networks import random_network
from tests.support.examples import examples
from tests.wan.test_apsp import networks


def span(tree: netstorm.AggregationTree, graph: nx.DiGraph) -> None:
    assert set(tree.parent) == set(graph.nodes) - {tree.root}
    for node in tree.parent:
        seen = {node}
        while node != tree.root:
            node = tree.parent[node]
            assert node not in seen
            seen.add(node)


def worst(tree: netstorm.AggregationTree, graph: nx.DiGraph) -> float:
    """Check Theorem 1 by climbing from every node."""
    result = 0.0
    for node in tree.parent:
        total = 0.0
        while node != tree.root:
            above = tree.parent[node]
            total += 1 / graph.edges[node, above]["mbps"] + 1 / graph.edges[above, node]["mbps"]
            node = above
        result = max(result, total)
    return result


@settings(max_examples=examples(60), deadline=None)
@given(networks())
def test_the_fastest_tree_is_the_best_of_all_spanning_trees(graph: nx.DiGraph) -> None:
    for root in graph.nodes:
        tree, w = netstorm.fastest_trees(graph, [root])[0]
        span(tree, graph)
        assert worst(tree, graph) == pytest.approx(w)
        others = [v for v in graph.nodes if v != root]
        for parents in itertools.product(*(list(graph.successors(v)) for v in others)):
            candidate = nx.DiGraph([(root, root), *zip(others, parents, strict=True)])
            if all(nx.has_path(candidate, v, root) for v in others):
                assert worst(netstorm.AggregationTree(root, dict(zip(others, parents, strict=True))), graph) >= w - 1e-9


@settings(max_examples=examples(40), deadline=None)
@given(networks(), st.data())
def test_every_roots_tree_spans_and_shares_sum_to_one(graph: nx.DiGraph, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(graph)))
    roots = netstorm.choose_roots(graph, count)
    assert len(set(roots)) == count
    scores = netstorm.qualities(graph)
    assert min(scores[r] for r in roots) >= max((scores[v] for v in graph if v not in roots), default=0) * (1 - 1e-8)
    trees = netstorm.multi_root(graph, roots)
    for tree in trees:
        span(tree, graph)  # The graph includes the other roots: the paper's V \\ R would leave them out.
    assert sum(tree.share for tree in trees) == pytest.approx(1)


def test_ties_go_to_the_first_nodes() -> None:
    graph = nx.DiGraph()
    for u, v in itertools.permutations(range(4), 2):
        graph.add_edge(u, v, mbps=10.0)
    assert netstorm.choose_roots(graph, 2) == (0, 1)


def test_unreachable_nodes_are_named() -> None:
    graph = nx.DiGraph()
    graph.add_edge("a", "b", mbps=1.0)
    with pytest.raises(WanError, match="node b cannot reach root a"):
        netstorm.fastest_trees(graph, ["a"])
    with pytest.raises(WanError, match="node b cannot reach root a"):
        netstorm.widest_tree(graph, "a")
    with pytest.raises(WanError, match="1 to 2 roots"):
        netstorm.choose_roots(graph, 3)


@settings(max_examples=examples(60), deadline=None)
@given(networks(7))
def test_auxiliary_paths_share_no_link_and_leave_none_over(graph: nx.DiGraph) -> None:
    for u, v in graph.edges:
        paths = netstorm.auxiliary_paths(graph, u, v)
        used = [link for path in paths for link in nx.utils.pairwise(path)]
        assert len(used) == len(set(used)) and (u, v) not in used
        rest = graph.copy()
        rest.remove_edges_from([*used, (u, v)])
        assert not nx.has_path(rest, u, v)
        times = [sum(1 / graph.edges[link]["mbps"] for link in nx.utils.pairwise(path)) for path in paths]
        assert times == sorted(times)


def auxiliary_paths_printed(graph: nx.DiGraph) -> dict[tuple[int, int], list[tuple[int, ...]]]:
    """Return the paths of Algorithm 3 to the letter: each round takes all pairs' shortest paths and removes all their
    links.
    """
    network = graph.copy()
    found: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    while network.number_of_edges():
        used = set()
        for u, paths in nx.all_pairs_dijkstra_path(network, weight=lambda _u, _v, data: 1 / data["mbps"]):
            for v, path in paths.items():
                if u != v:
                    found.setdefault((u, v), []).append(tuple(path))
                    used.update(nx.utils.pairwise(path))
        network.remove_edges_from(used)
    return {pair: paths[1:] for pair, paths in found.items()}


def test_the_printed_pruning_leaves_fewer_paths() -> None:
    graph = random_network(9, np.random.default_rng(0))
    printed = auxiliary_paths_printed(graph)
    ours = sum(len(netstorm.auxiliary_paths(graph, u, v)) for u, v in graph.edges)
    assert sum(len(printed[link]) for link in graph.edges) < ours


@settings(max_examples=examples(40), deadline=None)
@given(networks(6))
def test_baselines_span(graph: nx.DiGraph) -> None:
    for root in graph.nodes:
        for make in (netstorm.star, netstorm.balanced_tree, netstorm.widest_tree):
            span(make(graph, root), graph)
    assert max(map(len, netstorm.balanced_tree(graph, 0, 3).children().values())) <= 3


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 50))
def test_chunks_follow_the_shares(weights: list[int], chunks: int) -> None:
    total = sum(weights)
    trees = [netstorm.AggregationTree(k, {}, w / total) for k, w in enumerate(weights)]
    owners = netstorm.chunk_roots(trees, chunks)
    assert len(owners) == chunks
    assert all(abs(owners.count(k) - tree.share * chunks) < 1 for k, tree in enumerate(trees))


def line(n: int, mbps: float = 32.0) -> nx.DiGraph:
    graph = nx.DiGraph()
    for u in range(n - 1):
        graph.add_edge(u, u + 1, mbps=mbps)
        graph.add_edge(u + 1, u, mbps=mbps)
    return graph


HEADERS = 1.05
"""Bytes on a link over those of the values, as overlay/sim counts frames and headers; acknowledgements take less."""

ALONE = Setup(roots=1, auxiliary=False, aware=False, compute=0.0)


@pytest.mark.parametrize(("chunk", "seconds"), [(8, 32.0), (1, 8 + 3)])
def test_an_iteration_is_theorem_1_or_its_pipeline(chunk: int, seconds: float) -> None:
    """Three nodes in a line need 1 s per million parameters and hop, with the root at the end. Whole tensors need 2
    hops up and 2 down of 8 s each. In 8 chunks, up takes 1 + 8 s and a chunk is back 2 s after it arrived: together 8 +
    3 s.
    """
    run = Training(replace(ALONE, parameters=8.0, chunk_values=chunk * MILLION), line(3), root=0)
    run.run(40.0)
    assert run.ends[0] == pytest.approx(seconds * HEADERS, rel=0.03)


def test_a_star_carries_every_flow_over_the_roots_link() -> None:
    run = Training(replace(ALONE, topology="STAR", parameters=4.0), line(3), root=0)
    run.run(20.0)
    assert run.ends[0] >= 2 * 4  # Two flows go up over one link, and results come back down beside them.


def believes(run: Training, link: tuple[int, int], graph: nx.DiGraph) -> bool:
    """Whether the link's believed rate is what this network leaves for values."""
    u, v = link
    return run.policy.belief.edges[f"h{u}", f"h{v}"]["mbps"] * HEADERS == pytest.approx(graph.edges[link]["mbps"], 0.03)


def test_passive_awareness_only_learns_links_that_carry_probes() -> None:
    graph = random_network(6, np.random.default_rng(2))
    faster = graph.copy()
    for _, _, data in faster.edges(data=True):
        data["mbps"] *= 3
    run = Training(Setup(roots=1, auxiliary=False, probe_chunks=1), graph, change=lambda now: faster, interval=5.0)
    run.run(200.0)
    learnt = {link for link in graph.edges if believes(run, link, faster)}
    assert learnt and learnt != set(graph.edges)


def test_probes_measure_what_chunks_get_and_not_the_links_rate() -> None:
    """Node 1 sends over 1 -> 0 itself, and passes nothing on, but the chunks of 2 to 0 cross the same link (STAR):
    connections share it, and a probe shows half of the link.
    """
    setup = Setup("STAR", roots=1, auxiliary=False, parameters=16.0, compute=0.0, probe_chunks=8)
    run = Training(setup, line(3), root=0)
    run.run(40.0)
    assert run.policy.belief.edges["h1", "h0"]["mbps"] < 0.9 * 32.0


def test_probes_that_are_too_small_teach_nothing() -> None:
    graph = random_network(5, np.random.default_rng(1))
    run = Training(Setup(roots=1, probe_values=2 * MILLION, parameters=4), graph)
    run.run(50.0)
    assert run.ends and run.policy.decisions == 1


@pytest.mark.parametrize("lazy", [True, False])
def test_all_options_run_and_repeat_exactly(lazy: bool) -> None:
    setup = Setup(roots=3, lazy=lazy, parameters=6.0)
    assert speed(setup, True, 1, nodes=5, seconds=250) == speed(setup, True, 1, nodes=5, seconds=250) > 0


def test_guesses_are_replaced_by_measured_throughputs() -> None:
    """On a static network with guessed throughputs, the guesses stay without awareness. With awareness the policy
    follows the measurements, but only when they differ by more than UPDATE_RATE.
    """
    graph = random_network(6, np.random.default_rng(4))
    guessed = Training(Setup(aware=False, roots=6), graph).policy.decided
    assert any(guessed.edges[f"h{u}", f"h{v}"]["mbps"] != data["mbps"] for u, v, data in graph.edges(data=True))
    for rate, follows in ((0.0, True), (1e9, False)):
        run = Training(Setup(probe_chunks=1, roots=6, update_rate=rate), graph)
        run.run(120.0)
        assert any(believes(run, link, graph) for link in graph.edges)
        moved = any(run.policy.decided.edges[link] != guessed.edges[link] for link in guessed.edges)
        assert moved is follows


def test_with_full_awareness_the_policy_knows_a_change_at_once() -> None:
    graph = random_network(5, np.random.default_rng(3))
    faster = graph.copy()
    for _, _, data in faster.edges(data=True):
        data["mbps"] *= 3
    run = Training(Setup(full=True, parameters=4.0), graph, change=lambda now: faster, interval=5.0)
    run.run(6.0)
    assert all(run.policy.belief.edges[f"h{u}", f"h{v}"] == data for u, v, data in faster.edges(data=True))


def test_whole_tensors_do_not_overlap_their_hops() -> None:
    """The largest of AlexNet's tensors, 37.65 million parameters, follows 20.88 million over the first hop, and crosses
    the other three of its hops alone.
    """
    run = Training(replace(ALONE, whole=True), line(3), root=0)
    run.run(300.0)
    assert run.ends[0] == pytest.approx((4.1 + 16.78 + 4 * 37.65) * HEADERS, rel=0.03)
