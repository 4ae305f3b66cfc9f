"""The page of a coordinator of sites, at the address at which sites join it: GET /, /metrics and /api/status."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import controlplane.service.web
from controlplane.service.web.names import is_own_name

STATIC = Path(__file__).resolve().parent / "static"
CONTROLLER_STATIC = Path(controlplane.service.web.__file__).resolve().parent / "static"
FILES = {
    "/": ("text/html; charset=utf-8", STATIC / "sites.html"),
    "/static/sites.js": ("text/javascript", STATIC / "sites.js"),
    "/static/page.css": ("text/css", CONTROLLER_STATIC / "page.css"),
}
MOST_HEADERS = 100
SECONDS = 10.0
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src 'self' data:"
)


async def answer(
    first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: Callable[[], dict[str, Any]]
) -> None:
    """Answer one request, of which the first line has arrived. A browser that reached this machine under the name of
    another one gets nothing, so that no page of another site can read this one.
    """
    host = accept = ""
    async with asyncio.timeout(SECONDS):
        for _ in range(MOST_HEADERS):
            line = (await reader.readline()).decode("latin-1").strip()
            if not line:
                break
            name, _, value = line.partition(":")
            if name.lower() == "host":
                host = value.strip()
            elif name.lower() == "accept":
                accept = value.strip()
    path = [*first.split(), b""][1].decode("latin-1").partition("?")[0]
    code, kind, body = _found(path, accept, status) if is_own_name(host, ()) else (
        HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"ask for this page by the machine's address\n")  # fmt: skip
    head = (
        f"HTTP/1.1 {code.value} {code.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\nCache-Control: no-store\r\nContent-Security-Policy: {POLICY}\r\n"
        "X-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()


def _found(path: str, accept: str, status: Callable[[], dict[str, Any]]) -> tuple[HTTPStatus, str, bytes]:
    if path in FILES:
        kind, file = FILES[path]
        return HTTPStatus.OK, kind, file.read_bytes()
    if path == "/metrics":
        try:
            from overlay.net.site_metrics import metrics_of  # needs prometheus_client
        except ModuleNotFoundError as error:
            said = f"there are no metrics: {error}; pip install 'inart[overlay]' on the coordinator's machine\n"
            return HTTPStatus.NOT_IMPLEMENTED, "text/plain", said.encode()
        return HTTPStatus.OK, *metrics_of(status(), accept)
    if path == "/api/status":
        return HTTPStatus.OK, "application/json", json.dumps(status()).encode()
    return HTTPStatus.NOT_FOUND, "text/plain", b"there is /, /metrics and /api/status\n"
