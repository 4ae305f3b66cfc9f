"""The wide-area networks of the evaluations (controlplane/wan_networks.py), and a job on them."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from controlplane.job import Job
from controlplane.wan_networks import LAWS, aws, by_distance, netstorm_draw, overlay

__all__ = ["LAWS", "aws", "by_distance", "netstorm_draw", "overlay", "whole_job"]


def whole_job(graph: nx.DiGraph, model_bytes: int, members: Sequence[int] | None = None) -> Job:
    """Every data centre (or only `members`) works and may be a parameter server."""
    sites = graph.nodes if members is None else members
    return Job("wan", tuple(f"h{v}" for v in sites), tuple(f"p{v}" for v in sites), model_bytes)
