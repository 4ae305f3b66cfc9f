"""One P4Runtime session with deadlines on every call, and errors that say what to do."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import code_pb2, status_pb2

from controlplane.common.rpc.channels import open_channel
from controlplane.common.rpc.tls import switch_name
from controlplane.targets.base import RPC_SECONDS, NotPrimary, SwitchAddress, TargetError
from controlplane.targets.connecting import WriteRejected, explain
from controlplane.targets.p4runtime.stubs import p4runtime_pb2, p4runtime_pb2_grpc

PIPELINE_SECONDS = 120.0
"""Deadline in seconds for loading a program: softswitch compiles it to native code the first time."""

ARBITRATION_SECONDS = 5.0

HINTS = {
    grpc.StatusCode.UNAVAILABLE: "it is not running, or not at this address",
    grpc.StatusCode.PERMISSION_DENIED: "another controller is primary",
    grpc.StatusCode.NOT_FOUND: "is the device id right?",
}
"""Hints about what to check, by gRPC's code."""

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)


ElectionId = tuple[int, int]
"""The upper and the lower 64 bits of an election id: the controller with the highest one may write to the switch."""


class HeldByAnother(NotPrimary):
    """Another controller, with a higher election id (`highest`), holds the switch."""

    def __init__(self, words: str, highest: ElectionId) -> None:
        super().__init__(words)
        self.highest = highest


class Outranked(HeldByAnother):
    """No controller holds the switch, but one with a higher election id did, so only a higher id may still take it."""


def new_election_id(above: ElectionId = (0, 0)) -> ElectionId:
    """Return an election id above `above` and, if the clock is right, above all that this machine used before.

    `above` is the highest id that the switch has seen, which a controller with a fast clock may have left far in the
    future.
    """
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    high, low = above
    following = (high, low + 1) if low + 1 < 1 << 64 else (high + 1, 0)
    return max((seconds, (nanoseconds << 32) | (os.getpid() & 0xFFFFFFFF)), following)


class Session:
    """A session as primary controller with one switch.

    Args:
        on_lost: called from another thread, with the reason, when the stream ends (also by `close`) or another
            controller becomes primary.

    The attribute `refused` is what the switch said about the last packet-out that it refused; "" where it refused none.
    """

    def __init__(
        self, switch: SwitchAddress, election_id: ElectionId, *, on_lost: Callable[[str], None] = lambda reason: None
    ) -> None:
        self.where, self.device_id = str(switch), switch.device_id
        self.election_id = election_id
        self.on_lost = on_lost
        self.channel = open_channel(switch.address, switch.tls, CHANNEL_OPTIONS, name=switch_name(switch.name))
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        self.ended = threading.Event()
        self.demoted = False
        self.refused = ""
        self._primary = False
        self._requests: queue.SimpleQueue[p4runtime_pb2.StreamMessageRequest | None] = queue.SimpleQueue()
        # Arbitration messages; at the end of the stream its error, or None.
        self._arbitration: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stream = self.stub.StreamChannel(iter(self._requests.get, None))
        self._receiver = threading.Thread(target=self._receive, name=f"stream-{switch.name}", daemon=True)
        self._receiver.start()
        try:
            self._become_primary()
        except BaseException:
            self.close()
            raise

    def _receive(self) -> None:
        try:
            for message in self._stream:
                if message.HasField("error"):
                    self.refused = message.error.message
                if message.HasField("arbitration"):
                    self._arbitration.put(message)
                    if self._primary and message.arbitration.status.code != code_pb2.OK:
                        self._primary, self.demoted = False, True
                        self.on_lost("another controller took the switch over")
            reason = "the switch closed the connection"
        except grpc.RpcError as error:
            self._arbitration.put(error)
            reason = f"{error.code().name}: {error.details()}"
        self._arbitration.put(None)
        self.ended.set()
        # Closing the channel ends calls under way: gRPC sometimes misses the end, and the deadline, of a call that a
        # dying server cut.
        self.channel.close()
        self.on_lost(reason)

    def _become_primary(self) -> None:
        """Run the arbitration. Raise TargetError where the switch does not answer, and HeldByAnother where another
        controller has a higher id."""
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.device_id
        request.arbitration.election_id.high, request.arbitration.election_id.low = self.election_id
        self._requests.put(request)
        try:
            answer = self._arbitration.get(timeout=ARBITRATION_SECONDS)
        except queue.Empty:
            raise TargetError(
                f"{self.where} accepts connections but does not answer the P4Runtime handshake within "
                f"{ARBITRATION_SECONDS:g} s: is it a P4Runtime server?"
            ) from None
        if isinstance(answer, grpc.RpcError):
            raise self.explain(answer, "the handshake")
        if answer is None:
            raise TargetError(f"{self.where} closed the P4Runtime stream; is device id {self.device_id} right?")
        code, held = answer.arbitration.status.code, answer.arbitration.election_id
        highest = held.high, held.low
        if code == code_pb2.NOT_FOUND:
            raise Outranked(f"{self.where} is free, and had a controller with election id {highest}", highest)
        if code != code_pb2.OK:
            raise HeldByAnother(
                f"{self.where} is held by another controller (election id {held.high}, {held.low}): "
                "end that one first, or take over with --take-over",
                highest,
            )
        self._primary = True

    @property
    def alive(self) -> bool:
        """Whether the stream is open and this controller is primary."""
        return self._primary and not self.ended.is_set()

    def explain(self, error: grpc.RpcError | ValueError, doing: str) -> TargetError:
        """Return the error as a TargetError with this switch's name."""
        if not isinstance(error, grpc.RpcError):  # gRPC raises ValueError on a channel that is closed.
            return TargetError(f"{self.where}: {doing} failed: the connection is closed")
        return explain(error, self.where, doing, HINTS)

    def write_batch(self, request: p4runtime_pb2.WriteRequest, timeout: float = RPC_SECONDS) -> None:
        """Send one Write, with this session's device and election id filled in. Raise WriteRejected where the switch
        refuses it."""
        request.device_id = self.device_id
        request.election_id.high, request.election_id.low = self.election_id
        try:
            self.stub.Write(request, timeout=timeout)
        except (grpc.RpcError, ValueError) as error:
            raise WriteRejected(_update_errors(error), str(self.explain(error, "a write"))) from None

    def packet_out(self, frame: bytes) -> None:
        """Send a packet-out without metadata. The switch answers only where it refuses the packet (`refused`)."""
        request = p4runtime_pb2.StreamMessageRequest()
        request.packet.payload = frame
        self._requests.put(request)

    def read_entities(
        self, entities: Sequence[p4runtime_pb2.Entity], timeout: float = RPC_SECONDS
    ) -> list[p4runtime_pb2.Entity]:
        """Send one Read and return all entities of the answer. Raise TargetError where it fails."""
        request = p4runtime_pb2.ReadRequest(device_id=self.device_id, entities=entities)
        try:
            return [entity for answer in self.stub.Read(request, timeout=timeout) for entity in answer.entities]
        except (grpc.RpcError, ValueError) as error:
            raise self.explain(error, "a read") from None

    def pipeline_cookie(self, timeout: float = RPC_SECONDS) -> int | None:
        """Return the cookie of the loaded program; None where none is loaded, or it was loaded without one."""
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(
            device_id=self.device_id, response_type=p4runtime_pb2.GetForwardingPipelineConfigRequest.COOKIE_ONLY
        )
        try:
            config = self.stub.GetForwardingPipelineConfig(request, timeout=timeout).config
        except (grpc.RpcError, ValueError) as error:
            if isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                return None
            raise self.explain(error, "asking for the program") from None
        return config.cookie.cookie if config.HasField("cookie") else None

    def set_pipeline(self, config: p4runtime_pb2.ForwardingPipelineConfig, timeout: float = PIPELINE_SECONDS) -> None:
        """Load a program; the tables are empty afterwards. Raise TargetError where it fails."""
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(
            device_id=self.device_id,
            action=p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
            config=config,
        )
        request.election_id.high, request.election_id.low = self.election_id
        try:
            self.stub.SetForwardingPipelineConfig(request, timeout=timeout)
        except (grpc.RpcError, ValueError) as error:
            raise self.explain(error, "loading the program") from None

    def close(self) -> None:
        """End the session. The stream is cancelled first, so that a dead switch cannot delay this."""
        self._primary = False
        self._requests.put(None)
        self._stream.cancel()
        self.channel.close()
        if threading.current_thread() is not self._receiver:
            self._receiver.join(timeout=5)


