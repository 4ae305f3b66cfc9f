"""Messages over TCP: each connection carries one direction, and values are received where they belong in memory.

An agent only sends over the connections that it has opened, and only receives over those that others have opened. So a
full connection stops one sender and nothing else. Connections are opened when the members are known, stay open, and are
opened again when they break; in a job with many agents they are opened when a task needs them.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

import numpy as np

from overlay.core.addresses import written
from overlay.core.message import HEADER_BYTES, Header, Values
from overlay.net.connector import Connector
from overlay.net.outbound import Outbound
from overlay.net.tcp_info import connections_by

CONNECT_SECONDS = 10.0
TRIAL_SECONDS = 3.0
"""Time, in seconds, after which an agent that does not answer counts as one to which no connection can be opened. Linux
sends the first packet of a connection three times meanwhile.
"""

NO_ROUND_TRIP = 4000.0
"""Longest round trip, in seconds, that is believed: Linux gives 2^32 - 1 microseconds while it has not seen any."""

RETRY_SECONDS = 0.1
KEPT_CONNECTIONS = 64
"""Most connections that an agent keeps open to all others; in a larger job it opens those that a task needs when the
task is announced.
"""


def kept_open(agents: int, connections: int) -> bool:
    """Return whether each of this many agents keeps its `connections` to each other agent open."""
    return (agents - 1) * connections <= KEPT_CONNECTIONS


async def end_all() -> None:
    """Cancel all other tasks of the running loop, and wait until they have ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_Message = tuple[int, int, Header, Values, Callable[[], None], Callable[[], bool], Callable[[], None]]
"""(priority, order, header, values, sent, wanted, dropped); the last three are callables (see `Peer.send`)."""


