"""The commands `drain` and `undrain`, which take a switch, a link or a parameter server out of service, and put it
back.

They do what `replan --without` and `--with` do; `drain --wait` says when it is no longer used, or which job cannot move
away.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import STATUS_SECONDS, ControllerError, ask
from controlplane.common.rpc.tls import tls_from

LOOK_SECONDS = 0.3
LEAST_SECONDS = 1.0
"""Seconds for the look at what a request without an answer has done, where the time for its answer is over."""
WAIT_SECONDS = 60.0
"""Seconds for which `--wait` waits for migrations, as chunks under way on the running plan have to end first."""


class NotEmpty(ControllerError):
    """Error: what is to be drained is still in use; the message says by which job, and why that cannot move."""


def add_arguments(drain: argparse.ArgumentParser, undrain: argparse.ArgumentParser) -> None:
    """Add the options of both commands, other than those that name the controller."""
    for command in (drain, undrain):
        command.add_argument("parts", nargs="+", metavar="NODE", help="a switch, a link (V1-V2) or a parameter server")
    drain.add_argument(
        "--wait", nargs="?", type=float, const=WAIT_SECONDS, metavar="SECONDS",
        help="wait until no job uses it; after %(const)g seconds, print which cannot move, and end with 1",
    )  # fmt: skip


def run_drain(arguments: argparse.Namespace) -> None:
    """Run the command `drain`. Raise ControllerError where it fails, or NotEmpty with --wait."""
    names = ", ".join(arguments.parts)
    refused, until = "", time.monotonic() + arguments.timeout
    try:
        _order(arguments, pb.ReplanRequest(without=arguments.parts, soon=True))
    except ControllerError as error:
        refused = str(error)
    status = _status(arguments, until - time.monotonic())
    off = {entry.partition(" (")[0] for entry in status.without}
    if not off.issuperset(arguments.parts):
        raise ControllerError(refused or f"{names}: not disabled")
    deadline = time.monotonic() + (arguments.wait or 0.0)
    while status.uses and not any(use.fixed for use in status.uses) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        status = _status(arguments, arguments.timeout)
    lines = [f"job {use.job}: {use.how}: {use.part}" + (f": {use.fixed}" if use.fixed else "") for use in status.uses]
    if lines and arguments.wait is not None:
        why = f"\n{refused}" if refused else ""
        raise NotEmpty(
            "\n".join([f"{names} cannot be unplugged: still in use by", *lines])
            + f"{why}\nno new plan uses {names}; inart undrain {' '.join(arguments.parts)} takes that back"
        )
    is_are = "is" if len(arguments.parts) == 1 else "are"
    words = f"{names} {is_are} empty; safe to unplug"
    if lines:
        words = "\n".join([f"no new plan uses {names}; still in use by", *lines, "--wait says when it is empty"])
    result = {"parts": list(arguments.parts), "empty": not lines, "uses": lines}
    print(json.dumps(result) if arguments.json else words)


def run_undrain(arguments: argparse.Namespace) -> None:
    """Run the command `undrain`. Raise ControllerError where it fails."""
    refused, until = "", time.monotonic() + arguments.timeout
    try:
        _order(arguments, pb.ReplanRequest(restored=arguments.parts, soon=True))
    except ControllerError as error:
        refused = str(error)
        off = {entry.partition(" (")[0] for entry in _status(arguments, until - time.monotonic()).without}
        if "is not disabled" in refused or off.intersection(arguments.parts):
            raise
    names = ", ".join(arguments.parts)
    print(json.dumps({"parts": list(arguments.parts)}) if arguments.json else f"{names}: plans may use it again")
    if refused and "there is no job" not in refused:
        print(refused, file=sys.stderr)


def _order(arguments: argparse.Namespace, request: pb.ReplanRequest) -> None:
    ask(arguments.controller, "replan", request, tls_from(arguments), arguments.timeout)


def _status(arguments: argparse.Namespace, left: float) -> pb.StatusReply:
    """Return the controller's state, where `left` are the seconds that the user still waits."""
    parts: Sequence[str] = arguments.parts
    request = pb.StatusRequest(parts=parts)
    seconds = min(max(left, LEAST_SECONDS), STATUS_SECONDS)
    reply: pb.StatusReply = ask(arguments.controller, "status", request, tls_from(arguments), seconds)
    return reply
