"""Lets sites go on while the coordinator does not answer: one of the last round's sites coordinates in its place.

All sites of the last round know the same history (core/site_quorum.py), so all of them know which site that is: the
first name among those that others can reach. When the coordinator has not answered for GONE_SECONDS they join that
site's agent, at the port at which it listens for values. It acts as soon as all of these sites have joined it, and only
for rounds of all of them; it plans with what the coordinator had measured. As soon as the coordinator answers again it
lets them go. They join the coordinator, which learns from them which rounds have been done.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from overlay.core.errors import OverlayError
from overlay.core.site_quorum import alone_among
from overlay.net.coordinator import ANYWHERE
from overlay.net.leadership import STANDBY
from overlay.net.liveness import ALIVE_SECONDS
from overlay.net.membership import CONNECT_SECONDS, LINE_BYTES, Address, Membership, Substitute
from overlay.net.neighbours import Neighbours
from overlay.net.site_services import SiteServices
from overlay.net.tls import Security

if TYPE_CHECKING:
    from overlay.net.deputy_coordinator import Deputy

GONE_SECONDS = 3.0
"""Silence of the coordinator, in seconds, after which sites go on without it; a restart takes less."""


class Deputies:
    """Selects the site whose agent takes the coordinator's place, and runs the deputy if that is this agent.

    Args:
        node: this agent's site.
        coordinator: address of the coordinator, which may return.
        site: this agent's services beside tasks, which know the history and the network.
        neighbours: the other sites.
        listens: returns where this agent listens.
        security: TLS; None for plaintext.
        log: gets each line of log.
    """

    def __init__(
        self,
        node: str,
        coordinator: Address,
        site: SiteServices,
        neighbours: Neighbours,
        *,
        listens: Callable[[], Address],
        security: Security | None,
        log: Callable[[str], None],
    ) -> None:
        self._node, self._coordinator, self._site, self._neighbours = node, coordinator, site, neighbours
        self._listens, self._security, self._log = listens, security, log
        self._own: Deputy | None = None
        self._making: asyncio.Future[Any] | None = None  # the import of the module of deputies, which takes seconds
        self._watching: asyncio.Task[None] | None = None

    def found(self, membership: Membership) -> Substitute | None:
        """Return the deputy to join while the coordinator does not answer; None if no site can take its place, or it is
        too early.
        """
        sites, members = alone_among(self._site.history), self._neighbours.members
        gone = asyncio.get_running_loop().time() > membership.heard + GONE_SECONDS
        if self._node not in sites or not gone or not members.keys() >= set(sites) or self._site.network is None:
            return None
        reached = [site for site in sorted(sites) if self._neighbours.reachability.reached_by_all(site, sites)]
        if not reached:
            return None
        first, own = reached[0], members[self._node]
        if first != self._node:
            return Substitute(first, members[first], own)
        host, port = self._listens()
        if self._making is None:
            loop = asyncio.get_running_loop()
            self._making = loop.run_in_executor(None, import_module, "overlay.net.deputy_coordinator")
        if not self._making.done():
            return None
        if self._own is None:
            self._log(f"the coordinator does not answer: {', '.join(sites)} go on, and {first} coordinates them")
            make = self._making.result().make
            self._own = make((host, port), self._site.history, self._site.network, self._security, self._log)
            self._watching = asyncio.ensure_future(self._watch())
        return Substitute(first, ("::1" if ":" in host else "127.0.0.1" if host in ANYWHERE else host, port), own)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the connection of another agent that wants to join this one as its coordinator."""
        if self._own is not None:
            await self._own.serve(reader, writer)
        else:
            writer.write(STANDBY)
            writer.close()

    async def _watch(self) -> None:
        """Close the deputy when the coordinator answers again."""
        while not await self._answers():
            await asyncio.sleep(ALIVE_SECONDS / 4)
        self._log("the coordinator at {}:{} answers again".format(*self._coordinator))
        self.close()

    async def _answers(self) -> bool:
        """Return whether the coordinator answers now."""
        context = self._security.connect if self._security else None
        with suppress(OSError, ValueError, AttributeError, OverlayError):  # TimeoutError is an OSError
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(*self._coordinator, ssl=context, limit=LINE_BYTES)
                try:
                    if self._security:
                        self._security.check(writer.transport, "controller")
                    writer.write(json.dumps({"type": "alive"}).encode() + b"\n")
                    return bool(json.loads(await reader.readline()).get("type") == "alive")
                finally:
                    writer.close()
        return False

    def close(self) -> None:
        """End this agent's part as a coordinator."""
        own, self._own = self._own, None
        if own is not None:
            own.resign()
        if self._watching is not None:
            self._watching.cancel()
