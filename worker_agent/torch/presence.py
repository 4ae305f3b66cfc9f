"""Watches the operations of a process group, so that none waits for ever: for a rank that is gone, for a rank that has
asked for another operation, or longer than the group's timeout.

A slow rank is waited for within that time, if its process lives and it is in the group. A process that ends without a
word is noticed by its node's agent, which stops the others. A rank that leaves in good order (its script ends,
`destroy_process_group`, `abort`) while others have begun an operation that needs it writes that to the group's store.
Ranks that have waited for a while look there. They also write there for which operation they wait, and compare.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from worker_agent.errors import AbortedError, AllReduceError, MismatchError, ProgressTimeoutError
from worker_agent.torch.journal import OUTSIDE, Entry, Journal
from worker_agent.torch.waiting import JOIN_SECONDS

LOOK_SECONDS = 1.0
"""Seconds that an operation takes before its rank looks for others that have left, and between two looks."""


class Presence:
    """The presence of this rank in a process group, and its knowledge of the others'.

    Args:
        name: name of the group, the same on all ranks and never used before.
        store: store of the group.
        rank: this rank.
        journal: the operations of this rank.
        end: called at most once, with an error that the operations in progress must end with.
        late: returns the workers that are waited for, if the agent can tell.
        patience: seconds after which operations end when a rank has left. Until then they may end well: the rank may
            have been the first to have all results.
    """

    def __init__(
        self,
        name: str,
        store: Any,
        rank: int,
        *,
        journal: Journal,
        end: Callable[[AllReduceError], None],
        late: Callable[[], list[str]],
        patience: float,
    ) -> None:
        self._prefix = f"inart/{name}"
        self._store, self._rank = store, rank
        self._journal, self._end, self._late, self._patience = journal, end, late, patience
        self._process = os.getpid()
        self._closed = threading.Event()
        self._since: float | None = None
        self._compare_at: dict[int, float] = {}
        _present.add(self)
        self._thread = threading.Thread(target=self._watch, name="inart-presence", daemon=True)
        self._thread.start()

    def leave(self, why: str = "has left the process group", *, mismatch: bool = False) -> None:
        """Tell the other ranks that this one is gone, and `why`. A second call does nothing.

        Args:
            why: a verb and what follows it.
            mismatch: whether the ranks have asked for different operations, as `why` says.
        """
        if self._closed.is_set():
            return
        self._closed.set()
        if os.getpid() == self._process:  # A forked process is not the rank.
            text = why if mismatch else f"rank {self._rank} {why} after operation {self._journal.begun}"
            with contextlib.suppress(Exception):  # The store is gone with its process: the others notice that.
                self._store.set(f"{self._prefix}/left", json.dumps([text, mismatch]))

    def join(self) -> None:
        """Wait for the thread, which `leave` has ended; it may be ending the operations in progress."""
        if threading.current_thread() is not self._thread and os.getpid() == self._process:
            self._thread.join(JOIN_SECONDS)

    def _tell_mismatch(self, error: MismatchError) -> None:
        """Tell the other ranks, and let them look before the connections of this rank close."""
        self.leave(str(error), mismatch=True)
        time.sleep(1.5 * LOOK_SECONDS)

    def gone(self) -> tuple[str, bool]:
        """Return in words which rank has left, or that the store is gone, and whether it left because of a mismatch;
        the text is empty where neither is so.
        """
        key = f"{self._prefix}/left"
        try:
            text, mismatch = json.loads(self._store.get(key)) if self._store.check([key]) else ("", False)
        except Exception as error:
            why = str(error).partition("\n")[0]
            return f"the process that holds the process group's store is gone ({why})", False
        return str(text), bool(mismatch)

    def _watch(self) -> None:
        try:
            self._watch_operations()
        finally:
            del self._end, self._late  # They hold the group, whose connections close when no object holds it.

    def _watch_operations(self) -> None:
        while not self._closed.wait(self._pause()):
            entries = self._journal.in_progress()
            self._tidy({entry.number for entry in entries})
            error = self._overdue(entries) or (self._look(entries[0]) if entries else None)
            if error is not None and not self._closed.is_set():
                if isinstance(error, MismatchError):
                    self._tell_mismatch(error)
                self._end(error)
                return

    def _pause(self) -> float:
        """Return the seconds until the next look, which is early if a timeout comes first."""
        entries = self._journal.in_progress()
        left = [entry.seconds - entry.age for entry in entries if entry.path != OUTSIDE]
        return max(0.001, min([LOOK_SECONDS, *left]))

    def _overdue(self, entries: list[Entry]) -> AllReduceError | None:
        late = (entry for entry in entries if entry.age >= entry.seconds and entry.path != OUTSIDE)  # gloo has its own.
        entry = next(late, None)
        if entry is None:
            return None
        missing = ", ".join(self._late())
        waited = f"; {missing} did not take part" if missing else ""
        return ProgressTimeoutError(
            f"{entry}: no result after {entry.seconds:g} s, the timeout of the process group{waited}; "
            "pass timeout= to init_process_group or new_group if the ranks may wait longer"
        )

    def _look(self, entry: Entry) -> AllReduceError | None:
        """Return the error for an operation that takes long; None while it may still end well."""
        if entry.age < LOOK_SECONDS:
            self._since = None
            return None
        reason, mismatch = self.gone()
        if mismatch:
            return MismatchError(reason)
        if not reason:  # Also when the store answers again.
            self._since = None
            return self._compare(entry)
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if min(now - self._since, entry.age) < self._patience:
            return None
        return AbortedError(f"{reason}, and {entry} waits for it")

    def _compare(self, entry: Entry) -> AllReduceError | None:
        """Return an error if another rank waits for a different operation with this number on another path.

        The comparisons become rare with time: a rank that comes later compares as soon as it waits, too.
        """
        if entry.age < self._compare_at.get(entry.number, 0.0):
            return None
        self._compare_at[entry.number] = 2 * entry.age
        key = self._key(entry.number)
        try:
            if not self._store.check([key]):
                self._store.set(key, json.dumps([self._rank, entry.what, entry.path]))
                return None
            rank, what, path = json.loads(self._store.get(key))
        except Exception:  # The next look tells whether the store is gone.
            return None
        if what == entry.what or path == entry.path == OUTSIDE:
            return None
        asked = sorted([(self._rank, entry.what), (int(rank), str(what))])
        return MismatchError(
            f"the ranks' operations differ: operation {entry.number} of the process group is "
            + ", ".join(f"{text} on rank {number}" for number, text in asked)
        )

    def _tidy(self, numbers: set[int]) -> None:
        """Remove the notes about operations that have ended from the store."""
        for number in [one for one in self._compare_at if one not in numbers]:
            del self._compare_at[number]
            with contextlib.suppress(Exception):
                self._store.delete_key(self._key(number))

    def _key(self, number: int) -> str:
        return f"{self._prefix}/waits/{number}"


_present: weakref.WeakSet[Presence] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """Tell the other ranks at exit that this one is gone, because a script may end without closing its groups."""
    for presence in list(_present):
        presence.leave("has ended")
        presence.join()
