"""One StreamChannel RPC: a queue to the client, and a thread that reads from the client."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
from google.rpc import code_pb2

from softswitch.p4runtime.arbitration import Arbiter, Session
from softswitch.p4runtime.status import P4RuntimeError, denied, internal_error, invalid, unimplemented
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.target import Target
from softswitch.p4runtime.unknown import refuse_fields

# Messages that may wait for a client that reads too slowly; further ones are dropped, except arbitration messages.
MAX_WAITING = 4096

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Malformed:
    """Bytes from a client that are not the expected message."""

    expected: str
    reason: str

    def refusal(self) -> P4RuntimeError:
        return invalid(f"this is not a {self.expected} message: {self.reason}")


class Stream:
    """The server's end of one stream, which ends after ``arbitration_s`` seconds without an arbitration message.

    ``find`` returns the device with an id, or raises NOT_FOUND.
    """

    def __init__(self, find: Callable[[int], Target], arbitration_s: float) -> None:
        self._find = find
        self._arbitration_s = arbitration_s
        self._deadline = time.monotonic() + arbitration_s
        self._queue: queue.SimpleQueue[p4rt.StreamMessageResponse | None] = queue.SimpleQueue()
        self._session = Session(self._send, self.end)
        self._target: Target | None = None
        self._arbiter: Arbiter | None = None
        self.error: P4RuntimeError | None = None

    def messages(self) -> Iterator[p4rt.StreamMessageResponse]:
        """Yield the messages to send to the client, until the stream ends."""
        while True:
            try:
                message = self._queue.get(timeout=self._patience())
            except queue.Empty:
                if self._target is not None:  # The arbitration message arrived at the last moment.
                    continue
                self.end(
                    P4RuntimeError(
                        code_pb2.DEADLINE_EXCEEDED, f"no arbitration message within {self._arbitration_s:g} s"
                    )
                )
                return
            if message is None:
                return
            yield message

    def _patience(self) -> float | None:
        """Return for how many seconds the next message may be awaited; ``None`` without limit."""
        return None if self._target is not None else max(0.0, self._deadline - time.monotonic())

    def end(self, error: P4RuntimeError | None = None) -> None:
        """End the stream, with an error or without; only the first call counts."""
        if self.error is None:
            self.error = error
        self._queue.put(None)

    def disconnect(self) -> None:
        """Handle that the client has gone, or will be told so. A second call does nothing."""
        if self._arbiter is not None:
            self._arbiter.disconnect(self._session)

    def receive(self, requests: Iterator[p4rt.StreamMessageRequest | Malformed]) -> None:
        """Handle a client's messages until it stops sending or a message ends the stream."""
        error = None
        try:
            for request in requests:
                self._handle(request)
        except P4RuntimeError as refusal:
            error = refusal
        except grpc.RpcError:
            pass  # gRPC raises this when the client goes away in the middle of the stream.
        except Exception:
            _log.exception("StreamChannel failed")
            error = internal_error()
        self.disconnect()
        self.end(error)

    def _send(self, message: p4rt.StreamMessageResponse) -> bool:
        if self._queue.qsize() >= MAX_WAITING and not message.HasField("arbitration"):
            return False
        self._queue.put(message)
        return True

    def _handle(self, request: p4rt.StreamMessageRequest | Malformed) -> None:
        if isinstance(request, Malformed):
            raise request.refusal()
        which = request.WhichOneof("update")
        if which in ("arbitration", None):
            refuse_fields(request)
        if which == "arbitration":
            self._arbitrate(request.arbitration)
        elif which == "packet":
            try:
                if self._target is None:
                    raise P4RuntimeError(
                        code_pb2.PERMISSION_DENIED, "packet-out: send an arbitration message on this stream first"
                    )
                refuse_fields(request)
                self._target.packet_out(self._session, request.packet)
            except P4RuntimeError as error:
                answer = _stream_error(error)
                answer.error.packet_out.packet_out.CopyFrom(request.packet)
                self._send(answer)
        elif which == "digest_ack":
            try:
                if self._target is None:
                    raise denied("digest ack: send an arbitration message on this stream first")
                refuse_fields(request)
                self._target.acknowledge(self._session, request.digest_ack)
            except P4RuntimeError as error:
                answer = _stream_error(error)
                answer.error.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
                self._send(answer)
        elif which == "other":
            answer = _stream_error(unimplemented("other: no architecture-specific messages are supported"))
            answer.error.other.other.CopyFrom(request.other)
            self._send(answer)
        else:
            raise invalid("the stream message is empty")

    def _arbitrate(self, message: p4rt.MasterArbitrationUpdate) -> None:
        if self._target is None:
            target = self._find(message.device_id)
            target.require_up()
            self._arbiter = target.arbiter
            self._target = target
        elif self._target.device.device_id != message.device_id:
            raise P4RuntimeError(
                code_pb2.FAILED_PRECONDITION,
                f"this stream is for device {self._target.device.device_id}; "
                f"open a new one for device {message.device_id}",
            )
        assert self._arbiter is not None
        self._arbiter.update(self._session, message)


def _stream_error(error: P4RuntimeError) -> p4rt.StreamMessageResponse:
    return p4rt.StreamMessageResponse(error=p4rt.StreamError(canonical_code=error.code, message=error.message))
