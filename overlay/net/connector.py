"""Opens an agent's TCP connections to other agents and to the coordinator.

A link on the way may carry only packets that are smaller than those of this host's network, and drop larger ones
without a word (a tunnel whose ICMP messages a firewall drops: RFC 2923, "PMTU black holes"). Then a connection opens,
since the first packets are small, and nothing that is sent over it arrives. So after a connection to a host was open
and the host acknowledged nothing, the next connections to it send segments that fit through every link. If those end in
the same way, the size was not the reason, and the ones after them send full segments again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

from overlay.net.tls import Security

SMALL_SEGMENT_BYTES = 1024
"""Bytes of a segment that fits through every link: IPv6 requires links of 1,280 bytes (RFC 8200, section 5), and
headers with all options of TCP take 120 of these at most. Packets of this size carry 95 % of their bytes, those of
1,500 97 %."""

Address = tuple[str, int]

_log = logging.getLogger("inart")


class Connector:
    """Opens the connections of one agent, in the agent's loop.

    Args:
        security: TLS; None for plaintext.
    """

    def __init__(self, security: Security | None) -> None:
        self.security = security
        self._small: set[str] = set()  # hosts to which connections send small segments

    async def open(
        self, protocol: asyncio.BaseProtocol, address: Address, *, seconds: float, small: bool = False
    ) -> asyncio.Transport:
        """Open a connection with this protocol.

        Args:
            protocol: gets what arrives.
            address: (host, port) of the other end.
            seconds: longest time to try.
            small: have both ends send small segments, whatever earlier connections have shown.

        Raises:
            TimeoutError: the connection was not open in time.
            OSError: the other end cannot be reached.
        """
        connected = False
        try:
            async with asyncio.timeout(seconds):
                own = await self._connected(address, small)
                connected = True
                loop = asyncio.get_running_loop()
                transport, _ = await loop.create_connection(lambda: protocol, sock=own, **self._tls(address))
                return transport
        except TimeoutError:
            if connected and not small:  # TLS waits for an answer, whose packets are large
                self.unanswered(address)
            raise

    async def open_stream(
        self, address: Address, *, seconds: float, limit: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection as a stream of lines of at most `limit` bytes, with small segments in both directions: for
        the coordinator, whose connection carries little. Raise as `open` does.
        """
        async with asyncio.timeout(seconds):
            own = await self._connected(address, small=True)
            return await asyncio.open_connection(sock=own, limit=limit, **self._tls(address))

    def unanswered(self, address: Address) -> None:
        """Take note that a connection to this address was open, and was given up because nothing was acknowledged."""
        host = address[0]
        if host in self._small:
            self._small.remove(host)
            return
        self._small.add(host)
        _log.warning(
            "a connection to %s was open and nothing was acknowledged: the next one has segments of %d bytes, in case "
            "that a link on the way drops larger packets", host, SMALL_SEGMENT_BYTES,
        )  # fmt: skip

    def _tls(self, address: Address) -> dict[str, Any]:
        if self.security is None:
            return {}
        return {"ssl": self.security.connect, "server_hostname": address[0]}

    async def _connected(self, address: Address, small: bool) -> socket.socket:
        """Return a connected socket. Raise OSError when no address of the host takes the connection."""
        loop = asyncio.get_running_loop()
        failed: OSError | None = None
        for family, kind, protocol, _, at in await loop.getaddrinfo(*address, type=socket.SOCK_STREAM):
            own = socket.socket(family, kind, protocol)
            try:
                own.setblocking(False)
                if small or address[0] in self._small:
                    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENT_BYTES)
                await loop.sock_connect(own, at)
            except OSError as error:
                own.close()
                failed = error
            except BaseException:
                own.close()
                raise
            else:
                return own
        raise failed or OSError(f"{address[0]} has no address")
