"""Draws the results: time against the size of the tensor, a panel for each network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evaluation import commands
from evaluation.collectives.measure import Result


def draw(results: Sequence[Result], path: Path) -> None:
    """Write the picture to `path`. gloo's line is dashed, in the colour of ours; gloo sends values as they are."""
    networks = sorted({(result.workers, result.mbps) for result in results})
    with commands.drawing(path, 1, len(networks), figsize=(4.6 * len(networks), 3.6)) as (_, panels):
        for (workers, mbps), axes in zip(networks, panels[0], strict=True):
            here = [result for result in results if (result.workers, result.mbps) == (workers, mbps)]
            for number, kind in enumerate(sorted({(result.op, result.dtype, result.bits) for result in here})):
                own = sorted(
                    (result for result in here if (result.op, result.dtype, result.bits) == kind), key=lambda r: r.bytes
                )
                op, dtype, bits = kind
                sizes, color = [result.bytes for result in own], f"C{number}"
                axes.plot(
                    sizes,
                    [1e3 * result.seconds for result in own],
                    "o-",
                    color=color,
                    label=f"{op} {dtype}, {bits} bits",
                )
                gloo = [(result.bytes, 1e3 * result.gloo_seconds) for result in own if result.gloo_seconds]
                if gloo:
                    axes.plot(*zip(*gloo, strict=True), "x--", color=color, label="the same by gloo")
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("bytes of the tensor")
            axes.set_title(f"{workers} workers, {mbps:g} Mbit/s")
            axes.legend(fontsize="x-small")
        panels[0][0].set_ylabel("time, ms")
