"""Opens gRPC channels for all clients, binds servers to their ports, and checks addresses."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

# gRPC's own log lines contain raw bytes of whoever connects, and flood a log; what matters of them reaches us as
# errors. This must be set before grpc is used for the first time. GRPC_VERBOSITY=INFO brings them back.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from controlplane.common.descriptors import HANDSHAKE_SECONDS, IDLE_SECONDS, max_connections
from controlplane.common.rpc.tls import CONTROLLER_NAME, Tls, is_local

Options = Sequence[tuple[str, int]]

COMMON: Options = (
    ("grpc.enable_http_proxy", 0),
    # Give each channel a TCP connection of its own: a failed attempt's back-off must not delay the next channel to the
    # same address.
    ("grpc.use_local_subchannel_pool", 1),
)
# With these, both sides notice within about 10 s that the other machine has vanished (no FIN, no RST). Without the last
# line gRPC 1.85 takes 64 s.
KEEPALIVE: Options = (
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 5000),
)
# Of several controllers, one that hangs is left within about 3 s.
KEEPALIVE_OF_SEVERAL: Options = (
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 2000),
)
MAX_CALLS = 100
"""Maximum number of calls at a time over one connection; each has a thread."""
SERVER: Options = (
    *KEEPALIVE,
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_SECONDS),
    ("grpc.max_connection_idle_ms", 1000 * IDLE_SECONDS),  # an agent always has a call, the stream of its events
    ("grpc.max_concurrent_streams", MAX_CALLS),
    # Without SO_REUSEPORT: two controllers on one port would each see some of the agents.
    ("grpc.so_reuseport", 0),
)


class Threads(ThreadPoolExecutor):
    """An executor with one daemon thread per call.

    An agent's stream lasts as long as the agent, and Python joins the threads of an ordinary pool at exit, so that the
    process would not end.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name="rpc", daemon=True).start()
        return future


class NotFree(OSError):
    """The server cannot listen on the address."""


class _Token(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    """An interceptor that sends a token with every call."""

    def __init__(self, token: str) -> None:
        self._token = token

    def _with(self, details: Any) -> Any:
        metadata = [*(details.metadata or ()), ("authorization", f"Bearer {self._token}")]
        return _Details(details.method, details.timeout, metadata, details.credentials, details.wait_for_ready, None)

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(self._with(details), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(self._with(details), request)


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


def controller_address(given: str | None) -> str:
    """Return the controller's address: the one given, else $INART_CONTROLLER. Raise ValueError where there is none."""
    address = given or os.environ.get("INART_CONTROLLER")
    if not address:
        raise ValueError("which controller? Give --controller HOST:PORT, or set INART_CONTROLLER")
    return check_address(address)


def check_address(address: str) -> str:
    """Return the address, if it is HOST:PORT or unix:PATH, or several of them with commas between. Raise ValueError
    otherwise, since gRPC would silently take any other text for something else."""
    for one in each_address(address):
        if not _is_address(one, least=1):
            raise ValueError(f"a controller's address is HOST:PORT or unix:PATH, got {one!r}{_hint(one)}")
    return address


def each_address(addresses: str) -> list[str]:
    """Return the addresses of several controllers, "10.1.0.1:9600,10.1.0.2:9600", as a list."""
    return addresses.split(",")


def answers(channel: grpc.Channel, seconds: float) -> bool:
    """Return whether the other end of a channel answers within so many seconds; if it refuses, return at once."""
    ends: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def look(state: grpc.ChannelConnectivity) -> None:
        if state in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
            ends.put(state is grpc.ChannelConnectivity.READY)

    channel.subscribe(look, try_to_connect=True)
    try:
        return ends.get(timeout=seconds)
    except queue.Empty:
        return False
    finally:
        channel.unsubscribe(look)


def check_listen(address: str, option: str) -> None:
    """Check an address to listen on, where port 0 means any free port. Raise ValueError, which names the option, where
    it is none."""
    if not _is_address(address, least=0):
        raise ValueError(f"{option} needs HOST:PORT or unix:PATH, got {address!r}{_hint(address)}")


def check_server(address: str) -> None:
    """Check the address of a server on the network. Raise ValueError where it is none."""
    if not _is_address(address, least=1):
        raise ValueError(f"an address is host:port, got {address!r}{_hint(address)}")


def _is_address(address: str, least: int) -> bool:
    """Return whether the text is unix:PATH, or HOST:PORT with a port of at least `least`."""
    if address.startswith("unix:"):
        return True
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) < 6 and least <= int(port) < 1 << 16):
        return False
    if host.startswith("[") and host.endswith("]"):
        return ":" in host
    return bool(host) and not any(letter in host for letter in ":[] ")


def _hint(address: str) -> str:
    return " (an IPv6 address goes in brackets: [::1]:9600)" if address.count(":") > 1 else ""


def open_channel(
    address: str, tls: Tls | None = None, options: Options = KEEPALIVE, *, name: str = CONTROLLER_NAME
) -> grpc.Channel:
    """Return a channel to "host:port", which connects lazily, without encryption where `tls` is None.

    `name` is the name that the server's certificate must have if `inart certificates` made it, so that a certificate of
    another role is refused. A certificate of another authority must have the address. Raise ValueError where files
    cannot be used.
    """
    both: list[tuple[str, Any]] = [*COMMON, *options]
    token = tls.read_token() if tls is not None else ""
    if tls is None or not tls.encrypted:
        if token and not is_local(address):
            raise ValueError(
                f"a token would be read on the way to {address}: put its controller's authority.pem beside it"
            )
        channel = grpc.insecure_channel(address, options=both)
    else:
        if tls.names_roles():
            both.append(("grpc.ssl_target_name_override", name))
        channel = grpc.secure_channel(address, tls.channel_credentials(), options=both)
    return grpc.intercept_channel(channel, _Token(token)) if token else channel


def bind(address: str, tls: Tls | None = None, *more: tuple[str, Tls | None]) -> tuple[grpc.Server, int]:
    """Return a server that is bound but answers nobody before it is started, and the port of its first address.

    An address is "host:port" (port 0 is any free one) or "unix:PATH"; `more` are further addresses. Raise NotFree where
    one cannot be bound, and ValueError where files cannot be used.
    """
    limit = ("grpc.max_allowed_incoming_connections", max_connections())
    server = grpc.server(Threads(), options=(*SERVER, limit))
    ports = [_add_port(server, *one) for one in ((address, tls), *more)]
    return server, ports[0]


def _add_port(server: grpc.Server, address: str, tls: Tls | None) -> int:
    try:
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, tls.server_credentials())
    except RuntimeError:
        port = 0
    if port == 0:
        raise NotFree(
            f"cannot listen on {address}: is the port free, the address one of this machine"
            + ("?" if tls is None else ", are certificate and key a pair?")
        )
    return port
