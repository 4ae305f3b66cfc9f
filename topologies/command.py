"""Helpers of the commands that build a network: progress lines, the end by a signal, and errors as messages."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from controlplane.common import command_line

Say = Callable[[str], None]


def stopwatch(output: TextIO | None = None) -> Say:
    """Return a function that prints lines, each with the seconds since now, on `output` (default: standard output)."""
    started = time.monotonic()

    def say(line: str) -> None:
        # The line is one string with its newline, because several threads print at the same time.
        print(f"[{time.monotonic() - started:6.1f} s] {line}\n", end="", file=output, flush=True)

    return say


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines, the first column aligned to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


@contextmanager
def repeated(act: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `act` every `seconds` seconds, in a thread, for as long as the `with` block lasts."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(seconds):
            act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def guarded(name: str, work: Callable[[], int], *refusals: type[Exception]) -> int:
    """Return a command's exit status: that of `work`, `command_line.failed` after one of the refusals or an OSError, or
    130 when it is interrupted.

    A refusal is printed with the command's name. SIGTERM raises SystemExit, so that the network is removed.
    """
    command_line.end_in_order()
    refused: tuple[type[Exception], ...] = (*refusals, OSError)
    try:
        return work()
    except refused as error:
        print(f"{name}: {error}", file=sys.stderr)
        return command_line.failed(error)
    except KeyboardInterrupt:
        print("interrupted; the network is gone", file=sys.stderr)
        return 130
