"""The record of a network: who did what, when, and what changed. It is kept over restarts of the controller.

It has orders of operators, events of the jobs' agents, what was disabled or enabled, changes of entries on the
switches, and the lines of the log, each with its source. It is stored as one JSON object a line, in parts of bounded
size. The log itself, for people, is beside it.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from controlplane.common.access import Access
from controlplane.common.log_lines import Level, failure, job_of, level_of
from controlplane.common.whole_file import append_line
from controlplane.service.core.journal import Journal, Record, ordered_by, orders_of

PART_BYTES = 8_000_000
PARTS = 5
"""Most files of the record; the oldest is deleted."""
IN_MEMORY = 5000
MOST_RECORDS = 500
MOST_PAGE_BYTES = 1_000_000
"""Most bytes of one page, since a gRPC message may have 4 MiB."""
MOST_TEXT = 2000
MOST_DATA = 4000
"""Most characters of one record's data as JSON; longer data, such as the plan of an order, is left out."""
UNRECORDED = ("Prepared", "Drained")
"""Events of a job's agents that are in its journal only, since each agent brings one with every migration."""
NUMBER = re.compile(r'\{"number": (\d+),')
MOST_OF_A_FIELD = 200
"""Most characters of each field of an order in the record, since the plan or topology of one is long."""


@dataclass(frozen=True)
class Entry:
    """An entry of the record, about something that has happened. Entries have consecutive numbers; `time` is in seconds
    since 1970, and `level` one of `Level`'s names."""

    number: int
    time: float
    by: str
    job: str
    kind: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    level: str = "info"


@dataclass(frozen=True)
class Page:
    """Some entries. `next` is the number to ask after next, and `more` tells whether there are more now."""

    entries: tuple[Entry, ...]
    next: int
    more: bool


class Recorder:
    """The record of one network. Thread-safe.

    Args:
        folder: the folder for the files, which only this user can read. Without one, only the latest entries are kept,
            in memory.
        log: gets a line when the record cannot be written; that line is not recorded.
    """

    def __init__(self, folder: Path | None = None, log: Callable[[str], None] = lambda line: None) -> None:
        self._folder, self._log = folder, log
        self._lock = threading.Lock()
        self._latest: deque[Entry] = deque(maxlen=IN_MEMORY)
        self._failed, self._torn = False, True
        self._number = max((entry.number for entry in self._stored(-1)), default=0)

    def add(
        self,
        kind: str,
        text: str,
        *,
        by: str | None = None,
        job: str = "",
        data: Mapping[str, Any] | None = None,
        level: Level = Level.INFO,
    ) -> None:
        """Record something that has happened. `by` says who did it; without it, the entry names whose order is being
        carried out."""
        kept = dict(data or {})
        if len(json.dumps(kept)) > MOST_DATA:
            kept = {"left_out": "it is too long"}
        with self._lock:
            self._number += 1
            who = ordered_by.get() if by is None else by
            entry = Entry(self._number, round(time.time(), 3), who, job, kind, text[:MOST_TEXT], kept, str(level))
            self._latest.append(entry)
            if self._folder is not None:
                self._write(self._folder, entry)

    def line(self, text: str) -> None:
        """Record a line of the log."""
        self.add("line", text, job=job_of(text), level=level_of(text))

    def parts(self, event: str, off: Mapping[str, str], used: Sequence[str]) -> None:
        """Record what is disabled from now on, and why, and what is used again."""
        words = [f"{name} is disabled ({why})" for name, why in off.items()]
        words += [f"{name} is used again" for name in used]
        whys = {name: str(why) for name, why in off.items()}
        level = Level.WARNING if off and event != "Ordered" else Level.INFO
        self.add("parts", "; ".join(words), data={"event": event, "off": whys, "used": list(used)}, level=level)

    def entries(self, changes: Mapping[str, int]) -> None:
        """Record how many entries were changed on each switch."""
        self.add("entries", f"{sum(changes.values())} changes on {len(changes)} switches", data=changes)

    def hears(self, journal: Journal, job: str) -> Journal:
        """Record what happens to a job's agents, too, from now on. Return the journal."""

        def hear(event: Record) -> None:
            if event["kind"] not in UNRECORDED:
                data = {key: value for key, value in event.items() if key not in ("time", "now", "by", "kind")}
                self.add(event["kind"], "", by=event["by"], job=job, data=data)

        journal.heard = hear
        return journal

    def read(self, after: int = 0, since: float = 0.0, job: str = "", most: int = MOST_RECORDS) -> Page:
        """Return one page of the entries after a number and since a time, of one job or of all."""
        with self._lock:
            in_memory = self._folder is None or (self._latest and self._latest[0].number <= after + 1)
            latest = list(self._latest) if in_memory else []
            last = self._number
        found: list[Entry] = []
        limit = min(most or MOST_RECORDS, MOST_RECORDS)
        size = 0
        for entry in latest if in_memory else self._stored(after):
            if entry.number <= after or entry.time < since or (job and entry.job != job):
                continue
            size += len(entry.text) + len(str(entry.data))
            if found and (len(found) == limit or size > MOST_PAGE_BYTES):
                return Page(tuple(found), found[-1].number, True)
            found.append(entry)
        return Page(tuple(found), max(last, found[-1].number if found else 0), False)

    def _files(self) -> list[Path]:
        """Return the names that the files may have, the oldest first."""
        assert self._folder is not None, "the caller looks"
        return [self._folder / (f"log.{n}.jsonl" if n else "log.jsonl") for n in reversed(range(PARTS))]

    def _stored(self, after: int) -> Iterator[Entry]:
        """Yield the entries in the files after a number."""
        opened = []
        if self._folder is not None:
            for path in self._files():
                try:
                    opened.append(open(path))  # noqa: SIM115  # all of them, before one gets another name
                except OSError:
                    continue
        for file in opened:
            with file:
                yield from _entries(file, after)

    def _write(self, folder: Path, entry: Entry) -> None:
        try:
            # The previous line may have been cut off, when the machine stopped or the disk was full.
            path = folder / "log.jsonl"
            begin = "\n" if self._torn and path.exists() else ""
            self._torn = True
            if append_line(path, f"{begin}{json.dumps(asdict(entry))}") >= PART_BYTES:
                files = self._files()
                for older, newer in pairwise(files):
                    if newer.exists():
                        newer.replace(older)
            self._failed = self._torn = False
        except OSError as error:
            if not self._failed:
                self._log(failure(f"the record cannot be written to {folder}: {error.strerror or error}; what happens "
                                 "now is kept in memory only"))  # fmt: skip
            self._failed = True


