"""Options of `job add` that reserve a job for a later time, and the rows of `job list` for reservations."""

from __future__ import annotations

import argparse

from controlplane.cli.log import parse_seconds, parse_time
from controlplane.common.command_line import value
from controlplane.common.log_lines import clock
from controlplane.common.rpc import inart_pb2 as pb

HEAD = ("reserved", "from", "until", "promised", "")


def add_arguments(add: argparse.ArgumentParser) -> None:
    """Add the options of `job add` for a later time."""
    for option, words in (
        ("--at", "reserve: add the job at this time (2h from now, or 2026-11-25T08:00)"),
        ("--until", "with --at: remove the job at this time (default: never)"),
    ):
        add.add_argument(option, type=value(parse_time), default=0.0, metavar="TIME", help=words)
    add.add_argument(
        "--notice", type=value(parse_seconds), default=0.0, metavar="SPAN",
        help="with --at: warn the jobs that give way so long before (10m)",
    )  # fmt: skip
    add.add_argument(
        "--preempt", action="store_true",
        help="with --at: remove jobs of a lower priority where it is not admitted beside them",
    )  # fmt: skip


def check(arguments: argparse.Namespace) -> None:
    """Check that no option lacks the one that it belongs to; raise ValueError otherwise."""
    if not arguments.at and (arguments.until or arguments.notice or arguments.preempt):
        raise ValueError("--until, --notice and --preempt belong to a reservation: give --at TIME (0s: now)")
    if arguments.at and arguments.plan:
        raise ValueError("a reservation is planned when its time comes: give --job, not --plan")
    if arguments.until and arguments.until <= arguments.at:
        raise ValueError("--until is after --at")


def request_times(request: pb.AddJobRequest, arguments: argparse.Namespace) -> pb.AddJobRequest:
    """Return the request with the times that the arguments give."""
    request.start, request.until = arguments.at, arguments.until
    request.notice_seconds, request.preempt = arguments.notice, arguments.preempt
    return request


def format_reserved(reply: pb.AddJobReply) -> str:
    """Return the text that `job add --at` prints."""
    servers = ", ".join(reply.parameter_servers)
    return "\n".join([
        reply.note,
        f"workers {', '.join(reply.workers)}; parameter servers {servers}",
        f"{reply.rate_mbps:.4g} Mbit/s per worker beside what runs and is reserved now, if nothing else comes",
    ])  # fmt: skip


def rows(reservations: list[pb.ReservationStatus]) -> list[tuple[str, ...]]:
    """Return the rows of a table of reservations."""
    return [
        (one.name, clock(one.start), clock(one.until) if one.until else "-", one.terms or "-",
         "runs" if one.running else one.problem)
        for one in reservations
    ]  # fmt: skip
