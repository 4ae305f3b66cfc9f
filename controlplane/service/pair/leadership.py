"""Leadership among several controllers: the leader is the one whose name is in the store, as long as it keeps writing
there.

The leader writes a beat several times a second. A controller that waits takes the lead when the beat has not changed
for `after` seconds of its own clock. A leader that could not write one for two thirds of that time has lost the lead,
and must do nothing more. So no two lead at a time where clocks run equally fast, however wrong the time of day is. And
should a machine have been stopped with its clock, what it still writes is refused: by the store, which compares with
every write who leads, and by the switches, where the next controller has a higher election id.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from controlplane.common.log_lines import Log
from controlplane.service.pair.store import Store, StoreError, Value

AFTER_SECONDS = 1.5
"""Seconds without a beat after which another controller takes the lead."""
PART_THAT_LEADS = 2 / 3
"""Part of AFTER_SECONDS for which a leader goes on to lead when the store does not answer; then it ends."""
BEATS, BEAT_SECONDS = 6, 0.25
"""Least number of beats that a leader writes in AFTER_SECONDS, and longest time between two of them, in seconds."""
COMPACT_SECONDS = 300.0
"""Seconds between two compactions of the store by the leader. A store keeps each beat as a revision until then."""
LEADER, BEAT = "leader", "beat"


class NotLeading(OSError):
    """Another controller leads, or may lead: nothing was written."""


class Leadership:
    """A controller's part in the choice of a leader: `wait` returns when it leads; from then on `lost` is called at
    most once, from a thread.

    Args:
        name: a name for people, to tell the controllers apart.
        lost: gets the reason; it must end at once everything that only a leader may do.
    """

    def __init__(self, store: Store, name: str, lost: Callable[[str], None], *, after: float = AFTER_SECONDS) -> None:
        self.store, self.name = store, name
        self._lost, self._after, self._pause = lost, after, min(after / BEATS, BEAT_SECONDS)
        self._token = f"{name} {secrets.token_hex(8)}"
        self._revision = 0
        self._until = 0.0
        self._problem = ""  # why the last beat was not written
        self._lock = threading.Lock()  # protects `_until`, and the end
        self._led = threading.Event()  # set when the lead begins
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def leads(self) -> bool:
        """Whether this controller leads now."""
        return bool(self._revision) and not self._ended.is_set() and time.monotonic() < self._until

    def confirmed(self) -> bool:
        """Return whether the store says now that this controller leads. The answer is right also where this machine was
        stopped with its clock."""
        try:
            return self.leads and self.store.read(LEADER).revision == self._revision
        except StoreError:
            return False

    def wait(self, stop: threading.Event, log: Log) -> bool:
        """Wait until this controller leads. Return False where `stop` was set before. `log` gets who leads, and what is
        wrong."""
        seen: tuple[Value, Value] | None = None
        since, said = 0.0, ""
        while not stop.is_set():
            words = said
            try:
                now = self.store.read(LEADER), self.store.read(BEAT)
                if now != seen:
                    seen, since = now, time.monotonic()
                leader = now[0].content.decode(errors="replace")
                words = f"waiting: {leader.partition(' ')[0]} leads" if leader else said
                if leader == self._token or not leader or time.monotonic() - since >= self._after:
                    if self._take(now):
                        return True
                    seen = None
            except StoreError as error:
                seen, words = None, f"waiting: {error}"
            if words != said:
                said = words
                log.info(said)
            stop.wait(self._pause)
        return False

    def _take(self, seen: tuple[Value, Value]) -> bool:
        """Take the lead, unless the leader has written meanwhile. Return whether that worked. Raise StoreError."""
        leader, beat = seen
        # Written again if only the answer was lost: the others have counted since the first time.
        wanted = {BEAT: b"0", LEADER: self._token.encode()}
        self._revision = self.store.commit(wanted, {LEADER: leader.revision, BEAT: beat.revision})
        if not self._revision:
            return False
        # The lead begins with the first beat that is written. The next ones are on their way to the store by then.
        self._start("lead-beat", self._beat)
        while not self._led.wait(self._pause):
            if self._ended.is_set():
                return False
        self._start("lead-watch", self._watch)
        self._start("lead-compact", self._compact)
        return True

    def _start(self, name: str, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work, name=name, daemon=True))
        self._threads[-1].start()

    def commit(self, values: Mapping[str, bytes], expected: Mapping[str, int] | None = None) -> int:
        """Write these values as the leader. Return 0 where `Store.commit` does. Raise NotLeading or StoreError where it
        fails."""
        if not self.leads:
            raise NotLeading(f"{self.name} does not lead any more")
        return self._commit(values, expected or {})

    def _commit(self, values: Mapping[str, bytes], expected: Mapping[str, int]) -> int:
        """Write these values while the store says that this controller leads. Return and raise what `commit` does."""
        done = self.store.commit(values, {LEADER: self._revision, **expected})
        if not done and self.store.read(LEADER).revision != self._revision:
            self._end("another controller leads")
            raise NotLeading(f"{self.name} does not lead any more")
        return done

    def end(self) -> None:
        """Give up the lead in good order, so that the next controller takes it at once."""
        self._ended.set()
        for thread in self._threads:
            thread.join(self._after)
        if self._revision:
            try:
                self.store.commit({LEADER: b""}, {LEADER: self._revision})
            except StoreError:
                pass  # The others notice it by the missing beats.

    def _beat(self) -> None:
        """Write beats at fixed intervals. One that the store has not answered yet delays no other one, so that a slow
        store costs its latency once."""
        for number in itertools.count(1):
            threading.Thread(target=self._write_beat, args=(number,), name="write-beat", daemon=True).start()
            if self._ended.wait(self._pause):
                return

    def _write_beat(self, number: int) -> None:
        began = time.monotonic()
        try:
            done = self._commit({BEAT: str(number).encode()}, {})
        except NotLeading:
            return
        except StoreError as error:
            self._problem = str(error)
            return
        with self._lock:
            self._problem = ""
            # The lead was lost in between if the answer arrives too late.
            if done and (began < self._until or not self._led.is_set()):
                self._until = max(self._until, began + self._after * PART_THAT_LEADS)
                self._led.set()

    def _compact(self) -> None:
        """Have the store drop revisions that are older than COMPACT_SECONDS. In a thread of its own, so that no beat
        waits for it."""
        now = self._revision
        while not self._ended.wait(COMPACT_SECONDS):
            with suppress(StoreError):  # the next compaction makes up for it, or the store has dropped them by itself
                before, now = now, self.store.read(BEAT).revision
                self.store.compact(before)

    def _watch(self) -> None:
        while not self._ended.wait(self._pause / 2):
            if time.monotonic() >= self._until:
                words = f"the store has taken no beat for {self._after * PART_THAT_LEADS:g} s"
                self._end(f"{words}: {self._problem}" if self._problem else words)

    def _end(self, reason: str) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
        self._lost(reason)
