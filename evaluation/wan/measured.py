"""What `train --json` and `run --json` have measured, read again: `python -m evaluation.wan measured FILES`.

Rows of `train` become a table of systems (Markdown) and a picture, seconds of a synchronisation measured beside
simulated, a panel a network; rows of `run` become seconds over loss. Rows of one system on one network (other seeds)
are taken together. "each": the median of what each task's measured seconds are of its own simulated ones (tasks of
groups and copies are of very unequal length: medians of either kind may be of different tasks).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

Row = dict[str, Any]


def together(rows: Sequence[Row], keys: Sequence[str]) -> list[list[Row]]:
    """Rows that are alike in these keys, in the order in which they first come."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return list(found.values())


def mean(rows: Sequence[Row], key: str) -> float | None:
    """None: not all rows have a number."""
    values = [row[key] for row in rows]
    return None if None in values else fmean(values)


def table(rows: Sequence[Row]) -> str:
    """Markdown, a line a network and system."""

    def cell(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    lines = [
        "| network | system | tasks | measured s | simulated s | ratio | each | to target s | simulated s | CPU idle |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for own in together(rows, ("network", "system")):
        measured, simulated = mean(own, "task_s"), mean(own, "simulated_task_s")
        assert measured is not None and simulated is not None
        pairs = [pair for row in own for pair in zip(row["per_round_s"], row["simulated_per_round_s"], strict=True)]
        lines.append(
            f"| {own[0]['network']} | {own[0]['system']} | {len(pairs)} | {measured:.2f} | {simulated:.2f} "
            f"| {measured / simulated:.2f} | {median(m / s for m, s in pairs):.2f} | {cell(mean(own, 'target_s'), 1)} "
            f"| {cell(mean(own, 'simulated_target_s'), 1)} | {fmean(row['cpu_idle'] for row in own):.0%} |"
        )
    return "\n".join(lines)


def draw_systems(rows: Sequence[Row], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure, axes = plt.subplots(1, len(networks), figsize=(4.2 * len(networks), 5), squeeze=False)
    for axis, network in zip(axes[0], networks, strict=True):
        own = together([row for row in rows if row["network"] == network], ("system",))
        at = range(len(own))
        for shift, key, label, colour in (
            (-0.2, "task_s", "measured", "#1f6f8b"),
            (0.2, "simulated_task_s", "simulated", "#c9c9c9"),
        ):
            axis.barh([k + shift for k in at], [mean(each, key) for each in own], 0.4, label=label, color=colour)
        axis.set_yticks(list(at), [each[0]["system"] for each in own])
        axis.invert_yaxis()
        axis.set_xlabel("seconds of a synchronisation")
        axis.set_title(network)
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def draw_loss(rows: Sequence[Row], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(6.5, 4.2))
    for k, own in enumerate(together(rows, ("strategy",))):
        own.sort(key=lambda row: row["loss"])
        places = [f"{row['loss']:.2%}" for row in own]
        axis.plot(places, [row["measured_s"] for row in own], marker="o", color=f"C{k}", label=own[0]["strategy"])
        axis.plot(places, [row["simulated_s"] for row in own], linestyle="--", color=f"C{k}")
    axis.set_xlabel("part of the packets that each link loses")
    axis.set_ylabel("seconds of a synchronisation")
    axis.set_title("dashed: simulated, no connection faster than Mathis's law", fontsize=9)
    axis.set_yscale("log")
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.wan measured", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="JSON", help="of `train --json`, or of `run --json`")
    parser.add_argument("--plot", type=Path, metavar="PNG")
    arguments = parser.parse_args(argv)
    rows: list[Row] = []
    for file in arguments.files:
        try:
            rows += json.loads(file.read_text())
        except (OSError, ValueError) as error:
            parser.error(f"{file}: {error}")
    trained = bool(rows) and "system" in rows[0]
    if not rows or any(("system" in row) != trained for row in rows):
        parser.error("the files must have rows, all of `train` or all of `run`")
    if trained:
        print(table(rows))
    else:
        print("| network | system | loss | measured s | simulated s | ratio | measured / bound | CPU idle |")
        print("|---|---|---:|---:|---:|---:|---:|---:|")
        for row in rows:
            print(
                f"| {row['network']} | {row['strategy']} | {row['loss']:.2%} | {row['measured_s']:.2f} "
                f"| {row['simulated_s']:.2f} | {row['measured_s'] / row['simulated_s']:.2f} "
                f"| {row['measured_s'] / row['bound_s']:.2f} | {row['cpu_idle']:.0%} |"
            )
    if arguments.plot:
        arguments.plot.parent.mkdir(parents=True, exist_ok=True)
        (draw_systems if trained else draw_loss)(rows, arguments.plot)
    return 0
