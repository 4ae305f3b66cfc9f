"""Lines of a log with a severity and the job that they are about, and how they are printed.

A line is a `str`, so every function that takes lines (`log: Callable[[str], None]`) takes these, too; a plain `str` is
information.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TextIO

Log = Callable[[str], None]
OF_A_JOB = re.compile(r"job (\S+?):? ")
TIME = "%Y-%m-%d %H:%M:%S"


class Level(IntEnum):
    """Severity of a line; the numbers are syslog's and journald's."""

    ERROR = 3
    WARNING = 4
    INFO = 6

    def __str__(self) -> str:
        return self.name.lower()


class Line(str):
    """A line with a severity, and the job that it is about ("" where it is about none, or begins with it)."""

    level: Level
    job: str

    def __new__(cls, text: str, level: Level = Level.INFO, job: str = "") -> Line:
        made = super().__new__(cls, text)
        made.level, made.job = level, job
        return made


def warning(text: str) -> Line:
    """Return a line about a matter in which an operator may have to act."""
    return Line(text, Level.WARNING, job_of(text))


def failure(text: str) -> Line:
    """Return a line about something that does not work until somebody acts."""
    return Line(text, Level.ERROR, job_of(text))


def level_of(line: str) -> Level:
    """Return the severity of a line."""
    return line.level if isinstance(line, Line) else Level.INFO


def job_of(line: str) -> str:
    """Return the name of the job that a line is about; "" where it is about none."""
    if isinstance(line, Line) and line.job:
        return line.job
    found = OF_A_JOB.match(line)
    return found[1] if found else ""


def of_job(log: Log, job: str) -> Log:
    """Return a log whose lines are about a job, whether their text names it or not."""
    return lambda line: log(Line(line, level_of(line), job))


def with_job(line: str) -> str:
    """Return a line that begins with its job, if it is about one."""
    job = job_of(line)
    return line if not job or OF_A_JOB.match(line) else f"job {job}: {line}"


def is_journal(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether journald reads what is written to a stream (systemd sets $JOURNAL_STREAM to its device:inode)."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def printed(line: str, started: float, *, journal: bool) -> str:
    """Return a line as it is printed.

    On a terminal or in a file it begins with the date and time, the seconds since `started` (`time.monotonic`) and its
    severity. For journald, which records times, it begins with its severity as "<4>".
    """
    level, text = level_of(line), with_job(line)
    if journal:
        return f"<{int(level)}>{text}"
    return f"{time.strftime(TIME)} [{time.monotonic() - started:7.2f}] {level!s:<7} {text}"


def as_object(line: str) -> str:
    """Return a line as one JSON object, with the time in seconds since 1970."""
    fields = {"time": round(time.time(), 3), "level": str(level_of(line)), "job": job_of(line), "text": str(line)}
    return json.dumps(fields)


def to_stderr(*, as_json: bool = False) -> Log:
    """Return a log that prints on standard error, each line as an object of JSON where `as_json` is set."""
    started, journal = time.monotonic(), is_journal(sys.stderr)

    def log(line: str) -> None:
        words = as_object(line) if as_json else printed(line, started, journal=journal)
        print(words, file=sys.stderr, flush=True)

    return log


def dated(stream: TextIO, program: str = "") -> Log:
    """Return a log for a program that prints little, such as an agent: each line has the date and time (but not for
    journald, which records times), then the program's name where one is given."""
    journal = is_journal(stream)

    def log(line: str) -> None:
        words = f"{program}: {line}" if program else str(line)
        print(words if journal else f"{time.strftime(TIME)} {words}", file=stream, flush=True)

    return log
