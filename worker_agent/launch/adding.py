"""Adds a job for a launcher, also while another of several controllers takes over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, NoAnswer, ask, fetch_status

ADD_SECONDS = 300.0
ANSWER_SECONDS = 30.0
"""Seconds for which a launcher waits for a controller that does not answer; longer than another controller takes to
take over.
"""
ANSWER_VARIABLE = "INART_ANSWER_SECONDS"
"""Environment variable with that time, where controllers take over later than usual (`takeover_after`, a busy
machine)."""
PAUSE_SECONDS = 1.0
Value = TypeVar("Value")


def answer_seconds() -> float:
    """Return ANSWER_SECONDS, or the environment's value. Raise ValueError where that is no number."""
    given = os.environ.get(ANSWER_VARIABLE, "")
    try:
        return float(given) if given else ANSWER_SECONDS
    except ValueError:
        raise ValueError(f"{ANSWER_VARIABLE} is a number of seconds, got {given!r}") from None


def patiently(act: Callable[[], Value], seconds: float | None = None) -> Value:
    """Call `act` until it succeeds, for at most `seconds` (None: `answer_seconds`), and return its result.

    Raise ControllerError, the last one, where it has not succeeded by then, and ValueError for a bad environment
    variable.
    """
    until = time.monotonic() + (answer_seconds() if seconds is None else seconds)
    while True:
        try:
            return act()
        except ControllerError:
            if time.monotonic() > until:
                raise
        time.sleep(PAUSE_SECONDS)


def add(controller: str, name: str, request: pb.AddJobRequest) -> pb.AddJobReply:
    """Add a job; where the controller that was asked is gone before it answers, ask the next one.

    Before asking again, remove what the first controller may have added: the next one may know that job from the store.
    Raise ControllerError where the job is refused, or no controller answers in time.
    """
    until = time.monotonic() + ADD_SECONDS
    reply: pb.AddJobReply
    while True:
        try:
            reply = ask(controller, "add_job", request, timeout=ADD_SECONDS)
            return reply
        except NoAnswer:
            if time.monotonic() > until:
                raise
        patiently(lambda: take_off(controller, name))


def take_off(controller: str, name: str) -> None:
    """Remove the job of this name, if there is one. Raise ControllerError where the controller refuses or does not
    answer.
    """
    if any(job.name == name for job in fetch_status(controller).jobs):
        ask(controller, "remove_job", pb.RemoveJobRequest(name=name), timeout=ADD_SECONDS)
