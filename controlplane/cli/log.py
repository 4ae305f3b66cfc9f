"""The command `log`: prints the controller's journal: who did what on the network, when, and what changed."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator
from datetime import datetime

from controlplane.common.command_line import value
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, ask
from controlplane.common.rpc.tls import tls_from

LOOK_SECONDS = 1.0
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
MOST_DATA = 160
LEVELS = ("info", "warning", "error")


def parse_time(text: str) -> float:
    """Return the time, in seconds since 1970, of "2h" (ago) or "2026-11-23 12:00". Raise ValueError for anything
    else."""
    if span := SPAN.fullmatch(text.strip()):
        return time.time() - float(span[1]) * UNITS[span[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        raise ValueError(f"a time is like 90s, 30m, 2h, 3d (ago) or 2026-11-23T12:00, got {text!r}") from None


def add_arguments(log: argparse.ArgumentParser) -> None:
    """Add the command's options, other than those that name the controller."""
    log.add_argument(
        "--since", type=value(parse_time), default=0.0, metavar="TIME",
        help="30m, 2h, 3d (ago), or 2026-11-23T12:00 (default: all that is kept)",
    )  # fmt: skip
    log.add_argument("--job", default="", metavar="NAME", help="only records about this job")
    log.add_argument("--level", choices=LEVELS, default="info", help="least level of the records (%(default)s)")
    log.add_argument("--follow", action="store_true", help="go on with new records, until Ctrl-C")


def records(arguments: argparse.Namespace) -> Iterator[pb.LogRecord]:
    """Yield the records, page after page; with --follow also new ones, as they come. Raise ControllerError where the
    controller does not answer."""
    after, heard = 0, False
    while True:
        request = pb.LogRequest(since=arguments.since, job=arguments.job, after=after)
        try:
            reply = ask(arguments.controller, "log", request, tls_from(arguments), arguments.timeout)
        except ControllerError:
            if not (arguments.follow and heard):
                raise
            time.sleep(LOOK_SECONDS)  # If the controller restarts, it still has the records from here on.
            continue
        heard = True
        least = LEVELS.index(arguments.level)
        yield from (one for one in reply.records if LEVELS.index(one.level or "info") >= least)
        after = reply.next
        if not reply.more:
            if not arguments.follow:
                return
            time.sleep(LOOK_SECONDS)


def as_line(record: pb.LogRecord) -> str:
    """Return a record as a person reads it."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.time))
    job = f"  job {record.job}" if record.job and record.kind != "line" else ""
    data = record.data if record.data not in ("", "{}") else ""
    short = data if len(data) <= MOST_DATA else f"{data[:MOST_DATA]}..."
    what = "" if record.kind == "line" else f"{record.kind}  "
    level = f"  {record.level.upper()}" if record.level not in ("", "info") else ""
    return f"{when}{level}  {record.by}{job}  {what}{record.text}{' ' if record.text and short else ''}{short}".rstrip()


def as_json(record: pb.LogRecord) -> str:
    """Return a record as one JSON object."""
    fields = ("number", "time", "level", "by", "job", "kind", "text")
    return json.dumps({name: getattr(record, name) for name in fields} | {"data": json.loads(record.data or "{}")})


def run_log(arguments: argparse.Namespace) -> None:
    """Run the command. Raise ControllerError where the controller does not answer."""
    for record in records(arguments):
        print(as_json(record) if arguments.json else as_line(record), flush=True)
