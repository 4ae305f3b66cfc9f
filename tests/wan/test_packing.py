"""The packing compared with a flow LP that has no trees, and the WAN strategies' plans on any network."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from controlplane.planner.evaluate import evaluate
from controlplane.planner.job import Job
from controlplane.planner.plan.framing import PAYLOAD, Framing, payload_mbps
from controlplane.planner.plan.model import Plan
from controlplane.planner.simulate.plans import synchronisation_seconds
from controlplane.planner.strategies import STRATEGIES, Infeasible
from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.tree_packing.algorithm import GivenUp, PackedTree, Packing, pack
from controlplane.planner.strategies.wan.tree_packing.arborescence import arborescence
from controlplane.planner.strategies.wan.tree_packing.steiner import Exact, cleaned, dual_ascent, short_tree
from controlplane.planner.strategies.wan.tree_packing.strategy import wan
from controlplane.planner.topology import Topology
from evaluation.wan.networks import by_distance, overlay, whole_job
from tests.controlplane.instances import instances, troubled_instances
from tests.support.examples import examples
from tests.wan.test_apsp import networks

NAMES = (
    "apsp", "apsp-random", "apsp-connected", "apsp-shortest", "apsp-balanced",
    "netstorm", "star", "balanced-tree", "tsengine", "crew", "wan",
)  # fmt: skip
OF_TREES = [name for name in STRATEGIES if name not in ("selmcast", "selmcast-l7", "orpheus", "all-to-all", "exact")]


def flow_bound(graph: nx.DiGraph) -> float:
    """Return the optimum of Edmonds' branching theorem as an LP. Root r can send out at rate f_r within capacities c
    iff every other node's minimum cut from r is at least f_r (so too for in-trees); all capacities together fit on the
    links.
    """
    nodes, arcs = list(graph.nodes), list(graph.edges)
    count = 0

    def new(k: int) -> range:
        nonlocal count
        count += k
        return range(count - k, count)

    equal: list[tuple[dict[int, float], float]] = []
    upper: list[tuple[dict[int, float], float]] = []
    rates = new(len(nodes))
    total: dict[int, list[int]] = {e: [] for e in range(len(arcs))}
    for r, root in enumerate(nodes):
        for climbing in (False, True):
            share = new(len(arcs))
            for e in range(len(arcs)):
                total[e].append(share[e])
            for target in nodes:
                if target == root:
                    continue
                flow = new(len(arcs))
                for e in range(len(arcs)):
                    upper.append(({flow[e]: 1, share[e]: -1}, 0.0))
                source, sink = (target, root) if climbing else (root, target)
                for v in nodes:
                    row: dict[int, float] = {}
                    for e, (a, b) in enumerate(arcs):
                        if a == v:
                            row[flow[e]] = row.get(flow[e], 0.0) + 1
                        if b == v:
                            row[flow[e]] = row.get(flow[e], 0.0) - 1
                    if v in (source, sink):
                        row[rates[r]] = -1.0 if v == source else 1.0
                    equal.append((row, 0.0))
    for e, arc in enumerate(arcs):
        upper.append((dict.fromkeys(total[e], 1.0), graph.edges[arc]["mbps"]))

    def dense(rows: list[tuple[dict[int, float], float]]) -> tuple[np.ndarray, np.ndarray]:
        matrix = np.zeros((len(rows), count))
        for k, (row, _) in enumerate(rows):
            for column, value in row.items():
                matrix[k, column] = value
        return matrix, np.array([b for _, b in rows])

    a_ub, b_ub = dense(upper)
    a_eq, b_eq = dense(equal)
    cost = np.zeros(count)
    cost[list(rates)] = -1
    return -float(linprog(cost, A_ub=a_ub, b_ub=b_ub, A_eq=a_eq, b_eq=b_eq).fun)


def climbs(parent: dict[int, int]) -> bool:
    """Check that every node's ancestors end at node 0."""
    for node in parent:
        for _ in parent:
            node = parent.get(node, 0)
        if node != 0:
            return False
    return True


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 6), st.integers(0, 9999))
def test_arborescence_is_the_cheapest(n: int, seed: int) -> None:
    """The arborescences are compared with all choices of one arc into each node (networkx finds none on some graphs
    that have one).
    """
    rng = np.random.default_rng(seed)
    arcs = [(u, v) for u in range(n) for v in range(n) if u != v and rng.random() < 0.6]
    cost = rng.integers(0, 6, len(arcs)).astype(float).tolist()
    into = [[k for k, (_, head) in enumerate(arcs) if head == v] for v in range(1, n)]
    trees = [
        sum(cost[k] for k in chosen)
        for chosen in itertools.product(*into)
        if climbs({arcs[k][1]: arcs[k][0] for k in chosen})
    ]
    found = arborescence(n, 0, arcs, cost)
    if not trees:
        assert found is None
        return
    assert found is not None
    parent = {arcs[k][1]: arcs[k][0] for k in found}
    assert len(found) == len(parent) == n - 1 and climbs(parent)
    assert sum(cost[k] for k in found) == min(trees)