class Peer:
    """Sends messages to one other agent over several connections; those with the lowest priority number go first.

    Args:
        name: name of the other agent.
        address: (host, port) at which it listens.
        hello: first message on each connection.
        connections: number of connections.
        clock: returns the time with which messages are stamped.
        on_lost: called once, as on_lost(reason), when the peer cannot be reached any more.
        on_unreached: called as on_unreached(reason) when no connection to the peer could be opened in TRIAL_SECONDS,
            so that the peer opens one. None where that is known from the start.
        connector: opens connections.

    Attributes:
        used: whether a task or a message has needed the peer.
        lines: the connections.
    """

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        hello: bytes,
        *,
        connections: int,
        clock: Callable[[], float],
        on_lost: Callable[[str], None],
        on_unreached: Callable[[str], None] | None,
        connector: Connector,
    ) -> None:
        self.name, self.address = name, address
        self.hello, self._clock, self._connector = hello, clock, connector
        self._on_lost, self._on_unreached = on_lost, on_unreached
        self.lines = [Outbound(self) for _ in range(connections)]
        self._queue: list[_Message] = []
        self._order = count()
        self._closed = False
        self.used = False
        self._give_up_at = asyncio.get_running_loop().time() + CONNECT_SECONDS
        self._awaits = on_unreached is None
        if self._awaits:
            opening = [self._awaited(self.lines[0], "this agent cannot open a connection to it")]
        else:
            opening = [self._open(line) for line in self.lines]
        self._opening = [asyncio.ensure_future(each) for each in opening]
        self.bytes_sent = 0

    @property
    def waiting(self) -> int:
        """Number of messages that no connection has taken yet."""
        return len(self._queue)

    def expect(self) -> None:
        """Take note that a task will need the peer. If that is the first time, the peer has CONNECT_SECONDS from now on
        to answer.
        """
        if not self.used:
            self.used = True
            self._give_up_at = asyncio.get_running_loop().time() + CONNECT_SECONDS

    def send(
        self,
        priority: int,
        header: Header,
        values: Values,
        sent: Callable[[], None] = lambda: None,
        wanted: Callable[[], bool] = lambda: True,
        *,
        dropped: Callable[[], None] = lambda: None,
    ) -> None:
        """Queue a message.

        Args:
            priority: messages with the lowest number go first.
            header: the message's header.
            values: its values.
            sent: called when a connection has taken the message, or its turn came and it was not wanted any more.
            wanted: returns whether the message is still to be sent; called when its turn comes.
            dropped: called instead of `sent` when the peer is given up before that.
        """
        if self._closed:
            dropped()
            return
        self.expect()
        line = None if self._queue else self._line()
        if line is not None and wanted():
            self._give(line, header, values)
            sent()
            return
        heapq.heappush(self._queue, (priority, next(self._order), header, values, sent, wanted, dropped))
        self.flush()

    def flush(self) -> None:
        """Give connections the messages that they take now, the most urgent first."""
        while self._queue and (line := self._line()) is not None:
            _, _, header, values, sent, wanted, _ = heapq.heappop(self._queue)
            if wanted():
                self._give(line, header, values)
            sent()

    def _line(self) -> Outbound | None:
        """Return the connection for the next message; None where none takes one now. Of several it is that with the
        fewest bytes under way: where a packet is lost, everything behind it on its connection waits.
        """
        free = [line for line in self.lines if line.takes_messages]
        return min(free, key=Outbound.under_way) if len(free) > 1 else next(iter(free), None)

    def _give(self, line: Outbound, header: Header, values: Values) -> None:
        # They are counted before the receiver can have the message, and read the counters.
        self.bytes_sent += HEADER_BYTES + values.nbytes
        line.send(header.stamped(self._clock()), values)

    def detach(self, task: int, tensor: Values) -> None:
        """Copy the values of this task's messages that wait and are in this tensor, which is its trainer's again."""
        for k, (priority, order, header, values, sent, wanted, dropped) in enumerate(self._queue):
            if header.task == task and np.may_share_memory(values, tensor):
                self._queue[k] = priority, order, header, values.copy(), sent, wanted, dropped
        for line in self.lines:
            line.detach(task, tensor)

    def adapt(self, most: int) -> None:
        """Open more connections, up to `most`, where the present ones lose so many packets that they cannot fill the
        link: each loss halves a connection's window.
        """
        if self._awaits:
            return
        now = [each for line in self.lines if (each := line.seen()) is not None]
        wanted = connections_by(now, most)
        while not self._closed and len(self.lines) < wanted:
            self.lines.append(line := Outbound(self))
            self._opening.append(asyncio.ensure_future(self._open(line, needed=False)))

    def acknowledged(self) -> int:
        """Return how many of the bytes that were sent have arrived at the peer's kernel."""
        return max(0, self.bytes_sent - sum(line.not_arrived() for line in self.lines))

    def quiet_seconds(self) -> float:
        """Return the seconds since the peer's kernel has acknowledged anything; 0 where nothing is known."""
        return min((each.quiet_seconds for line in self.lines if (each := line.seen()) is not None), default=0.0)

    def round_trip(self) -> float | None:
        """Return the least round trip of the connections, in seconds; None where none is open yet, or nothing was
        acknowledged.
        """
        trips = [each.rtt_seconds for line in self.lines if (each := line.seen()) is not None]
        return min((trip for trip in trips if 0 < trip < NO_ROUND_TRIP), default=None)

    def sent_again(self) -> tuple[int, int]:
        """Return how many segments the present connections have sent again, of how many in all."""
        now = [each for line in self.lines if (each := line.seen()) is not None]
        return sum(each.again for each in now), sum(each.segments for each in now)

    @property
    def connections(self) -> int:
        """Number of connections that are open or being opened."""
        return len(self.lines)

    def check(self, transport: asyncio.BaseTransport) -> None:
        """Check that the certificate at the other end is the peer's; raise OverlayError otherwise."""
        if self._connector.security is not None:
            self._connector.security.check(transport, "node", self.name)

    def close(self) -> None:
        """End all connections, and drop the messages that wait."""
        self._closed = True
        queue, self._queue = self._queue, []
        for *_, dropped in queue:
            dropped()
        for task in self._opening:
            task.cancel()
        for line in self.lines:
            line.close()

    def broken(self, error: Exception | None) -> None:
        """Give the peer up, since a connection to it has ended, with this error or (None) by the other end."""
        if not self._closed:
            self.close()
            if isinstance(error, TimeoutError):  # the kernel's: see UNANSWERED_SECONDS
                self._connector.unanswered(self.address)
            self._on_lost(f"the connection to {self.name} ended" + (f": {error}" if error else ""))

    def dial(self) -> None:
        """Open the connection after all, as it has become possible, unless there is one."""
        if not self._closed and self.lines[0].transport is None:
            for task in self._opening:
                task.cancel()
            self._awaits = False
            self._opening = [asyncio.ensure_future(self._open(self.lines[0]))]

    def take(self, transport: asyncio.Transport) -> None:
        """Take a connection that the peer has opened for this agent to send over."""
        line = self.lines[0]
        if line.transport is not None:
            self.lines.append(line := Outbound(self))
        transport.set_protocol(line)
        line.connection_made(transport)

    async def _awaited(self, line: Outbound, why: str) -> None:
        """Give the peer up when it is needed and has opened no connection in time. `why` says why this agent cannot
        open one.
        """
        loop = asyncio.get_running_loop()
        while line.transport is None:
            if loop.time() >= self._give_up_at:
                self.broken(OSError(f"{why}, and {self.name} opens none for {CONNECT_SECONDS:.0f} s"))
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _open(self, line: Outbound, *, needed: bool = True) -> None:
        """Open a connection. With `needed`, the peer is to open it where this agent cannot, and is given up when there
        is none in time.
        """
        loop = asyncio.get_running_loop()
        tried = loop.time() + (TRIAL_SECONDS if needed else CONNECT_SECONDS)
        while True:
            try:
                await self._connector.open(line, self.address, seconds=max(0.01, tried - loop.time()))
                return
            except (OSError, TimeoutError) as error:
                words = f"{written(self.address)}: {str(error) or 'no answer'}"
            if loop.time() >= tried:
                break
            await asyncio.sleep(RETRY_SECONDS)
        if not needed or self._on_unreached is None or self._awaits:  # another connection has shown it already
            self.lines.remove(line)
            return
        self._awaits = True
        self._on_unreached(words)
        await self._awaited(line, f"no connection to {words}")
