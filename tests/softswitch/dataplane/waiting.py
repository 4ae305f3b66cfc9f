"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll until ``condition`` holds; ``TimeoutError`` after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not so after {seconds} s")
        time.sleep(0.002)