@settings(max_examples=examples(8), deadline=None)
@given(networks(4))
def test_packing_reaches_the_flow_bound(graph: nx.DiGraph) -> None:
    if len(graph) == 1:
        return
    packing = pack(graph, given_up=GivenUp(gap=1e-6))
    best = flow_bound(graph)
    assert packing.rate == pytest.approx(best, rel=1e-4)
    assert packing.bound >= best * (1 - 1e-6)
    load: dict[tuple[int, int], float] = {}
    for tree in packing.trees:
        for link in [*tree.up.items(), *((above, v) for v, above in tree.down.items())]:
            load[link] = load.get(link, 0.0) + tree.mbps
    assert all(value <= graph.edges[link]["mbps"] * (1 + 1e-6) for link, value in load.items())


@settings(max_examples=examples(10), deadline=None)
@given(networks(5), st.data())
def test_given_shares_and_intakes_are_kept(graph: nx.DiGraph, data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(0, 4), min_size=len(graph), max_size=len(graph)).filter(any))
    shares = {v: w / sum(weights) for v, w in zip(graph.nodes, weights, strict=True)}
    intake = dict.fromkeys(graph.nodes, 2.0)
    packing = pack(graph, shares=shares, root_mbps=intake)
    for root, share in shares.items():
        rate = sum(tree.mbps for tree in packing.trees if tree.root == root)
        assert rate == pytest.approx(share * packing.rate, abs=1e-5)
        assert rate <= 2 * (1 + 1e-6)
    assert packing.rate <= packing.bound * (1 + 1e-9)
    assert packing.gap <= 1e-2 or len(graph) == 1


@settings(max_examples=examples(25), deadline=None)
@given(networks(6), st.data())
def test_cheapest_trees_to_some_nodes(graph: nx.DiGraph, data: st.DataObject) -> None:
    """The algorithms are compared with all spanning trees of all sets of nodes in between. The dynamic program is
    exact; dual ascent lies below it and the heuristic above.
    """
    n = len(graph)
    arcs = list(graph.edges)
    cost = [1 + graph.edges[a]["mbps"] for a in arcs]
    terminals = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True))
    exact = Exact(n, arcs, cost, terminals)
    for root in range(n):
        must = {root, *terminals}
        best = np.inf
        rest = [v for v in range(n) if v not in must]
        for size in range(len(rest) + 1):
            for extra in itertools.combinations(rest, size):
                used = sorted(must | set(extra))
                place = {v: i for i, v in enumerate(used)}
                inside = [k for k, (u, v) in enumerate(arcs) if u in place and v in place]
                ends = [(place[arcs[k][0]], place[arcs[k][1]]) for k in inside]
                tree = arborescence(len(used), place[root], ends, [cost[k] for k in inside])
                if tree is not None:
                    best = min(best, sum(cost[inside[k]] for k in tree))
        found = exact.tree(root)
        quick = short_tree(n, root, arcs, cost, terminals)
        assert found is not None and quick is not None
        for tree in (found, quick):
            assert cleaned(n, root, arcs, tree, terminals) is not None
            assert len({arcs[k][1] for k in tree}) == len(tree)
        assert exact.cost(root) == pytest.approx(best)
        assert sum(cost[k] for k in found) == pytest.approx(best)
        assert sum(cost[k] for k in quick) >= best - 1e-9
        assert dual_ascent(n, root, arcs, cost, terminals) <= best + 1e-9


