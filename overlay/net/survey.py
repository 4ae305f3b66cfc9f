"""Surveys sites: has them measure round trips and rates between them, and gathers their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from overlay.core.site_network import INNER_MBPS, Pair, slots
from overlay.net.members import Members

ANSWER_SECONDS = 10.0
"""Seconds that sites have to answer, beside the duration of a measurement; answers that come later are left out."""

TRIES = 2


class Survey:
    """Surveys the sites of one coordinator, in its loop, with one measurement at a time.

    Args:
        loop: the coordinator's event loop.
        members: the sites that are connected.
        seconds: duration of one measurement between two sites.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, members: Members, seconds: float) -> None:
        self._loop, self._members, self._seconds = loop, members, seconds
        self._number = 0
        self._answers: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()

    def said(self, node: str, message: dict[str, Any]) -> None:
        """Take a site's answer: its round trips ("trips"), or the rate at which it has sent ("probed")."""
        self._answers.put_nowait((node, message))

    def left(self, node: str) -> None:
        """Go on without a site that answers no more."""
        self._answers.put_nowait((node, {"what": "left"}))

    async def round_trips(self, nodes: Iterable[str]) -> dict[Pair, float]:
        waiting, trips = set(nodes), dict[Pair, float]()
        self._forget()
        self._members.tell(nodes, type="site", what="trips")
        async for node, message in self._answered(ANSWER_SECONDS):
            if message["what"] == "trips":
                trips |= {(node, str(other)): float(seconds) for other, seconds in message["trips"].items()}
            waiting.discard(node)
            if not waiting:
                break
        return trips

    async def alone(self, pairs: Iterable[Pair]) -> dict[Pair, float]:
        """Measure each of these pairs while its two sites measure nothing else, and return their rates in Mbit/s of
        payload. Pairs without an answer are measured a second time: a connection may have been opened anew meanwhile,
        with smaller segments.
        """
        wanted, found = list(pairs), dict[Pair, float]()
        for _ in range(TRIES):
            for slot in slots(pair for pair in wanted if pair not in found):
                found |= await self.probe(slot)
        return found

    async def probe(self, pairs: Iterable[Pair]) -> dict[Pair, float]:
        """Measure these pairs at once, and return the rates for which answers came, in Mbit/s of payload."""
        waiting, found = set(pairs), dict[Pair, float]()
        self._number += 1
        number = self._number
        self._forget()
        for sender, receiver in sorted(waiting):
            self._members.tell(
                (sender,), type="site", what="probe", to=receiver, number=number, seconds=self._seconds
            )  # fmt: skip
        async for node, message in self._answered(self._seconds + ANSWER_SECONDS):
            if message["what"] == "probed" and int(message["number"]) == number:
                pair = node, str(message["receiver"])
                if pair in waiting and 0 < float(message["mbps"]) < INNER_MBPS:
                    found[pair] = float(message["mbps"])
                waiting.discard(pair)
            elif message["what"] == "left":
                waiting -= {pair for pair in waiting if node in pair}
            if not waiting:
                break
        return found

    def _forget(self) -> None:
        while not self._answers.empty():
            self._answers.get_nowait()

    async def _answered(self, seconds: float) -> Any:
        end = self._loop.time() + seconds
        while (left := end - self._loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    answer = await self._answers.get()
            except TimeoutError:
                return
            yield answer
