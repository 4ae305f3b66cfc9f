"""Draws a plan: the fabric in layers, each tree's aggregation points, link loads as colour, and the bottleneck.

An aggregation point is a pie of its trees' roots, its size the share of the model that is added there; beside it are
the trees' numbers. Beside a root are the numbers of the trees to which workers send directly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

from controlplane.common.numbers import short

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from controlplane.planner.evaluate import Evaluation
from controlplane.planner.plan.layout import positions
from controlplane.planner.plan.model import Plan
from controlplane.planner.topology import Topology

MOST_AREA = 500.0  # most area of an aggregation point, in points squared
MOST_NUMBERS = 6
LABEL = {"facecolor": "white", "edgecolor": "none", "alpha": 0.6, "pad": 0.4}


def _pie(axes: Any, centre: tuple[float, float], parts: dict[Any, float], size: float) -> None:
    """Draw a disc of `size` (points squared) that is divided among colours."""
    total = sum(parts.values())
    begin = 0.25
    for colour, amount in parts.items():
        end = begin - amount / total
        steps = [begin + (end - begin) * i / 24 for i in range(25)]
        rim = [(math.cos(2 * math.pi * a), math.sin(2 * math.pi * a)) for a in steps]
        # Markers are scaled by their own reach, so that every wedge has the disc's.
        reach = max(max(abs(x), abs(y)) for x, y in rim)
        axes.scatter(*centre, marker=[(0, 0), *rim], s=size * reach**2, color=colour, zorder=3, linewidths=0)
        begin = end


def draw(plan: Plan, evaluation: Evaluation, topology: Topology, path: str | Path) -> None:
    """Write a picture of the plan, as PNG or in the format that the name's ending says."""
    place = positions(topology)
    figure, axes = plt.subplots(figsize=(max(8.0, 0.22 * len(topology.servers)), 6.0), constrained_layout=True)
    lines = _links(evaluation, topology, place)
    axes.add_collection(lines)
    figure.colorbar(lines, ax=axes, label="link load / residual bandwidth", shrink=0.8)
    colours = {root: plt.get_cmap("tab10")(i % 10) for i, root in enumerate(plan.job.parameter_servers)}
    _draw_nodes(axes, plan, topology, place, colours)
    legend = [Line2D([], [], marker="s", linestyle="", color=c, label=f"root {root}") for root, c in colours.items()]
    legend.append(Line2D([], [], marker="o", linestyle="", color="grey", label="adds (size: share; numbers: trees)"))
    legend.append(Line2D([], [], marker="v", linestyle="", color="dimgrey", label="worker"))
    legend.append(_draw_bottleneck(axes, evaluation, place))
    axes.legend(handles=legend, loc="upper left", fontsize=7, ncols=2)
    axes.set_title(
        f"{plan.strategy} on {topology.name}: {short(evaluation.rate_mbps)} Mbit/s, "
        f"{100 * evaluation.gap:.1f} % below the bound of {short(evaluation.bound_mbps)}, {len(plan.trees)} trees"
    )
    top = max(y for _, y in place.values())
    axes.set_ylim(-0.4, top + 0.9)
    axes.set_xlim(-0.02, 1.02)
    axes.axis("off")
    figure.savefig(path, dpi=130)
    plt.close(figure)


Place = Mapping[str, tuple[float, float]]
"""Position of each node in the picture."""


def _links(evaluation: Evaluation, topology: Topology, place: Place) -> LineCollection:
    """Return lines for every link in both directions, coloured by load. The two lie a little apart, each to its own
    right.
    """
    utilisation = {load.name: load.utilisation for load in evaluation.loads if load.kind in ("link", "nic")}
    segments, values = [], []
    for u, v in topology.links:
        (x0, y0), (x1, y1) = place[u], place[v]
        right, down = (y1 - y0), (x1 - x0)
        length = math.hypot(right, down) or 1.0
        dx, dy = 0.002 * right / length, -0.02 * down / length
        segments.append([(x0 + dx, y0 + dy), (x1 + dx, y1 + dy)])
        values.append(min(1.0, utilisation.get(f"{u}->{v}", 0.0)))
    lines = LineCollection(segments, cmap="viridis_r", linewidths=1.4)
    lines.set_array(values)
    lines.set_clim(0, 1)
    return lines


