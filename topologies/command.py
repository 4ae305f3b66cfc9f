"""What every command that builds a network does around its work: the end by a signal, refusals in words, progress."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

Say = Callable[[str], None]


def stopwatch() -> Say:
    """Prints lines, each with the seconds since now."""
    started = time.monotonic()

    def say(line: str) -> None:
        # In one piece: threads say things at the same time.
        print(f"[{time.monotonic() - started:6.1f} s] {line}\n", end="", flush=True)

    return say


def guarded(name: str, work: Callable[[], int], *refusals: type[Exception]) -> int:
    """The command's exit status: what `work` returns, 1 after one of the refusals (said with the command's name), 130
    when it was interrupted. SIGTERM ends it like an error, so that the network is taken down."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return work()
    except refusals as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the network is gone", file=sys.stderr)
        return 130
