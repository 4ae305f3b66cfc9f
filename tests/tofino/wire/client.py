"""The calls of the SDE's `bfrt_grpc.client` that our session makes, with the same names, arguments and requests."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import code_pb2, status_pb2

from controlplane.targets.bri.schema import Field, Schema, Table
from tests.tofino.wire import bri_wire_pb2 as bfruntime_pb2
from tests.tofino.wire import stubs as bfruntime_pb2_grpc

pb = bfruntime_pb2


class BfruntimeRpcException(Exception):
    """A server's answer that reports an error; sub-errors are (index of the update, Error)."""

    def __init__(self, grpc_error: grpc.RpcError) -> None:
        super().__init__(str(grpc_error))
        self.grpc_error = grpc_error
        self.errors: list[tuple[int, pb.Error]] = []

    def grpc_error_get(self) -> grpc.RpcError:
        return self.grpc_error

    def sub_errors_get(self) -> list[tuple[int, pb.Error]]:
        return self.errors


class BfruntimeForwardingRpcException(BfruntimeRpcException): ...


class BfruntimeReadWriteRpcException(BfruntimeRpcException):
    def __init__(self, grpc_error: grpc.RpcError) -> None:
        super().__init__(grpc_error)
        if grpc_error.code() != grpc.StatusCode.UNKNOWN:
            return
        trailing: Any = grpc_error.trailing_metadata() or ()
        packed = next((value for key, value in trailing if key == "grpc-status-details-bin"), None)
        if packed is None:
            raise RuntimeError("No binary details field")
        for index, detail in enumerate(status_pb2.Status.FromString(packed).details):
            error = pb.Error.FromString(detail.value)
            if error.canonical_code != code_pb2.OK:
                self.errors.append((index, error))


@dataclass(frozen=True)
class Notifications:
    enable_learn: bool = True
    enable_idletimeout: bool = True
    enable_port_status_change: bool = True
    enable_entry_active: bool = False
    enable_selector_update_change: bool = True


@dataclass(frozen=True)
class Target:
    device_id: int = 0
    pipe_id: int = 0xFFFF
    direction: int = 0xFF
    prsr_id: int = 0xFF


@dataclass(frozen=True)
class KeyTuple:
    name: str
    value: int | str | None = None
    prefix_len: int | None = None
    mask: int | None = None


@dataclass(frozen=True)
class DataTuple:
    name: str
    val: int | None = None
    str_val: str | None = None
    int_arr_val: list[int] | None = None
    bool_arr_val: list[bool] | None = None
    bool_val: bool | None = None


class Key:
    def __init__(self, fields: Mapping[str, dict[str, Any]], message: pb.TableKey) -> None:
        self.fields, self.message = fields, message

    def to_dict(self) -> dict[str, dict[str, Any]]:
        return dict(self.fields)


class Data:
    def __init__(self, fields: Mapping[str, Any], action_name: str | None, message: pb.TableData) -> None:
        self.fields, self.action_name, self.message = fields, action_name, message

    def to_dict(self) -> dict[str, Any]:
        return {**self.fields, "action_name": self.action_name, "is_default_entry": False}


class ReaderWriter:
    """Reads and writes entries; the session replaces its stub by one with deadlines."""

    def __init__(self, stub: Any, client_id: int) -> None:
        self.stub, self.client_id = stub, client_id

    def write(self, request: pb.WriteRequest, metadata: Any) -> None:
        request.client_id = self.client_id
        try:
            self.stub.Write(request, metadata=metadata)
        except grpc.RpcError as error:
            raise BfruntimeReadWriteRpcException(error) from None

    def read(self, request: pb.ReadRequest, metadata: Any = None) -> Iterator[pb.Entity]:
        request.client_id = self.client_id
        try:
            for answer in self.stub.Read(request, metadata=metadata):
                yield from answer.entities
        except grpc.RpcError as error:
            raise BfruntimeReadWriteRpcException(error) from None


