"""Files of a journal: JSON lines, one file per segment, of a bounded total size.

A file's name is the number of the first entry in it that `inart log` shows. A journal is a record of the past, not
state: a damaged line or an unreadable file is reported and skipped, and nothing depends on it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from controlplane.common.inputs import parse_json
from controlplane.common.log_lines import LEVELS, Log
from controlplane.service.core.journal import Entry, to_json

SEGMENT_BYTES = 8_000_000
"""Size from which a segment is followed by the next one; the states at its head are not counted."""
MAX_BYTES = 40_000_000
"""Maximum size of all files. The two newest are kept in any case."""
NAME = re.compile(r"(\d{12})\.jsonl")
NUMBER = re.compile(rb'\{"number": (\d+),')
TYPES = {"number": int, "time": int | float, "data": dict, "now": int | float | None} | dict.fromkeys(
    ("by", "job", "kind", "text", "level"), str
)
LAST_TIME = 1e11
"""Latest time of an entry, in seconds since 1970, that a calendar has."""


def as_line(entry: Entry) -> str:
    """Return an entry as a JSON object. Never raise: the thread that writes entries must not end."""
    fields = {name: value for name, value in vars(entry).items() if value is not None}
    return json.dumps(fields, default=_plain, skipkeys=True)


def _plain(value: Any) -> Any:
    return to_json(value) if is_dataclass(value) else str(value)


def parse(text: bytes) -> Entry:
    """Return the entry of a line. Raise ValueError if it is damaged."""
    data = parse_json(text)
    if not isinstance(data, dict):
        raise ValueError("not an object")
    try:
        entry = Entry(**data)
    except TypeError as error:
        raise ValueError(str(error)) from None
    for name, kind in TYPES.items():
        if not isinstance(getattr(entry, name), kind):
            raise ValueError(f"{name} is {getattr(entry, name)!r}")
    if entry.level not in LEVELS or not 0 <= entry.time < LAST_TIME:
        raise ValueError(f"level {entry.level!r} at {entry.time!r}")
    for words in (entry.by, entry.job, entry.kind, entry.text):
        words.encode()
    return entry


class JournalFiles:
    """The files of a journal in a folder. One thread appends; any thread may read."""

    def __init__(self, folder: Path, log: Log) -> None:
        self.folder, self._log = folder, log
        self._torn = False
        self._reported: set[Path] = set()

    def last(self) -> tuple[int, int]:
        """Return the number of the last entry shown, and the number that names the newest file (0: there is none)."""
        files = self._paths()
        if not files:
            return 0, 0
        first, path = files[-1]
        number = first - 1
        try:
            with path.open("rb") as file:
                for entry in self._entries(path, first, file, -1):
                    number = entry.number
                size = file.seek(0, os.SEEK_END)
                if size:
                    file.seek(size - 1)
                    self._torn = file.read() != b"\n"
        except OSError as error:
            self._report(path, f"cannot be read ({error.strerror or error})")
        return number, first

    def append(self, first: int, entries: Sequence[Entry]) -> int:
        """Append entries to the file that this number names, and return its size in bytes. Raise OSError if that fails;
        the file has none of them then, or a part at its end that the next call marks as damaged."""
        path = self._path(first)
        self.folder.mkdir(parents=True, exist_ok=True)
        begin = "\n" if self._torn else ""  # The machine stopped, or the disk was full, within the previous line.
        data = (begin + "".join(f"{as_line(entry)}\n" for entry in entries)).encode()
        with open(path, "ab", buffering=0, opener=partial(os.open, mode=0o600)) as file:
            size, rest = file.tell(), memoryview(data)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                self._torn = True
                with suppress(OSError):
                    file.truncate(size)
                    self._torn = bool(begin)
                raise
        self._torn = False
        if not size:
            self._prune()
        return size + len(data)

    def read(self, after: int, before: int) -> Iterator[Entry]:
        """Yield the entries shown with numbers between these two."""
        files = self._paths()
        begin = max((k for k, (first, _) in enumerate(files) if first <= after + 1), default=0)
        with ExitStack() as stack:
            opened: list[tuple[int, Path, BinaryIO]] = []
            for first, path in files[begin:]:  # all are opened now, since the oldest may be deleted meanwhile
                if first < before:
                    try:
                        opened.append((first, path, stack.enter_context(path.open("rb"))))
                    except OSError as error:
                        self._report(path, f"cannot be read ({error.strerror or error})")
            for first, path, file in opened:
                try:
                    for entry in self._entries(path, first, file, after):
                        if entry.number >= before:
                            return
                        yield entry
                except OSError as error:
                    self._report(path, f"cannot be read ({error.strerror or error})")

    def _entries(self, path: Path, first: int, lines: Iterable[bytes], after: int) -> Iterator[Entry]:
        """Yield the entries shown of a file after a number, and report the first damaged line; from -1 on, hidden
        entries are checked, too."""
        number = first - 1
        for count, text in enumerate(lines, 1):
            found = NUMBER.match(text)
            if (found is not None and int(found[1]) <= after) or not text.strip():
                continue
            try:
                entry = parse(text)
                if entry.number and not number < entry.number < first + count:
                    raise ValueError(f"number {entry.number} cannot be here")
            except ValueError as error:
                self._report(path, f"line {count} is damaged ({error})")
                continue
            if entry.number:
                number = entry.number
                if number > after:
                    yield entry

    def _report(self, path: Path, problem: str) -> None:
        if path not in self._reported:
            self._reported.add(path)
            self._log.warning(f"journal {path}: {problem}; `inart log` skips it, and all further damage in this file")

    def _path(self, first: int) -> Path:
        return self.folder / f"{first:012}.jsonl"

    def _paths(self) -> list[tuple[int, Path]]:
        """Return the numbers that name the files, and the files, the oldest first."""
        try:
            found = [(NAME.fullmatch(path.name), path) for path in self.folder.iterdir()]
        except OSError:
            return []
        return sorted((int(name[1]), path) for name, path in found if name is not None)

    def _prune(self) -> None:
        """Delete the oldest files while all together are too large."""
        files = [path for _, path in self._paths()]
        with suppress(OSError):
            sizes = {path: path.stat().st_size for path in files}
            for path in files[:-2]:
                if sum(sizes.values()) + SEGMENT_BYTES <= MAX_BYTES:
                    return
                path.unlink()
                del sizes[path]
