"""Draws pictures with a panel per setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation import commands
from evaluation.wan.report import Row

Draw = Callable[[Sequence[Row], str, str, Sequence[str], str], None]
# different styles, so that equal lines are both visible
STYLES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "x"), ("-", "d"), ("--", "v"))


def _names(keys: Sequence[str], values: Sequence[str]) -> list[str]:
    """Return labels: values that are words need no key."""
    return [value if value[:1].isalpha() else f"{key} {value}" for key, value in zip(keys, values, strict=True)]


def _panel(axes: Any, rows: Sequence[Row], x: str, y: str, series: Sequence[str], *, as_bars: bool) -> None:
    ticks = list(dict.fromkeys(str(row[x]) for row in rows))
    labels = list(dict.fromkeys(tuple(str(row[key]) for key in series) for row in rows))
    for k, label in enumerate(labels):
        own = {str(row[x]): row for row in rows if tuple(str(row[key]) for key in series) == label}
        text = " ".join(_names(series, label))
        if as_bars:
            width = 0.8 / len(labels)
            left = [i + (k - len(labels) / 2 + 0.5) * width for i, tick in enumerate(ticks) if tick in own]
            axes.bar(left, [own[tick][y] for tick in ticks if tick in own], width, label=text)
            continue
        places = [i for i, tick in enumerate(ticks) if tick in own]
        found = [own[ticks[i]] for i in places]
        style, marker = STYLES[k % len(STYLES)]
        (line,) = axes.plot(places, [row[y] for row in found], style, marker=marker, markersize=5, label=text)
        if y == "mean":
            lows, highs = ([row[key] for row in found] for key in ("low", "high"))
            axes.fill_between(places, lows, highs, color=line.get_color(), alpha=0.1, linewidth=0)
    crowded = sum(map(len, ticks)) > 40
    axes.set_xticks(range(len(ticks)), ticks, rotation=90 if crowded else 0)
    axes.set_xlabel(x)


@dataclass(frozen=True)
class Panels:
    """Division of a figure into panels: one per combination of the keys `by`, or, with `metrics`, one per metric and
    combination.

    Attributes:
        label: label of the y axes; empty for the metric.
        as_bars: bars instead of lines.
        log: logarithmic y axes.
    """

    by: tuple[str, ...]
    metrics: Sequence[str] = ()
    label: str = ""
    as_bars: bool = False
    log: bool = False

    def draw(self, rows: Sequence[Row], x: str, y: str, series: Sequence[str], path: str) -> None:
        """Draw lines (or bars) over x, one per combination of the series' keys, and write the picture to the path."""
        titles = list(dict.fromkeys(tuple(str(row[key]) for key in self.by) for row in rows))
        across = len(titles) if self.metrics or len(titles) <= 3 else (len(titles) + 1) // 2
        down = len(self.metrics) or -(-len(titles) // across)
        size = (max(7.0, 3.6 * across), 3.4 * down)
        with commands.drawing(path, down, across, dpi=110, figsize=size, layout="constrained") as (figure, grid):
            for k, axes in enumerate(grid.ravel()):
                title = titles[k % across] if self.metrics else (titles[k] if k < len(titles) else None)
                if title is None:
                    axes.set_visible(False)
                    continue
                metric = self.metrics[k // across] if self.metrics else y
                own = [row for row in rows if tuple(str(row[key]) for key in self.by) == title]
                _panel(axes, own, x, metric, series, as_bars=self.as_bars)
                axes.set_title(", ".join(_names(self.by, title)))
                axes.set_ylabel(self.label or metric)
                self._scale(axes)
            handles, labels = grid[0, 0].get_legend_handles_labels()
            if series:
                columns = int(size[0] * 11 / (max(map(len, labels)) + 8))
                figure.legend(handles, labels, loc="outside upper center", ncols=max(1, columns), fontsize="small")

    def _scale(self, axes: Any) -> None:
        from matplotlib.ticker import LogLocator, NullFormatter

        if not self.log:
            axes.set_ylim(min(0, 1.08 * axes.dataLim.ymin), 1.08 * axes.dataLim.ymax)
            return
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())


def panels(*by: str, metrics: Sequence[str] = (), label: str = "", as_bars: bool = False, log: bool = False) -> Draw:
    """Return a function that draws a figure with these panels.

    Lines are shaded from "low" to "high" where y is "mean".
    """
    return Panels(by, metrics, label, as_bars, log).draw