class ClientInterface:
    def __init__(self, grpc_addr: str, client_id: int, device_id: int, *, perform_subscribe: bool) -> None:
        assert not perform_subscribe
        self.client_id, self.device_id = client_id, device_id
        self.channel = grpc.insecure_channel(grpc_addr)
        self.stub: Any = bfruntime_pb2_grpc.BfRuntimeStub(self.channel)
        self.reader_writer_interface = ReaderWriter(self.stub, client_id)
        self.stream: Any = None
        self.stream_out_q: queue.Queue = queue.Queue()
        self.stream_in_q: queue.Queue = queue.Queue()
        self.exception_q: queue.Queue = queue.Queue()
        self.stream_recv_thread = threading.Thread(target=self._receive, daemon=True)

    def set_up_stream(self) -> None:
        def requests() -> Iterator[pb.StreamMessageRequest]:
            while (message := self.stream_out_q.get()) is not None:
                yield message

        self.stream = self.stub.StreamChannel(requests())
        self.stream_recv_thread.start()

    def _receive(self) -> None:
        try:
            for message in self.stream:
                self.stream_in_q.put(message)
        except grpc.RpcError as error:
            self.exception_q.put(BfruntimeRpcException(error))

    def subscribe(self, notifications: Notifications, timeout: float, num_tries: int) -> bool:
        request = pb.StreamMessageRequest(client_id=self.client_id)
        request.subscribe.device_id = self.device_id
        wanted = request.subscribe.notifications
        wanted.enable_learn_notifications = notifications.enable_learn
        wanted.enable_idletimeout_notifications = notifications.enable_idletimeout
        wanted.enable_port_status_change_notifications = notifications.enable_port_status_change
        wanted.enable_entry_active_notifications = notifications.enable_entry_active
        wanted.enable_selector_update_change_notifications = notifications.enable_selector_update_change
        for _ in range(num_tries):
            self.stream_out_q.put(request)
            try:
                answer = self.stream_in_q.get(timeout=timeout)
            except queue.Empty:
                continue
            return answer.subscribe.status.code == code_pb2.OK
        return False

    def bind_pipeline_config(self, p4_name: str) -> None:
        request = pb.SetForwardingPipelineConfigRequest(client_id=self.client_id)
        request.config.add(p4_name=p4_name)
        try:
            self.stub.SetForwardingPipelineConfig(request)
        except grpc.RpcError as error:
            raise BfruntimeForwardingRpcException(error) from None

    def bfrt_info_get(self, p4_name: str) -> Info:
        request = pb.GetForwardingPipelineConfigRequest(device_id=self.device_id, client_id=self.client_id)
        try:
            answer = self.stub.GetForwardingPipelineConfig(request)
        except grpc.RpcError as error:
            raise BfruntimeForwardingRpcException(error) from None
        for config in answer.config:
            if config.p4_name == p4_name:
                schema = Schema.parse(config.bfruntime_info, p4_name)
                fixed = Schema.parse(answer.non_p4_config.bfruntime_info, "fixed-function tables")
                return Info(schema.with_tables(fixed), self.reader_writer_interface)
        raise RuntimeError("BF_RT_INFO not received")

    def tear_down_stream(self) -> None:
        self.stream_out_q.put(None)
        self.stream_recv_thread.join()
        self.channel.close()


class Info:
    def __init__(self, schema: Schema, reader_writer: ReaderWriter) -> None:
        self.schema, self.reader_writer = schema, reader_writer

    def table_get(self, name: str) -> TableClient:
        return TableClient(self.schema.table(name), self.reader_writer)


