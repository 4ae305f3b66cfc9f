"""The gRPC service ``p4.v1.P4Runtime`` over any number of devices."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2

from softswitch.p4runtime.status import (
    MAX_STATUS_BYTES,
    BatchError,
    P4RuntimeError,
    abort,
    internal_error,
    not_found,
)
from softswitch.p4runtime.stream import Malformed, Stream
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.target import Target
from softswitch.p4runtime.unknown import API_VERSION, refuse_fields, refuse_own, unknown_number

MAX_STREAMS = 1024
# A stream takes one of the places for clients, so one that does not say for which device it is must end.
ARBITRATION_S = 60.0
# A ReadResponse of this size is sent: far below gRPC's default limit of 4 MiB at the client.
CHUNK_BYTES = 1 << 18

_log = logging.getLogger(__name__)


class _Write(NamedTuple):
    """A WriteRequest, and its bytes as they arrived."""

    request: Any
    data: bytes


class Service:
    """The RPCs of the service, as methods that raise an exception to refuse a request."""

    def __init__(
        self,
        targets: Mapping[int, Target],
        max_status_bytes: int = MAX_STATUS_BYTES,
        arbitration_s: float = ARBITRATION_S,
    ) -> None:
        self._targets = targets
        self._max_status_bytes = max_status_bytes
        self._arbitration_s = arbitration_s
        self._streams = 0
        self._streams_lock = threading.Lock()

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handler to be added to a ``grpc.Server``."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        methods = {
            "Write": unary(self._guarded(self.write), _parse_write, _serialize),
            "Read": stream(self._guarded_stream(self.read), _parser(p4rt.ReadRequest), _serialize),
            "SetForwardingPipelineConfig": unary(
                self._guarded(self.set_pipeline), _parser(p4rt.SetForwardingPipelineConfigRequest), _serialize
            ),
            "GetForwardingPipelineConfig": unary(
                self._guarded(self.get_pipeline), _parser(p4rt.GetForwardingPipelineConfigRequest), _serialize
            ),
            "StreamChannel": grpc.stream_stream_rpc_method_handler(
                self._guarded_stream(self.stream_channel), _parser(p4rt.StreamMessageRequest), _serialize
            ),
            "Capabilities": unary(self._guarded(self.capabilities), _parser(p4rt.CapabilitiesRequest), _serialize),
        }
        return grpc.method_handlers_generic_handler("p4.v1.P4Runtime", methods)

    def write(self, received: _Write, context: grpc.ServicerContext) -> p4rt.WriteResponse:
        request, data = received
        refuse_own(request)
        outcomes = self._find(request.device_id).write(request, data)
        if any(outcomes):
            failure = BatchError(outcomes, "update")
            _log.info("device %d: %s", request.device_id, failure)  # Large statuses may not reach the client.
            raise failure
        return p4rt.WriteResponse()

    def read(self, request: p4rt.ReadRequest, context: grpc.ServicerContext) -> Iterator[p4rt.ReadResponse]:
        refuse_own(request)
        answers, outcomes = self._find(request.device_id).read(request)
        response, size = p4rt.ReadResponse(), 0
        for answer in answers:
            for entity in answer:
                response.entities.append(entity)
                size += entity.ByteSize()
                if size >= CHUNK_BYTES:
                    yield response
                    response, size = p4rt.ReadResponse(), 0
        if size:
            yield response
        if any(outcomes):
            raise BatchError(outcomes, "query")

    def set_pipeline(
        self, request: p4rt.SetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4rt.SetForwardingPipelineConfigResponse:
        refuse_fields(request)
        self._find(request.device_id).set_pipeline(request)
        return p4rt.SetForwardingPipelineConfigResponse()

    def get_pipeline(
        self, request: p4rt.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4rt.GetForwardingPipelineConfigResponse:
        refuse_own(request)
        return self._find(request.device_id).get_pipeline(request.response_type)

    def stream_channel(
        self, requests: Iterator[p4rt.StreamMessageRequest | Malformed], context: grpc.ServicerContext
    ) -> Iterator[p4rt.StreamMessageResponse]:
        stream = Stream(self._find, self._arbitration_s)
        with self._streams_lock:
            if self._streams >= MAX_STREAMS:
                raise P4RuntimeError(code_pb2.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} streams are open already")
            self._streams += 1
        try:
            if not context.add_callback(stream.end):
                return  # The client has gone already.
            threading.Thread(target=stream.receive, args=(requests,), daemon=True).start()
            yield from stream.messages()
            if stream.error is not None:
                raise stream.error
        finally:
            stream.disconnect()
            with self._streams_lock:
                self._streams -= 1

    def capabilities(
        self, request: p4rt.CapabilitiesRequest, context: grpc.ServicerContext
    ) -> p4rt.CapabilitiesResponse:
        # All devices have the same capabilities. The field is one of P4Runtime 1.5.
        device_id = getattr(request, "device_id", 0) or unknown_number(request, 1)
        if device_id:
            self._find(device_id)
        return p4rt.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def _find(self, device_id: int) -> Target:
        target = self._targets.get(device_id)
        if target is None:
            raise not_found(f"device {device_id} does not exist; {_served(self._targets)}")
        return target

    def _guarded(
        self, method: Callable[[Any, grpc.ServicerContext], Any]
    ) -> Callable[[Any, grpc.ServicerContext], Any]:
        """Wrap a method so that the client gets every exception as a status."""

        def call(request: Any, context: grpc.ServicerContext) -> Any:
            refusal: P4RuntimeError | BatchError
            try:
                if isinstance(request, Malformed):
                    raise request.refusal()
                return method(request, context)
            except (P4RuntimeError, BatchError) as error:
                refusal = error
            except Exception:
                _log.exception("%s failed", method.__name__)
                refusal = internal_error()
            return abort(context, refusal, self._max_status_bytes)

        return call

    def _guarded_stream(
        self,
        method: Callable[[Any, grpc.ServicerContext], Iterator[Any]],
    ) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
        """Wrap a method that answers with a stream, like :meth:`_guarded`."""

        def call(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            refusal: P4RuntimeError | BatchError
            try:
                if isinstance(request, Malformed):
                    raise request.refusal()
                yield from method(request, context)
                return
            except (P4RuntimeError, BatchError) as error:
                refusal = error
            except Exception:
                _log.exception("%s failed", method.__name__)
                refusal = internal_error()
            abort(context, refusal, self._max_status_bytes)

        return call


def _served(targets: Mapping[int, Target]) -> str:
    """Return which devices a client may ask for."""
    numbers = sorted(targets)
    if len(numbers) == 1:
        return f"the only device of this switch has the id {numbers[0]}"
    shown = ", ".join(map(str, numbers[:10]))
    return f"the devices have the ids {shown}" + (f" and {len(numbers) - 10} more" if len(numbers) > 10 else "")


def _parser(message: type[Message]) -> Callable[[bytes], Message | Malformed]:
    def parse(data: bytes) -> Message | Malformed:
        parsed = message()
        try:
            parsed.ParseFromString(data)
        except DecodeError as error:
            return Malformed(message.DESCRIPTOR.full_name, str(error))
        return parsed

    return parse


_parse_write_request = _parser(p4rt.WriteRequest)


def _parse_write(data: bytes) -> _Write | Malformed:
    parsed = _parse_write_request(data)
    return parsed if isinstance(parsed, Malformed) else _Write(parsed, data)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
