"""APSP: where the parameter server goes and how its workers reach it (Li et al., "Placement of Parameter Server in Wide
Area Network Topology for Geo-Distributed Machine Learning").

All n - 1 other nodes send D to the server at once, each over one path; a flow on path p with bandwidth b takes |p| D /
b in the paper's reading (every hop stores and forwards), D / b when hops are pipelined (`fluid`). An epoch is that
twice, up and down.

The paper's links are undirected, with one bandwidth. Here each direction has its bandwidth to itself (full duplex).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Literal

import networkx as nx
import numpy as np
from scipy.sparse import csr_matrix

from controlplane.planner.strategies.wan.apsp.path_choice import path_shares
from controlplane.planner.strategies.wan.errors import WanError

Node = Any  # a node of the graph, int or str
Path = tuple[Node, ...]
Delay = Literal["stored", "fluid"]
MOST_PATHS = 400
MOST_GROWN = 50_000


@dataclass(frozen=True)
class Placement:
    """A placement of the parameter server.

    Attributes:
        root: The server.
        paths: A path to the root for each other node.
        bandwidth: Mbit/s of each flow.
        time: Seconds per epoch.
        bound: No choice of paths for this root takes fewer seconds than this (from the linear program).
    """

    root: Node
    paths: dict[Node, Path]
    bandwidth: dict[Node, float]
    time: float
    bound: float


def _weight(path: Path, delay: Delay) -> float:
    return float(len(path) - 1) if delay == "stored" else 1.0


def usable(graph: nx.DiGraph) -> nx.DiGraph:
    """Return the links that have bandwidth ("mbps"). Raise WanError where one has none given or a negative one, or
    there are no nodes.
    """
    result = nx.DiGraph()
    result.add_nodes_from(graph.nodes)
    for u, v, data in graph.edges(data=True):
        mbps = data.get("mbps")
        if mbps is None or not mbps >= 0:
            raise WanError(f'link {u} -> {v} needs "mbps" >= 0, got {mbps!r}')
        if mbps > 0:
            result.add_edge(u, v, mbps=float(mbps))
    if len(result) == 0:
        raise WanError("the network has no nodes")
    return result


def paths_to(
    graph: nx.DiGraph, root: Node, most: int = MOST_PATHS, sources: Sequence[Node] | None = None
) -> dict[Node, list[Path]]:
    """Return P_f: simple paths of each node (or source) to the root, fewest hops first, `most` of them at most. Raise
    WanError where a node has none.

    They are grown backwards from the root, for all nodes at once, hop by hop; where there are too many, by Yen's
    algorithm for each node.
    """
    found: dict[Node, list[Path]] = {node: [] for node in sources or graph.nodes if node != root}
    level: list[Path] = [(root,)]
    full = [()] * most
    grown = 0
    while level and any(len(paths) < most for paths in found.values()):
        level = [(u, *path) for path in level for u in graph.predecessors(path[0]) if u not in path]
        grown += len(level)
        if grown > MOST_GROWN:
            return {node: _shortest(graph, node, root, most) for node in found}
        for path in level:
            if len(found.get(path[0], full)) < most:
                found[path[0]].append(path)
    for node, paths in found.items():
        if not paths:
            raise WanError(f"node {node} cannot reach {root}")
    return found


def _shortest(graph: nx.DiGraph, node: Node, root: Node, most: int) -> list[Path]:
    try:
        return [tuple(path) for path in islice(nx.shortest_simple_paths(graph, node, root), most)]
    except nx.NetworkXNoPath:
        raise WanError(f"node {node} cannot reach {root}") from None


def epoch_time(
    graph: nx.DiGraph,
    paths: Mapping[Node, Path],
    volume: float,
    delay: Delay = "stored",
) -> float:
    """Solve Problem 2 with fixed paths, and return the seconds of an epoch: all flows end together, so m = min_e B_e /
    sum of |p| D over e's flows.
    """
    busy: dict[tuple[Node, Node], float] = {}
    for path in paths.values():
        for link in pairwise(path):
            seconds = _weight(path, delay) * volume / graph.edges[link]["mbps"]
            busy[link] = busy.get(link, 0.0) + seconds
    return 2 * max(busy.values(), default=0.0)


def relaxed(
    graph: nx.DiGraph,
    choices: Mapping[Node, Sequence[Path]],
    delay: Delay = "stored",
) -> tuple[list[np.ndarray], float]:
    """Solve Problem 4, and return the share of each path per flow, and the seconds one way per Mbit."""
    if not choices:
        return [], 0.0
    links = {link: k for k, link in enumerate(graph.edges)}
    rows, columns, values = [], [], []
    flow: list[int] = []
    for owner, paths in enumerate(choices.values()):
        for path in paths:
            weight = _weight(path, delay)
            for link in pairwise(path):
                rows.append(links[link])
                columns.append(len(flow))
                values.append(weight / graph.edges[link]["mbps"])
            flow.append(owner)
    return path_shares(csr_matrix((values, (rows, columns)), shape=(len(links), len(flow))), flow)


def rounding(
    choices: Mapping[Node, Sequence[Path]], shares: Sequence[np.ndarray], rng: np.random.Generator
) -> dict[Node, Path]:
    """Draw a path for each flow, by lines 6 to 14. The printed pass can end without a path for a flow: it is repeated
    until there is one.
    """
    chosen = {}
    for (node, paths), share in zip(choices.items(), shares, strict=True):
        chances = share / share.sum()
        pick = None
        while pick is None:
            pick = next((k for k, chance in enumerate(chances) if chance > 0 and rng.random() < chance), None)
        chosen[node] = paths[pick]
    return chosen


def _placement(  # noqa: PLR0917
    graph: nx.DiGraph,
    root: Node,
    paths: dict[Node, Path],
    volume: float,
    delay: Delay,
    bound: float,
) -> Placement:
    time = epoch_time(graph, paths, volume, delay)
    rates = {node: 2 * _weight(path, delay) * volume / time for node, path in paths.items()}
    return Placement(root, paths, rates, time, bound)


def place(
    graph: nx.DiGraph,
    volume: float,
    *,
    seed: int = 0,
    roots: Sequence[Node] | None = None,
    sources: Sequence[Node] | None = None,
    delay: Delay = "stored",
    most_paths: int = MOST_PATHS,
) -> Placement:
    """Return the placement of Algorithm 2 over all nodes (or `roots`): linear program, randomized rounding, bandwidths,
    the best root. `volume` is in Mbit; `sources` are the nodes that have something to send (default: all).
    """
    network = usable(graph)
    rng = np.random.default_rng(seed)
    best: Placement | None = None
    for root in network.nodes if roots is None else roots:
        choices = paths_to(network, root, most_paths, sources)
        shares, least = relaxed(network, choices, delay)
        chosen = rounding(choices, shares, rng)
        found = _placement(network, root, chosen, volume, delay, 2 * least * volume)
        if best is None or found.time < best.time:
            best = found
    if best is None:
        raise WanError("no candidate for the parameter server was given")
    return best


# --- baselines ---


def most_connected(graph: nx.DiGraph, roots: Sequence[Node] | None = None) -> list[Node]:
    """Return all nodes (or roots) with the most links; the paper does not say which of several it takes."""
    candidates = graph.nodes if roots is None else roots
    degrees = {node: len(set(graph.successors(node)) | set(graph.predecessors(node))) for node in candidates}
    most = max(degrees.values())
    return [node for node, degree in degrees.items() if degree == most]


def shortest_routes(graph: nx.DiGraph, root: Node, sources: Sequence[Node] | None = None) -> dict[Node, Path]:
    """Return the routes with the fewest hops, of these those with the larger bottleneck, then by the order of nodes.
    `sources` are the nodes whose routes are wanted (default: all).
    """
    order = {node: k for k, node in enumerate(graph.nodes)}
    hops = nx.single_source_shortest_path_length(graph.reverse(copy=False), root)
    width: dict[Node, float] = {root: math.inf}
    routes: dict[Node, Path] = {root: (root,)}
    for node in sorted(hops, key=lambda v: hops[v]):
        closer = [v for v in graph.successors(node) if hops.get(v, math.inf) == hops[node] - 1]
        if node != root:
            width[node], _, onward = max((min(width[v], graph.edges[node, v]["mbps"]), -order[v], v) for v in closer)
            routes[node] = (node, *routes[onward])
    wanted = [node for node in sources or graph.nodes if node != root]
    for node in wanted:
        if node not in routes:
            raise WanError(f"node {node} cannot reach {root}")
    return {node: routes[node] for node in wanted}


def balanced_routes(
    graph: nx.DiGraph, root: Node, most_paths: int = MOST_PATHS, sources: Sequence[Node] | None = None
) -> dict[Node, Path]:
    """Return routes that balance the load: flow by flow (farthest first), take the path on which the fullest link's
    load per bandwidth stays lowest, whatever its length; of equals, the one with fewer hops. `sources` are the nodes
    whose flows are wanted (default: all).
    """
    load = dict.fromkeys(graph.edges, 0.0)
    routes: dict[Node, Path] = {}
    choices = paths_to(graph, root, most_paths, sources)
    for node in sorted(choices, key=lambda v: -len(choices[v][0])):

        def worst(path: Path) -> float:
            return max((load[e] + 1) / graph.edges[e]["mbps"] for e in pairwise(path))

        path = min(choices[node], key=lambda p: (worst(p), len(p)))
        for link in pairwise(path):
            load[link] += 1
        routes[node] = path
    return routes