class TableClient:
    def __init__(self, table: Table, reader_writer: ReaderWriter) -> None:
        self.table, self.reader_writer = table, reader_writer

    def make_key(self, tuples: Sequence[KeyTuple]) -> Key:
        message = pb.TableKey()
        for one in tuples:
            field = self.table.keys[one.name]
            part = message.fields.add(field_id=field.id)
            assert one.value is not None
            if one.prefix_len is not None:
                part.lpm.value, part.lpm.prefix_len = _encode(field, one.value), one.prefix_len
            elif one.mask is not None:
                part.ternary.value, part.ternary.mask = _encode(field, one.value), _encode(field, one.mask)
            else:
                part.exact.value = _encode(field, one.value)
        return Key({}, message)

    def make_data(self, tuples: Sequence[DataTuple], action_name: str | None = None) -> Data:
        fields = self.table.fields(action_name)
        message = pb.TableData()
        if action_name is not None:
            message.action_id = self.table.actions[action_name].id
        for one in tuples:
            part = message.fields.add(field_id=fields[one.name].id)
            if one.val is not None:
                part.stream = _encode(fields[one.name], one.val)
            elif one.str_val is not None:
                part.str_val = one.str_val
            elif one.bool_val is not None:
                part.bool_val = one.bool_val
            elif one.int_arr_val is not None:
                part.int_arr_val.val.extend(one.int_arr_val)
            elif one.bool_arr_val is not None:
                part.bool_arr_val.val.extend(one.bool_arr_val)
        return Data({}, action_name, message)

    def entry_add(
        self, target: Target, key_list: Any, data_list: Any, atomicity: int = 0, metadata: Any = None
    ) -> None:
        self._write(pb.Update.INSERT, target, key_list, data_list, atomicity=atomicity, metadata=metadata)

    def entry_mod(
        self, target: Target, key_list: Any, data_list: Any, atomicity: int = 0, metadata: Any = None
    ) -> None:
        self._write(pb.Update.MODIFY, target, key_list, data_list, atomicity=atomicity, metadata=metadata)

    def entry_del(self, target: Target, key_list: Any, atomicity: int = 0, metadata: Any = None) -> None:
        self._write(pb.Update.DELETE, target, key_list, [None] * len(key_list), atomicity=atomicity, metadata=metadata)

    def _write(
        self,
        kind: Any,
        target: Target,
        keys: Sequence[Key],
        datas: Sequence[Data | None],
        *,
        atomicity: int,
        metadata: Any,
    ) -> None:
        request = pb.WriteRequest(target=_target(target), atomicity=atomicity)  # type: ignore[arg-type]
        for key, data in zip(keys, datas, strict=True):
            update = request.updates.add(type=kind)
            update.entity.table_entry.table_id = self.table.id
            update.entity.table_entry.key.CopyFrom(key.message)
            if data is not None:
                update.entity.table_entry.data.CopyFrom(data.message)
        self.reader_writer.write(request, metadata)

    def entry_get(
        self, target: Target, key_list: Sequence[Key] | None, flags: Mapping[str, bool], metadata: Any = None
    ) -> Iterator[tuple[Data, Key]]:
        request = pb.ReadRequest(target=_target(target))
        for key in key_list or [None]:  # type: ignore[list-item]
            entry = request.entities.add().table_entry
            entry.table_id = self.table.id
            entry.table_flags.from_hw = flags["from_hw"]
            if key is not None:
                entry.key.CopyFrom(key.message)
        for entity in self.reader_writer.read(request, metadata):
            if entity.table_entry.HasField("key"):
                yield self._data(entity.table_entry.data), self._key(entity.table_entry.key)

    def usage_get(self, target: Target, flags: Mapping[str, bool], metadata: Any = None) -> Iterator[int]:
        request = pb.ReadRequest(target=_target(target))
        usage = request.entities.add().table_usage
        usage.table_id = self.table.id
        usage.table_flags.from_hw = flags["from_hw"]
        for entity in self.reader_writer.read(request, metadata):
            yield entity.table_usage.usage

    def _key(self, message: pb.TableKey) -> Key:
        by_id = {field.id: field for field in self.table.keys.values()}
        fields: dict[str, dict[str, Any]] = {}
        for part in message.fields:
            field = by_id[part.field_id]
            kind = part.WhichOneof("match_type")
            if kind == "exact":
                fields[field.name] = {"value": _decode(field, part.exact.value)}
            elif kind == "ternary":
                value, mask = _decode(field, part.ternary.value), _decode(field, part.ternary.mask)
                fields[field.name] = {"value": value, "mask": mask}
            else:
                fields[field.name] = {"value": _decode(field, part.lpm.value), "prefix_len": part.lpm.prefix_len}
        return Key(fields, message)

    def _data(self, message: pb.TableData) -> Data:
        action = next((name for name, one in self.table.actions.items() if one.id == message.action_id), None)
        by_id = {field.id: field for field in self.table.fields(action).values()}
        fields: dict[str, Any] = {}
        for part in message.fields:
            field = by_id[part.field_id]
            kind = part.WhichOneof("value")
            if kind == "stream":
                fields[field.name] = _decode(field, part.stream)
            elif kind in ("int_arr_val", "bool_arr_val", "str_arr_val"):
                fields[field.name] = list(getattr(part, kind).val)
            elif kind is not None:
                fields[field.name] = getattr(part, kind)
        return Data(fields, action, message)


def _encode(field: Field, value: int | str) -> bytes:
    return value.encode() if isinstance(value, str) else value.to_bytes((field.bits + 7) // 8, "big")


def _decode(field: Field, value: bytes) -> int | str:
    return value.decode() if field.kind == "string" else int.from_bytes(value, "big")


def _target(target: Target) -> pb.TargetDevice:
    return pb.TargetDevice(
        device_id=target.device_id, pipe_id=target.pipe_id, direction=target.direction, prsr_id=target.prsr_id
    )
