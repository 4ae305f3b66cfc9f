"""The journal of a controller: who did what, when, and what changed. It is kept over restarts and can be replayed.

It has orders of operators (also refused ones), changes of entries on the switches, what was disabled and enabled, the
lines of the log, and all events of the core. The entries are in memory, in two segments, each of which begins with the
states of all jobs and of the network. A thread writes them to files, so that no caller waits for a disk.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from controlplane.common.log_lines import SILENT, Log, job_of, level_of, text_of, with_handlers
from controlplane.service.core.journal import HIDDEN, STATE, Entry, ordered_by
from controlplane.service.journal_files import SEGMENT_BYTES, JournalFiles, as_line

LINE = "line"
SEGMENT_ENTRIES = 10_000
"""Maximum number of entries in a segment, besides the states at its head."""
SEGMENTS_IN_MEMORY = 2
BATCH = 500
"""Maximum number of entries that are written together."""
RETRY_SECONDS = 5.0
CLOSE_SECONDS = 5.0
FLUSH_SECONDS = 0.1
"""Seconds for which a process that ends at once waits for the last lines to be written."""
MAX_SHOWN = 500
MAX_PAGE_BYTES = 1_000_000
"""Maximum size of one page, since a gRPC message may have 4 MiB."""
MAX_TEXT = 2000
MAX_DATA = 4000
"""Maximum number of characters of an entry's data on a page, as JSON; longer data, such as the plan of an order, is
left out there."""


@dataclass(frozen=True)
class Page:
    """Some entries. `next` is the number to ask after next, and `more` tells whether there are more now."""

    entries: tuple[Entry, ...]
    next: int
    more: bool


@dataclass
class Segment:
    """A segment of the journal.

    Attributes:
        file: number that names its file.
        entries: its entries; the first `head` are states.
        written: number of entries that the file has.
        head_bytes: size of the file with no more entries than the head.
        full: whether the file is so large that the next entry begins another segment.
    """

    file: int
    entries: list[Entry] = field(default_factory=list)
    head: int = 0
    written: int = 0
    head_bytes: int = 0
    full: bool = False

    def batch(self) -> list[Entry]:
        """Return the entries to write next; first the head alone."""
        end = self.head if self.written < self.head else self.written + BATCH
        return self.entries[self.written : end]


class Journal:
    """The journal of one network. Thread-safe.

    Args:
        folder: folder for the files, which only this user can read; None: the journal is in memory only.
        log: gets a line when the files cannot be written, or are damaged.

    The attribute `line_count` is the number of all lines of the log so far.
    """

    def __init__(self, folder: Path | None = None, log: Log = SILENT) -> None:
        self._log = log
        self._news = threading.Condition()
        self._states: dict[CoreJournal, object] = {}
        self._files = JournalFiles(folder, log) if folder is not None else None
        self._number, newest = self._files.last() if self._files is not None else (0, 0)
        self._segments = deque([Segment(newest or self._number + 1)], SEGMENTS_IN_MEMORY)
        self._closing = self._failed = False
        self.line_count = 0
        self._writer: threading.Thread | None = None
        if self._files is not None:
            self._writer = threading.Thread(target=self._write, args=[self._files], name="journal", daemon=True)
            self._writer.start()

    # -- what happens -----------------------------------------------------------------------------------------------

    def add(
        self,
        kind: str,
        text: str,
        *,
        by: str | None = None,
        job: str = "",
        data: Mapping[str, Any] | None = None,
        level: str = "info",
        at: float | None = None,
    ) -> None:
        """Record something that has happened. `by` names its author; by default, the author of the order that is being
        carried out. `at` is the time in seconds since 1970; by default now."""
        words = text[:MAX_TEXT].encode(errors="replace").decode()
        author = ordered_by.get() if by is None else by
        when = round(time.time() if at is None else at, 3)
        entry = Entry(0, when, author, job, kind, words, dict(data or {}), level)
        with self._news:
            self._put(entry)
            self.line_count += kind == LINE

    def disabled(self, event: str, off: Mapping[str, str], used: Sequence[str]) -> None:
        """Record what is disabled from now on, and why, and what is used again."""
        words = [f"{name} is disabled ({why})" for name, why in off.items()]
        words += [f"{name} is used again" for name in used]
        whys = {name: str(why) for name, why in off.items()}
        level = "warning" if off and event != "Ordered" else "info"
        self.add("parts", "; ".join(words), data={"event": event, "off": whys, "used": list(used)}, level=level)

    def changed(self, changes: Mapping[str, int]) -> None:
        """Record how many entries were changed on each switch."""
        self.add("entries", f"{sum(changes.values())} changes on {len(changes)} switches", data=changes)

    def decided(self, source: CoreJournal, before: object, event: Entry, after: object) -> None:
        """Record an event of the core, and the states before and after it."""
        with self._news:
            if source.over:
                return
            if source not in self._states:
                self._put(_state(source, before))
            self._put(event)
            self._states[source] = after

    def ended(self, source: CoreJournal) -> None:
        """Record no further events of a job, and begin no further segment with its state."""
        with self._news:
            source.over = True
            self._states.pop(source, None)

    def _put(self, entry: Entry) -> None:
        """Add an entry. The lock is held."""
        segment = self._segments[-1]
        if segment.full or len(segment.entries) - segment.head >= SEGMENT_ENTRIES:
            states = [_state(source, state) for source, state in self._states.items()]
            segment = Segment(self._number + 1, states, len(states))
            self._segments.append(segment)
        if entry.kind not in HIDDEN:
            self._number += 1
            entry = replace(entry, number=self._number)
        segment.entries.append(entry)
        self._news.notify_all()

    # -- what has happened ------------------------------------------------------------------------------------------

    def lines(self, most: int = SEGMENT_ENTRIES) -> list[Entry]:
        """Return the latest lines of the log that are in memory, in order."""
        with self._news:
            entries = (entry for segment in reversed(self._segments) for entry in reversed(segment.entries))
            found = list(islice((entry for entry in entries if entry.kind == LINE), most))
        return found[::-1]

    def read(self, after: int = 0, since: float = 0.0, job: str = "", most: int = MAX_SHOWN) -> Page:
        """Return one page of the entries shown after a number and since a time, of one job or of all."""
        with self._news:
            kept = [entry for segment in self._segments for entry in segment.entries if entry.number]
            last = self._number
        begin = kept[0].number if kept else last + 1
        stored: Iterator[Entry] = iter(())
        if self._files is not None and after + 1 < begin:
            stored = self._files.read(after, begin)
        found: list[Entry] = []
        limit = min(most or MAX_SHOWN, MAX_SHOWN)
        size = 0
        for entry in chain(stored, kept):
            if entry.number <= after or entry.time < since or (job and entry.job != job):
                continue
            data = len(json.dumps(entry.data))
            if data > MAX_DATA:
                entry, data = replace(entry, data={"left_out": "it is too long"}), 0
            size += len(entry.text) + data
            if found and (len(found) == limit or size > MAX_PAGE_BYTES):
                return Page(tuple(found), found[-1].number, True)
            found.append(entry)
        return Page(tuple(found), max(last, found[-1].number if found else 0), False)

    def records(self) -> list[dict[str, Any]]:
        """Return the entries in memory, as the files have them."""
        with self._news:
            entries = [entry for segment in self._segments for entry in segment.entries]
        return [json.loads(as_line(entry)) for entry in entries]

    # -- files ------------------------------------------------------------------------------------------------------

    def flush(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait until all entries are in the files; return whether they are, and False at once if writing fails."""
        with self._news:
            if self._writer is None or not self._writer.is_alive():
                return False
            self._news.wait_for(lambda: self._failed or self._unwritten() is None, seconds)
            return self._unwritten() is None

    def close(self) -> None:
        """Write what is left. Later entries are in memory only."""
        with self._news:
            self._closing = True
            self._news.notify_all()
        if self._writer is not None:
            self._writer.join(CLOSE_SECONDS)

    def _unwritten(self) -> Segment | None:
        return next((segment for segment in self._segments if segment.written < len(segment.entries)), None)

    def _write(self, files: JournalFiles) -> None:
        """Write entries until the journal is closed. While that fails, the entries stay in memory, as many as there
        is room for, and are written later."""
        while True:
            with self._news:
                self._news.wait_for(lambda: self._closing or self._unwritten() is not None)
                segment = self._unwritten()
                if segment is None:
                    return
                batch = segment.batch()
            try:
                size = files.append(segment.file, batch)
            except OSError as error:
                self._trouble(f"the journal cannot be written to {files.folder}: {error.strerror or error}")
                with self._news:
                    if self._news.wait_for(lambda: self._closing, RETRY_SECONDS):
                        return
                continue
            with self._news:
                segment.written += len(batch)
                if segment.written == segment.head:
                    segment.head_bytes = size
                segment.full = size - segment.head_bytes >= SEGMENT_BYTES
                again, self._failed = self._failed, False
                self._news.notify_all()
            if again:
                self._log.info(f"the journal is written to {files.folder} again")

    def _trouble(self, problem: str) -> None:
        with self._news:
            before, self._failed = self._failed, True
            self._news.notify_all()
        if not before:
            words = f"{problem}; the latest entries are in memory, and writing is tried again every {RETRY_SECONDS:g} s"
            self._log.error(words)


