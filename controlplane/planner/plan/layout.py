"""Layout: the positions of a network's nodes in a picture of it."""

from __future__ import annotations

from controlplane.planner.topology import Topology


def positions(topology: Topology) -> dict[str, tuple[float, float]]:
    """Return each node's position: layers by distance from the servers, each node above the middle of its neighbours
    below.
    """
    layer = dict.fromkeys(topology.servers, 0)
    queue = list(topology.servers)
    for node in queue:
        for other in topology.neighbours(node):
            if other not in layer:
                layer[other] = layer[node] + 1
                queue.append(other)
    rows: dict[int, list[str]] = {}
    for node in topology.nodes:
        rows.setdefault(layer.get(node, 1), []).append(node)
    order = {node: (i + 0.5) / max(1, len(topology.servers)) for i, node in enumerate(topology.servers)}
    result: dict[str, tuple[float, float]] = {}
    for height in sorted(rows):
        if height:
            for node in rows[height]:
                below = [order[n] for n in topology.neighbours(node) if n in order and layer.get(n, 0) < height]
                order[node] = sum(below) / len(below) if below else 0.5
        ranked = sorted(rows[height], key=lambda n: order[n])
        for i, node in enumerate(ranked):
            order[node] = (i + 0.5) / len(ranked)
            result[node] = (order[node], float(height))
    return result
