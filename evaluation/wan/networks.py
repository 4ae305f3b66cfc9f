"""The wide-area networks of the evaluations (controlplane/planner/wan_networks.py), and a job on them."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np

from controlplane.planner.job import Job
from controlplane.planner.wan_networks import LAWS, aws, by_distance, netstorm_draw, overlay

__all__ = ["LAWS", "aws", "by_distance", "netstorm_draw", "overlay", "random_network", "whole_job"]


def whole_job(graph: nx.DiGraph, model_bytes: int, members: Sequence[int] | None = None) -> Job:
    """Return a job where every data centre (or only `members`) works and may have a parameter server."""
    sites = graph.nodes if members is None else members
    return Job("wan", tuple(f"h{v}" for v in sites), tuple(f"p{v}" for v in sites), model_bytes)


def random_network(n: int, rng: np.random.Generator) -> nx.DiGraph:
    """Return a ring of n nodes with n // 2 chords (13 links for 9 nodes, as the paper's), 20 to 155 Mbit/s."""
    links = [(i, (i + 1) % n) for i in range(n)]
    while len(links) < n + n // 2:
        u, v = sorted(rng.choice(n, 2, replace=False).tolist())
        if (u, v) not in links and (v, u) not in links:
            links.append((u, v))
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    for u, v in links:
        graph.add_edge(u, v, mbps=float(rng.integers(20, 156)))
        graph.add_edge(v, u, mbps=float(rng.integers(20, 156)))
    return graph
