"""Connecting to a switch that may still be starting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from controlplane.targets.base import NotPrimary, TargetError

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
SessionT = TypeVar("SessionT")


def connect_within(timeout: float, attempt: Callable[[float], SessionT]) -> SessionT:
    """What `attempt(seconds left)` returns, tried again until `timeout` seconds have passed.

    Raises the last TargetError; NotPrimary at once, since waiting does not change it.
    """
    deadline = time.monotonic() + timeout
    pause = FIRST_PAUSE_S
    while True:
        try:
            return attempt(deadline - time.monotonic())
        except NotPrimary:
            raise
        except TargetError as error:
            if time.monotonic() + pause > deadline:
                raise TargetError(f"{error}; gave up after {timeout:g} s") from None
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
