"""``DigestEntry``, and the ``DigestList`` messages that it configures.

The P4Runtime specification describes this in "DigestEntry". The data plane gives each message once until it is told to
forget it. So the messages that wait here are distinct, and those that were sent and not acknowledged do not come again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from google.rpc import code_pb2

from softswitch.dataplane.device import Device
from softswitch.p4runtime.schema import DigestSchema, Schema
from softswitch.p4runtime.status import P4RuntimeError, invalid, not_found
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.timer import Timer
from softswitch.p4runtime.undo import Journal

LIST_LIMIT = 4096  # messages in a list whose size is not limited (max_list_size 0), far below 4 MiB
MAX_TIMEOUT_S = 1e6  # longer timeouts are cut to this

Send = Callable[[p4rt.StreamMessageResponse, int], bool]


@dataclass
class DigestStats:
    """The numbers of lists and messages sent, acknowledged and given up, because no client was there to take them."""

    lists: int = 0
    messages: int = 0
    acknowledged: int = 0
    timed_out: int = 0
    undelivered: int = 0


@dataclass
class _Digest:
    schema: DigestSchema
    config: p4rt.DigestEntry | None = None  # None: not enabled
    epoch: int = 0  # counts configurations: a timer that was set in an earlier one is void
    sending: bool = False  # a timer for `waiting` is set; there is one at a time
    expiring: bool = False  # a timer for `unacknowledged` is set
    next_list: int = 1
    waiting: list[bytes] = field(default_factory=list)
    since: float = 0.0  # time at which the first of `waiting` came
    # by list id: the time when it was sent, and its messages
    unacknowledged: OrderedDict[int, tuple[float, list[bytes]]] = field(default_factory=OrderedDict)

    @property
    def limit(self) -> int:
        """The largest number of messages in a list."""
        assert self.config is not None
        return self.config.config.max_list_size or LIST_LIMIT

    @property
    def max_timeout(self) -> float:
        assert self.config is not None
        return min(self.config.config.max_timeout_ns / 1e9, MAX_TIMEOUT_S)

    @property
    def ack_timeout(self) -> float:
        assert self.config is not None
        return min(self.config.config.ack_timeout_ns / 1e9, MAX_TIMEOUT_S)


class DigestAccess:
    """The digests of one device under one schema.

    ``send`` gives a message about the object with an id to the clients; it returns False if nobody received it. A lock,
    under which nothing waits, makes every method thread-safe.
    """

    def __init__(self, device: Device, schema: Schema, timer: Timer, send: Send, stats: DigestStats) -> None:
        self._device = device
        self._timer = timer
        self._send = send
        self._stats = stats
        self._lock = threading.Lock()
        self._digests = {one.id: _Digest(one) for one in schema.digests.values()}
        self._by_number = {digest.schema.number: digest for digest in self._digests.values()}
        self._closed = False

    # --- configuration ---

    def write(self, kind: int, entry: p4rt.DigestEntry, journal: Journal) -> None:
        """Enable a digest (INSERT), change its configuration (MODIFY), or disable it (DELETE)."""
        with self._lock:
            digest = self._find(entry.digest_id)
            name = digest.schema.name
            old = digest.config
            if kind == p4rt.Update.INSERT and old is not None:
                raise P4RuntimeError(code_pb2.ALREADY_EXISTS, f"digest {name} is enabled already; use MODIFY")
            if kind != p4rt.Update.INSERT and old is None:
                raise not_found(f"digest {name} is not enabled; use INSERT")
            new = None
            if kind != p4rt.Update.DELETE:
                config = entry.config
                if config.max_timeout_ns < 0 or config.ack_timeout_ns < 0 or config.max_list_size < 0:
                    raise invalid(f"digest {name}: timeouts and list size cannot be negative")
                new = p4rt.DigestEntry()
                new.CopyFrom(entry)
            self._configure(digest, new)
            journal.add(lambda: self._restore(digest, old))

    def read(self, query: p4rt.DigestEntry) -> Iterator[p4rt.Entity]:
        """Return the configurations of the enabled digests that a ``DigestEntry`` in a ReadRequest selects."""
        with self._lock:
            chosen = list(self._digests.values()) if query.digest_id == 0 else [self._find(query.digest_id)]
            found = [digest.config for digest in chosen if digest.config is not None]
        return (p4rt.Entity(digest_entry=config) for config in found)

    def _find(self, digest_id: int) -> _Digest:
        digest = self._digests.get(digest_id)
        if digest is None:
            raise invalid(f"no digest of the P4Info has id {digest_id}")
        return digest

    def _restore(self, digest: _Digest, config: p4rt.DigestEntry | None) -> None:
        with self._lock:
            self._configure(digest, config)

    def _configure(self, digest: _Digest, config: p4rt.DigestEntry | None) -> None:
        digest.epoch += 1
        digest.sending = digest.expiring = False
        if config is None:
            self._device.digest_enable(digest.schema.number, False)
            digest.config = None
            digest.waiting.clear()
            digest.unacknowledged.clear()
            return
        settings = config.config
        at_once = settings.max_timeout_ns == 0 or settings.max_list_size == 1
        filtered = settings.ack_timeout_ns > 0 or not at_once
        if not filtered:
            digest.unacknowledged.clear()
        digest.config = config
        self._device.digest_enable(digest.schema.number, True, filtered)
        self._expire(digest)
        if digest.waiting and (at_once or len(digest.waiting) >= digest.limit):
            self._send_list(digest)
        self._send_due(digest)

    # --- messages ---

    def receive(self, number: int, message: bytes) -> None:
        """Handle a message of the data plane, which calls this in a thread of its own."""
        with self._lock:
            digest = self._by_number.get(number)
            if self._closed or digest is None or digest.config is None:
                return
            digest.waiting.append(message)
            if digest.config.config.max_timeout_ns == 0 or len(digest.waiting) >= digest.limit:
                self._send_list(digest)
            elif len(digest.waiting) == 1:
                digest.since = time.monotonic()
                self._send_due(digest)

    def acknowledge(self, ack: p4rt.DigestListAck) -> None:
        """Handle a client's acknowledgement of a list; a list that is not known (any more) is ignored."""
        with self._lock:
            digest = self._find(ack.digest_id)
            if ack.list_id in digest.unacknowledged:
                self._stats.acknowledged += 1
                self._forget(digest, digest.unacknowledged.pop(ack.list_id)[1])

    def client_changed(self) -> None:
        """Handle that another client is primary: messages sent to the old one may be sent again."""
        with self._lock:
            for digest in self._digests.values():
                for _, messages in digest.unacknowledged.values():
                    self._forget(digest, messages)
                digest.unacknowledged.clear()

    def close(self) -> None:
        """End the digests with their pipeline; timers that are running have no effect any more."""
        with self._lock:
            self._closed = True
            for digest in self._digests.values():
                digest.config = None
                digest.epoch += 1

    def _send_due(self, digest: _Digest) -> None:
        """Send the messages that have waited for max_timeout_ns, and set a timer for the rest."""
        if not digest.waiting:
            return
        rest = digest.since + digest.max_timeout - time.monotonic()
        if rest <= 0:
            self._send_list(digest)
        elif not digest.sending:
            digest.sending = True
            epoch = digest.epoch

            def due() -> None:
                with self._lock:
                    if digest.epoch == epoch:
                        digest.sending = False
                        self._send_due(digest)

            self._timer.after(rest, due)

    def _expire(self, digest: _Digest) -> None:
        """Forget the lists that have waited ack_timeout_ns for an answer, and set a timer for the others."""
        while digest.unacknowledged:
            list_id, (sent, messages) = next(iter(digest.unacknowledged.items()))
            rest = sent + digest.ack_timeout - time.monotonic()
            if rest > 0:
                break
            del digest.unacknowledged[list_id]
            self._stats.timed_out += 1
            self._forget(digest, messages)
        if not digest.unacknowledged or digest.expiring:
            return
        digest.expiring = True
        epoch = digest.epoch

        def due() -> None:
            with self._lock:
                if digest.epoch == epoch:
                    digest.expiring = False
                    self._expire(digest)

        self._timer.after(rest, due)

    def _send_list(self, digest: _Digest) -> None:
        assert digest.config is not None
        limit = digest.limit
        while digest.waiting:
            messages, digest.waiting = digest.waiting[:limit], digest.waiting[limit:]
            list_id = digest.next_list
            digest.next_list += 1
            message = p4rt.StreamMessageResponse()
            answer = message.digest
            answer.digest_id = digest.schema.id
            answer.list_id = list_id
            answer.timestamp = time.time_ns()
            for one in messages:
                digest.schema.encode(one, answer.data.add())
            if not self._send(message, digest.schema.id):
                self._stats.undelivered += len(messages)
                # The messages are forgotten so that a client that comes later gets them.
                self._forget(digest, messages)
                continue
            self._stats.lists += 1
            self._stats.messages += len(messages)
            if digest.config.config.ack_timeout_ns == 0:
                self._forget(digest, messages)
            else:
                digest.unacknowledged[list_id] = (time.monotonic(), messages)
                self._expire(digest)

    def _forget(self, digest: _Digest, messages: list[bytes]) -> None:
        self._device.digest_forget(digest.schema.number, messages)