class JournalHandler(logging.Handler):
    """Records the lines of a log in a journal."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        level, job = level_of(record), job_of(record)
        self._journal.add(LINE, text_of(record), job=job, level=level, at=record.created)

    def flush(self) -> None:
        self._journal.flush(FLUSH_SECONDS)


def logger_of(journal: Journal) -> logging.Logger:
    """Return a logger whose lines are only recorded in a journal."""
    return with_handlers(logging.Logger("journal"), JournalHandler(journal))


class CoreJournal:
    """The events of the core about one job, or about the network (job ""), in a journal."""

    def __init__(self, journal: Journal, job: str = "") -> None:
        self.journal, self.job, self.by = journal, job, ordered_by.get()
        self.over = False

    def add(self, before: object, event: Entry, after: object) -> None:
        """Record an event, and the states before and after it."""
        self.journal.decided(self, before, event, after)

    def end(self) -> None:
        """Record nothing more: the job has ended."""
        self.journal.ended(self)

    def records(self) -> list[dict[str, Any]]:
        """Return the events in memory, as the files have them."""
        mine = [one for one in self.journal.records() if one["job"] == self.job]
        return [one for one in mine if "now" in one or one["kind"] == STATE]


def _state(source: CoreJournal, state: object) -> Entry:
    return Entry(0, round(time.time(), 3), source.by, source.job, STATE, data=state)
