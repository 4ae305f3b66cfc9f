"""Migrates several jobs to new plans at once, so that a job that is late delays no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextvars import copy_context

from controlplane.service.next_plan import UpdateError
from controlplane.service.update import PREPARE_SECONDS, Update
from controlplane.targets.base import TargetError

LATE_SECONDS = PREPARE_SECONDS + 15.0
"""Seconds after which a job that has neither migrated nor failed counts as failed."""
DRAIN_SECONDS = 5.0
"""Longest wait, in seconds, until nothing of the old versions is left. What is left then takes up room on switches and
does no other harm."""

Work = Callable[[Callable[[], None]], Update]
"""A function that changes a job's plan. It calls its argument as soon as the job has migrated."""


class Late(UpdateError):
    """Some jobs did not migrate, and keep what they have; `why` says by name why."""

    def __init__(self, why: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"job {name}: {words}" for name, words in why.items()))
        self.why = dict(why)


class _Change(threading.Thread):
    def __init__(self, name: str, work: Work) -> None:
        super().__init__(name=f"change-{name}", daemon=True)
        self.moved, self.ended = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.result: Update | None = None
        self._work = work
        self._context = copy_context()  # with the name of whoever has ordered it

    def run(self) -> None:
        try:
            self.result = self._context.run(self._work, self.moved.set)
        except (UpdateError, TargetError, ValueError) as error:
            self.error = error
        finally:
            self.ended.set()
            self.moved.set()


def change_over(
    works: Mapping[str, Work], drain: float = DRAIN_SECONDS
) -> tuple[dict[str, Update | None], dict[str, str]]:
    """Do all of these at once. Return, by name, the updates of the jobs that have migrated (None where something of the
    old version is left after `drain` seconds), and why the others have not."""
    changes = {name: _Change(name, work) for name, work in works.items()}
    for change in changes.values():
        change.start()
    late = time.monotonic() + LATE_SECONDS
    done: dict[str, Update | None] = {}
    failures = {}
    for name, change in changes.items():
        if not change.moved.wait(max(0.0, late - time.monotonic())):
            failures[name] = f"it has not changed over within {LATE_SECONDS:g} s"
        elif change.error is not None:
            failures[name] = str(change.error)
    drained = time.monotonic() + drain
    for name, change in changes.items():
        if name not in failures:
            change.ended.wait(max(0.0, drained - time.monotonic()))
            done[name] = change.result
    return done, failures
