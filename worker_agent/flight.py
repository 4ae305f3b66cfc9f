"""Keeps the latest events of a process in memory, and writes them as a Chrome trace when something fails (a flight
recorder).

Buckets of steps, operations, trees that wait and packets that were sent again are kept as events of the trace's format,
the latest MOST_EVENTS of them. A failure writes them to a file; with $INART_TRACE=DIR so does the process's end, into
that folder. Chrome (chrome://tracing) and Perfetto show such a file. Times are microseconds since 1970, so files of
several machines whose clocks agree can be put together: jq -s add DIR/*.json > step.json
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from controlplane.common.rpc import inart_pb2 as pb
from worker_agent.forked import abandon_when_forked
from worker_agent.work import Work

FOLDER_VARIABLE = "INART_TRACE"
MOST_EVENTS = 20_000
MOST_FILES = 20
"""Most files in the default folder; the oldest are deleted."""
PAUSE_SECONDS = 10.0
"""Least seconds between two files of one process: one failure is often followed by others."""
WAITS_SECONDS = 0.3
"""A tree whose oldest chunk stays the same for so long waits."""
Event = dict[str, Any]


class FlightRecorder:
    """Keeps the latest events of a process and writes them as a trace.

    It is thread-safe. Lanes ("steps", "operations", "tree 3") are threads of the trace, and the node is its process.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._offset = time.time() - time.monotonic()
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[int, float]] = {}
        self._lacking: dict[int, str] = {}
        self._resent = 0.0
        self._dumped = -math.inf
        self.node = ""
        abandon_when_forked(self)

    def abandon(self) -> None:
        """Forget everything in a forked process: the parent's events are the parent's to write."""
        self.__init__()  # type: ignore[misc]

    def name_after_rank(self, rank: int) -> None:
        """Name the trace's process after its rank, in a trainer whose agent is another process and which therefore has
        no node.
        """
        self.node = self.node or f"rank {rank}"

    def span(self, lane: str, name: str, began: float, ended: float, **about: object) -> None:
        """Keep an event that lasted from `began` to `ended` (time.monotonic)."""
        self._keep("X", lane, name, began, about, dur=max(0.0, round(1e6 * (ended - began), 1)))

    def moment(self, lane: str, name: str, **about: object) -> None:
        """Keep an event that happens now."""
        self._keep("i", lane, name, time.monotonic(), about, s="p")

    def operation(self, work: Work, name: str, began: float, epoch: int) -> None:
        """Keep an operation that has ended, and within it the time in the network, from its first packet to its last
        answer.
        """
        ended, error = time.monotonic(), work.exception()
        about: dict[str, object] = {"bytes": work.nbytes, "epoch": epoch}
        self.span("operations", name, began, ended, **about, **({"error": str(error)} if error else {}))
        if began < work.first_send <= work.last_answer <= ended:
            self.span("in the network", name, work.first_send, work.last_answer, **about)

    def trees(self, open_since: Mapping[int, tuple[int, float]], now: float) -> None:
        """Look at the trees, and keep the waiting times that have ended since the last look.

        `open_since` maps each tree to its oldest chunk without an answer and since when it has been the oldest.
        """
        with self._lock:
            before, self._waiting = self._waiting, dict(open_since)
            lacking = dict(self._lacking)
        for tree, (chunk, since) in before.items():
            if open_since.get(tree, (None, 0.0))[0] != chunk and now - since >= WAITS_SECONDS:
                self._waited(tree, chunk, since, now, lacking)

    @property
    def waits(self) -> bool:
        """Whether some tree waited when the trees were last looked at."""
        return bool(self._waiting)

    def counted(self, statistics: Mapping[str, float], trees: Iterable[pb.TreeReport]) -> None:
        """Take the numbers that are reported to the controller: packets that were sent again, and the workers that
        roots here wait for.
        """
        resent = statistics.get("resent", 0.0)
        with self._lock:
            more, self._resent = max(0.0, resent - self._resent), resent
            self._lacking = {tree.tree: ", ".join(tree.missing) for tree in trees if tree.missing}
        self._keep("C", "packets", "sent again", time.monotonic(), {"packets": more})

    def dump(self, why: str) -> Path | None:
        """Write the events to a file and return its path; None where the last file is too recent, there are no events,
        or the file cannot be written. This raises no exception.
        """
        now = time.monotonic()
        with self._lock:
            if now - self._dumped < PAUSE_SECONDS or not self._events:
                return None
            self._dumped = now
            waiting, lacking = dict(self._waiting), dict(self._lacking)
        for tree, (chunk, since) in waiting.items():
            self._waited(tree, chunk, since, now, lacking)
        self.moment("operations", f"written: {why}")
        return self._write(f"-{time.time():.0f}")

    def at_end(self) -> None:
        """Write all events where $INART_TRACE asks for it, over the file of an earlier call."""
        if os.environ.get(FOLDER_VARIABLE) and self._events:
            self._write("")

    def _waited(self, tree: int, chunk: int, since: float, now: float, lacking: Mapping[int, str]) -> None:
        about = {"chunk": chunk} | ({"root lacks": lacking[tree]} if tree in lacking else {})
        self.span(f"tree {tree}", f"waits for chunk {chunk}", since, now, **about)

    def _keep(self, phase: str, lane: str, name: str, at: float, about: Mapping[str, object], **more: object) -> None:
        when = round(1e6 * (at + self._offset), 1)
        self._events.append({"ph": phase, "name": name, "ts": when, "tid": lane, "args": dict(about), **more})

    def _write(self, mark: str) -> Path | None:
        given = os.environ.get(FOLDER_VARIABLE, "")
        folder = Path(given) if given else default_folder()
        path = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '-', self.node or 'process')}-{os.getpid()}{mark}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_text(json.dumps(self.events()))
            if not given:
                for old in sorted(folder.glob("*.json"), key=lambda one: one.stat().st_mtime)[:-MOST_FILES]:
                    old.unlink(missing_ok=True)
        except OSError:
            return None
        return path

    def events(self) -> list[Event]:
        """Return the events in the trace's format, in which lanes and processes are numbers that have names."""
        kept = list(self._events)
        pid = os.getpid()
        lanes = {lane: number for number, lane in enumerate(dict.fromkeys(one["tid"] for one in kept))}
        name = self.node or f"process {pid}"
        named: list[Event] = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}]
        named += [
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": number, "args": {"name": lane}}
            for lane, number in lanes.items()
        ]
        return named + [one | {"pid": pid, "tid": lanes[one["tid"]]} for one in kept]


def default_folder() -> Path:
    """Return the folder for files where $INART_TRACE gives none."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "inart" / "flight"


flight = FlightRecorder()
"""The recorder of this process."""


atexit.register(flight.at_end)
