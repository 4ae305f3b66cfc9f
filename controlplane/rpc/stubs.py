"""Stub and handler of `inart.v1.Controller`.

Written by hand, so that nobody needs the gRPC plug-in of protoc: six methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import grpc

from controlplane.rpc import inart_pb2 as pb

SERVICE = "inart.v1.Controller"


class ControllerService(Protocol):
    """What a server of the service implements; see inart.proto."""

    def join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> Iterator[pb.Event]: ...

    def leave(self, request: pb.LeaveRequest, context: grpc.ServicerContext) -> pb.LeaveReply: ...

    def report(self, request: pb.ReportRequest, context: grpc.ServicerContext) -> pb.ReportReply: ...

    def status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply: ...

    def report_update(self, request: pb.UpdateReport, context: grpc.ServicerContext) -> pb.UpdateReportReply: ...

    def replan(self, request: pb.ReplanRequest, context: grpc.ServicerContext) -> pb.ReplanReply: ...


class ControllerStub:
    """The client side of the service on a channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.join: Callable[..., Any] = channel.unary_stream(
            f"/{SERVICE}/Join", pb.JoinRequest.SerializeToString, pb.Event.FromString
        )
        self.leave: Callable[..., pb.LeaveReply] = channel.unary_unary(
            f"/{SERVICE}/Leave", pb.LeaveRequest.SerializeToString, pb.LeaveReply.FromString
        )
        self.report: Callable[..., pb.ReportReply] = channel.unary_unary(
            f"/{SERVICE}/Report", pb.ReportRequest.SerializeToString, pb.ReportReply.FromString
        )
        self.status: Callable[..., pb.StatusReply] = channel.unary_unary(
            f"/{SERVICE}/Status", pb.StatusRequest.SerializeToString, pb.StatusReply.FromString
        )
        self.report_update: Callable[..., pb.UpdateReportReply] = channel.unary_unary(
            f"/{SERVICE}/ReportUpdate", pb.UpdateReport.SerializeToString, pb.UpdateReportReply.FromString
        )
        self.replan: Callable[..., pb.ReplanReply] = channel.unary_unary(
            f"/{SERVICE}/Replan", pb.ReplanRequest.SerializeToString, pb.ReplanReply.FromString
        )


def add_to_server(service: ControllerService, server: grpc.Server) -> None:
    """Register an implementation of the service."""
    handlers = {
        "Join": grpc.unary_stream_rpc_method_handler(
            service.join, pb.JoinRequest.FromString, pb.Event.SerializeToString
        ),
        "Leave": grpc.unary_unary_rpc_method_handler(
            service.leave, pb.LeaveRequest.FromString, pb.LeaveReply.SerializeToString
        ),
        "Report": grpc.unary_unary_rpc_method_handler(
            service.report, pb.ReportRequest.FromString, pb.ReportReply.SerializeToString
        ),
        "Status": grpc.unary_unary_rpc_method_handler(
            service.status, pb.StatusRequest.FromString, pb.StatusReply.SerializeToString
        ),
        "ReportUpdate": grpc.unary_unary_rpc_method_handler(
            service.report_update, pb.UpdateReport.FromString, pb.UpdateReportReply.SerializeToString
        ),
        "Replan": grpc.unary_unary_rpc_method_handler(
            service.replan, pb.ReplanRequest.FromString, pb.ReplanReply.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
