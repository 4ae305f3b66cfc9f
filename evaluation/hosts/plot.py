"""The sweep as a picture: time over the bound, against the links' rate, a panel per number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evaluation.hosts.measure import Result

BUSY = 0.05  # less idle CPU than this: the machine gave out, not the network


def draw(results: Sequence[Result], path: Path) -> None:
    """Writes `path`. A filled marker: there was idle CPU; a hollow one: there was none."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    counts = sorted({result.workers for result in results})
    figure, panels = plt.subplots(1, len(counts), figsize=(3.6 * len(counts), 3.2), sharey=True, squeeze=False)
    for workers, axes in zip(counts, panels[0], strict=True):
        own = sorted((r for r in results if r.workers == workers), key=lambda result: result.mbps)
        rates = [result.mbps for result in own]
        for name, color, seconds in (
            ("in the network", "tab:blue", [r.network_seconds for r in own]),
            ("gloo", "tab:orange", [r.gloo_seconds for r in own]),
        ):
            pairs = [(m, s / r.bound_seconds, r.cpu_idle) for m, s, r in zip(rates, seconds, own, strict=True) if s]
            axes.plot([p[0] for p in pairs], [p[1] for p in pairs], color=color, label=name)
            for mbps, ratio, idle in pairs:
                filled = name == "gloo" or idle >= BUSY
                axes.plot(mbps, ratio, "o", color=color, markerfacecolor=color if filled else "white")
        axes.axhline(1.0, color="grey", linestyle=":", label="size / bandwidth")
        axes.set_xscale("log")
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_title(f"{workers} workers")
        axes.set_xlabel("Mbit/s a link")
    panels[0][0].set_ylabel("time, size / bandwidth = 1")
    panels[0][0].legend(fontsize="small")
    figure.suptitle(f"{results[0].bytes / 1e6:g} MB all-reduced; hollow: no idle CPU left", fontsize="medium")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
