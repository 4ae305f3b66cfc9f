"""Waits for operations, with lines in the log that name the workers that are waited for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from worker_agent.torch.result import Result
from worker_agent.torch.steps import Item

LATE_SECONDS = 10.0
"""Seconds after which the log names the workers that are waited for; it names them again after twice as long each time.
"""
LOOK_SECONDS = 0.1
"""Seconds between two looks of a rank that waits at whether another rank has failed, or the group has ended."""

logger = logging.getLogger("inart")


class Lateness:
    """Waits for operations and logs when they are late.

    Args:
        late: returns the workers that are waited for, if anybody can tell.
        check: raises an error once waits must end.
    """

    def __init__(self, late: Callable[[], list[str]], check: Callable[[], None]) -> None:
        self._late, self._check = late, check
        self._next_at = 0.0

    def wait(self, item: Item, reduced: Result) -> None:
        """Wait until the result of a bucket has arrived."""
        arrived = threading.Event()
        reduced.future.add_done_callback(lambda _: arrived.set())
        self.wait_for(item, arrived)

    def wait_for(self, item: Item, arrived: threading.Event) -> None:
        """Wait until a bucket has arrived or failed."""
        seconds = LATE_SECONDS
        while not arrived.wait(LOOK_SECONDS):
            self._check()
            if time.monotonic() - item.added > seconds:
                self.say(item, time.monotonic() - item.added)
                seconds *= 2

    def wait_for_all(self, items: list[Item], given_up: Callable[[], bool]) -> bool:
        """Wait until all operations have arrived, and return whether all succeeded.

        `given_up` is called from time to time, and ends the wait when it returns True, because another rank has failed,
        which the operations may wait for.
        """
        for item in items:
            seconds = LATE_SECONDS
            while not item.ended.wait(LOOK_SECONDS):
                self._check()
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
