"""Reads the results of `train --json` and `run --json` again: `python -m evaluation.wan measured FILES`.

Rows of `train` become a table of systems (Markdown; --wide: a column per network) and a picture, both described in
evaluation/wan/systems.py; rows of `run` become seconds over loss.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from evaluation import commands
from evaluation.wan.systems import Row, draw_systems, table, together, wide


def draw_loss(rows: Sequence[Row], path: Path) -> None:
    with commands.drawing(path, figsize=(6.5, 4.2)) as (_, ((axis,),)):
        for k, own in enumerate(together(rows, ("strategy",))):
            own.sort(key=lambda row: row["loss"])
            places = [f"{row['loss']:.2%}" for row in own]
            axis.plot(places, [row["measured_s"] for row in own], marker="o", color=f"C{k}", label=own[0]["strategy"])
            axis.plot(places, [row["simulated_s"] for row in own], linestyle="--", color=f"C{k}")
        axis.set_xlabel("part of the packets that each link loses")
        axis.set_ylabel("seconds of a synchronisation")
        axis.set_title("dashed: simulated, each connection with a window of its own", fontsize=9)
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.legend(fontsize=8)


def main(argv: Sequence[str]) -> int:
    parser = commands.parser("wan measured", __doc__)
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="JSON", help="results of `train --json`, or of `run --json`"
    )
    parser.add_argument("--wide", action="store_true", help="for `train`: a line per system, a column per network")
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
        print(wide(rows) if arguments.wide else table(rows))
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
