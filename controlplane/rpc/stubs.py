"""Stub and handler of `inart.v1.Controller`, and how both sides open a channel.

Written by hand, so that nobody needs the gRPC plug-in of protoc: three methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc

from controlplane.rpc import inart_pb2 as pb

SERVICE = "inart.v1.Controller"

# A machine that vanishes (no FIN, no RST) is noticed within about 10 s on both sides.
_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
CLIENT_OPTIONS = (*_KEEPALIVE, ("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
SERVER_OPTIONS = (
    *_KEEPALIVE,
    ("grpc.http2.min_ping_interval_without_data_ms", 2000),
    ("grpc.http2.max_ping_strikes", 0),
    # Two controllers on one port would each see some of the agents.
    ("grpc.so_reuseport", 0),
)


class ControllerService(Protocol):
    """What a server of the service implements; see inart.proto."""

    def join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> Iterator[pb.Event]: ...

    def report(self, request: pb.ReportRequest, context: grpc.ServicerContext) -> pb.ReportReply: ...

    def status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply: ...


@dataclass(frozen=True)
class Tls:
    """PEM files. `authority`: certificate of the CA that signed the other side's certificate.

    A server with an authority wants certificates from its clients (mutual TLS). A client without certificate and key
    only checks the server.
    """

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("TLS: a certificate needs its key, and a key its certificate")
        for path in (self.certificate, self.key, self.authority):
            if path is not None and not path.is_file():
                raise ValueError(f"TLS: {path} does not exist")

    def _read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        files = (self.key, self.certificate, self.authority)
        key, certificate, authority = (path.read_bytes() if path else None for path in files)
        return key, certificate, authority

    def channel_credentials(self) -> grpc.ChannelCredentials:
        key, certificate, authority = self._read()
        return grpc.ssl_channel_credentials(authority, key, certificate)

    def server_credentials(self) -> grpc.ServerCredentials:
        key, certificate, authority = self._read()
        if key is None or certificate is None:
            raise ValueError("TLS: a server needs --tls-cert and --tls-key")
        return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=authority is not None)


def open_channel(address: str, tls: Tls | None = None) -> grpc.Channel:
    """A channel to a controller at "host:port"; connects lazily."""
    if tls is None:
        return grpc.insecure_channel(address, options=CLIENT_OPTIONS)
    return grpc.secure_channel(address, tls.channel_credentials(), options=CLIENT_OPTIONS)


class ControllerStub:
    """The client side of the service on a channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.join: Callable[..., Any] = channel.unary_stream(
            f"/{SERVICE}/Join", pb.JoinRequest.SerializeToString, pb.Event.FromString
        )
        self.report: Callable[..., pb.ReportReply] = channel.unary_unary(
            f"/{SERVICE}/Report", pb.ReportRequest.SerializeToString, pb.ReportReply.FromString
        )
        self.status: Callable[..., pb.StatusReply] = channel.unary_unary(
            f"/{SERVICE}/Status", pb.StatusRequest.SerializeToString, pb.StatusReply.FromString
        )


def add_to_server(service: ControllerService, server: grpc.Server) -> None:
    """Register an implementation of the service."""
    handlers = {
        "Join": grpc.unary_stream_rpc_method_handler(
            service.join, pb.JoinRequest.FromString, pb.Event.SerializeToString
        ),
        "Report": grpc.unary_unary_rpc_method_handler(
            service.report, pb.ReportRequest.FromString, pb.ReportReply.SerializeToString
        ),
        "Status": grpc.unary_unary_rpc_method_handler(
            service.status, pb.StatusRequest.FromString, pb.StatusReply.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
