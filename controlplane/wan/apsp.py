"""APSP: where the parameter server goes and how its workers reach it (Li et al., "Placement of Parameter Server in
Wide Area Network Topology for Geo-Distributed Machine Learning").

All n - 1 other nodes send D to the server at once, each over one path; a flow on path p with bandwidth b takes
|p| D / b in the paper's reading (every hop stores and forwards), D / b when hops are pipelined (`fluid`). An epoch is
that twice, up and down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Literal

import networkx as nx
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_matrix, csr_matrix

from controlplane.wan.errors import WanError

Node = Any  # whatever the nodes of the graph are: int or str
Path = tuple[Node, ...]
Delay = Literal["stored", "fluid"]
MOST_PATHS = 400


@dataclass(frozen=True)
class Placement:
    """root: the server. paths: one per other node, to the root. bandwidth: Mbit/s of each flow. time: s per epoch.

    bound: no choice of paths for this root is faster than this (the LP), s.
    """

    root: Node
    paths: dict[Node, Path]
    bandwidth: dict[Node, float]
    time: float
    bound: float


def _weight(path: Path, delay: Delay) -> float:
    return float(len(path) - 1) if delay == "stored" else 1.0


def usable(graph: nx.DiGraph) -> nx.DiGraph:
    """The links that have bandwidth ("mbps"). Raises WanError for none, negative or missing ones."""
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


def paths_to(graph: nx.DiGraph, root: Node, most: int = MOST_PATHS) -> dict[Node, list[Path]]:
    """P_f: simple paths of each node to the root, fewest hops first, at most `most`. Raises WanError."""
    found: dict[Node, list[Path]] = {}
    for node in graph.nodes:
        if node == root:
            continue
        try:
            paths = list(islice(nx.shortest_simple_paths(graph, node, root), most))
        except nx.NetworkXNoPath:
            raise WanError(f"node {node} cannot reach {root}") from None
        found[node] = [tuple(p) for p in paths]
    return found


def epoch_time(graph: nx.DiGraph, paths: Mapping[Node, Path], volume: float, delay: Delay = "stored") -> float:
    """Problem 2 with fixed paths: all flows end together, so m = min_e B_e / sum of |p| D over e's flows. Seconds."""
    load: dict[tuple[Node, Node], float] = {}
    for path in paths.values():
        for link in pairwise(path):
            load[link] = load.get(link, 0.0) + _weight(path, delay) * volume
    return 2 * max((amount / graph.edges[link]["mbps"] for link, amount in load.items()), default=0.0)


def _columns(graph: nx.DiGraph, choices: Mapping[Node, Sequence[Path]], delay: Delay) -> tuple[csr_matrix, csr_matrix]:
    """(seconds per Mbit on each link, which flow each path is of), a column per path."""
    links = {link: k for k, link in enumerate(graph.edges)}
    rows, columns, values, owners = [], [], [], []
    column = 0
    for flow, paths in enumerate(choices.values()):
        for path in paths:
            for link in pairwise(path):
                rows.append(links[link])
                columns.append(column)
                values.append(_weight(path, delay) / graph.edges[link]["mbps"])
            owners.append(flow)
            column += 1
    loads = coo_matrix((values, (rows, columns)), shape=(len(links), column)).tocsr()
    owner = coo_matrix((np.ones(column), (owners, range(column))), shape=(len(choices), column)).tocsr()
    return loads, owner


def relaxed(
    graph: nx.DiGraph, choices: Mapping[Node, Sequence[Path]], delay: Delay = "stored"
) -> tuple[list[np.ndarray], float]:
    """Problem 4: (share of each path per flow, seconds one way per Mbit).

    With x = z / m it is: the least time of the fullest link. Scaled so that the time is about 1, because HiGHS's
    tolerances are absolute.
    """
    if not choices:
        return [], 0.0
    loads, owner = _columns(graph, choices, delay)
    scale = epoch_time(graph, {node: paths[0] for node, paths in choices.items()}, 1.0, delay) / 2
    count = loads.shape[1]
    upper = csr_matrix(np.hstack([loads.toarray() / scale, -np.ones((loads.shape[0], 1))]))
    equal = csr_matrix(np.hstack([owner.toarray(), np.zeros((owner.shape[0], 1))]))
    cost = np.zeros(count + 1)
    cost[count] = 1
    result = linprog(cost, A_ub=upper, b_ub=np.zeros(loads.shape[0]), A_eq=equal, b_eq=np.ones(owner.shape[0]))
    if not result.success:
        raise WanError(f"Problem 4 has no solution: {result.message}")
    sizes = np.cumsum([len(paths) for paths in choices.values()])[:-1]
    shares = [np.maximum(part, 0) for part in np.split(result.x[:count], sizes)]
    return shares, float(result.x[count] * scale)


def _round(
    choices: Mapping[Node, Sequence[Path]], shares: Sequence[np.ndarray], rng: np.random.Generator
) -> dict[Node, Path]:
    """Lines 6 to 14. The printed pass can end without a path for a flow: it is repeated until there is one."""
    chosen = {}
    for (node, paths), share in zip(choices.items(), shares, strict=True):
        chances = share / share.sum()
        pick = None
        while pick is None:
            pick = next((k for k, chance in enumerate(chances) if chance > 0 and rng.random() < chance), None)
        chosen[node] = paths[pick]
    return chosen


