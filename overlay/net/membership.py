"""An agent's connection to its coordinator, or to the backup that has taken over."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

from overlay.core.errors import OverlayError
from overlay.core.measurement import ClockOffset
from overlay.net import liveness
from overlay.net.liveness import ALIVE_SECONDS, Silence
from overlay.net.tls import Security

SILENT_SECONDS = 10.0
"""Without a word from the coordinator: it is gone, or the way there. It may think for some seconds about a plan."""

REJOIN_SECONDS = 0.5
CONNECT_SECONDS = 5.0
LINE_BYTES = 1 << 26

Address = tuple[str, int]


class Membership:
    """Stays joined from `run` until that is cancelled. All in the agent's loop.

    hello(): the first message to a coordinator. told(message): what it says. left(): there is none any more.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        hello: Callable[[], dict[str, Any]],
        told: Callable[[dict[str, Any]], None],
        left: Callable[[], None],
        clock: Callable[[], float],
        security: Security | None,
        log: Callable[[str], None],
    ) -> None:
        self._addresses, self._hello, self._told, self._left = addresses, hello, told, left
        self._clock, self._security, self._log = clock, security, log
        self._writer: asyncio.StreamWriter | None = None
        self._said: set[str] = set()  # since the last one was there
        self.term = 0  # the highest of a coordinator that has acted
        self.led = False  # whether the one that is there acts
        self.offset = ClockOffset()

    def now(self) -> float:
        """The coordinator's time; nan: it is not known yet."""
        offset = self.offset.seconds
        return math.nan if offset is None else self._clock() + offset

    @property
    def known(self) -> str:
        """Where coordinators may be, in words."""
        return " or ".join(f"{host}:{port}" for host, port in self._addresses)

    @property
    def there(self) -> bool:
        """Whether a coordinator listens."""
        return self._writer is not None and not self._writer.is_closing()

    def tell(self, **message: object) -> None:
        """To the coordinator; nothing where there is none."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def run(self) -> None:
        for address in cycle(self._addresses):
            try:
                await self._stay(address)
            except Exception as error:  # of whatever kind: what one message does may not end the membership
                words = str(error) or ("it is silent" if isinstance(error, TimeoutError) else type(error).__name__)
                line = f"no coordinator at {address[0]}:{address[1]}: {words}"
                if line not in self._said:
                    self._said.add(line)
                    self._log(line)
            self.close()
            self._left()
            await asyncio.sleep(REJOIN_SECONDS * random.uniform(0.5, 1.5))  # not all at once, wherever they go

    def close(self) -> None:
        self.led = False
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def _stay(self, address: Address) -> None:
        context = self._security.connect if self._security else None
        async with asyncio.timeout(CONNECT_SECONDS) as limit:
            reader, self._writer = await asyncio.open_connection(*address, ssl=context, limit=LINE_BYTES)
            limit.reschedule(None)
        if self._security:
            self._security.check(self._writer.transport, "controller")
        liveness.watch(self._writer.transport, liveness.UNREACHED_SECONDS)
        self.offset = ClockOffset()
        self.led = False
        self.tell(type="join", term=self.term, others=len(self._addresses) > 1, **self._hello())
        silence = Silence()
        alive = asyncio.ensure_future(self._stay_alive(self._writer, silence))
        try:
            while line := await reader.readline():
                silence.heard()
                message = json.loads(line)
                if message["type"] == "alive":
                    self.offset.answered(message["at"], message["now"], self._clock())
                elif message["type"] == "standby":
                    break  # another one coordinates
                else:
                    if message["type"] == "members":
                        self._follow(int(message["term"]))
                    self._said.clear()
                    self._told(message)
            if silence.seconds > SILENT_SECONDS:
                raise TimeoutError(f"it said nothing for {SILENT_SECONDS:.0f} s")
        finally:
            alive.cancel()

    def _follow(self, term: int) -> None:
        """Raises OverlayError where another coordinator has begun to act after this one."""
        if term < self.term:
            raise OverlayError(f"it has been replaced: its term is {term}, and {self.term} has begun")
        self.term, self.led = term, True

    async def _stay_alive(self, writer: asyncio.StreamWriter, silence: Silence) -> None:
        while silence.seconds <= SILENT_SECONDS:
            self.tell(type="alive", at=self._clock())
            await asyncio.sleep(ALIVE_SECONDS)
            silence.tick()
        writer.transport.abort()
