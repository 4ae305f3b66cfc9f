"""Draws a sweep: time over the bound, against the links' rate, a panel per number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evaluation import commands
from evaluation.hosts.measure import Result


def draw(results: Sequence[Result], path: Path) -> None:
    """Write the picture to `path`. A hollow marker names the bottleneck: the cores, or the thread of a participant."""
    counts = sorted({result.workers for result in results})
    with commands.drawing(path, 1, len(counts), figsize=(3.6 * len(counts), 3.2), sharey=True) as (figure, panels):
        for workers, axes in zip(counts, panels[0], strict=True):
            own = sorted((r for r in results if r.workers == workers), key=lambda result: result.mbps)
            rates = [result.mbps for result in own]
            for name, color, seconds in (
                ("in the network", "tab:blue", [r.network_seconds for r in own]),
                ("gloo", "tab:orange", [r.gloo_seconds for r in own]),
            ):
                shown = [(r.mbps, s / r.bound_seconds, r) for r, s in zip(own, seconds, strict=True) if s]
                axes.plot([mbps for mbps, _, _ in shown], [ratio for _, ratio, _ in shown], color=color, label=name)
                for mbps, ratio, result in shown:
                    told = result.gave_out if name != "gloo" else ""
                    axes.plot(mbps, ratio, "o", color=color, markerfacecolor="white" if told else color)
                    above = result.network_seconds > (result.gloo_seconds or 0.0)
                    aside = {"textcoords": "offset points", "ha": "center", "fontsize": "x-small"}
                    axes.annotate(told, (mbps, ratio), (0, 6 if above else -12), **aside)
            axes.axhline(1.0, color="grey", linestyle=":", label="size / bandwidth")
            axes.set_xscale("log")
            axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
            axes.minorticks_off()
            axes.margins(x=0.12)
            axes.set_title(f"{workers} workers")
            axes.set_xlabel("Mbit/s a link")
        slowest = max(max(r.network_seconds, r.gloo_seconds or 0.0) / r.bound_seconds for r in results)
        panels[0][0].set_ylim(0, 1.1 * slowest)  # This holds for all panels, which share the axis.
        panels[0][0].set_ylabel("time, size / bandwidth = 1")
        panels[0][0].legend(fontsize="small", loc="upper left")
        sizes = sorted({round(result.bytes / 1e6) for result in results})
        size = f"{sizes[0]} MB" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} MB"
        figure.suptitle(f"{size} all-reduced; hollow, with its name: what gave out", fontsize="medium")
