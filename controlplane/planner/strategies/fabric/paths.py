"""Sets of feasible paths (the P of the InArt paper) between nodes."""

from __future__ import annotations

import networkx as nx

from controlplane.planner.routing import Network

Path = tuple[str, ...]


def shortest_paths(network: Network, source: str, target: str) -> list[Path]:
    """Return all shortest paths, in a fixed order."""
    index, names = network.index, network.names
    goal = index[target]
    found: list[Path] = []

    def extend(path: list[int]) -> None:
        if path[-1] == goal:
            found.append(tuple(names[node] for node in path))
            return
        for node, _ in network.next_hops(path[-1], goal):
            extend([*path, node])

    extend([index[source]])
    return found


def simple_paths(network: Network, source: str, target: str, most: int) -> list[Path]:
    """Return all simple paths over switches, in a fixed order. Raise ValueError where there are more than `most`."""
    graph = network.topology.graph
    inner = {source, target, *network.topology.switches}
    usable = [
        (u, v)
        for e, (i, j) in enumerate(network.ends)
        if network.capacity[e] > 0
        for u, v in [(network.names[i], network.names[j])]
        if u in inner and v in inner and u != target and v != source
    ]
    found: list[Path] = []
    if source in graph and target in graph:
        for path in nx.all_simple_paths(graph.edge_subgraph(usable), source, target) if usable else ():
            found.append(tuple(path))
            if len(found) > most:
                raise ValueError(
                    f"more than {most} simple paths from {source} to {target}: the instance is too large to be exact"
                )
    return found
