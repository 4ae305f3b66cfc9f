"""The figures as a picture: one panel per section, softswitch beside bmv2."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from evaluation.softswitch.scale import Row

matplotlib.use("Agg")
from matplotlib import pyplot

PANELS = (
    ("traffic", "packets/s", "packets per second, on veth ports"),
    ("tables", "packets/s", "packets per second, one look-up each"),
    ("writes", "entries/s", "table entries written per second"),
    ("start-up", "s", "seconds from start to loaded program"),
)
COLOURS = {"softswitch": "#1f77b4", "bmv2": "#ff7f0e"}


def plot(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG."""
    panels = [p for p in PANELS if any(r.section == p[0] and r.unit == p[1] for r in rows)]
    figure, axes = pyplot.subplots(1, max(1, len(panels)), figsize=(4.2 * max(1, len(panels)), 3.2), squeeze=False)
    for axis, (section, unit, title) in zip(axes[0], panels, strict=False):
        shown = [r for r in rows if r.section == section and r.unit == unit]
        labels = list(dict.fromkeys(_label(r) for r in shown))
        for offset, switch in ((0.2, "softswitch"), (-0.2, "bmv2")):
            places = [labels.index(_label(r)) + offset for r in shown if r.switch == switch]
            values = [r.value for r in shown if r.switch == switch]
            bars = axis.barh(places, values, 0.38, label=switch, color=COLOURS[switch])
            axis.bar_label(bars, fmt=lambda v: f" {v:,.0f}" if v >= 10 else f" {v:.2g}", fontsize=6)
        axis.set_xscale("log")
        axis.set_yticks(range(len(labels)), labels, fontsize=7)
        axis.invert_yaxis()
        axis.tick_params(axis="x", labelsize=7)
        axis.set_title(title, fontsize=8)
        axis.margins(x=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _label(row: Row) -> str:
    return row.what + (f"\n({row.note})" if row.section == "start-up" and row.note else "")
