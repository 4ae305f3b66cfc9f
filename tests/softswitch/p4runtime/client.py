"""A small P4Runtime client for tests: streams with queues, short ways to write and read entities."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format
from google.rpc import status_pb2

from softswitch.p4runtime.stubs import p4info_pb2, p4runtime_pb2_grpc
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt

DEADLINE = 60.0  # seconds; generous, since it only ends a test that fails
INSERT, MODIFY, DELETE = p4rt.Update.INSERT, p4rt.Update.MODIFY, p4rt.Update.DELETE
EXACT, LPM, ACL, CONST, KEYLESS = range(0x02000001, 0x02000006)
NO_ACTION = 21257015  # p4c's id of it
DROP, FORWARD, ROUTE, REPLICATE, COPY = range(0x01000002, 0x01000007)
VERDICTS, SUMS, SIGNED = 0x12000001, 0x16000001, 0x16000002


def demo_p4info() -> p4info_pb2.P4Info:
    text = (Path(__file__).parent / "demo.p4info.txtpb").read_text()
    return text_format.Parse(text, p4info_pb2.P4Info())


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
        """Code and election id of the next message, which must be an arbitration update."""
        message = self.next()
        assert message.WhichOneof("update") == "arbitration", message
        update = message.arbitration
        assert update.device_id == self._device_id
        number = update.election_id.high << 64 | update.election_id.low if update.HasField("election_id") else None
        return update.status.code, number

    def ended(self) -> grpc.StatusCode:
        """How the server ended the stream; messages before the end are skipped."""
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
    """RPCs to one device, as the client with ``election_id``."""

    def __init__(self, address: str, device_id: int = 1, election_id: int | None = 1, role: str = "") -> None:
        # Every client has its own connection, as separate processes would.
        self.channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_metadata_size", 1 << 22),
                ("grpc.absolute_max_metadata_size", 1 << 22),
            ],
        )
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        self.device_id = device_id
        self.election_id = election_id
        self.role = role

    def stream(self) -> Stream:
        return Stream(self.stub, self.device_id, self.role)

    def become_primary(self) -> Stream:
        stream = self.stream()
        stream.arbitrate(self.election_id)
        assert stream.status()[0] == 0
        return stream

    def _sign(self, request: p4rt.WriteRequest | p4rt.SetForwardingPipelineConfigRequest) -> None:
        request.device_id = self.device_id
        request.role = self.role
        if self.election_id is not None:
            request.election_id.high = self.election_id >> 64
            request.election_id.low = self.election_id & (1 << 64) - 1

    def set_pipeline(
        self,
        device_config: bytes | None,
        p4info: p4info_pb2.P4Info | None = None,
        action: int = p4rt.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        cookie: int | None = None,
    ) -> None:
        request = p4rt.SetForwardingPipelineConfigRequest(action=action)
        self._sign(request)
        if device_config is not None:
            request.config.p4_device_config = device_config
            request.config.p4info.CopyFrom(p4info or demo_p4info())
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
        """One error per update, as the server reports them; all OK when the write succeeds."""
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


def batch_errors(error: grpc.RpcError) -> list[p4rt.Error]:
    """The ``p4.v1.Error`` messages in the status details of a failed RPC."""
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


def action(action_id: int, *values: bytes) -> p4rt.TableAction:
    params = [p4rt.Action.Param(param_id=index, value=value) for index, value in enumerate(values, 1)]
    return p4rt.TableAction(action=p4rt.Action(action_id=action_id, params=params))


def exact(field_id: int, value: bytes) -> p4rt.FieldMatch:
    return p4rt.FieldMatch(field_id=field_id, exact=p4rt.FieldMatch.Exact(value=value))


def lpm(value: bytes, prefix_len: int) -> p4rt.FieldMatch:
    return p4rt.FieldMatch(field_id=1, lpm=p4rt.FieldMatch.LPM(value=value, prefix_len=prefix_len))


def ternary(value: bytes, mask: bytes) -> p4rt.FieldMatch:
    return p4rt.FieldMatch(field_id=1, ternary=p4rt.FieldMatch.Ternary(value=value, mask=mask))


def between(low: bytes, high: bytes) -> p4rt.FieldMatch:
    return p4rt.FieldMatch(field_id=2, range=p4rt.FieldMatch.Range(low=low, high=high))


def optional(value: bytes) -> p4rt.FieldMatch:
    return p4rt.FieldMatch(field_id=3, optional=p4rt.FieldMatch.Optional(value=value))


def exact_entry(dst: bytes = b"\x02", port: bytes = b"\x01", **more: object) -> p4rt.TableEntry:
    """An entry of exact_table that forwards to port 5 unless ``more`` says otherwise."""
    more.setdefault("action", action(FORWARD, b"\x05"))
    return p4rt.TableEntry(table_id=EXACT, match=[exact(1, dst), exact(2, port)], **more)


def acl_entry(matches: Iterable[p4rt.FieldMatch] = (), priority: int = 10, **more: object) -> p4rt.TableEntry:
    more.setdefault("action", action(DROP))
    return p4rt.TableEntry(table_id=ACL, match=[*matches, exact(4, b"\x01")], priority=priority, **more)


def update(kind: int, **entity: object) -> p4rt.Update:
    return p4rt.Update(type=kind, entity=p4rt.Entity(**entity))


def insert(entry: p4rt.TableEntry) -> p4rt.Update:
    return update(INSERT, table_entry=entry)


def group(kind: int, number: int, *replicas: p4rt.Replica, metadata: bytes = b"") -> p4rt.Update:
    entry = p4rt.MulticastGroupEntry(multicast_group_id=number, replicas=replicas, metadata=metadata)
    return update(kind, packet_replication_engine_entry=p4rt.PacketReplicationEngineEntry(multicast_group_entry=entry))


def clone(kind: int, number: int, *replicas: p4rt.Replica, length: int = 0, service: int = 0) -> p4rt.Update:
    entry = p4rt.CloneSessionEntry(
        session_id=number, replicas=replicas, packet_length_bytes=length, class_of_service=service
    )
    return update(kind, packet_replication_engine_entry=p4rt.PacketReplicationEngineEntry(clone_session_entry=entry))
