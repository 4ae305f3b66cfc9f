"""NetStorm's decisions: fastest aggregation path trees, several roots, auxiliary paths; and its baselines' trees.

A network is a directed graph with "mbps" on its links. The paper's links are undirected, with one weight; here a link
counts with the seconds per Mbit of both directions, because sums climb a tree and results come back down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from controlplane.planner.strategies.wan.apsp.algorithm import Node, Path, usable
from controlplane.planner.strategies.wan.errors import WanError


@dataclass(frozen=True)
class AggregationTree:
    """An aggregation tree over the overlay's links: parent[v] for every node but the root, and the tree's share of the
    chunks.
    """

    root: Node
    parent: Mapping[Node, Node]
    share: float = 1.0

    def children(self) -> dict[Node, list[Node]]:
        """Return the children of every node; a leaf has none."""
        result: dict[Node, list[Node]] = {self.root: []}
        for node in self.parent:
            result.setdefault(node, [])
        for node, above in self.parent.items():
            result[above].append(node)
        return result


def _delays(graph: nx.DiGraph) -> tuple[list[Node], NDArray[np.float64]]:
    """Return the nodes, and an (n, n) array of the seconds per Mbit from a child to its parent and back ([child,
    parent]), infinite without bandwidth in both directions.
    """
    network = usable(graph)
    nodes = list(network.nodes)
    index = {node: k for k, node in enumerate(nodes)}
    one_way = np.full((len(nodes), len(nodes)), np.inf)
    for u, v, data in network.edges(data=True):
        if u != v:
            one_way[index[u], index[v]] = 1 / data["mbps"]
    return nodes, one_way + one_way.T


def fastest_trees(graph: nx.DiGraph, roots: Sequence[Node]) -> list[tuple[AggregationTree, float]]:
    """Return the FAPT of each root by Dijkstra, and w of Theorem 1: the largest sum of delays of a path from a leaf (s
    per Mbit).

    Shortest paths are exact here (delays are positive and add up), so no enumeration of simple paths is needed. Of
    equals, the first in the order of nodes is taken. It takes O(n^2) per root. Raise WanError, naming the node, where
    one cannot reach a root.
    """
    nodes, delay = _delays(graph)  # symmetric, so that Dijkstra may walk from the root outwards
    index = {node: k for k, node in enumerate(nodes)}
    unknown = [root for root in roots if root not in index]
    if unknown:
        raise WanError(f"roots {unknown} are no nodes of the network")
    ends = np.nonzero(np.isfinite(delay))
    distances = dijkstra(csr_matrix((delay[ends], ends), delay.shape), indices=[index[root] for root in roots])
    found = []
    for root, distance in zip(roots, distances, strict=True):
        if not np.isfinite(distance).all():
            node = nodes[int(np.argmax(~np.isfinite(distance)))]
            raise WanError(f"node {node} cannot reach root {root} with bandwidth both ways")
        over = np.where(distance[:, None] < distance, np.round(distance[:, None] + delay, 12), np.inf)
        above = over.argmin(axis=0).tolist()
        parent = {node: nodes[above[k]] for k, node in enumerate(nodes) if node != root}
        found.append((AggregationTree(root, parent), float(distance.max())))
    return found


def qualities(graph: nx.DiGraph) -> dict[Node, float]:
    """Return the quality q_i = 1 / w(T_i) of each node as a root; infinite for a network of one node."""
    found = fastest_trees(graph, list(graph.nodes))
    return {tree.root: 1 / worst if worst > 0 else float("inf") for tree, worst in found}


def choose_roots(graph: nx.DiGraph, count: int) -> tuple[Node, ...]:
    """Return the `count` nodes of highest quality (Algorithm 1, first run). Scores tie on undirected links: they are
    rounded to nine digits, then the order of nodes decides.
    """
    if not 1 <= count <= len(graph):
        raise WanError(f"there can be 1 to {len(graph)} roots, got {count}")
    scores = qualities(graph)
    order = {node: k for k, node in enumerate(graph.nodes)}
    return tuple(sorted(graph.nodes, key=lambda v: (-float(f"{scores[v]:.9g}"), order[v]))[:count])


def multi_root(graph: nx.DiGraph, roots: Sequence[Node]) -> tuple[AggregationTree, ...]:
    """Return the trees of Algorithm 2 with fixed roots, with shares in proportion to the quality scores.

    The print loops over V without R, which would leave roots out of each other's trees: here it is V without the tree's
    own root.
    """
    if not roots:
        raise WanError("no roots were given")
    found = fastest_trees(graph, roots)
    if len(graph) == 1:
        return (found[0][0],)
    total = sum(1 / worst for _, worst in found)
    return tuple(AggregationTree(tree.root, tree.parent, 1 / worst / total) for tree, worst in found)


def auxiliary_paths(graph: nx.DiGraph, u: Node, v: Node, *, most: int | None = None) -> list[Path]:
    """Return the paths of Algorithm 3 for one pair: the shortest one by 1 / throughput, then the next without its
    links, until none is left.

    The direct link u -> v, which is the primary path, is left out. Links are removed per pair: as printed (every link
    that any pair used goes) almost no auxiliary path is left.
    """
    network = usable(graph)
    if network.has_edge(u, v):
        network.remove_edge(u, v)
    paths: list[Path] = []
    while most is None or len(paths) < most:
        try:
            path = nx.shortest_path(network, u, v, weight=lambda _u, _v, data: 1 / data["mbps"])
        except nx.NetworkXNoPath:
            break
        paths.append(tuple(path))
        network.remove_edges_from(list(nx.utils.pairwise(path)))
    return paths


# --- baselines ---


def star(graph: nx.DiGraph, root: Node) -> AggregationTree:
    """Return MXNET's tree: every node sends to the root (over several links where there is no direct one)."""
    return AggregationTree(root, {v: root for v in graph.nodes if v != root})