def _parts(plan: Plan) -> tuple[dict[str, dict[str, float]], dict[str, list[str]]]:
    """Return, by switch that adds, the share of each root; and by node, the numbers of the trees for which it adds, or
    to which workers send directly.
    """
    shares: dict[str, dict[str, float]] = {}
    numbers: dict[str, list[str]] = {}
    for number, tree in enumerate(plan.trees):
        if tree.root in tree.assignments.ends():
            numbers.setdefault(tree.root, []).append(str(number))
        for point in tree.points:
            numbers.setdefault(point, []).append(str(number))
            owners = shares.setdefault(point, {})
            owners[tree.root] = owners.get(tree.root, 0.0) + tree.share
    return shares, numbers


def _draw_nodes(axes: Any, plan: Plan, topology: Topology, place: Place, colours: Mapping[str, Any]) -> None:
    shares, numbers = _parts(plan)
    workers = set(plan.job.workers)
    named: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "bbox": LABEL}
    style: dict[str, Any]
    for node, (x, y) in place.items():
        if node in colours:
            style = {"marker": "s", "color": colours[node], "s": 90}
        elif node in shares:
            size = min(MOST_AREA, 60 + 900 * sum(shares[node].values()))
            _pie(axes, (x, y), {colours[root]: share for root, share in shares[node].items()}, size)
            style = {"marker": "o", "color": "none", "s": size}
        elif topology.kind(node) == "switch":
            style = {"marker": "o", "color": "lightgrey", "s": 60}
        else:
            style = {"marker": "v", "color": "dimgrey" if node in workers else "lightgrey", "s": 30}
        axes.scatter([x], [y], zorder=3, edgecolors="black", linewidths=0.5, **style)
        radius = math.sqrt(style["s"]) / 2
        side = (0.0, -radius - 9) if y == 0 else (0.0, radius + 2)
        axes.annotate(node, (x, y), xytext=side, fontsize=6, zorder=5, **named)
        if node in numbers:
            mine = numbers[node]
            text = " ".join(mine) if len(mine) <= MOST_NUMBERS else f"{len(mine)} trees"
            below = (0.0, -radius - 8)
            if node in colours:
                text, below = f"direct: {text}", (0.0, -radius - 18)
            axes.annotate(text, (x, y), xytext=below, fontsize=5, color="saddlebrown", zorder=5, **named)


def _draw_bottleneck(axes: Any, evaluation: Evaluation, place: Place) -> Line2D:
    """Mark the bottleneck, and return its line of the legend."""
    full = evaluation.bottleneck
    if "->" in full.name:
        u, v = full.name.split("->")
        axes.plot([place[u][0], place[v][0]], [place[u][1], place[v][1]], color="red", linewidth=5, alpha=0.5, zorder=2)
        return Line2D([], [], color="red", linewidth=3, alpha=0.5, label=f"bottleneck: link {full.name}")
    if full.name not in place:  # a full window belongs to a tree, which has no single place
        return Line2D([], [], linestyle="", label=f"bottleneck: {full.kind.replace('_', ' ')} {full.name}")
    x, y = place[full.name]
    axes.scatter([x], [y], s=max(500, 2 * MOST_AREA), facecolors="none", edgecolors="red", linewidths=2.5, zorder=4)
    ring = {"marker": "o", "linestyle": "", "markerfacecolor": "none", "markeredgecolor": "red"}
    return Line2D([], [], markeredgewidth=2, label=f"bottleneck: {full.name}", **ring)  # type: ignore[arg-type]
