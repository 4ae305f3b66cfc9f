"""The program's log: loggers of the standard library whose lines may name a job (`extra={"job": name}`), and how lines
are printed: on a terminal, for journald, and as JSON."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]
SILENT = logging.Logger("silent", logging.CRITICAL + 1)
"""A log that drops all lines."""
NAME = "inart"
"""Name of the logger of all programs and libraries of this repository."""
LEVELS = ("info", "warning", "error")
PRIORITIES = {logging.ERROR: 3, logging.WARNING: 4}
"""Priorities of syslog and journald by level; all others are information."""
INFORMATION = 6
OF_A_JOB = re.compile(r"job (\S+?):? ")
TIME = "%Y-%m-%d %H:%M:%S"


def of_job(log: Log, job: str) -> Log:
    """Return a log whose lines are about a job, even if their text does not name it."""
    return logging.LoggerAdapter(log, {"job": job})  # type: ignore[arg-type]  # an adapter of an adapter works, too


def calling(function: Callable[[str], object]) -> logging.Logger:
    """Return a logger that passes the text of each line to a function."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            function(record.getMessage())

    return with_handlers(logging.Logger("calling"), Handler())


def with_handlers(log: logging.Logger, *handlers: logging.Handler) -> logging.Logger:
    """Give a logger these handlers instead of its present ones, and return it."""
    log.handlers = list(handlers)
    log.setLevel(logging.INFO)
    return log


def job_of(record: logging.LogRecord) -> str:
    """Return the name of the job that a line is about; "" if it is about none."""
    named: str = getattr(record, "job", "")
    found = OF_A_JOB.match(record.getMessage())
    return named or (found[1] if found else "")


def text_of(record: logging.LogRecord) -> str:
    """Return the text of a line, which begins with its job if it is about one."""
    text, job = record.getMessage(), job_of(record)
    return text if not job or OF_A_JOB.match(text) else f"job {job}: {text}"


def level_of(record: logging.LogRecord) -> str:
    """Return the level of a line, one of LEVELS."""
    return "error" if record.levelno >= logging.ERROR else "warning" if record.levelno >= logging.WARNING else "info"


def is_journal(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether journald reads a stream (systemd sets $JOURNAL_STREAM to its device:inode)."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class Lines(logging.Formatter):
    """Formats lines with the date and time; for journald, which records times, with their priority as "<4>" instead.

    Then follow the seconds since the program's start and the level, or, for a program that prints little, such as an
    agent, only the program's name ("": none).
    """

    def __init__(self, *, journal: bool = False, program: str | None = None) -> None:
        super().__init__()
        self._journal, self._program = journal, program

    def format(self, record: logging.LogRecord) -> str:
        text = f"{self._program}: {text_of(record)}" if self._program else text_of(record)
        if self._journal:
            return f"<{PRIORITIES.get(record.levelno, INFORMATION)}>{text}"
        since = f"[{record.relativeCreated / 1e3:7.2f}] {level_of(record):<7} " if self._program is None else ""
        return f"{self.formatTime(record, TIME)} {since}{text}"


class Objects(logging.Formatter):
    """Formats each line as a JSON object, with the time in seconds since 1970."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {"time": round(record.created, 3), "level": level_of(record), "job": job_of(record)}
        return json.dumps(fields | {"text": record.getMessage()})


def printing(stream: TextIO, form: logging.Formatter) -> logging.Logger:
    """Have the program's logger print on a stream, and return it."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(form)
    return with_handlers(logging.getLogger(NAME), handler)


def to_stderr(*, as_json: bool = False) -> logging.Logger:
    """Have the program's logger print on standard error, as JSON objects if that is set; return it."""
    return printing(sys.stderr, Objects() if as_json else Lines(journal=is_journal(sys.stderr)))


def dated(stream: TextIO, program: str = "") -> Callable[[str], None]:
    """Have the logger of a program that prints little print on a stream; return a function that logs a line."""
    return printing(stream, Lines(journal=is_journal(stream), program=program)).info