def _update_errors(error: grpc.RpcError | ValueError) -> list[tuple[int, str, str]]:
    """Return the errors of a failed Write's updates (P4Runtime specification, section 12.3), without the successful
    updates."""
    trailing: Any = (isinstance(error, grpc.RpcError) and error.trailing_metadata()) or ()
    packed = next((value for key, value in trailing if key == "grpc-status-details-bin"), None)
    if packed is None:
        return []
    status = status_pb2.Status()
    status.ParseFromString(packed)
    failures = []
    for index, detail in enumerate(status.details):
        one = p4runtime_pb2.Error()
        if detail.Unpack(one) and one.canonical_code != code_pb2.OK:
            failures.append((index, code_pb2.Code.Name(one.canonical_code), one.message))
    return failures


@dataclass(frozen=True)
class Answer:
    """A switch's answer about itself: whether it runs a program (`loaded`), and the program's cookie, if it has one."""

    version: str
    loaded: bool
    cookie: int | None

    def __str__(self) -> str:
        if not self.loaded:
            return f"P4Runtime {self.version}, no program loaded"
        program = "a program without cookie" if self.cookie is None else f"program {self.cookie:016x}"
        return f"P4Runtime {self.version}, {program}"


def ask(switch: SwitchAddress, timeout: float) -> Answer:
    """Ask whether a switch answers and has the device, without becoming its controller. Raise TargetError where it does
    not."""
    with open_channel(switch.address, switch.tls, CHANNEL_OPTIONS, name=switch_name(switch.name)) as channel:
        stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(
            device_id=switch.device_id,
            response_type=p4runtime_pb2.GetForwardingPipelineConfigRequest.P4INFO_AND_COOKIE,
        )
        config = p4runtime_pb2.ForwardingPipelineConfig()
        try:
            version = stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=timeout).p4runtime_api_version
            config = stub.GetForwardingPipelineConfig(request, timeout=timeout).config
        except grpc.RpcError as error:
            # Some switches answer with this code if they run no program.
            if error.code() != grpc.StatusCode.FAILED_PRECONDITION:
                raise explain(error, str(switch), "asking", HINTS) from None
    cookie = config.cookie.cookie if config.HasField("cookie") else None
    return Answer(version, loaded=cookie is not None or config.p4info.ByteSize() > 0, cookie=cookie)
