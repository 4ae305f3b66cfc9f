"""An agent's connection to the coordinator, or to the deputy that acts while the coordinator does not answer."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from overlay.core.addresses import written
from overlay.core.errors import OverlayError
from overlay.core.measurement import ClockOffset
from overlay.net import liveness
from overlay.net.connector import Connector
from overlay.net.liveness import ALIVE_SECONDS, Silence

SILENT_SECONDS = 10.0
"""Seconds of silence after which a coordinator counts as gone. It may need some seconds to compute a plan."""

REJOIN_SECONDS = 0.5
CONNECT_SECONDS = 5.0
LINE_BYTES = 1 << 26

Address = tuple[str, int]


@dataclass(frozen=True)
class Substitute:
    """The target that an agent joins: the coordinator, or an agent that substitutes for it (a deputy).

    Attributes:
        name: the deputy's name; empty: the coordinator.
        address: (host, port) at which to join.
        own: the address at which the others reach this agent, to be told to a deputy; None: the coordinator.
    """

    name: str
    address: Address
    own: Address | None


class Membership:
    """Joins the coordinator and stays joined, from `run` until that is cancelled, in the agent's loop.

    Args:
        address: where the coordinator listens; a host name is resolved for each connection.
        hello: returns the first message to a coordinator.
        on_message: called with each message of a coordinator.
        on_disconnected: called when the connection to a coordinator has ended, or the coordinator has not answered.
        clock: returns this agent's time in seconds.
        connector: opens connections.
        log: gets each line of log.
        deputy: returns the agent that coordinates while the coordinator does not answer; None if there is none.

    Attributes:
        heard: when the coordinator's last message arrived, in seconds of the loop's clock.
        term: the highest term of a coordinator that has acted (site_quorum.py).
        ended: whether this agent joins no coordinator any more.
        acting: whether the connected coordinator acts.
        offset: the difference between the coordinator's clock and this agent's.
    """

    def __init__(
        self,
        address: Address,
        *,
        hello: Callable[[], dict[str, Any]],
        on_message: Callable[[dict[str, Any]], None],
        on_disconnected: Callable[[], None],
        clock: Callable[[], float],
        connector: Connector,
        log: Callable[[str], None],
        deputy: Callable[[], Substitute | None] = lambda: None,
    ) -> None:
        self._deputy, self.heard = deputy, -math.inf
        self._address, self._hello = address, hello
        self._on_message, self._on_disconnected = on_message, on_disconnected
        self._clock, self._connector, self._log = clock, connector, log
        self._writer: asyncio.StreamWriter | None = None
        self._logged: set[str] = set()  # failures since a coordinator answered last, as each is logged once
        self.term = 0
        self.ended = False
        self.acting = False
        self.offset = ClockOffset()

    def now(self) -> float:
        """Return the coordinator's time in seconds; nan while the offset of its clock is not known."""
        offset = self.offset.seconds
        return math.nan if offset is None else self._clock() + offset

    @property
    def known(self) -> str:
        """The coordinator's address, in words."""
        return written(self._address)

    @property
    def connected(self) -> bool:
        """Whether there is a connection to a coordinator."""
        return self._writer is not None and not self._writer.is_closing()

    def tell(self, **message: object) -> None:
        """Send a message to the coordinator; do nothing where none is connected."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def run(self) -> None:
        """Join the coordinator or its deputy, again and again, until the membership is ended."""
        for found in self._in_turn():
            address = found.address
            try:
                await self._stay(found)
            except Exception as error:  # whatever one message causes may not end the membership
                words = str(error) or ("it is silent" if isinstance(error, TimeoutError) else type(error).__name__)
                line = f"no coordinator at {address[0]}:{address[1]}: {words}"
                if line not in self._logged:
                    self._logged.add(line)
                    self._log(line)
            self.close()
            self._on_disconnected()
            if self.ended:
                return
            await asyncio.sleep(REJOIN_SECONDS * random.uniform(0.5, 1.5))  # not all agents at once

    def _in_turn(self) -> Iterator[Substitute]:
        """Yield the coordinator, again and again, and after each time its deputy, if there is one."""
        while True:
            yield Substitute("", self._address, None)
            deputy = self._deputy()
            if deputy is not None:
                yield deputy

    def end(self) -> None:
        """End the connection, and join no coordinator any more."""
        self.ended = True
        self.close()

    def close(self) -> None:
        """End the connection to the coordinator."""
        self.acting = False
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def _stay(self, at: Substitute) -> None:
        """Join a coordinator, and return when the connection ends."""
        reader, self._writer = await self._connector.open_stream(at.address, seconds=CONNECT_SECONDS, limit=LINE_BYTES)
        if self._connector.security:
            self._connector.security.check(self._writer.transport, *(("node", at.name) if at.name else ("controller",)))
        liveness.end_when_unreached(self._writer.transport, liveness.UNREACHED_SECONDS)
        self.offset = ClockOffset()
        self.acting = False
        hello = self._hello() | ({"host": at.own[0], "port": at.own[1]} if at.own else {})
        self.tell(type="join", term=self.term, **hello)
        silence = Silence()
        alive = asyncio.ensure_future(self._stay_alive(self._writer, silence))
        try:
            while line := await reader.readline():
                silence.heard()
                if not at.name:
                    self.heard = asyncio.get_running_loop().time()
                message = json.loads(line)
                if message["type"] == "alive":
                    self.offset.answered(message["at"], message["now"], self._clock())
                elif message["type"] == "standby":
                    break  # it does not act
                else:
                    if message["type"] == "members":
                        self._accept_term(int(message["term"]))
                    self._logged.clear()
                    self._on_message(message)
            if silence.seconds > SILENT_SECONDS:
                raise TimeoutError(f"it said nothing for {SILENT_SECONDS:.0f} s")
        finally:
            alive.cancel()

    def _accept_term(self, term: int) -> None:
        """Check that no other coordinator has begun to act after this one; raise OverlayError otherwise."""
        if term < self.term:
            raise OverlayError(f"another coordinator has replaced it: its term is {term}, and {self.term} has begun")
        self.term, self.acting = term, True

    async def _stay_alive(self, writer: asyncio.StreamWriter, silence: Silence) -> None:
        """Tell the coordinator every second that this agent lives, and end the connection when no answer comes."""
        while silence.seconds <= SILENT_SECONDS:
            self.tell(type="alive", at=self._clock())
            await asyncio.sleep(ALIVE_SECONDS)
            silence.tick()
        writer.transport.abort()
