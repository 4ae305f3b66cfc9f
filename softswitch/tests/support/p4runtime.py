"""A P4Runtime client for tests: streams with queues, shorthands to write and read entities, and gRPC's own errors."""

from __future__ import annotations

import queue
import threading
from typing import Any

import grpc
from google.rpc import status_pb2

from softswitch.p4runtime.stubs import p4info_pb2, p4runtime_pb2_grpc
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt

DEADLINE = 60.0  # seconds; long, since it only ends a test that fails
INSERT, MODIFY, DELETE = p4rt.Update.INSERT, p4rt.Update.MODIFY, p4rt.Update.DELETE


def as_bytes(value: int) -> bytes:
    """Return an unsigned int as P4Runtime's canonical byte string."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def update(kind: int, **entity: object) -> p4rt.Update:
    return p4rt.Update(type=kind, entity=p4rt.Entity(**entity))


class Stream:
    """One StreamChannel. ``error`` is set when the server has ended it."""

    def __init__(self, stub: p4runtime_pb2_grpc.P4RuntimeStub, device_id: int, role: str = "") -> None:
        self._device_id = device_id
        self._role = role
        self._out: queue.SimpleQueue = queue.SimpleQueue()
        self._in: queue.SimpleQueue = queue.SimpleQueue()
        self._call = stub.StreamChannel(iter(self._out.get, None))
        self._reading = threading.Event()
        self._reading.set()
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        try:
            for message in self._call:
                self._in.put(message)
                self._reading.wait()
            self._in.put(grpc.StatusCode.OK)
        except grpc.RpcError as error:
            self._in.put(error)

    def send(self, message: p4rt.StreamMessageRequest) -> None:
        self._out.put(message)

    def arbitrate(self, election_id: int | None, device_id: int | None = None, role: str | None = None) -> None:
        message = p4rt.StreamMessageRequest()
        message.arbitration.device_id = self._device_id if device_id is None else device_id
        if election_id is not None:
            message.arbitration.election_id.high = election_id >> 64
            message.arbitration.election_id.low = election_id & (1 << 64) - 1
        name = self._role if role is None else role
        if name:
            message.arbitration.role.name = name
        self.send(message)

    def next(self) -> p4rt.StreamMessageResponse:
        message = self._in.get(timeout=DEADLINE)
        assert isinstance(message, p4rt.StreamMessageResponse), message
        return message

    def status(self) -> tuple[int, int | None]:
        """Return code and election id of the next message, which must be an arbitration update."""
        message = self.next()
        assert message.WhichOneof("update") == "arbitration", message
        update = message.arbitration
        assert update.device_id == self._device_id
        number = update.election_id.high << 64 | update.election_id.low if update.HasField("election_id") else None
        return update.status.code, number

    def ended(self) -> grpc.StatusCode:
        """Return the status with which the server ended the stream; messages before the end are skipped."""
        while True:
            message = self._in.get(timeout=DEADLINE)
            if not isinstance(message, p4rt.StreamMessageResponse):
                return message if isinstance(message, grpc.StatusCode) else message.code()

    def quiet(self) -> bool:
        return self._in.empty()

    def hold(self) -> None:
        """Stop reading until :meth:`release`."""
        self._reading.clear()

    def release(self) -> None:
        self._reading.set()

    def half_close(self) -> None:
        self._out.put(None)

    def vanish(self) -> None:
        self._call.cancel()


class Client:
    """Makes RPCs to one device as the client with ``election_id``; every call has a deadline."""

    def __init__(self, address: str, device_id: int = 1, election_id: int | None = 1, role: str = "") -> None:
        # Every client has its own connection, as separate processes would.
        self.channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_metadata_size", 1 << 22),
                ("grpc.absolute_max_metadata_size", 1 << 22),
                ("grpc.max_receive_message_length", -1),
            ],
        )
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        self.device_id = device_id
        self.election_id = election_id
        self.role = role
        self._streams: list[Stream] = []

    def stream(self) -> Stream:
        self._streams.append(Stream(self.stub, self.device_id, self.role))
        return self._streams[-1]

    def become_primary(self) -> Stream:
        stream = self.stream()
        stream.arbitrate(self.election_id)
        assert stream.status()[0] == 0
        return stream

    def ready(self) -> None:
        """Return when the switch, which may still be starting, accepts connections."""
        grpc.channel_ready_future(self.channel).result(DEADLINE)

    def _sign(self, request: p4rt.WriteRequest | p4rt.SetForwardingPipelineConfigRequest) -> None:
        request.device_id = self.device_id
        request.role = self.role
        if self.election_id is not None:
            request.election_id.high = self.election_id >> 64
            request.election_id.low = self.election_id & (1 << 64) - 1

    def set_pipeline(
        self,
        device_config: bytes | None,
        p4info: p4info_pb2.P4Info | None,
        action: int = p4rt.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        cookie: int | None = None,
    ) -> None:
        request = p4rt.SetForwardingPipelineConfigRequest(action=action)
        self._sign(request)
        if device_config is not None:
            request.config.p4_device_config = device_config
            if p4info is not None:
                request.config.p4info.CopyFrom(p4info)
        if cookie is not None:
            request.config.cookie.cookie = cookie
        self.stub.SetForwardingPipelineConfig(request, timeout=DEADLINE)

    def get_pipeline(self, response_type: int = 0) -> p4rt.GetForwardingPipelineConfigResponse:
        return self.stub.GetForwardingPipelineConfig(
            p4rt.GetForwardingPipelineConfigRequest(device_id=self.device_id, response_type=response_type),
            timeout=DEADLINE,
        )

    def write(self, *updates: p4rt.Update, atomicity: int = p4rt.WriteRequest.CONTINUE_ON_ERROR) -> None:
        request = p4rt.WriteRequest(updates=updates, atomicity=atomicity)
        self._sign(request)
        self.stub.Write(request, timeout=DEADLINE)

    def outcomes(self, *updates: p4rt.Update, atomicity: int = p4rt.WriteRequest.CONTINUE_ON_ERROR) -> list[p4rt.Error]:
        """Return one error per update, as the server reports them; all are OK when the write succeeds."""
        try:
            self.write(*updates, atomicity=atomicity)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNKNOWN, error
            return batch_errors(error)
        return [p4rt.Error() for _ in updates]

    def read(self, *entities: p4rt.Entity) -> list[p4rt.Entity]:
        request = p4rt.ReadRequest(device_id=self.device_id, role=self.role, entities=entities)
        return [entity for response in self.stub.Read(request, timeout=DEADLINE) for entity in response.entities]

    def close(self) -> None:
        self.channel.close()
        for stream in self._streams:
            stream.half_close()  # This ends gRPC's thread that waits for requests.


def connect(address: str, device_id: int = 1, election_id: int = 1) -> Client:
    """Return a client that is the primary of a switch, which may still be starting."""
    client = Client(address, device_id, election_id)
    try:
        client.ready()
        client.become_primary()
    except BaseException:
        client.close()
        raise
    return client


def batch_errors(error: grpc.RpcError) -> list[p4rt.Error]:
    """Return the ``p4.v1.Error`` messages in the status details of a failed RPC."""
    trailing: Any = error.trailing_metadata()
    (details,) = [value for key, value in trailing if key == "grpc-status-details-bin"]
    status = status_pb2.Status.FromString(details)
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    errors = []
    for detail in status.details:
        one = p4rt.Error()
        assert detail.Unpack(one)
        errors.append(one)
    return errors
