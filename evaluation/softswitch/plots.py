"""Draws the figures: softswitch beside bmv2, and the growth with the number of entries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evaluation import commands
from evaluation.softswitch.figures import Row
from evaluation.softswitch.report import number, ratio

COLOURS = {"softswitch": "#1f77b4", "bmv2": "#ff7f0e"}
PANELS = (
    ("traffic", "packets/s", "Forwarding and aggregation, veth ports"),
    ("tables", "packets/s", "One look-up per frame, veth ports"),
    ("writes", "entries/s", "Tables over P4Runtime"),
    ("start-up", "s", "Start to loaded program (less is better)"),
)
GROWTH = (
    ("insert", "insert"),
    ("delete", "delete"),
    ("look-up", "look-up, whole frame"),
)


def plot(rows: Sequence[Row], directory: Path) -> list[Path]:
    """Write the PNGs for which there are figures, and return their paths."""
    made: list[Path] = []
    panels = [p for p in PANELS if any(r.section == p[0] for r in rows)]
    if panels:
        made.append(directory / "beside-bmv2.png")
        _bars(rows, panels, made[-1])
    if any(r.section == "growth" for r in rows):
        made.append(directory / "growth.png")
        _lines([r for r in rows if r.section == "growth"], made[-1])
    return made


def _label(row: Row) -> str:
    return row.what + (f", {row.note}" if row.section == "start-up" and row.note else "")


def _bars(rows: Sequence[Row], panels: Sequence[tuple[str, str, str]], path: Path) -> None:
    """Draw a panel per section, two in a row; each pair of bars has figures and ratio."""
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import NullFormatter

    height = max(sum(r.section == p[0] and r.unit == p[1] and r.switch == "softswitch" for r in rows) for p in panels)
    lines = (len(panels) + 1) // 2
    size = 11, (0.55 * height + 0.9) * lines
    with commands.drawing(path, lines, 2, dpi=80, figsize=size) as (figure, axes):
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        for axis, (section, unit, title) in zip(axes.flat, panels, strict=False):
            shown = [r for r in rows if r.section == section and r.unit == unit]
            ours = [r for r in shown if r.switch == "softswitch"]
            for at, row in enumerate(ours):
                other = next((r for r in shown if r.switch == "bmv2" and r.what == row.what), None)
                text = number(row.value) + (f"   ({ratio(row, other)})" if other is not None else "")
                axis.barh(at - 0.2, row.value, 0.38, color=COLOURS["softswitch"])
                axis.text(row.value, at - 0.2, f" {text}", va="center", fontsize=8)
                if other is not None:
                    axis.barh(at + 0.2, other.value, 0.38, color=COLOURS["bmv2"])
                    axis.text(other.value, at + 0.2, f" {number(other.value)}", va="center", fontsize=8)
            axis.set_xscale("log")
            low, high = min(r.value for r in shown) / 3, max(r.value for r in shown)
            axis.set_xlim(low, high * (high / low) ** 0.8)  # leaves room for the figures
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.set_yticks(range(len(ours)), [_label(r) for r in ours], fontsize=8)
            axis.invert_yaxis()
            axis.tick_params(axis="x", labelsize=8)
            axis.set_title(f"{title} [{unit}]", fontsize=9)
            axis.spines[["top", "right"]].set_visible(False)
        handles = [Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
        figure.legend(handles, list(COLOURS), loc="upper left", fontsize=9, ncols=2, frameon=False)
        figure.get_layout_engine().set(rect=(0, 0, 1, 0.96))  # leaves room for the legend


def _lines(rows: Sequence[Row], path: Path) -> None:
    """Draw microseconds against entries, one line per kind of table."""
    with commands.drawing(path, 1, len(GROWTH), dpi=80, figsize=(11, 3.4), sharey=True) as (_, (axes,)):
        for axis, (action, title) in zip(axes, GROWTH, strict=True):
            kinds = dict.fromkeys(r.what.rpartition(": ")[0] for r in rows if r.what.endswith(f": {action}"))
            for kind in kinds:
                points = sorted((r.entries, r.value) for r in rows if r.what == f"{kind}: {action}")
                axis.plot(*zip(*points, strict=True), marker="o", markersize=4, label=kind)
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xlabel("entries in the table", fontsize=9)
            axis.set_title(title, fontsize=9)
            axis.tick_params(labelsize=8)
            axis.grid(alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel("µs of CPU", fontsize=9)
        axes[-1].legend(fontsize=8, frameon=False)
