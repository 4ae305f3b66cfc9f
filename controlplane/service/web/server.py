"""The HTTP server of the page, the snapshot and the metrics. The page needs nothing from other machines."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import bokeh
import grpc

from controlplane.common import dual_stack
from controlplane.common.access import Access, Caller, Denied, parse_uri, peer_began
from controlplane.common.rpc.tls import Tls
from controlplane.common.whole_file import Fresh
from controlplane.service.snapshot import Snapshots
from controlplane.service.web import page
from controlplane.service.web.metrics import Metrics
from controlplane.service.web.names import is_own_name

STATIC = Path(__file__).resolve().parent / "static"
BOKEH = Path(bokeh.__file__).resolve().parent / "server/static/js/bokeh.min.js"
READERS = ("operator", "viewer")
HEALTH_PATH = "/healthz"
"""Path that probes of Kubernetes and load balancers ask for; its answer says only that the controller serves."""
REQUEST_SECONDS = 20.0
MAX_STRANGERS = 128
"""Maximum number of connections without a known caller; a further one ends the oldest of them."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src 'self' data:"
)
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript"}


class WebError(ValueError):
    """The page cannot be served; the message says why."""


class Site:
    """Pages of the server, by path."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._metrics = Metrics(snapshots)
        self._files = {
            "/": STATIC / "page.html",
            "/static/page.css": STATIC / "page.css",
            "/static/page.js": STATIC / "page.js",
            "/static/bokeh.min.js": BOKEH,
        }

    def answer(self, path: str, accept: str) -> tuple[str, bytes] | None:
        """Return the content type and the body of the page with this path; None where there is none."""
        if path in self._files:
            file = self._files[path]
            return TYPES[file.suffix], file.read_bytes()
        if path == "/metrics":
            return self._metrics.render(accept)
        if path in ("/api/snapshot", "/api/page", "/api/figures"):
            data: Any = self._figures() if path == "/api/figures" else self._snapshots.take()
            if path == "/api/page":
                data = _page(data)
            return "application/json", json.dumps(data, allow_nan=False).encode()
        return None

    def _figures(self) -> dict[str, Any]:
        topology = self._snapshots.network.topology
        layers = 1 + max((int(node["y"]) for node in self._snapshots.take()["nodes"]), default=0)
        legend = [[words, colour, "line"] for _, words, colour in page.STEPS]
        legend += [["adds", page.colour_of(1), "ring"], ["bottleneck", page.BOTTLENECK_COLOUR, "ring"]]
        return {"items": list(page.figures(layers, len(topology.servers)).values()), "legend": legend}


def _count(jobs: int) -> str:
    return "1 job" if jobs == 1 else f"{jobs} jobs"


def _page(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    columns = page.columns(snapshot)
    lights = columns.pop("lights")
    switches = [node for node in snapshot["nodes"] if node["kind"] == "switch"]
    away = sum(1 for node in switches if node["state"] != "connected")
    summary = f"{len(switches)} switches" + (f", {away} of them away" if away else "")
    summary += f", {len(snapshot['nodes']) - len(switches)} servers, {_count(len(snapshot['jobs']))}"
    if snapshot["without"]:
        summary += f"; disabled: {', '.join(snapshot['without'])}"
    jobs = [{**job, "colour": page.colour_of(job["number"])} for job in snapshot["jobs"]]
    links = {(link["from"], link["to"]): link for link in snapshot["links"]}
    for job in jobs:
        del job["history"]
        job["trees"] = [{**tree, "slowest": page.slowest_hop(tree, links)} for tree in job["trees"]]
    return {
        "time": snapshot["time"],
        "topology": snapshot["topology"],
        "summary": summary,
        "columns": columns,
        "history_seconds": page.history_seconds(snapshot),
        "lights": lights,
        "jobs": jobs,
        "events": snapshot["events"],
    }


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server: _Server
    server_version = "InArt"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        named = self.headers.get("Host", "")
        if not self.server.access.restricted and not is_own_name(named, self.server.names):
            refusal = f"this page is not {named[:80]!r}: ask for it by the machine's address, or its own name\n"
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", refusal.encode(), body)
            return
        if urlsplit(self.path).path == HEALTH_PATH:  # for probes, which have neither certificate nor token
            self._send(HTTPStatus.OK, "text/plain", b"ok\n", body)
            return
        try:
            self._check()
        except Denied as denied:
            self._send(HTTPStatus.UNAUTHORIZED, "text/plain", f"{denied}\n".encode(), body)
            return
        try:
            found = self.server.site.answer(urlsplit(self.path).path, self.headers.get("Accept", ""))
        except Exception as error:  # a page that cannot be made must not end the server
            self._send(
                HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{type(error).__name__}: {error}\n".encode(), body
            )
            return
        if found is None:
            words = b"there is /, /metrics, /healthz, /api/snapshot\n"
            self._send(HTTPStatus.NOT_FOUND, "text/plain", words, body)
        else:
            self._send(HTTPStatus.OK, *found, body)

    def _check(self) -> None:
        """Check that the caller may see the page; raise Denied otherwise."""
        access = self.server.access
        if not access.restricted:
            return
        caller = self._certificate()
        if caller is None:
            caller = access.of_token(self._token())
        self.server.strangers.remove(self.connection)
        if caller.role not in READERS:
            raise Denied(
                grpc.StatusCode.PERMISSION_DENIED, f"{caller} may not look: that takes an operator or a viewer"
            )

    def _certificate(self) -> Caller | None:
        if not isinstance(self.connection, ssl.SSLSocket):
            return None
        certificate: Any = self.connection.getpeercert() or {}
        callers = [parse_uri(str(value)) for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
        caller = next((caller for caller in callers if caller is not None), None)
        if caller is not None:
            self.server.access.check_revoked(caller, lambda: peer_began(certificate))
        return caller

    def _token(self) -> str:
        """Return the token of a header "Bearer TOKEN" or "Basic". With the latter a browser sends a name and a
        password, and the password is the token."""
        kind, _, value = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "basic":
            try:
                return base64.b64decode(value, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return ""
        return value.strip() if kind.lower() == "bearer" else ""

    def _send(self, status: HTTPStatus, kind: str, content: bytes, body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        if status == HTTPStatus.UNAUTHORIZED:
            # Without tokens there is nothing to type in: only a certificate lets a browser in.
            words = "any name, and your token" if self.server.access.tokens else "only a certificate lets you in"
            self.send_header("WWW-Authenticate", f'Basic realm="InArt: {words}"')
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, since the page asks every second."""