def _entries(lines: Iterable[str], after: int) -> Iterator[Entry]:
    for line in lines:
        number = NUMBER.match(line)
        if number is None or int(number[1]) <= after:
            continue
        try:
            yield Entry(**json.loads(line))
        except (ValueError, TypeError):  # The machine stopped while this line was written.
            continue


@dataclass
class Order:
    """An operator's order. `job` is the name of the job that it is about, as soon as it is known; "" where it is about
    none."""

    job: str


@contextmanager
def ordered(
    recorder: Recorder, access: Access, what: str, request: Message, context: grpc.ServicerContext
) -> Iterator[Order]:
    """Name this caller, in the record and in the journals of jobs, as the one who gives the orders of the `with`
    block."""
    caller = access.caller(context)
    given = {name.name: value for name, value in request.ListFields()}
    words = f"{what} {' '.join(f'{name}={_plain(value)}' for name, value in given.items())}"
    began = time.monotonic()
    order = Order("" if what == "job add" else given.get("job" if what == "replan" else "name", ""))
    with orders_of(str(caller) if caller is not None else f"an operator at {context.peer()}"):
        try:
            yield order
        except Exception as error:
            took = {"seconds": round(time.monotonic() - began, 3)}
            recorder.add("order", f"{words}: refused: {error}", job=order.job, data=took, level=Level.WARNING)
            raise
        recorder.add("order", words, job=order.job, data={"seconds": round(time.monotonic() - began, 3)})


def _plain(value: object) -> str:
    """Return a field of a request in words."""
    text = str(value)
    if not isinstance(value, str) and isinstance(value, Sequence):  # the machines of a job are messages, with names
        text = ",".join(one if isinstance(one, str) else one.name for one in value)
    return text if len(text) <= MOST_OF_A_FIELD else f"{text[:MOST_OF_A_FIELD]}..."
