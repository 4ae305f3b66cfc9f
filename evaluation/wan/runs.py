"""Runs many independent computations on all cores that the process may use, with progress lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Out = TypeVar("Out")
EVERY = 10.0  # seconds between progress lines


def watched(items: Iterable[Item], total: int) -> Iterator[Item]:
    """Yield the items, with a line on stderr every ten seconds that says how many are done."""
    begin = last = time.monotonic()
    for done, item in enumerate(items, 1):
        now = time.monotonic()
        if now - last >= EVERY:
            last = now
            print(f"{done} of {total}, {now - begin:.0f} s", file=sys.stderr, flush=True)
        yield item


def spread(work: Callable[[Item], Out], items: Sequence[Item]) -> list[Out]:
    """Return [work(item) for item in items], computed in parallel; all must be independent and picklable."""
    jobs = min(len(items), len(os.sched_getaffinity(0)))
    if jobs < 2:
        return list(watched(map(work, items), len(items)))
    with ProcessPoolExecutor(jobs) as pool:
        return list(watched(pool.map(work, items), len(items)))
