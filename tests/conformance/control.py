"""Carries out STF statements over P4Runtime, so the same way on every switch that speaks it."""

from __future__ import annotations

import operator
import queue
import re
from collections.abc import Iterable
from typing import Any, TypeVar

import grpc
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from tests.conformance.stf import Add, Call, CheckCounter, Command, SetDefault, StfError, number

DEADLINE = 30.0  # seconds that a call may take
INSERT, MODIFY = p4runtime_pb2.Update.INSERT, p4runtime_pb2.Update.MODIFY
COMPARISONS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
Named = TypeVar("Named")


class ExpectationFailed(Exception):
    """A counter or register does not hold what the file says."""


def as_bytes(value: int) -> bytes:
    """An unsigned int as P4Runtime's canonical byte string."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def named(objects: Iterable[Named], name: str, what: str) -> Named:
    """The object of that name, or the only one whose name ends in it."""
    found = list(objects)
    exact = [o for o in found if name in (o.preamble.name, o.preamble.alias)]  # type: ignore[attr-defined]
    ending = [o for o in found if o.preamble.name.endswith(name)]  # type: ignore[attr-defined]
    for candidates in (exact, ending):
        if len(candidates) == 1:
            return candidates[0]
    raise StfError(f"{'several' if exact or ending else 'no'} {what} of the name {name!r} in the P4Info")


class Controller:
    """The P4Runtime primary of one switch."""

    def __init__(self, address: str, p4info: str, device_config: bytes, device_id: int = 1) -> None:
        self.info = text_format.Parse(p4info, p4info_pb2.P4Info())
        self.device_id = device_id
        self._nodes: list[list[tuple[int, int]]] = []  # mc_node_create, in order: (port, replication id)
        self._groups: dict[int, list[tuple[int, int]]] = {}
        self._requests: queue.Queue[p4runtime_pb2.StreamMessageRequest | None] = queue.Queue()
        self._channel = grpc.insecure_channel(address)
        try:
            grpc.channel_ready_future(self._channel).result(DEADLINE)
            self._stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
            self._stream = self._stub.StreamChannel(iter(self._requests.get, None))
            hello = p4runtime_pb2.StreamMessageRequest()
            hello.arbitration.device_id = device_id
            hello.arbitration.election_id.low = 1
            self._requests.put(hello)
            next(self._stream)
            request = p4runtime_pb2.SetForwardingPipelineConfigRequest(
                device_id=device_id, action=p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
            )
            request.election_id.low = 1
            request.config.p4info.CopyFrom(self.info)
            request.config.p4_device_config = device_config
            self._stub.SetForwardingPipelineConfig(request, timeout=DEADLINE)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._requests.put(None)
        self._channel.close()

    def _write(self, kind: int, **entity: Any) -> None:
        request = p4runtime_pb2.WriteRequest(device_id=self.device_id)
        request.election_id.low = 1
        request.updates.add(type=kind).entity.CopyFrom(p4runtime_pb2.Entity(**entity))  # type: ignore[arg-type]
        self._stub.Write(request, timeout=DEADLINE)

    def _read(self, **entity: Any) -> p4runtime_pb2.Entity:
        request = p4runtime_pb2.ReadRequest(device_id=self.device_id)
        request.entities.add().CopyFrom(p4runtime_pb2.Entity(**entity))
        entities = [e for response in self._stub.Read(request, timeout=DEADLINE) for e in response.entities]
        if len(entities) != 1:
            raise ExpectationFailed(f"{len(entities)} answers to a read of one entity")
        return entities[0]

    # --------------------------------------------------------------------------------------------------------- tables

    def add(self, statement: Add) -> None:
        table = named(self.info.tables, statement.table, "table")
        entry = p4runtime_pb2.TableEntry(table_id=table.preamble.id)
        kinds = p4info_pb2.MatchField
        if any(f.match_type in (kinds.TERNARY, kinds.RANGE, kinds.OPTIONAL) for f in table.match_fields):
            entry.priority = (statement.priority or 0) + 1
        given = {id(self._field(table, name)): value for name, value in statement.keys}
        for field in table.match_fields:
            self._match(field, given.get(id(field)), entry)
        self._call(table, statement.call, entry.action.action)
        self._write(INSERT, table_entry=entry)

    def set_default(self, statement: SetDefault) -> None:
        table = named(self.info.tables, statement.table, "table")
        entry = p4runtime_pb2.TableEntry(table_id=table.preamble.id, is_default_action=True)
        self._call(table, statement.call, entry.action.action)
        self._write(MODIFY, table_entry=entry)

    @staticmethod
    def _field(table: p4info_pb2.Table, name: str) -> p4info_pb2.MatchField:
        name = re.sub(r"\$(\d+)", r"[\1]", name)
        for match in (lambda n: n == name, lambda n: n.endswith("." + name)):
            found = [f for f in table.match_fields if match(f.name)]
            if len(found) == 1:
                return found[0]
        raise StfError(f"no key {name!r} in table {table.preamble.name}")

    @staticmethod
    def _match(field: p4info_pb2.MatchField, text: str | None, entry: p4runtime_pb2.TableEntry) -> None:
        kinds = p4info_pb2.MatchField
        if field.match_type == kinds.EXACT:
            entry.match.add(field_id=field.id).exact.value = as_bytes(number(text or "0"))
        elif text is None:
            return  # P4Runtime leaves out what may be anything
        elif field.match_type == kinds.LPM:
            value, length = _prefix(text, field.bitwidth)
            if length:
                lpm = entry.match.add(field_id=field.id).lpm
                lpm.value, lpm.prefix_len = as_bytes(value), length
        elif field.match_type == kinds.TERNARY:
            value, mask = _masked(text, field.bitwidth)
            if mask:
                ternary = entry.match.add(field_id=field.id).ternary
                ternary.value, ternary.mask = as_bytes(value & mask), as_bytes(mask)
        elif field.match_type == kinds.RANGE:
            low, _, high = text.partition("..")
            between = entry.match.add(field_id=field.id).range
            between.low, between.high = as_bytes(number(low)), as_bytes(number(high or low))
        elif field.match_type == kinds.OPTIONAL:
            if text.strip("0x*"):
                entry.match.add(field_id=field.id).optional.value = as_bytes(number(text))
        else:
            raise StfError(f"key {field.name}: match kind {field.match_type} is not one of P4Runtime")

    def _call(self, table: p4info_pb2.Table, call: Call, out: p4runtime_pb2.Action) -> None:
        ids = {ref.id for ref in table.action_refs}
        action = named((a for a in self.info.actions if a.preamble.id in ids), call.action, "action")
        out.action_id = action.preamble.id
        given = dict(call.arguments)
        if given.keys() != {p.name for p in action.params}:
            raise StfError(f"action {call.action} takes {[p.name for p in action.params]}")
        for param in action.params:
            out.params.add(param_id=param.id, value=as_bytes(given[param.name]))

    # --------------------------------------------------------------------------------------------- groups and externs

    def command(self, statement: Command) -> None:
        arguments = statement.arguments
        if statement.name == "mirroring_add":
            entry = p4runtime_pb2.PacketReplicationEngineEntry()
            entry.clone_session_entry.session_id = number(arguments[0])
            entry.clone_session_entry.replicas.add(egress_port=number(arguments[1]), instance=0)
            self._write(INSERT, packet_replication_engine_entry=entry)
        elif statement.name == "mc_mgrp_create":
            self._groups[number(arguments[0])] = []
        elif statement.name == "mc_node_create":
            self._nodes.append([(number(port), number(arguments[0])) for port in arguments[1:]])
        elif statement.name == "mc_node_associate":
            self._associate(number(arguments[0]), number(arguments[1]))
        elif statement.name == "register_read":
            self._register_read(arguments[0], number(arguments[1]), arguments[2:])
        elif statement.name == "register_write":
            self._register_write(arguments[0], number(arguments[1]), number(arguments[2]))
        elif statement.name == "counter_read":
            self._counter(arguments[0], number(arguments[1]))
        else:
            raise StfError(f"{statement.name}: P4Runtime has no such request")

    def _associate(self, group: int, node: int) -> None:
        replicas = self._groups[group]
        first = not replicas
        replicas += self._nodes[node]
        entry = p4runtime_pb2.PacketReplicationEngineEntry()
        entry.multicast_group_entry.multicast_group_id = group
        for port, instance in replicas:
            entry.multicast_group_entry.replicas.add(egress_port=port, instance=instance)
        self._write(INSERT if first else MODIFY, packet_replication_engine_entry=entry)

    def _register_entry(self, name: str, index: int) -> p4runtime_pb2.RegisterEntry:
        entry = p4runtime_pb2.RegisterEntry(register_id=named(self.info.registers, name, "register").preamble.id)
        entry.index.index = index
        return entry

    def _register_read(self, name: str, index: int, wanted: tuple[str, ...]) -> None:
        entry = self._read(register_entry=self._register_entry(name, index)).register_entry
        value = int.from_bytes(entry.data.bitstring, "big")
        if wanted and value != number(wanted[-1]):
            raise ExpectationFailed(f"register {name}[{index}] is {value:#x}, not {wanted[-1]}")

    def _register_write(self, name: str, index: int, value: int) -> None:
        entry = self._register_entry(name, index)
        entry.data.bitstring = as_bytes(value)
        self._write(MODIFY, register_entry=entry)

    def _counter(self, name: str, index: int) -> p4runtime_pb2.CounterData:
        counter = named(self.info.counters, name, "counter")
        entry = p4runtime_pb2.CounterEntry(counter_id=counter.preamble.id)
        entry.index.index = index
        return self._read(counter_entry=entry).counter_entry.data

    def check_counter(self, statement: CheckCounter) -> None:
        data = self._counter(statement.counter, statement.index)
        value = data.packet_count if statement.unit == "packets" else data.byte_count
        if not COMPARISONS[statement.comparison](value, statement.number):
            raise ExpectationFailed(
                f"counter {statement.counter}[{statement.index}] has {value} {statement.unit}, "
                f"not {statement.comparison} {statement.number}"
            )


BITS_PER_DIGIT = {"0x": 4, "0b": 1, "0o": 3}


def _masked(text: str, width: int) -> tuple[int, int]:
    """(value, mask) of a ternary key: V, V&&&MASK, or digits some of which are *."""
    full = (1 << width) - 1
    value, ampersands, mask = text.partition("&&&")
    if ampersands:
        return number(value), number(mask)
    if "*" not in text:
        return number(text), full
    bits = BITS_PER_DIGIT.get(text[:2].lower())
    if bits is None:
        raise StfError(f"* in a number without 0x, 0b or 0o: {text!r}")
    pattern = "".join("0" if d == "*" else f"{(1 << bits) - 1:x}" for d in text[2:])
    base = 1 << bits
    return int(text[2:].replace("*", "0"), base), int(pattern, base) & full


def _prefix(text: str, width: int) -> tuple[int, int]:
    """(value, prefix length) of an LPM key: V/LENGTH, or digits of which the last ones may be *."""
    value, slash, length = text.partition("/")
    if slash:
        bits = number(length)
        return number(value) >> (width - bits) << (width - bits), bits
    value, mask = _masked(text, width)  # type: ignore[assignment]
    return value, mask.bit_count()  # type: ignore[return-value, attr-defined]
