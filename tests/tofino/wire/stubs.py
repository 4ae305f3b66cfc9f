"""Stub and handler of the BfRuntime service, by its name on the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import grpc

from tests.tofino.wire import bri_wire_pb2 as pb

SERVICE = "bfrt_proto.BfRuntime"


class BfRuntimeStub:
    """The client side, named as the SDE's generated code names it."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.Write: Callable[..., pb.WriteResponse] = channel.unary_unary(
            f"/{SERVICE}/Write", pb.WriteRequest.SerializeToString, pb.WriteResponse.FromString
        )
        self.Read: Callable[..., Any] = channel.unary_stream(
            f"/{SERVICE}/Read", pb.ReadRequest.SerializeToString, pb.ReadResponse.FromString
        )
        self.SetForwardingPipelineConfig: Callable[..., pb.SetForwardingPipelineConfigResponse] = channel.unary_unary(
            f"/{SERVICE}/SetForwardingPipelineConfig",
            pb.SetForwardingPipelineConfigRequest.SerializeToString,
            pb.SetForwardingPipelineConfigResponse.FromString,
        )
        self.GetForwardingPipelineConfig: Callable[..., pb.GetForwardingPipelineConfigResponse] = channel.unary_unary(
            f"/{SERVICE}/GetForwardingPipelineConfig",
            pb.GetForwardingPipelineConfigRequest.SerializeToString,
            pb.GetForwardingPipelineConfigResponse.FromString,
        )
        self.StreamChannel: Callable[..., Any] = channel.stream_stream(
            f"/{SERVICE}/StreamChannel", pb.StreamMessageRequest.SerializeToString, pb.StreamMessageResponse.FromString
        )


class BfRuntimeService(Protocol):
    """What a server implements."""

    def write(self, request: pb.WriteRequest, context: grpc.ServicerContext) -> pb.WriteResponse: ...

    def read(self, request: pb.ReadRequest, context: grpc.ServicerContext) -> Iterator[pb.ReadResponse]: ...

    def set_config(
        self, request: pb.SetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> pb.SetForwardingPipelineConfigResponse: ...

    def get_config(
        self, request: pb.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> pb.GetForwardingPipelineConfigResponse: ...

    def stream(
        self, requests: Iterator[pb.StreamMessageRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.StreamMessageResponse]: ...


def add_to_server(service: BfRuntimeService, server: grpc.Server) -> None:
    """Register an implementation of the service."""
    handlers = {
        "Write": grpc.unary_unary_rpc_method_handler(
            service.write, pb.WriteRequest.FromString, pb.WriteResponse.SerializeToString
        ),
        "Read": grpc.unary_stream_rpc_method_handler(
            service.read, pb.ReadRequest.FromString, pb.ReadResponse.SerializeToString
        ),
        "SetForwardingPipelineConfig": grpc.unary_unary_rpc_method_handler(
            service.set_config,
            pb.SetForwardingPipelineConfigRequest.FromString,
            pb.SetForwardingPipelineConfigResponse.SerializeToString,
        ),
        "GetForwardingPipelineConfig": grpc.unary_unary_rpc_method_handler(
            service.get_config,
            pb.GetForwardingPipelineConfigRequest.FromString,
            pb.GetForwardingPipelineConfigResponse.SerializeToString,
        ),
        "StreamChannel": grpc.stream_stream_rpc_method_handler(
            service.stream, pb.StreamMessageRequest.FromString, pb.StreamMessageResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
