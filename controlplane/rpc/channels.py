"""How every client of ours opens a gRPC channel, and how a server binds its port."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc

from controlplane.rpc.tls import Tls

Options = Sequence[tuple[str, int]]

COMMON: Options = (
    ("grpc.enable_http_proxy", 0),
    # Its own TCP connection: a failed attempt's back-off must not delay the next channel to the same address.
    ("grpc.use_local_subchannel_pool", 1),
)
# A machine that vanishes (no FIN, no RST) is noticed within about 10 s on both sides.
KEEPALIVE: Options = (
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
SERVER: Options = (
    *KEEPALIVE,
    ("grpc.http2.min_ping_interval_without_data_ms", 2000),
    ("grpc.http2.max_ping_strikes", 0),
    # Two controllers on one port would each see some of the agents.
    ("grpc.so_reuseport", 0),
)


class Threads(ThreadPoolExecutor):
    """A thread for every call, that does not keep the process from ending: an agent's stream waits for as long as the
    agent lives, and a pool's threads are joined when Python ends."""

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
    """The address cannot be listened on."""


def open_channel(address: str, tls: Tls | None = None, options: Options = KEEPALIVE) -> grpc.Channel:
    """A channel to "host:port"; connects lazily. tls None: plaintext."""
    both = (*COMMON, *options)
    if tls is None:
        return grpc.insecure_channel(address, options=both)
    return grpc.secure_channel(address, tls.channel_credentials(), options=both)


def bind(address: str, tls: Tls | None = None) -> tuple[grpc.Server, int]:
    """A server that has its port, "host:port" (port 0: any free one) or "unix:PATH", but answers nobody before it is
    started. Raises NotFree."""
    server = grpc.server(Threads(), options=SERVER)
    try:
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, tls.server_credentials())
    except RuntimeError:
        port = 0
    if port == 0:
        raise NotFree(f"cannot listen on {address}: is the port free, the address one of this machine?")
    return server, port
