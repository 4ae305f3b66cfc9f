"""A BfRuntime gRPC server that keeps tables as bf-rt.json describes them, and fails where a test wants it to.

What it refuses, and how it answers, follows the server of open-p4studio's bf-drivers (bf_rt_server_impl.cpp,
bf_rt_server_mgr.cpp): a client id belongs to one stream, a program to one client; the errors of a Write come as
bfrt_proto.Error in the details of an UNKNOWN status; reading an empty table is no error; a multicast group that names a
node that is not there is answered with OK and not made; port handles cannot be read from hardware.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from google.rpc import code_pb2, status_pb2

from controlplane.common.rpc.tls import Tls
from controlplane.targets.bri.program import FIXED
from controlplane.targets.bri.schema import Field, Schema, Table
from tests.tofino.wire import bri_wire_pb2 as pb
from tests.tofino.wire.stubs import add_to_server

CONNECTORS, CHANNELS = 32, 4
Stored = tuple[int, dict[int, object]]


def table_by_id(schema: Schema, number: int) -> Table:
    return next(table for table in schema.tables.values() if table.id == number)


def octets(field: Field) -> int:
    """Return the length of a number on the wire, in bytes."""
    return ((field.bits or 0) + 7) // 8


def device_port(connector: int, channel: int) -> int:
    """Return device ports roughly as on a 32-port Tofino 1 switch: two pipes, and numbers that do not follow the front
    panel.
    """
    pipe, place = (1, connector - 1) if connector <= 16 else (0, 32 - connector)
    return pipe * 128 + 4 * place + channel


@dataclass
class Faults:
    """The faults of a server. refuse_bind: binds are refused with this code. fail_updates: numbers of the updates (from
    the start of the server) that are refused. lose_answers: numbers of the Writes whose answer is lost after they were
    done. hang_seconds: how long each Write takes. forget_updates: numbers of the updates that are answered with OK and
    not done.
    """

    refuse_bind: grpc.StatusCode | None = None
    refuse_subscribe: grpc.StatusCode | None = None
    fail_updates: set[int] = field(default_factory=set)
    lose_answers: set[int] = field(default_factory=set)
    forget_updates: set[int] = field(default_factory=set)
    hang_seconds: float = 0.0


class UpdateError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class TofinoSwitch:
    """bf_switchd's BRI server with one device. Starts on a free port, or on `port`; `stop` ends all connections.

    devices: device port by connector and channel (default: `device_port`). tls: certificates for TLS, as with a proxy
    in front of the server that accepts only clients with a certificate.
    """

    def __init__(
        self,
        bfrt: Path,
        *,
        program: str = "inart",
        device_id: int = 0,
        host: str = "127.0.0.1",
        port: int = 0,
        devices: Callable[[int, int], int] | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.device_id, self.program = device_id, program
        self.devices = devices
        self.faults = Faults()
        self.description = bfrt.read_bytes()
        self.fixed = FIXED.read_bytes()
        self.schema = Schema.parse(self.description, program).with_tables(Schema.parse(self.fixed, "fixed"))
        self.tables: dict[str, dict[bytes, Stored]] = {name: {} for name in self.schema.tables}
        self.passed: dict[int, tuple[int, int]] = {}
        """Bytes received and sent, by device port."""
        self.updates = self.writes = self.reads = self.binds = self.pending = 0
        self.deadlines: list[dict[str, str]] = []
        self.owner: int | None = None
        self._lock = threading.RLock()
        self._streams: dict[int, queue.Queue] = {}
        self._server = grpc.server(ThreadPoolExecutor(16), options=(("grpc.so_reuseport", 0),))
        add_to_server(self, self._server)
        if tls is None:
            self.port = self._server.add_insecure_port(f"{host}:{port}")
        else:
            self.port = self._server.add_secure_port(f"{host}:{port}", tls.server_credentials())
        self._server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def snapshot(self) -> dict[str, dict[bytes, Stored]]:
        """Return everything that is installed, by table."""
        with self._lock:
            return {name: dict(entries) for name, entries in self.tables.items() if entries}

    def count(self, name: str) -> int:
        return len(self.tables[self.schema.table(name).name])

    def cut_streams(self) -> None:
        """End all streams: the switch then takes the clients to be gone."""
        with self._lock:
            for answers in self._streams.values():
                answers.put(None)

    def load_again(self) -> None:
        """Load the program once more, as another client might: tables and ports become empty, and every client is
        told.
        """
        with self._lock:
            for entries in self.tables.values():
                entries.clear()
            for answers in self._streams.values():
                answer = pb.StreamMessageResponse()
                answer.set_forwarding_pipeline_config_response.set_forwarding_pipeline_config_response_type = (
                    pb.WARM_INIT_FINISHED
                )
                answers.put(answer)

    def fill_register(self, name: str, value: int) -> None:
        """Write this value to all cells of a register, as if packets had left it there."""
        table = self.schema.table(name)
        values: dict[int, object] = {field.id: value.to_bytes(4, "big") for field in table.data.values()}
        for index in range(table.size):
            self.tables[table.name][self.key_of(table.name, index)] = (0, values)

    def zeros(self, name: str) -> set[int]:
        """Return the cells of a register that were written and hold nothing but 0."""
        held = self.tables[self.schema.table(name).name].items()
        return {_index(key) for key, (_, values) in held if not any(int.from_bytes(v, "big") for v in values.values())}  # type: ignore[arg-type]

    def plug(self, connector: int, channel: int, up: bool) -> None:
        """Plug in or pull the cable of a configured port."""
        up_field = self.schema.tables["$PORT"].data["$PORT_UP"].id
        with self._lock:
            _, values = self.tables["$PORT"][self.key_of("$PORT", (self.devices or device_port)(connector, channel))]
            values[up_field] = up

    def stop(self) -> None:
        self.cut_streams()
        self._server.stop(0).wait()

    # -- BfRuntime ---------------------------------------------------------------------------------------------------

    def stream(self, requests, context) -> Iterator[pb.StreamMessageResponse]:
        answers: queue.Queue = queue.Queue()
        if not context.add_callback(lambda: answers.put(None)):
            return  # The stream was cancelled before it began: nothing would end the wait below, nor the process.
        first = next(iter(requests), None)
        if first is None:
            return
        client = first.client_id
        if self.faults.refuse_subscribe is not None:
            context.abort(self.faults.refuse_subscribe, "no subscriptions today")
        with self._lock:
            if client in self._streams:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Can't have two clients with the same client id")
            self._streams[client] = answers
        answer = pb.StreamMessageResponse()
        answer.subscribe.status.code = code_pb2.OK
        yield answer
        threading.Thread(target=self._until_closed, args=(requests, answers), daemon=True).start()
        try:
            while (answer := answers.get()) is not None:
                yield answer
        finally:
            with self._lock:
                self._streams.pop(client, None)
                if self.owner == client:
                    self.owner = None

    def _until_closed(self, requests, answers: queue.Queue) -> None:
        try:
            for _ in requests:
                pass
        except grpc.RpcError:
            pass
        answers.put(None)

    def set_config(self, request, context):
        assert request.action == pb.SetForwardingPipelineConfigRequest.BIND
        self.binds += 1
        if self.faults.refuse_bind is not None:
            context.abort(self.faults.refuse_bind, "Failed to set Fwd_config")
        name = request.config[0].p4_name
        with self._lock:
            if request.device_id != self.device_id or name != self.program:
                context.abort(grpc.StatusCode.NOT_FOUND, f"Failed to find BfRtInfo for program {name}")
            if request.client_id not in self._streams:
                context.abort(grpc.StatusCode.UNAVAILABLE, f"Unknown client. Client_id:{request.client_id}")
            if self.owner is not None:
                text = f"Client ID {request.client_id} trying to bind but Client ID {self.owner} already owns this P4"
                context.abort(grpc.StatusCode.ALREADY_EXISTS, text)
            self.owner = request.client_id
        return pb.SetForwardingPipelineConfigResponse()

    def get_config(self, request, context):
        answer = pb.GetForwardingPipelineConfigResponse()
        answer.config.add(p4_name=self.program, bfruntime_info=self.description)
        answer.non_p4_config.bfruntime_info = self.fixed
        return answer

    def write(self, request, context):
        self._check(request, context)
        deadline = {key: value for key, value in context.invocation_metadata() if "deadline" in key}
        self.deadlines.append(deadline)
        self.pending += 1
        try:
            time.sleep(self.faults.hang_seconds)
            if self.faults.hang_seconds > float(deadline.get("deadline_sec", "inf")):
                context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "Write RPC request timed out")
            return self._write(request, context)
        finally:
            self.pending -= 1

    def _write(self, request, context):
        errors: list[pb.Error] = []
        with self._lock:
            self.writes += 1
            lost = self.writes in self.faults.lose_answers
            before = self.snapshot()
            for update in request.updates:
                self.updates += 1
                try:
                    self.apply(update)
                    errors.append(pb.Error())
                except UpdateError as error:
                    errors.append(pb.Error(canonical_code=error.code, message=str(error)))
                    if request.atomicity == pb.WriteRequest.ROLLBACK_ON_ERROR:
                        for name, entries in self.tables.items():
                            entries.clear()
                            entries.update(before.get(name, {}))
                        break
        if lost:
            context.abort(grpc.StatusCode.INTERNAL, "the answer was lost")
        if any(error.canonical_code for error in errors):
            status = status_pb2.Status(code=code_pb2.UNKNOWN, message="Write Error Status")
            for error in errors:
                status.details.add(type_url="type.googleapis.com/bfrt_proto.Error", value=error.SerializeToString())
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(grpc.StatusCode.UNKNOWN, "Write Error Status")
        return pb.WriteResponse()

    def read(self, request, context) -> Iterator[pb.ReadResponse]:
        self._check(request, context)
        self.reads += 1
        answer = pb.ReadResponse()
        with self._lock:
            for entity in request.entities:
                if entity.HasField("table_usage"):
                    table = table_by_id(self.schema, entity.table_usage.table_id)
                    usage = len(self.tables[table.name])
                    answer.entities.add().table_usage.CopyFrom(pb.TableUsage(table_id=table.id, usage=usage))
                    continue
                self._read_entry(entity.table_entry, answer, context)
        yield answer

    def _check(self, request, context) -> None:
        if request.target.pipe_id != 0xFFFF or request.target.device_id != self.device_id:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not all pipes of device {self.device_id}")
        if self.owner is None or request.client_id != self.owner:
            context.abort(grpc.StatusCode.NOT_FOUND, "Bound config not found")

    # -- tables ------------------------------------------------------------------------------------------------------

    def _read_entry(self, wanted: pb.TableEntry, answer: pb.ReadResponse, context) -> None:
        table = table_by_id(self.schema, wanted.table_id)
        if table.name == "$PORT_HDL_INFO":
            if wanted.table_flags.from_hw:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, "Read from hardware not supported")
            key = {part.field_id: int.from_bytes(part.exact.value, "big") for part in wanted.key.fields}
            connector, channel = (key[table.keys[name].id] for name in ("$CONN_ID", "$CHNL_ID"))
            if not (1 <= connector <= CONNECTORS and channel < CHANNELS):
                self._fail_read(context, code_pb2.INVALID_ARGUMENT, f"no port {connector}/{channel}")
            entry = answer.entities.add().table_entry
            entry.table_id = table.id
            entry.key.CopyFrom(wanted.key)
            device = (self.devices or device_port)(connector, channel)
            entry.data.fields.add(field_id=1, stream=device.to_bytes(4, "big"))
            return
        if table.name == "$PORT_STAT":
            for device, counted in self.passed.items():
                entry = answer.entities.add().table_entry
                entry.table_id = table.id
                entry.key.fields.add(field_id=table.keys["$DEV_PORT"].id).exact.value = device.to_bytes(4, "big")
                for name, count in zip(("$OctetsReceived", "$OctetsTransmittedTotal"), counted, strict=True):
                    entry.data.fields.add(field_id=table.data[name].id, stream=count.to_bytes(8, "big"))
            return
        if table.kind == "Counter":
            for index in range(table.size):
                entry = answer.entities.add().table_entry
                entry.table_id = table.id
                entry.key.fields.add(field_id=next(iter(table.keys.values())).id).exact.value = index.to_bytes(4, "big")
                for one in table.data.values():
                    entry.data.fields.add(field_id=one.id, stream=(100 + index).to_bytes(8, "big"))
            return
        for key, (action, values) in self.tables[table.name].items():
            entry = answer.entities.add().table_entry
            entry.table_id = table.id
            entry.key.ParseFromString(key)
            entry.data.action_id = action
            for number, value in values.items():
                part = entry.data.fields.add(field_id=number)
                if isinstance(value, bytes):
                    part.stream = value
                elif isinstance(value, bool):
                    part.bool_val = value
                elif isinstance(value, str):
                    part.str_val = value
                elif isinstance(value, tuple) and value and isinstance(value[0], bool):
                    part.bool_arr_val.val.extend(value)
                elif isinstance(value, tuple):
                    part.int_arr_val.val.extend(value)
            for one in table.data.values():
                if one.name.startswith("$COUNTER"):
                    entry.data.fields.add(field_id=one.id, stream=(7).to_bytes(8, "big"))

    def _fail_read(self, context, code: int, message: str) -> None:
        status = status_pb2.Status(code=code_pb2.UNKNOWN, message="Read Error Status")
        error = pb.Error(canonical_code=code, message=message)
        status.details.add(type_url="type.googleapis.com/bfrt_proto.Error", value=error.SerializeToString())
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(grpc.StatusCode.UNKNOWN, "Read Error Status")

    def apply(self, update: pb.Update) -> None:
        if self.updates in self.faults.fail_updates:
            raise UpdateError(code_pb2.RESOURCE_EXHAUSTED, "No space left in the table")
        if self.updates in self.faults.forget_updates:
            return
        message = update.entity.table_entry
        table = table_by_id(self.schema, message.table_id)
        if table.constant:
            raise UpdateError(code_pb2.INVALID_ARGUMENT, f"{table.name} is constant")
        key, entries = self._key(table, message.key), self.tables[table.name]
        if table.kind == "Register":
            self._put_register(table, message, key)
            return
        if update.type == pb.Update.DELETE:
            if key not in entries:
                raise UpdateError(code_pb2.NOT_FOUND, "Object not found")
            self._may_leave(table, message.key)
            del entries[key]
            return
        values = self._data(table, message.data)
        if update.type == pb.Update.INSERT:
            if key in entries:
                raise UpdateError(code_pb2.ALREADY_EXISTS, "Already exists")
            if len(entries) >= table.size:
                raise UpdateError(code_pb2.RESOURCE_EXHAUSTED, "No space left in the table")
        elif update.type == pb.Update.MODIFY:
            if key not in entries:
                raise UpdateError(code_pb2.NOT_FOUND, "Object not found")
        else:
            raise UpdateError(code_pb2.UNIMPLEMENTED, "Invalid update.")
        if table.name == "$PORT":
            values = self._port(table, values)
        if table.name == "$pre.mgid":
            wanted = values[table.data["$MULTICAST_NODE_ID"].id]
            assert isinstance(wanted, tuple)
            if not all(self.key_of("$pre.node", node) in self.tables["$pre.node"] for node in wanted):
                return  # The drivers do this: they answer OK and make no group.
        entries[key] = (message.data.action_id, values)

    def _put_register(self, table: Table, message: pb.TableEntry, key: bytes) -> None:
        """Write a register. All cells always exist, so adding is writing (BfRtRegisterTable)."""
        if _index(key) >= table.size:
            raise UpdateError(code_pb2.INVALID_ARGUMENT, f"{table.name} has {table.size} cells")
        values = self._data(table, message.data)
        if set(values) != {field.id for field in table.data.values()}:
            raise UpdateError(code_pb2.INVALID_ARGUMENT, f"{table.name}: data fields are missing")
        self.tables[table.name][key] = (0, values)

    def _port(self, table: Table, values: dict[int, object]) -> dict[int, object]:
        if not {table.data["$SPEED"].id, table.data["$FEC"].id} <= set(values):
            raise UpdateError(code_pb2.INVALID_ARGUMENT, "Port Cfg table entry add require both speed and fec")
        defaults = {"$AUTO_NEGOTIATION": "PM_AN_DEFAULT", "$LOOPBACK_MODE": "BF_LPBK_NONE", "$PORT_UP": False}
        return {**{table.data[name].id: value for name, value in defaults.items()}, **values}

    def _may_leave(self, table: Table, key: pb.TableKey) -> None:
        if table.name == "$pre.node":
            node = int.from_bytes(key.fields[0].exact.value, "big")
            groups = self.schema.tables["$pre.mgid"]
            for _, values in self.tables["$pre.mgid"].values():
                if node in values[groups.data["$MULTICAST_NODE_ID"].id]:  # type: ignore[operator]
                    raise UpdateError(code_pb2.UNAVAILABLE, "node is in use")

    def key_of(self, name: str, number: int) -> bytes:
        (field_,) = self.schema.tables[name].keys.values()
        key = pb.TableKey()
        key.fields.add(field_id=field_.id).exact.value = number.to_bytes(octets(field_), "big")
        return key.SerializeToString(deterministic=True)

    def _key(self, table: Table, key: pb.TableKey) -> bytes:
        by_id = {field.id: field for field in table.keys.values()}
        if {part.field_id for part in key.fields} != set(by_id):
            raise UpdateError(code_pb2.INVALID_ARGUMENT, f"{table.name}: wrong key fields")
        ordered = pb.TableKey()
        for part in sorted(key.fields, key=lambda part: part.field_id):
            wanted = by_id[part.field_id]
            kind = part.WhichOneof("match_type")
            if kind != {"Exact": "exact", "LPM": "lpm", "Ternary": "ternary"}.get(wanted.match):
                raise UpdateError(code_pb2.INVALID_ARGUMENT, f"{wanted.name}: match by {kind}")
            self._number(wanted, getattr(part, kind).value)
            if kind == "ternary":
                self._number(wanted, part.ternary.mask)
            ordered.fields.add().CopyFrom(part)
        return ordered.SerializeToString(deterministic=True)

    def _number(self, wanted: Field, value: bytes) -> None:
        if len(value) != octets(wanted) or int.from_bytes(value, "big") >> (wanted.bits or 0):
            raise UpdateError(code_pb2.INVALID_ARGUMENT, f"{wanted.name}: {value.hex()} has not {wanted.bits} bits")

    def _data(self, table: Table, data: pb.TableData) -> dict[int, object]:
        action = next((one for one in table.actions.values() if one.id == data.action_id), None)
        if (action is None) == bool(table.actions):
            raise UpdateError(code_pb2.INVALID_ARGUMENT, f"{table.name}: no action {data.action_id}")
        fields = table.fields(action.name if action else None)
        by_id = {field.id: field for field in fields.values()}
        values: dict[int, object] = {}
        for part in data.fields:
            if part.field_id not in by_id:
                raise UpdateError(code_pb2.INVALID_ARGUMENT, f"{table.name}: no data field {part.field_id}")
            values[part.field_id] = self._value(by_id[part.field_id], part)
        missing = [field.name for field in fields.values() if field.mandatory and field.id not in values]
        if missing:
            raise UpdateError(code_pb2.INVALID_ARGUMENT, f"{table.name}: data field {missing[0]} is missing")
        return values

    def _value(self, wanted: Field, part: pb.DataField) -> object:
        kind = part.WhichOneof("value")
        if wanted.repeated:
            # An empty list arrives as no value at all.
            if kind not in (None, "bool_arr_val" if wanted.kind == "bool" else "int_arr_val"):
                raise UpdateError(code_pb2.INVALID_ARGUMENT, f"{wanted.name}: {kind}")
            return tuple(getattr(part, kind).val) if kind else ()
        expected = {"bool": "bool_val", "string": "str_val"}.get(wanted.kind, "stream")
        if kind != expected or wanted.read_only:
            raise UpdateError(code_pb2.INVALID_ARGUMENT, f"{wanted.name}: {kind}")
        if kind == "stream":
            self._number(wanted, part.stream)
        elif kind == "str_val" and wanted.choices and part.str_val not in wanted.choices:
            raise UpdateError(code_pb2.INVALID_ARGUMENT, f"{wanted.name}: {part.str_val}")
        return getattr(part, expected)


def _index(key: bytes) -> int:
    """Return the index of an entry of a table whose key is an index."""
    return int.from_bytes(pb.TableKey.FromString(key).fields[0].exact.value, "big")
