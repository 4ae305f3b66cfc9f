"""The figures of a run, as PNG."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from controlplane.planner.job import Job
from controlplane.planner.topology import Topology
from evaluation import commands
from evaluation.bmv2_fattree.results import Report

PLANNED, MEASURED, SWITCHES, GLOO = "#b8c4d6", "#2f5d9b", "#2f5d9b", "#d0782a"


def write(report: Report, topology: Topology, job: Job, directory: Path) -> list[Path]:
    """Write rates.png, communication.png, fabric.png and (with training) losses.png, and return their paths."""
    drawings: dict[str, Callable[[Any], None]] = {
        "rates": lambda axes: rates(axes, report),
        "communication": lambda axes: communication(axes, report),
        "fabric": lambda axes: fabric(axes, topology, job),
    }
    if report.training is not None:
        drawings["losses"] = lambda axes: losses(axes, report)
    widest = max(len(tier) for tier in _places(topology)[1])
    sizes = {"fabric": (max(6.0, widest * 0.32), 3.8)}
    paths = []
    for name, draw in drawings.items():
        paths.append(directory / f"{name}.png")
        size = sizes.get(name, (6, 3.6))
        with commands.drawing(paths[-1], dpi=130, beside=True, layout="none", figsize=size) as (_, ((axes,),)):
            draw(axes)
    return paths


def rates(axes: Any, report: Report) -> None:
    """Draw the planned and measured sending rate of each strategy."""
    positions = range(len(report.strategies))
    planned = [s.planned_rate_mbps for s in report.strategies]
    measured = [s.measured_rate_mbps for s in report.strategies]
    axes.bar([p - 0.2 for p in positions], planned, 0.4, label="planned", color=PLANNED)
    bars = axes.bar([p + 0.2 for p in positions], measured, 0.4, label="measured", color=MEASURED)
    axes.bar_label(bars, [f"{m:.2f}" for m in measured], padding=2, fontsize=8)
    axes.set_xticks(list(positions), [s.name for s in report.strategies])
    axes.set_ylabel("sending rate of a worker, Mbit/s")
    axes.set_title(f"Sending rates\n{report.topology}, {report.switch}", fontsize=9)
    axes.margins(y=0.3)  # Room for the legend, above the bars.
    axes.legend(frameon=False, ncols=2, loc="upper left")
    _plain(axes)


def communication(axes: Any, report: Report) -> None:
    """Draw the time of one all-reduce per model and strategy, and over gloo if measured."""
    from matplotlib import colormaps  # here, because it takes a second

    series = [(s.name, s.model_seconds) for s in report.strategies]
    if report.gloo_seconds:
        series.append(("gloo", report.gloo_seconds))
    models = list(series[0][1]) if series else []
    width = 0.8 / max(len(series), 1)
    for i, (name, seconds) in enumerate(series):
        offsets = [m + (i - (len(series) - 1) / 2) * width for m in range(len(models))]
        colour = GLOO if name == "gloo" else colormaps["Blues"](0.35 + 0.6 * i / max(len(series), 1))
        axes.bar(offsets, [seconds[m] for m in models], width, label=name, color=colour)
    axes.set_xticks(range(len(models)), models)
    axes.set_ylabel("communication time, s")
    axes.set_title("One all-reduce of each model's gradient", fontsize=10)
    axes.legend(frameon=False)
    _plain(axes)


def losses(axes: Any, report: Report) -> None:
    """Draw the loss of every step, through the switches and over gloo."""
    training = report.training
    assert training is not None
    steps = range(1, len(training.loss_gloo) + 1)
    axes.plot(steps, training.loss_gloo, color=GLOO, linewidth=4, alpha=0.5, label="gloo")
    axes.plot(steps, training.loss_inart, color=SWITCHES, linewidth=1.2, label=f"switches ({training.strategy})")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{training.dataset}, {training.workers} workers", fontsize=10)
    axes.legend(frameon=False)
    _plain(axes)


def fabric(axes: Any, topology: Topology, job: Job) -> None:
    """Draw the network in tiers: hosts at the bottom, with workers and parameter servers marked."""
    place, _ = _places(topology)
    for u, v in topology.links:
        axes.plot(*zip(place[u], place[v], strict=True), color="#c8c8c8", linewidth=0.7, zorder=1)
    groups = [
        ("switch", topology.switches, "#5a6b7d", "s"),
        ("worker", job.workers, SWITCHES, "o"),
        ("parameter server", job.parameter_servers, GLOO, "D"),
        ("idle host", tuple(set(topology.servers) - {*job.workers, *job.parameter_servers}), "#d5d5d5", "o"),
    ]
    for label, nodes, colour, marker in groups:
        if nodes:
            x, y = zip(*(place[n] for n in nodes), strict=True)
            axes.scatter(x, y, s=55, c=colour, marker=marker, label=label, zorder=2)
    for node in topology.nodes:
        axes.annotate(node, place[node], (0, -12), textcoords="offset points", ha="center", fontsize=5)
    axes.axis("off")
    axes.margins(y=0.15)
    axes.legend(frameon=False, fontsize=7, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _places(topology: Topology) -> tuple[dict[str, tuple[float, float]], list[list[str]]]:
    """Return the position of each node, whose height is its distance from the hosts, and the tiers."""
    height = dict.fromkeys(topology.servers, 0)
    frontier = list(topology.servers)
    while frontier:
        following = []
        for node in frontier:
            for neighbour in topology.neighbours(node):
                if neighbour not in height:
                    height[neighbour] = height[node] + 1
                    following.append(neighbour)
        frontier = following
    tiers = [[n for n in topology.nodes if height.get(n, 0) == level] for level in range(max(height.values()) + 1)]
    place = {
        node: ((i + 0.5) / len(tier), float(level)) for level, tier in enumerate(tiers) for i, node in enumerate(tier)
    }
    return place, tiers


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
