"""Waiting for what another thread or process brings about."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_SECONDS = 100.0
"""Far more than anything takes, also on a busy machine: a test that passes never waits so long."""


def wait_until(
    condition: Callable[[], object], what: str | Callable[[], str] = "", seconds: float = PATIENCE_SECONDS
) -> None:
    """Poll a condition until it holds; fail after `seconds`, and say what was waited for (a function where that is only
    known then)."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.005)
