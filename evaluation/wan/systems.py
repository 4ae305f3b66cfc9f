"""Compares every system measured with itself simulated: a table and a picture of the rows of `train --json`.

Rows of one system on one network (other seeds) are taken together. "each" is each task's measured over its own
simulated seconds: the median of that, and its quartiles. Tasks of groups and of copies differ much in length (0.5 to 20
s in one run), so the median measured and the median simulated task are different tasks, and their ratio would not show
the network: where seconds are shown, both are means over the same tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

from evaluation import commands

Row = dict[str, Any]

TITLES = {"netstorm": "NetStorm's network", "internet2": "Internet2", "aws": "AWS", "b4": "B4"}
FAMILIES = (  # a colour for each
    (
        "tree plans of NetStorm and its baselines",
        "#1f6f8b",
        ("star", "balanced-tree", "tsengine", "netstorm", "netstorm-pro"),
    ),
    ("ours", "#c0392b", ("wan",)),
    ("one server (APSP)", "#8e6bbf", ("apsp-random", "apsp-connected", "apsp")),
    ("groups (CREW)", "#d98e04", ("a2a", "opr", "crew", "crew-early")),
    ("copies (SelMcast, Orpheus)", "#3c8d40", ()),  # all others
)
BAND = 0.1
"""Largest relative difference of measured and simulated times that counts as agreement."""


def together(rows: Sequence[Row], keys: Sequence[str]) -> list[list[Row]]:
    """Group rows that are equal in these keys, in the order in which they first come."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return list(found.values())


def mean(rows: Sequence[Row], key: str) -> float | None:
    """Return the mean, or None if not all rows have a number."""
    values = [row[key] for row in rows]
    return None if None in values else fmean(values)