@settings(max_examples=examples(10), deadline=None)
@given(networks(6), st.data())
def test_packing_with_nodes_that_take_no_part(graph: nx.DiGraph, data: st.DataObject) -> None:
    """A plan is never slower than when all sites take part, within the gap of its bound. The bound without subset
    programs (dual ascent) lies above.
    """
    terminals = data.draw(st.lists(st.sampled_from(list(graph)), min_size=1, max_size=len(graph), unique=True))
    if len(graph) == 1:
        return
    roots = terminals if len(terminals) > 1 else [v for v in graph if v not in terminals]
    packing = pack(graph, roots, terminals=terminals)
    assert packing.gap <= 2e-3
    assert packing.rate >= pack(graph, roots).rate * (1 - 2e-3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("controlplane.planner.strategies.wan.tree_packing.problem.MOST_TERMINALS", 0)
        rough = pack(graph, roots, terminals=terminals)
    assert rough.bound >= packing.rate * (1 - 1e-6)
    assert rough.rate <= packing.bound * (1 + 1e-6)
    for tree in packing.trees:
        for way in (tree.up, tree.down):
            for node in terminals:
                for _ in graph:
                    node = node if node == tree.root else way[node]
                assert node == tree.root


def test_a_node_that_takes_no_part_is_passed_through() -> None:
    """Four sites surround a hub that has none of the data: each tree passes the hub, whose links are all needed
    twice.
    """
    graph = nx.DiGraph()
    for leaf in range(1, 5):
        graph.add_edge(leaf, 0, mbps=8.0)
        graph.add_edge(0, leaf, mbps=8.0)
    packing = pack(graph, [1, 2, 3, 4], terminals=[1, 2, 3, 4], given_up=GivenUp(gap=1e-6))
    assert packing.rate == pytest.approx(8.0, rel=1e-5) and packing.bound == pytest.approx(8.0, rel=1e-5)


def test_wrong_packings_are_refused() -> None:
    graph = nx.DiGraph()
    graph.add_edge(0, 1, mbps=1.0)
    with pytest.raises(WanError, match="cannot reach all nodes"):
        pack(graph)
    graph.add_edge(1, 0, mbps=1.0)
    for wrong, message in (
        ({"roots": [7]}, "no nodes of the network"),
        ({"roots": []}, "may be a root"),
        ({"terminals": []}, "takes part"),
        ({"terminals": [0, 9]}, r"\[9\] are no nodes"),
        ({"shares": {0: 0.4}}, "sum 1"),
        ({"root_mbps": {0: 0.0}}, "take nothing in"),
    ):
        with pytest.raises(WanError, match=message):
            pack(graph, **wrong)  # type: ignore[arg-type]


# --- strategies ---


@settings(max_examples=examples(5), deadline=None)
@given(networks(5))
def test_every_plan_is_feasible_and_wan_is_the_fastest(graph: nx.DiGraph) -> None:
    topology, job = overlay(graph), whole_job(graph, 1_000_000)
    rates = {}
    for name in NAMES:
        plan = STRATEGIES[name](topology, job, seed=1)
        plan.check(topology)
        assert Plan.from_json(plan.to_json()) == plan
        assert plan.rate_mbps == pytest.approx(evaluate(plan, topology).rate_mbps)
        rates[name] = plan.rate_mbps
        seconds = synchronisation_seconds(plan, topology)
        assert seconds >= 8 / plan.rate_mbps * (1 - 1e-6)  # The rate is the best for these shares.
        if len(plan.trees) == 1:
            assert seconds == pytest.approx(8 / plan.rate_mbps)
        assert synchronisation_seconds(plan, topology, stored=True) > 0
    assert rates["wan"] >= max(rates.values()) * (1 - 2e-3)
    if len(graph) > 1:
        assert rates["wan"] == pytest.approx(pack(graph).bound, rel=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_frozen_splits_are_kept(name: str) -> None:
    graph = by_distance("internet2")
    topology, job = overlay(graph), whole_job(graph, 1_000_000)
    split = dict.fromkeys(job.parameter_servers, 0.0) | {"p0": 0.25, "p3": 0.75}
    plan = STRATEGIES[name](topology, job, frozen_split=split)
    plan.check(topology)
    assert plan.split == pytest.approx(split, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_sites_without_workers_and_shared_sites(name: str) -> None:
    """Two workers and two servers are at one end, one worker at the other, and a branch is idle: the middle only
    forwards.
    """
    nodes: dict[str, dict[str, str]] = {f"s{k}": {"kind": "switch"} for k in range(4)}
    links = []
    for u, v in (("s0", "s1"), ("s1", "s2"), ("s1", "s3")):
        links += [(u, v, {"bandwidth_mbps": 10.0}), (v, u, {"bandwidth_mbps": 10.0})]
    for server, site in (("a", "s0"), ("b", "s0"), ("p", "s0"), ("q", "s0"), ("c", "s2")):
        nodes[server] = {"kind": "server"}
        links += [(server, site, {"bandwidth_mbps": 100.0}), (site, server, {"bandwidth_mbps": 100.0})]
    topology = Topology(nodes, links)
    job = Job("j", ("a", "b", "c"), ("p", "q"), 1_000_000)
    for split in (None, {"p": 0.5, "q": 0.5}):
        plan = STRATEGIES[name](topology, job, frozen_split=split)
        plan.check(topology)
        assert plan.rate_mbps == pytest.approx(10.0)


@settings(max_examples=examples(40), deadline=None)
@given(st.one_of(instances(), troubled_instances()), st.sampled_from(OF_TREES))
def test_no_trees_of_any_strategy_beat_the_wan_bound(instance: tuple[Topology, Job], name: str) -> None:
    """The plans are feasible on any fabric: several servers and workers at a switch, servers' ingress, results counted
    or not.
    """
    topology, job = instance
    try:
        proven = STRATEGIES["wan"](topology, job).proven_mbps
        plan = STRATEGIES[name](topology, job, seed=1)
    except ValueError as error:
        assert len(str(error)) > 10
        return
    plan.check(topology)
    assert proven is not None and plan.rate_mbps <= proven * (1 + 1e-6)


def test_servers_of_one_site_share_its_trees() -> None:
    """The links have 100, two servers 10 and one 4 at one switch: together they take 24."""
    nodes: dict[str, dict[str, object]] = {"s": {"kind": "switch"}, "t": {"kind": "switch"}}
    links = [("s", "t", {"bandwidth_mbps": 100.0}), ("t", "s", {"bandwidth_mbps": 100.0})]
    for server, site, mbps in (
        ("a", "s", 100.0),
        ("b", "t", 100.0),
        ("p", "s", 10.0),
        ("q", "s", 10.0),
        ("r", "s", 4.0),
    ):
        nodes[server] = {"kind": "server"}
        links += [(server, site, {"bandwidth_mbps": mbps}), (site, server, {"bandwidth_mbps": mbps})]
    topology = Topology(nodes, links)
    plan = STRATEGIES["wan"](topology, Job("j", ("a", "b"), ("r", "p", "q"), 1_000_000))
    plan.check(topology)
    assert plan.rate_mbps == pytest.approx(24.0, rel=1e-3) and plan.proven_mbps == pytest.approx(24.0, rel=1e-3)
    assert plan.split == pytest.approx({"p": 10 / 24, "q": 10 / 24, "r": 4 / 24}, rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_no_bandwidth_is_a_clear_error(name: str) -> None:
    graph = nx.DiGraph()
    graph.add_edge(0, 1, mbps=10.0)
    graph.add_edge(1, 0, mbps=0.0)
    with pytest.raises((Infeasible, ValueError), match=r"h|dc|root|reach|capacity"):
        STRATEGIES[name](overlay(graph), whole_job(graph, 1))


def test_stored_hops_add_up() -> None:
    """Three sites in a line have one tree to the first: two hops up and two down, each 8 Mbit at 8 Mbit/s."""
    graph = nx.DiGraph()
    for u, v in ((0, 1), (1, 2)):
        graph.add_edge(u, v, mbps=8.0)
        graph.add_edge(v, u, mbps=8.0)
    topology, job = overlay(graph), whole_job(graph, 1_000_000)
    plan = STRATEGIES["netstorm"](topology, job, frozen_split={"p0": 1.0})
    assert synchronisation_seconds(plan, topology) == pytest.approx(1.0)
    assert synchronisation_seconds(plan, topology, stored=True) == pytest.approx(4.0, rel=1e-4)


@settings(max_examples=examples(8), deadline=None)
@given(networks(4), st.floats(0.0, 0.3))
def test_packing_leaves_room_for_acknowledgements(graph: nx.DiGraph, back: float) -> None:
    """Acknowledgements fit beside the payload on every link, and the rate is what the bound allows."""
    if len(graph) == 1:
        return
    packing, plain = pack(graph, back=back, given_up=GivenUp(gap=1e-6)), pack(graph)

    def fullest(trees: Sequence[PackedTree]) -> float:
        """Return the largest load of a link, with the acknowledgements that return for it."""
        load = dict.fromkeys(graph.edges, 0.0)
        for tree in trees:
            for u, v in [*tree.up.items(), *((above, v) for v, above in tree.down.items())]:
                load[u, v] += tree.mbps
                if graph.has_edge(v, u):
                    load[v, u] += back * tree.mbps
        return max(value / graph.edges[link]["mbps"] for link, value in load.items())

    assert fullest(packing.trees) <= 1 + 1e-6
    assert packing.gap <= 1e-4
    assert packing.rate <= plain.rate * (1 + 1e-3)
    assert packing.rate >= plain.rate / max(1.0, fullest(plain.trees)) * (1 - 1e-3), "plain, slowed down, would do"


def test_a_plan_with_framing_keeps_its_rate_on_the_links() -> None:
    """On a fast link beside a slow one of the other direction, acknowledgements are the bottleneck."""
    graph = nx.DiGraph()
    graph.add_edge(0, 1, mbps=100.0)
    graph.add_edge(1, 0, mbps=100.0)
    topology, job = overlay(graph), whole_job(graph, 4_000_000)
    framing = Framing(headers=0.05, acknowledgements=0.02)
    plan = wan(topology, job, framing=framing)
    # Each link carries half of the sums and half of the results, the size of the model, and the other's
    # acknowledgements.
    assert plan.rate_mbps == pytest.approx(100 / 1.07, rel=1e-3)
    assert plan.rate_mbps == pytest.approx(payload_mbps(plan, topology, framing), rel=1e-9)
    assert payload_mbps(plan, topology, PAYLOAD) == pytest.approx(100, rel=1e-3)
    assert plan.proven_mbps is not None and plan.rate_mbps <= plan.proven_mbps * (1 + 1e-9)


@settings(max_examples=examples(8), deadline=None)
@given(networks(5))
def test_shallower_trees_keep_the_rate_and_the_links(graph: nx.DiGraph) -> None:
    if len(graph) == 1:
        return

    def of_rate(packing: Packing) -> float:
        """Return the mean time of a chunk up and down the trees, in hops of equal links."""

        def depth(parent: Mapping[int, int], node: int, root: int) -> float:
            total = 0.0
            while node != root:
                above = parent[node]
                total += 1.0
                node = above
            return total

        ways = [(tree, *(max(depth(way, v, tree.root) for v in way) for way in (tree.up, tree.down)))
                for tree in packing.trees]  # fmt: skip
        return sum(tree.mbps * (up + down) for tree, up, down in ways) / packing.rate

    even = nx.DiGraph()
    even.add_edges_from(graph.edges, mbps=10.0)
    best, shallow = pack(even, given_up=GivenUp(gap=1e-6)), pack(even, given_up=GivenUp(gap=1e-6, shallow=0.01))
    assert best.rate * (1 - 0.011) <= shallow.rate <= best.bound * (1 + 1e-6)
    assert of_rate(shallow) <= of_rate(best) * (1 + 1e-6)
    load = dict.fromkeys(even.edges, 0.0)
    for tree in shallow.trees:
        assert {tree.root, *tree.up} == {tree.root, *tree.down} == set(even)
        for link in [*tree.up.items(), *((above, v) for v, above in tree.down.items())]:
            load[link] += tree.mbps
    assert max(load.values()) <= 10 * (1 + 1e-6)


def test_trees_of_a_full_mesh_are_shallow() -> None:
    """Any cheapest trees have the same rate; of those, trees with few hops have the shortest delay of a chunk."""
    mesh = nx.complete_graph(8, nx.DiGraph)
    nx.set_edge_attributes(mesh, 10.0, "mbps")
    packing = pack(mesh, given_up=GivenUp(gap=1e-6, shallow=1e-3))
    assert packing.rate >= packing.bound * (1 - 1.1e-3)
    direct = sum(tree.mbps for tree in packing.trees if set(tree.up.values()) == set(tree.down.values()) == {tree.root})
    assert direct >= 0.9 * packing.rate


@settings(max_examples=examples(8), deadline=None)
@given(st.integers(6, 11), st.integers(0, 2**32 - 1))
def test_first_trees_alone_are_most_of_the_best_packing_of_a_mesh(n: int, seed: int) -> None:
    """What a coordinator of many sites plans with, since it says nothing while it plans."""
    rng = np.random.default_rng(seed)
    mesh = nx.complete_graph(n, nx.DiGraph)
    nx.set_edge_attributes(mesh, {link: float(rng.uniform(20, 155)) for link in mesh.edges}, "mbps")
    quick, best = pack(mesh, given_up=GivenUp(rounds=1)), pack(mesh)
    assert 0.95 * best.rate <= quick.rate <= best.bound * (1 + 1e-6)
    load = dict.fromkeys(mesh.edges, 0.0)
    for tree in quick.trees:
        assert {tree.root, *tree.up} == {tree.root, *tree.down} == set(mesh)
        for link in [*tree.up.items(), *((above, v) for v, above in tree.down.items())]:
            load[link] += tree.mbps
    assert all(mbps <= mesh.edges[link]["mbps"] * (1 + 1e-6) for link, mbps in load.items())
