"""Helpers of the commands of measurements: parsers of command lines, and drawings."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from controlplane.planner.job import ON_WORKERS


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of `python -m evaluation.NAME`, whose help shows the description as it is written."""
    return argparse.ArgumentParser(
        prog=f"python -m evaluation.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def servers(text: str) -> int | None:
    """Return a number of parameter servers, None for ON_WORKERS. Raise ValueError for another text."""
    return None if text == ON_WORKERS else int(text)


def add_servers(made: argparse.ArgumentParser, default: int) -> None:
    """Add `--ps`, the number of parameter servers, which is None where every worker's host is one ("workers")."""
    made.add_argument(
        "--ps",
        type=servers,
        default=default,
        metavar="S",
        help=f'parameter servers; "{ON_WORKERS}": one on every worker\'s host (%(default)s)',
    )


@contextmanager
def drawing(
    path: str | Path,
    rows: int = 1,
    columns: int = 1,
    *,
    dpi: int = 120,
    layout: str = "tight",
    beside: bool = False,
    **given: Any,
) -> Iterator[tuple[Any, Any]]:
    """Give a figure of matplotlib and its panels (an array of so many rows and columns), and save it as a PNG when the
    block has ended.

    Args:
        beside: whether there is something beside the panels, like a legend, for which the picture is made larger.
        given: further arguments of pyplot's `subplots`, like figsize in inches.
    """
    import matplotlib  # here, because it takes a second and much memory

    matplotlib.use("Agg")  # draws without a screen
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(rows, columns, squeeze=False, layout=layout, **given)
    yield figure, panels
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi, bbox_inches="tight" if beside else None)
    pyplot.close(figure)