class Cell:
    """The results of one system on one network."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.network, self.system = rows[0]["network"], rows[0]["system"]
        self.pairs = [
            pair for row in rows for pair in zip(row["per_round_s"], row["simulated_per_round_s"], strict=True)
        ]
        self.measured, self.simulated = (fmean(pair[k] for pair in self.pairs) for k in (0, 1))
        each = [m / s for m, s in self.pairs]
        self.low, self.each, self.high = quantiles(each, n=4, method="inclusive") if len(each) > 1 else 3 * each
        self.target, self.simulated_target = mean(rows, "target_s"), mean(rows, "simulated_target_s")
        self.idle = fmean(row["cpu_idle"] for row in rows)

    @property
    def agrees(self) -> bool:
        return abs(self.each - 1) <= BAND


def cells(rows: Sequence[Row]) -> list[Cell]:
    return [Cell(own) for own in together(rows, ("network", "system")) if any(row["per_round_s"] for row in own)]


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table with a line per network and system."""
    lines = [
        "| network | system | tasks | measured s | simulated s | ratio | each (quartiles) | to target s | simulated s "
        "| CPU idle |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for cell in cells(rows):
        lines.append(
            f"| {cell.network} | {cell.system} | {len(cell.pairs)} | {cell.measured:.2f} | {cell.simulated:.2f} "
            f"| {cell.measured / cell.simulated:.2f} | {cell.each:.2f} ({cell.low:.2f} to {cell.high:.2f}) "
            f"| {seconds(cell.target)} | {seconds(cell.simulated_target)} | {cell.idle:.0%} |"
        )
    return "\n".join(lines)


def wide(rows: Sequence[Row]) -> str:
    """Return a Markdown table with a line per system and a column per network, and how many agree."""
    found = cells(rows)
    networks = list(dict.fromkeys(cell.network for cell in found))
    lines = ["| | " + " | ".join(TITLES.get(n, n) for n in networks) + " |", "|---" + "|---:" * len(networks) + "|"]
    for system in dict.fromkeys(cell.system for cell in found):
        line = [system]
        for network in networks:
            own = [cell for cell in found if (cell.network, cell.system) == (network, system)]
            line += [
                f"{c.measured:.2f} / {c.simulated:.2f}<br>each {c.each:.2f}{'' if c.agrees else ' **!**'}<br>"
                f"{seconds(c.target)} / {seconds(c.simulated_target)}<br>{c.idle:.0%}"
                for c in own
            ] or [""]
        lines.append("| " + " | ".join(line) + " |")
    agree = sum(cell.agrees for cell in found)
    off = [f"{cell.system} on {cell.network} {cell.each:.2f}" for cell in found if not cell.agrees]
    count = [len(cell.pairs) for cell in found]
    idle = [cell.idle for cell in found]
    return "\n".join([
        *lines, "",
        f"{agree} of {len(found)} within {BAND:.0%}{': not ' + ', '.join(off) if off else ''}. "
        f"{min(count)} to {max(count)} tasks; {min(idle):.0%} to {max(idle):.0%} idle.",
    ])  # fmt: skip


def _colour(system: str) -> str:
    return next(colour for _, colour, names in FAMILIES if system in names or not names)


def _pairs(axis: Any, found: Sequence[Cell], places: dict[str, int], keys: tuple[str, str]) -> None:
    """Draw a dot for the measured and a tick for the simulated value."""
    for cell in found:
        measured, simulated = (getattr(cell, key) for key in keys)
        if measured is None:
            axis.text(0.02, places[cell.system], "not reached", transform=axis.get_yaxis_transform(),
                      va="center", fontsize=7, color="#999999")  # fmt: skip
            continue
        axis.plot(measured, places[cell.system], "o", color=_colour(cell.system), markersize=7)
        if simulated is not None:
            axis.plot(simulated, places[cell.system], "|", color="black", markersize=13, markeredgewidth=1.6)
        axis.annotate(f"{measured:.2g}" if measured < 10 else f"{measured:.0f}", (measured, places[cell.system]),
                      xytext=(8, 0), textcoords="offset points", va="center", fontsize=7, color="#555555")  # fmt: skip
    axis.set_xscale("log")
    axis.margins(x=0.18)


def _marker(network: str, networks: Sequence[str]) -> str:
    """Return the marker of a network's dots: one of four, and circles from the fifth network on."""
    return dict(zip(networks, "os^D", strict=False)).get(network, "o")


def _ratios(
    axis: Any, found: Sequence[Cell], places: dict[str, int], networks: Sequence[str], *, reaching: bool
) -> None:
    """Draw each system's measured over its simulated seconds: of a task, or (reaching) to the target."""
    axis.axvspan(1 - BAND, 1 + BAND, color="#e8efe8", zorder=0)
    axis.axvline(1.0, color="#888888", linewidth=0.8)
    for cell in found:
        at = places[cell.system] + 0.18 * (networks.index(cell.network) - (len(networks) - 1) / 2)
        ratio = cell.each
        if reaching:
            if cell.target is None or not cell.simulated_target:
                continue
            ratio = cell.target / cell.simulated_target
        axis.plot(ratio, at, _marker(cell.network, networks), color=_colour(cell.system), markersize=4.5)
    axis.set_xlim(min(0.75, *axis.get_xlim()), max(1.25, *axis.get_xlim()))
    axis.set_title(f"measured / simulated, band: {BAND:.0%}", fontsize=11)
    axis.set_xlabel("of the seconds to it" if reaching else "of each task, median")


def _plain(axis: Any) -> None:
    """Leave only a pale grid and two sides of a panel's frame."""
    axis.grid(axis="y", color="#eeeeee")
    axis.grid(axis="x", color="#f3f3f3")
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.tick_params(labelsize=8)


def draw_systems(rows: Sequence[Row], path: Path) -> None:
    """Draw seconds of a synchronisation and each task's ratio to its simulation above, and seconds to the target below.

    Above there is a panel per network. Systems go from top to bottom, with a colour per paper.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullFormatter

    found = cells(rows)
    networks = list(dict.fromkeys(cell.network for cell in found))
    names = list(dict.fromkeys(cell.system for cell in found))
    places = {name: k for k, name in enumerate(names)}
    reached = any(cell.target is not None for cell in found)
    down = 2 if reached else 1
    size = (3.1 * (len(networks) + 1) + 1.2, down * (0.25 * len(names) + 1.4) + 0.6)
    drawn = commands.drawing(path, down, len(networks) + 1, dpi=110, figsize=size, sharey=True, layout="constrained")
    with drawn as (figure, axes):
        what = (
            (("measured", "simulated"), "seconds of a synchronisation"),
            (("target", "simulated_target"), f"seconds to {rows[0].get('target', 0.85):.0%} accuracy"),
        )
        for line, (keys, label) in zip(axes, what, strict=False):
            for axis, network in zip(line, networks, strict=False):
                _pairs(axis, [cell for cell in found if cell.network == network], places, keys)
                axis.set_title(TITLES.get(network, network), fontsize=11)
                axis.set_xlabel(label)
                axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.xaxis.set_major_formatter("{x:g}")
                axis.xaxis.set_minor_formatter(NullFormatter())
            _ratios(line[-1], found, places, networks, reaching=keys[0] == "target")
            for axis in line:
                _plain(axis)
        axes[0][0].set_yticks(range(len(names)), names)
        axes[0][0].set_ylim(len(names) - 0.4, -0.6)
        known = {_colour(name) for name in names}
        legend = [
            Line2D([], [], marker="o", linestyle="", color=c, label=text) for text, c, _ in FAMILIES if c in known
        ]
        legend += [Line2D([], [], marker="|", linestyle="", color="black", markersize=11, label="simulated")]
        legend += [
            Line2D(
                [], [], marker=_marker(n, networks), linestyle="", color="#777777", markersize=5, label=TITLES.get(n, n)
            )
            for n in networks
        ]
        figure.legend(handles=legend, loc="outside upper center", ncols=5, fontsize=9, frameon=False)
