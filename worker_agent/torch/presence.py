"""The presence of ranks in a process group, by which operations that would wait for a rank that is gone end with an
error.

A slow rank is waited for, as long as its process lives and it is in the group. A process that ends without a word is
noticed by its node's agent, which stops the others. There remains the rank that goes in good order (its script ends,
`destroy_process_group`, `abort`) while others have begun an operation that needs it: it writes that down in the group's
store, and ranks that have waited for a while look there.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

LOOK_SECONDS = 1.0
"""Seconds between two looks of a rank for others that have left, while an operation of its own takes longer than this.
"""


class Presence:
    """The presence of this rank in a process group, and its knowledge of the others'.

    Args:
        name: name of the group, the same on all ranks and never used before.
        store: store of the group.
        rank: this rank.
        stuck: returns for how many seconds the oldest operation has been in progress; 0 where there is none.
        end: called once, with the reason in words, when operations are still in progress `patience` seconds after a
            rank has left. Until then they may end well: the rank may have been the first to have all results.
    """

    def __init__(
        self,
        name: str,
        store: Any,
        rank: int,
        *,
        stuck: Callable[[], float],
        end: Callable[[str], None],
        patience: float,
    ) -> None:
        self._key = f"inart/{name}/left"
        self._store, self._rank = store, rank
        self._stuck, self._end, self._patience = stuck, end, patience
        self._process = os.getpid()
        self._closed = threading.Event()
        _present.add(self)
        threading.Thread(target=self._watch, name="inart-presence", daemon=True).start()

    def leave(self, why: str = "has left the process group") -> None:
        """Tell the other ranks that this one is gone, and `why`. A second call does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        _present.discard(self)
        if os.getpid() == self._process:  # A forked process is not the rank.
            with contextlib.suppress(Exception):  # The store is gone with its process: the others notice that.
                self._store.set(self._key, f"rank {self._rank} {why}")

    def gone(self) -> str:
        """Return in words which rank has left, or that the store is gone; empty where neither is so."""
        try:
            return self._store.get(self._key).decode() if self._store.check([self._key]) else ""
        except Exception as error:
            return f"the process that holds the process group's store is gone ({str(error).partition(chr(10))[0]})"

    def _watch(self) -> None:
        since: float | None = None
        while not self._closed.wait(LOOK_SECONDS):
            reason = self.gone() if self._stuck() >= LOOK_SECONDS else ""
            if not reason:  # Also when the store answers again.
                since = None
                continue
            since = time.monotonic() if since is None else since
            if min(time.monotonic() - since, self._stuck()) >= self._patience:
                self._end(f"{reason}, and this operation waits for it")
                return


_present: weakref.WeakSet[Presence] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """Tell the other ranks at exit that this one is gone, because a script may end without closing its groups."""
    for presence in list(_present):
        presence.leave("has ended")
