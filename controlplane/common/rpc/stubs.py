"""Stub and handler of `inart.v1.Controller`.

They are written by hand as a table of methods, so that nobody needs protoc's gRPC plug-in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from controlplane.common.rpc import inart_pb2 as pb

SERVICE = "inart.v1.Controller"
METHODS: dict[str, tuple[str, Any, Any]] = {
    "join": ("Join", pb.JoinRequest, pb.Event),  # The reply is a stream of events.
    "leave": ("Leave", pb.LeaveRequest, pb.LeaveReply),
    "report": ("Report", pb.ReportRequest, pb.ReportReply),
    "status": ("Status", pb.StatusRequest, pb.StatusReply),
    "report_update": ("ReportUpdate", pb.UpdateReport, pb.UpdateReportReply),
    "replan": ("Replan", pb.ReplanRequest, pb.ReplanReply),
    "add_job": ("AddJob", pb.AddJobRequest, pb.AddJobReply),
    "remove_job": ("RemoveJob", pb.RemoveJobRequest, pb.RemoveJobReply),
    "log": ("Log", pb.LogRequest, pb.LogReply),
    "reload": ("Reload", pb.ReloadRequest, pb.ReloadReply),
    "renew": ("Renew", pb.RenewRequest, pb.RenewReply),
}


class ControllerStub:
    """A client of the service on a channel."""

    join: Callable[..., Any]
    leave: Callable[..., pb.LeaveReply]
    report: Callable[..., pb.ReportReply]
    status: Callable[..., pb.StatusReply]
    report_update: Callable[..., pb.UpdateReportReply]
    replan: Callable[..., pb.ReplanReply]
    add_job: Callable[..., pb.AddJobReply]
    remove_job: Callable[..., pb.RemoveJobReply]
    log: Callable[..., pb.LogReply]
    reload: Callable[..., pb.ReloadReply]
    renew: Callable[..., pb.RenewReply]

    def __init__(self, channel: grpc.Channel) -> None:
        for name, (method, request, reply) in METHODS.items():
            kind = channel.unary_stream if name == "join" else channel.unary_unary
            setattr(self, name, kind(f"/{SERVICE}/{method}", request.SerializeToString, reply.FromString))


Guard = Callable[[str, grpc.ServicerContext], object]


def add_to_server(service: object, server: grpc.Server, guard: Guard = lambda method, context: None) -> None:
    """Register an implementation of the service with a server: an object with the methods of METHODS, each of which
    takes a request and gRPC's context (grpc.ServicerContext) and returns the reply.

    `guard` is called before every call with its method ("Join"); it ends calls that the caller may not make
    (context.abort).
    """
    handlers = {}
    for name, (method, request, reply) in METHODS.items():
        kind = grpc.unary_stream_rpc_method_handler if name == "join" else grpc.unary_unary_rpc_method_handler
        handlers[method] = kind(
            _guarded(getattr(service, name), method, guard), _reader(request), reply.SerializeToString
        )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


class _NoRequest:
    """A placeholder for a request whose bytes could not be parsed."""


def _guarded(answer: Callable[..., Any], method: str, guard: Guard) -> Callable[..., Any]:
    def guarded(request: Any, context: grpc.ServicerContext) -> Any:
        guard(method, context)
        if isinstance(request, _NoRequest):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"these bytes are no request of {method} (inart.proto)")
        return answer(request, context)

    return guarded


def _reader(message: Any) -> Callable[[bytes], Any]:
    """Return a parser of requests. The parser returns _NoRequest on an error, since gRPC takes an exception for the
    server's fault."""

    def read(data: bytes) -> Any:
        try:
            return message.FromString(data)
        except DecodeError:
            return _NoRequest()

    return read