class _Strangers:
    """The connections whose caller is unknown, at most `MAX_STRANGERS`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, None] = {}  # the oldest one first

    def add(self, connection: socket.socket) -> None:
        """Add a connection, and end the oldest one if there are too many."""
        with self._lock:
            self._connections[connection] = None
            if len(self._connections) > MAX_STRANGERS:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                with contextlib.suppress(OSError):  # its own thread may end it at the same time
                    # The method of an SSLSocket would take its state away from the thread that uses it.
                    socket.socket.shutdown(oldest, socket.SHUT_RDWR)

    def remove(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.pop(connection, None)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # connections that wait to be accepted; Python's 5 refuse a few browsers at once
    site: Site
    access: Access
    names: frozenset[str] = frozenset()
    contexts: Fresh[ssl.SSLContext] | None = None

    def __init__(self, address: tuple[str, int]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)
        self.strangers = _Strangers()

    def server_bind(self) -> None:
        if self.server_address[0] == dual_stack.ALL:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.contexts is not None:
            request.settimeout(REQUEST_SECONDS)
            request = self.contexts.now().wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        self.strangers.add(request)
        try:
            if self.contexts is not None:  # here, in the connection's own thread, since a handshake may take long
                request.do_handshake()
            super().finish_request(request, client_address)
        finally:
            self.strangers.remove(request)
            request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing, since a client that breaks off its connection knows that."""


class Web:
    """Serves a site from `start` to `close`. Its port is bound when the object is made.

    Args:
        address: "host:port" (port 0 is any free one).
        tls: with an authority, clients may show certificates.

    Raises:
        WebError: the address cannot be listened on, or the files cannot be used.
    """

    def __init__(self, address: str, access: Access | None = None, tls: Tls | None = None) -> None:
        host, _, port = address.rpartition(":")
        if not port.isdigit() or not host:
            raise WebError(f"--web takes HOST:PORT, got {address!r}")
        try:
            self._server = _Server((host.strip("[]"), int(port)))
        except (OSError, OverflowError) as error:
            raise WebError(f"cannot serve the page on {address}: {error}") from None
        self._server.access = access or Access()
        self._server.names = frozenset(name.lower() for name in (host, socket.gethostname(), socket.getfqdn()))
        if tls is not None:
            self._server.contexts = tls.fresh(_context)
        self._thread: threading.Thread | None = None
        self.url = f"http{'s' if tls is not None else ''}://{host}:{self._server.server_port}/"

    def start(self, site: Site) -> None:
        self._server.site = site
        self._thread = threading.Thread(target=self._server.serve_forever, name="web", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _context(tls: Tls) -> ssl.SSLContext:
    if tls.certificate is None or tls.key is None:
        raise WebError("the page over TLS needs certificate.pem and key.pem in the credentials")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate, tls.key)
        if tls.authority is not None:
            context.load_verify_locations(tls.authority)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (ssl.SSLError, OSError) as error:
        raise WebError(f"TLS: {error}") from None
    return context