def balanced_tree(graph: nx.DiGraph, root: Node, fanout: int = 2) -> AggregationTree:
    """Return MLNET's tree: a balanced k-way tree over the nodes in their order, the root first; it does not depend on
    links.
    """
    order = [root, *(v for v in graph.nodes if v != root)]
    return AggregationTree(root, {node: order[(k - 1) // fanout] for k, node in enumerate(order) if k})


def widest_tree(graph: nx.DiGraph, root: Node) -> AggregationTree:
    """Return TSEngine's tree: the spanning tree of the links with the highest throughput (the lower one of both
    directions).
    """
    network = usable(graph)
    both: nx.Graph = nx.Graph()
    both.add_nodes_from(network.nodes)
    for u, v, data in network.edges(data=True):
        if network.has_edge(v, u):
            both.add_edge(u, v, mbps=min(data["mbps"], network.edges[v, u]["mbps"]))
    tree = nx.maximum_spanning_tree(both, weight="mbps")
    parent = {child: above for above, child in nx.bfs_edges(tree, root)}
    missing = [v for v in network.nodes if v != root and v not in parent]
    if missing:
        raise WanError(f"node {missing[0]} cannot reach root {root} with bandwidth both ways")
    return AggregationTree(root, parent)


def chunk_roots(trees: Sequence[AggregationTree], chunks: int) -> list[int]:
    """Return the number of the tree of each chunk: shares by largest remainder, spread evenly over the sequence of
    chunks.
    """
    counts = [int(tree.share * chunks) for tree in trees]
    rest = sorted(range(len(trees)), key=lambda k: (counts[k] - trees[k].share * chunks, k))
    for k in rest[: chunks - sum(counts)]:
        counts[k] += 1
    places = [((i + 0.5) / count, k) for k, count in enumerate(counts) for i in range(count)]
    return [k for _, k in sorted(places)]
