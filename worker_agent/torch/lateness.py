"""Waits for operations, with lines in the log that name the workers that are waited for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import torch

from worker_agent.torch.steps import Item

LATE_SECONDS = 10.0
"""Seconds after which the log names the workers that are waited for; it names them again after twice as long each time.
"""
LOOK_SECONDS = 0.1
"""Seconds between two looks of a rank, which waits for several operations, at whether another rank has failed."""

logger = logging.getLogger("inart")


class Lateness:
    """Waits for operations and logs when they are late.

    Args:
        late: returns the workers that are waited for, if anybody can tell.
    """

    def __init__(self, late: Callable[[], list[str]]) -> None:
        self._late = late
        self._next_at = 0.0

    def wait(self, item: Item, future: torch.futures.Future[torch.Tensor]) -> None:
        """Wait until the future of a bucket is done."""
        arrived = threading.Event()
        future.add_done_callback(lambda _: arrived.set())
        self.wait_for(item, arrived)

    def wait_for(self, item: Item, arrived: threading.Event) -> None:
        """Wait until a bucket has arrived or failed."""
        seconds = LATE_SECONDS
        while not arrived.wait(seconds):
            seconds = time.monotonic() - item.added
            self.say(item, seconds)

    def wait_for_all(self, items: list[Item], given_up: Callable[[], bool]) -> bool:
        """Wait until all operations have arrived, and return whether all succeeded.

        `given_up` is called from time to time, and ends the wait when it returns True, because another rank has failed,
        which the operations may wait for.
        """
        for item in items:
            seconds = LATE_SECONDS
            while not item.ended.wait(LOOK_SECONDS):
                if given_up():
                    return False
                if time.monotonic() - item.added > seconds:
                    self.say(item, time.monotonic() - item.added)
                    seconds *= 2
            if item.problem:
                return False
        return True

    def consider(self, item: Item) -> None:
        """Log that a bucket is late, if it is time to log that again."""
        if time.monotonic() > max(self._next_at, item.added + LATE_SECONDS):
            seconds = time.monotonic() - item.added
            self._next_at = time.monotonic() + seconds
            self.say(item, seconds)

    def say(self, item: Item, seconds: float) -> None:
        """Log that a bucket has been in progress for so many seconds."""
        late = ", ".join(self._late())
        bucket, step = item.step.items.index(item), item.step.number
        if late:
            verb = "has" if "," not in late else "have"
            logger.warning("%s %s not submitted bucket %d of step %d for %.0f s", late, verb, bucket, step, seconds)
        else:
            logger.warning("no sum of bucket %d of step %d for %.0f s, and no word who is late", bucket, step, seconds)
