"""Wide-area networks with bandwidths: those of the papers, which print no bandwidths, so that these are ours, and
measured ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from controlplane.planner.topology import Topology

DATA = Path(__file__).resolve().parents[2] / "topologies" / "data"

# Degrees north, east. B4: sites as on its published map (two in Asia, six in North America, four in Europe), the towns
# are ours. Internet2: the nine towns whose map has exactly these 13 links.
B4_SITES = (
    (25.0, 121.5), (1.3, 103.8), (45.6, -121.2), (41.3, -95.9), (37.4, -122.1), (36.1, -115.2),
    (33.2, -80.0), (35.9, -81.5), (60.6, 27.2), (53.3, -6.3), (50.5, 3.8), (53.4, 6.8),
)  # fmt: skip
INTERNET2_SITES = (
    (47.6, -122.3), (34.1, -118.2), (40.8, -111.9), (39.1, -94.6), (29.8, -95.4), (41.9, -87.6),
    (33.7, -84.4), (38.9, -77.0), (40.7, -74.0),
)  # fmt: skip


def kilometres(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Return the distance in km of two places on the Earth, which are given in degrees north and east."""
    (p, q), (r, s) = ((math.radians(x), math.radians(y)) for x, y in (a, b))
    h = math.sin((r - p) / 2) ** 2 + math.cos(p) * math.cos(r) * math.sin((s - q) / 2) ** 2
    return 2 * 6371 * math.asin(math.sqrt(h))


def _links(file: str) -> list[tuple[int, int]]:
    return [(u, v) for u, v in json.loads((DATA / file).read_text())["links"]]


LAWS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "linear": lambda length: -length,
    "logarithmic": lambda length: -np.log(length),
    "inverse": lambda length: 1 / length,
    "by rank": lambda length: -np.argsort(np.argsort(length)).astype(float),
}


def by_distance(
    name: str, *, seed: int | None = None, least: float = 500.0, most: float = 5000.0, law: str = "linear"
) -> nx.DiGraph:
    """Return B4 or Internet2 with `most` Mbit/s on the shortest link, `least` on the longest, falling with length by
    the law. Both directions of a link are alike.

    A `seed` multiplies each length by a factor exp(N(0, 0.2)), to show spreads; None leaves them as they are.
    """
    file, sites = {"b4": ("b4.json", B4_SITES), "internet2": ("internet2.json", INTERNET2_SITES)}[name]
    links = _links(file)
    lengths = np.array([kilometres(sites[u], sites[v]) for u, v in links])
    if seed is not None:
        lengths = lengths * np.exp(np.random.default_rng(seed).normal(0, 0.2, len(lengths)))
    near = LAWS[law](lengths)
    part = (near.max() - near) / (near.max() - near.min())
    graph = nx.DiGraph(name=name)
    graph.add_nodes_from(range(len(sites)))
    for (u, v), x in zip(links, part.tolist(), strict=True):
        for a, b in ((u, v), (v, u)):
            graph.add_edge(a, b, mbps=most - (most - least) * x)
    return graph


def netstorm_draw(rng: np.random.Generator, *, symmetric: bool = False) -> nx.DiGraph:
    """Return NetStorm's nine data centres with 20 to 155 Mbit/s, drawn for each direction on its own (for each link
    where `symmetric`).
    """
    graph = nx.DiGraph(name="netstorm")
    graph.add_nodes_from(range(9))
    for u, v in _links("internet2.json"):
        there, back = rng.integers(20, 156, 2).tolist()
        graph.add_edge(u, v, mbps=float(there))
        graph.add_edge(v, u, mbps=float(there if symmetric else back))
    return graph


def aws() -> nx.DiGraph:
    """Return ten AWS regions, with the measured bandwidth of every pair in both directions."""
    pairs = json.loads((DATA / "aws_dtfm.json").read_text())["pairs"]
    names = list(dict.fromkeys(region for pair in pairs for region in pair.split("-")))
    graph = nx.DiGraph(name="aws")
    graph.add_nodes_from(range(len(names)))
    for pair, data in pairs.items():
        u, v = (names.index(region) for region in pair.split("-"))
        graph.add_edge(u, v, mbps=data["bandwidth_mbps"])
        graph.add_edge(v, u, mbps=data["bandwidth_mbps"])
    return graph


def overlay(graph: nx.DiGraph, delay_ms: float = 0.0) -> Topology:
    """Return a topology in which each node is a switch (dc0, ..) with a worker (h0, ..) and a parameter server (p0, ..)
    on links that never are the bottleneck. Each link between nodes has a delay of `delay_ms` one way.
    """
    inner = 1e7
    nodes: dict[str, dict[str, str]] = {}
    links: list[tuple[str, str, dict[str, float]]] = []
    for node in graph.nodes:
        nodes[f"dc{node}"] = {"kind": "switch"}
        for name, role in ((f"h{node}", "worker"), (f"p{node}", "parameter_server")):
            nodes[name] = {"kind": "server", "role": role}
            links += [(f"dc{node}", name, {"bandwidth_mbps": inner}), (name, f"dc{node}", {"bandwidth_mbps": inner})]
    for u, v, data in graph.edges(data=True):
        links.append((f"dc{u}", f"dc{v}", {"bandwidth_mbps": data["mbps"], "delay_ms": delay_ms}))
    return Topology(nodes, links, str(graph.graph.get("name", "")))
