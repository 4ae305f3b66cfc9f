"""Draws a plan: the fabric in layers, each tree's aggregation points, link loads as colour, and the bottleneck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from controlplane.evaluate import Evaluation
from controlplane.plan.model import Plan
from controlplane.topology import Topology


def positions(topology: Topology) -> dict[str, tuple[float, float]]:
    """Layers by distance from the servers, each node above the middle of its neighbours below."""
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


def draw(plan: Plan, evaluation: Evaluation, topology: Topology, path: str | Path) -> None:
    """Writes a PNG (or what the name's ending says)."""
    place = positions(topology)
    figure, axes = plt.subplots(figsize=(max(8.0, 0.22 * len(topology.servers)), 6.0), constrained_layout=True)
    utilisation = {load.name: load.utilisation for load in evaluation.loads if load.kind in ("link", "nic")}
    segments, values = [], []
    for u, v in topology.links:
        # The two directions lie a little apart.
        (x0, y0), (x1, y1) = place[u], place[v]
        shift = 0.002 if u < v else -0.002
        segments.append([(x0 + shift, y0), (x1 + shift, y1)])
        values.append(min(1.0, utilisation.get(f"{u}->{v}", 0.0)))
    lines = LineCollection(segments, cmap="viridis_r", linewidths=1.4)
    lines.set_array(values)
    lines.set_clim(0, 1)
    axes.add_collection(lines)
    figure.colorbar(lines, ax=axes, label="link load / residual bandwidth", shrink=0.8)

    style: dict[str, Any]
    colours = {root: plt.get_cmap("tab10")(i % 10) for i, root in enumerate(plan.job.parameter_servers)}
    shares: dict[str, dict[str, float]] = {}
    for tree in plan.trees:
        for point in tree.points:
            owners = shares.setdefault(point, {})
            owners[tree.root] = owners.get(tree.root, 0.0) + tree.share
    workers = set(plan.job.workers)
    for node, (x, y) in place.items():
        if node in colours:
            style = {"marker": "s", "color": colours[node], "s": 90}
        elif node in shares:
            main = max(shares[node].items(), key=lambda item: (item[1], item[0]))[0]
            style = {"marker": "o", "color": colours[main], "s": 60 + 900 * sum(shares[node].values())}
        elif topology.kind(node) == "switch":
            style = {"marker": "o", "color": "lightgrey", "s": 60}
        else:
            style = {"marker": "v", "color": "dimgrey" if node in workers else "lightgrey", "s": 30}
        axes.scatter([x], [y], zorder=3, edgecolors="black", linewidths=0.5, **style)
        side = (0, -12) if y == 0 else (0, 8)
        axes.annotate(node, (x, y), xytext=side, textcoords="offset points", ha="center", fontsize=6, rotation=0)
    full = evaluation.bottleneck
    if "->" in full.name:
        u, v = full.name.split("->")
        axes.plot([place[u][0], place[v][0]], [place[u][1], place[v][1]], color="red", linewidth=4, alpha=0.5, zorder=2)
    else:
        x, y = place[full.name]
        axes.scatter([x], [y], s=500, facecolors="none", edgecolors="red", linewidths=2.5)
    legend = [Line2D([], [], marker="s", linestyle="", color=c, label=f"root {root}") for root, c in colours.items()]
    legend.append(Line2D([], [], marker="o", linestyle="", color="grey", label="aggregates (size: share of the model)"))
    legend.append(Line2D([], [], color="red", linewidth=3, alpha=0.5, label=f"bottleneck: {full.name}"))
    axes.legend(handles=legend, loc="upper left", fontsize=7, ncols=2)
    axes.set_title(
        f"{plan.strategy} on {topology.name}: {evaluation.rate_mbps:.4g} Mbit/s, "
        f"{100 * evaluation.gap:.1f} % below the bound of {evaluation.bound_mbps:.4g}, {len(plan.trees)} trees"
    )
    top = max(y for _, y in place.values())
    axes.set_ylim(-0.4, top + 0.9)
    axes.set_xlim(-0.02, 1.02)
    axes.axis("off")
    figure.savefig(path, dpi=130)
    plt.close(figure)
