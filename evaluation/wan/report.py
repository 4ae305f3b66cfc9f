"""Common parts of the WAN evaluations' command lines: rows as a table, as JSON or as a picture; claims beside our
numbers.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evaluation import commands

Row = dict[str, Any]
FAR_ABOVE = 1.25


@dataclass(frozen=True)
class Claim:
    """A claim of a paper beside our number.

    Attributes:
        ours: mean of our numbers.
        low, high: the 5th and 95th percentile over the seeds.
        met: whether it is met; None if the claim is only shown.
        unexplained: ours is so far above the paper's range that it says more about the difference between the two
            set-ups than about the claim, which then does not count as met.
    """

    claim: str
    paper: str
    ours: float
    low: float
    high: float
    seeds: int
    met: bool | None
    note: str = ""
    unexplained: bool = False


def claim(
    text: str,
    paper: str,
    values: Sequence[float],
    *,
    least: float | None = None,
    most: float | None = None,
    top: float | None = None,
    note: str = "",
) -> Claim:
    """Return a claim that is met if the mean lies within [least, most] (where given).

    `top` is the upper end of the paper's range; a mean above FAR_ABOVE times it is unexplained, and not met.
    """
    array = np.asarray(values, float)
    mean = float(array.mean())
    met = None
    if least is not None or most is not None:
        met = (least is None or mean >= least) and (most is None or mean <= most)
    unexplained = top is not None and mean > FAR_ABOVE * top
    low, high = np.percentile(array, [5, 95])
    return Claim(
        text, paper, mean, float(low), float(high), len(array), None if unexplained else met, note, unexplained
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return str(value)


def table(rows: Sequence[Row]) -> str:
    """Return rows as plain text, with a column per key of the first row."""
    if not rows:
        return "(nothing)"
    keys = list(rows[0])
    cells = [[_cell(row.get(key, "")) for key in keys] for row in rows]
    widths = [max(len(key), *(len(line[k]) for line in cells)) for k, key in enumerate(keys)]
    lines = ["  ".join(key.ljust(w) for key, w in zip(keys, widths, strict=True))]
    lines += ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(line.rstrip() for line in lines)


def plot(
    rows: Sequence[Row], x: str, y: str, series: Sequence[str], path: str, *, label: str = "", log: bool = False
) -> None:
    """Draw one line per combination of the series' keys."""
    with commands.drawing(path, beside=True, figsize=(7, 4.5)) as (_, ((axes,),)):
        for each in dict.fromkeys(tuple(str(row[key]) for key in series) for row in rows):
            own = [row for row in rows if tuple(str(row[key]) for key in series) == each]
            axes.plot([str(row[x]) for row in own], [row[y] for row in own], marker="o", label=" ".join(each))
        axes.set_xlabel(x)
        axes.set_ylabel(label or y)
        if log:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        run: called as run(trials); returns rows.
        x, y, series: keys of the rows by which they are drawn.
        trials: the default number of trials.
        check: called as check(rows); returns the aims that were missed.
    """

    run: Callable[[int], list[Row]]
    about: str
    x: str
    y: str
    series: tuple[str, ...]
    trials: int = 10
    draw: Callable[[Sequence[Row], str, str, Sequence[str], str], None] = plot
    check: Callable[[Sequence[Row]], list[str]] | None = None


def main(
    name: str,
    figures: dict[str, Figure],
    headline: Callable[[int], list[Claim]],
    argv: Sequence[str] | None = None,
    *,
    others: Mapping[str, str] | None = None,
) -> int:
    """Run `python -m evaluation.NAME figN|headline [--trials N] [--json] [--plot FILE]`, and return the exit status, 1
    for a miss.

    `others` are words that the caller handles, with their descriptions, for --help.
    """
    lines = [f"  python -m evaluation.{name} {word:<10}{about}" for word, about in (others or {}).items()]
    parser = commands.parser(name, None)
    parser.epilog = "\n".join(["others, each with --help:", *lines]) if lines else None
    subcommands = parser.add_subparsers(dest="command", required=True)
    for key, figure in figures.items():
        sub = subcommands.add_parser(key, help=figure.about.replace("%", "%%"), description=figure.about)
        sub.add_argument("--trials", type=int, default=figure.trials, help="seeds per setting (default: %(default)s)")
        sub.add_argument("--json", action="store_true", help="rows as JSON")
        sub.add_argument("--plot", metavar="FILE", help="also draw (png, pdf or svg, by the name)")
    text = "the paper's main claims beside ours"
    sub = subcommands.add_parser("headline", help=text, description=text)
    sub.add_argument("--trials", type=int, default=30, help="seeds (default: %(default)s)")
    sub.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    if arguments.trials < 1:
        parser.error("--trials must be at least 1")
    if arguments.command == "headline":
        claims = headline(arguments.trials)
        if arguments.json:
            json.dump([asdict(c) for c in claims], sys.stdout, indent=1)
            print()
        else:
            print(table([asdict(c) for c in claims]))
        return int(any(c.met is False for c in claims))
    figure = figures[arguments.command]
    rows = figure.run(arguments.trials)
    if arguments.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
    else:
        print(table(rows))
    if arguments.plot:
        Path(arguments.plot).parent.mkdir(parents=True, exist_ok=True)
        figure.draw(rows, figure.x, figure.y, figure.series, arguments.plot)
    missed = [] if figure.check is None else figure.check(rows)
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return int(bool(missed))