def _placement(  # noqa: PLR0917
    graph: nx.DiGraph, root: Node, paths: dict[Node, Path], volume: float, delay: Delay, bound: float
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
    delay: Delay = "stored",
    most_paths: int = MOST_PATHS,
) -> Placement:
    """Algorithm 2 over all nodes (or `roots`): LP, randomized rounding, bandwidths, the best root. volume in Mbit."""
    network = usable(graph)
    rng = np.random.default_rng(seed)
    best: Placement | None = None
    for root in network.nodes if roots is None else roots:
        choices = paths_to(network, root, most_paths)
        shares, least = relaxed(network, choices, delay)
        chosen = _round(choices, shares, rng)
        found = _placement(network, root, chosen, volume, delay, 2 * least * volume)
        if best is None or found.time < best.time:
            best = found
    if best is None:
        raise WanError("no candidate for the parameter server was given")
    return best


def place_exactly(
    graph: nx.DiGraph,
    volume: float,
    *,
    roots: Sequence[Node] | None = None,
    delay: Delay = "stored",
    most_paths: int = MOST_PATHS,
    time_limit: float = 30.0,
    gap: float = 1e-4,
) -> Placement:
    """The optimum over roots and single paths: a MILP per root, best LP bound first, roots that cannot win left out.

    bound: of the whole problem, proven (the solver's, where it ran into its limit of `time_limit` s).
    """
    network = usable(graph)
    candidates = list(network.nodes if roots is None else roots)
    if not candidates:
        raise WanError("no candidate for the parameter server was given")
    prepared = []
    for root in candidates:
        choices = paths_to(network, root, most_paths)
        shares, least = relaxed(network, choices, delay)
        prepared.append((least, root, choices, shares))
    prepared.sort(key=lambda item: item[0])
    best: Placement | None = None
    bound = np.inf
    for least, root, choices, shares in prepared:
        if best is not None and 2 * least * volume >= best.time * (1 - gap):
            bound = min(bound, 2 * least * volume)
            break  # sorted: none of the rest can win either
        largest = {n: paths[int(np.argmax(s))] for (n, paths), s in zip(choices.items(), shares, strict=True)}
        start = epoch_time(network, largest, 1.0, delay) / 2
        found, proven = _exact(network, choices, delay, start, time_limit, gap)
        paths = largest if found is None else found
        bound = min(bound, 2 * proven * volume)
        here = _placement(network, root, paths, volume, delay, 0.0)
        if best is None or here.time < best.time:
            best = here
    assert best is not None
    return Placement(best.root, best.paths, best.bandwidth, best.time, float(min(bound, best.time)))


def _exact(  # noqa: PLR0917
    graph: nx.DiGraph,
    choices: Mapping[Node, Sequence[Path]],
    delay: Delay,
    scale: float,
    time_limit: float,
    gap: float,
) -> tuple[dict[Node, Path] | None, float]:
    if not choices:
        return {}, 0.0
    loads, owner = _columns(graph, choices, delay)
    count = loads.shape[1]
    cost = np.zeros(count + 1)
    cost[count] = 1
    constraints = [
        LinearConstraint(csr_matrix(np.hstack([loads.toarray() / scale, -np.ones((loads.shape[0], 1))])), -np.inf, 0),
        LinearConstraint(csr_matrix(np.hstack([owner.toarray(), np.zeros((owner.shape[0], 1))])), 1, 1),
    ]
    whole = np.concatenate([np.ones(count), [0]])
    upper = np.concatenate([np.ones(count), [1.0]])  # the start is a solution
    options = {"time_limit": time_limit, "mip_rel_gap": gap}
    result = milp(cost, integrality=whole, bounds=Bounds(0, upper), constraints=constraints, options=options)
    proven = scale * float(result.mip_dual_bound if result.mip_dual_bound is not None else 0.0)
    if result.x is None:
        return None, proven
    chosen, column = {}, 0
    for node, paths in choices.items():
        chosen[node] = paths[int(np.argmax(result.x[column : column + len(paths)]))]
        column += len(paths)
    return chosen, proven


# --- baselines ---


def most_connected(graph: nx.DiGraph) -> list[Node]:
    """All nodes with the most links (the paper does not say which of several it takes)."""
    degrees = {node: len(set(graph.successors(node)) | set(graph.predecessors(node))) for node in graph.nodes}
    most = max(degrees.values())
    return [node for node, degree in degrees.items() if degree == most]


def shortest_routes(graph: nx.DiGraph, root: Node) -> dict[Node, Path]:
    """Fewest hops, ties by the larger bottleneck, then by the nodes' order."""
    order = {node: k for k, node in enumerate(graph.nodes)}
    routes: dict[Node, Path] = {}
    for node in graph.nodes:
        if node == root:
            continue
        try:
            ties = [tuple(p) for p in nx.all_shortest_paths(graph, node, root)]
        except nx.NetworkXNoPath:
            raise WanError(f"node {node} cannot reach {root}") from None
        routes[node] = min(
            ties, key=lambda p: (-min(graph.edges[e]["mbps"] for e in pairwise(p)), [order[v] for v in p])
        )
    return routes


def balanced_routes(graph: nx.DiGraph, root: Node, most_paths: int = MOST_PATHS) -> dict[Node, Path]:
    """Load balancing: flow by flow (farthest first) the path on which the fullest link's load per bandwidth stays
    lowest, whatever its length; ties: fewer hops."""
    load = dict.fromkeys(graph.edges, 0.0)
    routes: dict[Node, Path] = {}
    choices = paths_to(graph, root, most_paths)
    for node in sorted(choices, key=lambda v: -len(choices[v][0])):
        def worst(path: Path) -> float:
            return max((load[e] + 1) / graph.edges[e]["mbps"] for e in pairwise(path))

        path = min(choices[node], key=lambda p: (worst(p), len(p)))
        for link in pairwise(path):
            load[link] += 1
        routes[node] = path
    return routes
