"""The door of a coordinator that takes tokens: an agent without a certificate gets one here, and nothing else.

Connections over TLS may then come without a certificate. Their messages are read here first, a line of JSON at a time:

    {"type": "authority"}                                the authority's certificate, to compare with the token's digest
    {"type": "enrol", "token", "site", "request"}        a certificate for the key of the request
    {"type": "renew", "request"}                         the next one, of a site that shows its present one

A certificate that was bought with a token opens the door as long as that token is not revoked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from overlay.core.errors import OverlayError
from overlay.net.joining import UNIT, Joining
from overlay.net.tls import Security, callers_of

Serve = Callable[[Any, asyncio.StreamWriter], Awaitable[None]]


def guarded(serve: Serve, security: Security | None) -> Serve:
    """Return `serve` behind the door, where the coordinator takes tokens; else `serve` itself."""
    if security is None or security.joining is None:
        return serve
    joining = security.joining

    async def behind(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(Door(reader, writer, joining), writer)

    return behind


class Door:
    """The lines of one connection, as a coordinator reads them, without those that the door answers itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, joining: Joining) -> None:
        self._reader, self._writer, self._joining = reader, writer, joining
        self._certificate: dict[str, Any] = writer.get_extra_info("peercert") or {}
        self._web = False  # whether the lines are those of a browser's request, which was let in

    async def readline(self) -> bytes:
        """Return the next line for the coordinator; an empty one at the end, or when the other end is refused."""
        while line := await self._reader.readline():
            if self._web:
                return line
            try:
                answer = self._answer(line)
            except OverlayError as error:
                self._say(type="refused", reason=str(error))
                return b""
            if answer is None:
                self._web = line.startswith(b"GET ")
                return line
            self._say(**answer)
        return line

    def _say(self, **message: str) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    def _answer(self, line: bytes) -> dict[str, str] | None:
        """Return the answer to this line; None where the line is for the coordinator. Raise OverlayError with the
        reason for which the other end is refused.
        """
        message = {} if line.startswith(b"GET ") else json.loads(line)
        kind = message.get("type") if isinstance(message, dict) else None
        if kind == "authority":
            return {"type": "authority", "authority": self._joining.authority.pem.decode()}
        if kind == "enrol":
            site, request = str(message["site"]), str(message["request"]).encode()
            return self._certified(self._joining.buy(str(message["token"]), site, request))
        number = self._token()
        if not self._certificate:
            raise OverlayError("this coordinator wants a certificate, or a token (--token FILE)")
        if number is not None and (reason := self._joining.refusal(number)) is not None:
            raise OverlayError(reason)
        if kind != "renew":
            return None
        callers = callers_of(self._certificate)
        if number is None or len(callers) != 1:
            raise OverlayError("only a certificate that was bought with a token is renewed here")
        return self._certified(self._joining.renew(number, callers[0].name, str(message["request"]).encode()))

    def _token(self) -> str | None:
        """Return the ID of the token with which the other end's certificate was bought; None where no token was."""
        for part in self._certificate.get("subject", ()):
            for key, value in part:
                if key == "organizationalUnitName" and value.startswith(UNIT):
                    return str(value.removeprefix(UNIT))
        return None

    @staticmethod
    def _certified(pem: bytes) -> dict[str, str]:
        return {"type": "certificate", "certificate": pem.decode()}
