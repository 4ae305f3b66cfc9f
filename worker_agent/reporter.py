"""Reports an agent's statistics to the controller: from time to time, and at once when a tree makes no progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from controlplane.common.rpc import inart_pb2 as pb
from worker_agent.errors import AgentError
from worker_agent.flight import flight

REPORT_SECONDS = 1.0
LOOK_SECONDS = 0.15
STUCK_SECONDS = 0.3
"""Seconds without progress after which a tree is reported at once, because something may have failed."""

Statistics = tuple[Mapping[str, float], Sequence[pb.TreeReport]]
"""Statistics of an agent, and of each of its trees, as the controller's status has them."""


def scalars(stats: Any) -> dict[str, float]:
    """Return the numbers among a dataclass's fields, without zeros."""
    values = {field.name: getattr(stats, field.name) for field in fields(stats)}
    return {name: value for name, value in values.items() if isinstance(value, int | float) and value}


def totals(trees: Sequence[Any]) -> dict[str, float]:
    """Return the sum of each counter over an agent's trees, whose class names other fields in UNREPORTED; no zeros."""
    names = [field.name for field in fields(trees[0]) if field.name not in trees[0].UNREPORTED] if trees else []
    sums = {name: float(sum(getattr(tree, name) for tree in trees)) for name in names}
    return {name: value for name, value in sums.items() if value}


class Reporter:
    """A thread that looks at the trees several times a second, from `start` to `close`.

    Args:
        running: returns whether there is anything to report now.
        open_chunks: returns, for each tree with chunks in progress, the oldest of them; called at each look; may raise
            AgentError.
        statistics: returns the report's contents; may raise AgentError.
        send: takes the report.
    """

    def __init__(
        self,
        running: Callable[[], bool],
        open_chunks: Callable[[], Mapping[int, int]],
        statistics: Callable[[], Statistics],
        send: Callable[[Mapping[str, float], Sequence[pb.TreeReport]], object],
    ) -> None:
        self._running, self._open_chunks, self._statistics, self._send = running, open_chunks, statistics, send
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread; this may be called from that thread, too."""
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        open_since: dict[int, tuple[int, float]] = {}
        reported = time.monotonic()
        told = False
        while not self._closed.wait(LOOK_SECONDS):
            now = time.monotonic()
            if not self._running():
                open_since, told = {}, False
                continue
            try:
                before, open_since = open_since, {}
                for tree, chunk in self._open_chunks().items():
                    known, since = before.get(tree, (None, now))
                    open_since[tree] = chunk, since if known == chunk else now
                flight.trees(open_since, now)
                stuck = any(now - since >= STUCK_SECONDS for _, since in open_since.values())
                if now - reported >= REPORT_SECONDS or (stuck and not told):
                    self._report(open_since, now)
                    reported = now
                told = stuck
            except AgentError:  # closed or failed meanwhile
                continue

    def _report(self, open_since: Mapping[int, tuple[int, float]], now: float) -> None:
        statistics, trees = self._statistics()
        flight.counted(statistics, trees)
        for tree in trees:
            chunk, since = open_since.get(tree.tree, (None, now))
            if tree.HasField("oldest_chunk"):
                waiting = now - since if chunk == tree.oldest_chunk else 0.0
                tree.waiting_seconds = max(tree.waiting_seconds, waiting)
        self._send(statistics, trees)
