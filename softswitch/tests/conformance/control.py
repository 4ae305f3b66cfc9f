"""Carries out STF statements over P4Runtime, and therefore in the same way on every switch that speaks it."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from typing import Any, TypeVar

import grpc
from google.protobuf import text_format

from softswitch.p4runtime.stubs import p4info_pb2, p4runtime_pb2
from softswitch.tests.conformance.stf import Add, Call, CheckCounter, Command, SetDefault, StfError, call, number
from softswitch.tests.support.p4runtime import DELETE, INSERT, MODIFY, as_bytes, connect, update

COMPARISONS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
Named = TypeVar("Named")


class ExpectationFailed(Exception):
    """A counter or register does not hold the value that the STF file expects."""


def named(objects: Iterable[Named], name: str, what: str) -> Named:
    """Return the object with this name, or the only object whose name ends in it."""
    found = list(objects)
    exact = [o for o in found if name in (o.preamble.name, o.preamble.alias)]  # type: ignore[attr-defined]
    ending = [o for o in found if o.preamble.name.endswith(name)]  # type: ignore[attr-defined]
    for candidates in (exact, ending):
        if len(candidates) == 1:
            return candidates[0]
    raise StfError(f"{'several' if exact or ending else 'no'} {what} of the name {name!r} in the P4Info")


class Controller:
    """The P4Runtime primary of one switch."""

    def __init__(
        self, address: str, p4info: str, device_config: bytes, device_id: int = 1, election_id: int = 1
    ) -> None:
        self.info = text_format.Parse(p4info, p4info_pb2.P4Info())
        self._nodes: list[list[tuple[int, int]]] = []  # mc_node_create, in order: (port, replication id)
        self._groups: dict[int, list[tuple[int, int]]] = {}
        self._client = connect(address, device_id, election_id)
        try:
            self._client.set_pipeline(device_config, self.info)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._client.close()

    def write(self, kind: int, **entity: Any) -> None:
        self._client.write(update(kind, **entity))

    def _read(self, **entity: Any) -> p4runtime_pb2.Entity:
        entities = self._client.read(p4runtime_pb2.Entity(**entity))
        if len(entities) != 1:
            raise ExpectationFailed(f"{len(entities)} answers to a read of one entity")
        return entities[0]

    # --------------------------------------------------------------------------------------------------------- tables

    def add(self, statement: Add) -> None:
        table = named(self.info.tables, statement.table, "table")
        entry = self._entry(table, statement.keys, statement.priority)
        if statement.call.action.startswith("@"):
            self._choose(table, statement.call, entry.action)
        else:
            self._call({ref.id for ref in table.action_refs}, statement.call, entry.action.action)
        self.write(INSERT, table_entry=entry)

    def _entry(
        self, table: p4info_pb2.Table, keys: Iterable[tuple[str, str]], priority: int | None
    ) -> p4runtime_pb2.TableEntry:
        """Return a table entry with match fields and priority but without an action."""
        entry = p4runtime_pb2.TableEntry(table_id=table.preamble.id)
        kinds = p4info_pb2.MatchField
        if any(f.match_type in (kinds.TERNARY, kinds.RANGE, kinds.OPTIONAL) for f in table.match_fields):
            entry.priority = (priority or 0) + 1
        given = {self._field(table, name).id: value for name, value in keys}
        for field in table.match_fields:
            self._match(field, given.get(field.id), entry)
        return entry

    def _choose(self, table: p4info_pb2.Table, wanted: Call, out: p4runtime_pb2.TableAction) -> None:
        if wanted.action == "@one_shot":
            action = next(a for a in self.info.actions if a.preamble.id == table.action_refs[0].id)
            for weight, argument in wanted.arguments:
                one = out.action_profile_action_set.action_profile_actions.add(weight=number(weight))
                one.action.action_id = action.preamble.id
                one.action.params.add(param_id=action.params[0].id, value=as_bytes(argument))
            return
        ((_, target),) = wanted.arguments
        if wanted.action == "@member":
            out.action_profile_member_id = target
        elif wanted.action == "@group":
            out.action_profile_group_id = target
        else:
            raise StfError(f"{wanted.action}: entries have @member, @group or @one_shot")

    def set_default(self, statement: SetDefault) -> None:
        table = named(self.info.tables, statement.table, "table")
        entry = p4runtime_pb2.TableEntry(table_id=table.preamble.id, is_default_action=True)
        self._call({ref.id for ref in table.action_refs}, statement.call, entry.action.action)
        self.write(MODIFY, table_entry=entry)

    @staticmethod
    def _field(table: p4info_pb2.Table, name: str) -> p4info_pb2.MatchField:
        name = re.sub(r"\$(\d+)", r"[\1]", name)
        for match in (lambda n: n == name, lambda n: n.endswith("." + name)):
            found = [f for f in table.match_fields if match(f.name)]
            if len(found) == 1:
                return found[0]
        raise StfError(f"no key {name!r} in table {table.preamble.name}")

    @staticmethod
    def _match(
        field: p4info_pb2.MatchField,
        text: str | None,
        entry: p4runtime_pb2.TableEntry | p4runtime_pb2.ValueSetMember,
    ) -> None:
        kinds = p4info_pb2.MatchField
        if field.match_type == kinds.EXACT:
            entry.match.add(field_id=field.id).exact.value = as_bytes(number(text or "0"))
        elif text is None:
            return  # P4Runtime leaves out a field that may have any value.
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

    def _call(self, ids: set[int], wanted: Call, out: p4runtime_pb2.Action) -> None:
        action = named((a for a in self.info.actions if a.preamble.id in ids), wanted.action, "action")
        out.action_id = action.preamble.id
        given = dict(wanted.arguments)
        if given.keys() != {p.name for p in action.params}:
            raise StfError(f"action {wanted.action} takes {[p.name for p in action.params]}")
        for param in action.params:
            out.params.add(param_id=param.id, value=as_bytes(given[param.name]))

    # --------------------------------------------------------------------------------------------- groups and externs

    def command(self, statement: Command) -> None:
        arguments = statement.arguments
        if statement.name == "mirroring_add":
            entry = p4runtime_pb2.PacketReplicationEngineEntry()
            entry.clone_session_entry.session_id = number(arguments[0])
            entry.clone_session_entry.replicas.add(egress_port=number(arguments[1]), instance=0)
            self.write(INSERT, packet_replication_engine_entry=entry)
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
        elif statement.name == "meter":
            self._meter(*arguments)
        elif statement.name == "direct_meter":
            self._direct_meter(arguments[0], arguments[1:5], arguments[5:])
        elif statement.name == "member":
            self._member(*arguments)
        elif statement.name == "group":
            self._group(arguments[0], number(arguments[1]), arguments[2:])
        elif statement.name == "delete":
            self._delete(*arguments)
        elif statement.name == "value_set":
            self._value_set(arguments[0], arguments[1:])
        else:
            raise StfError(f"{statement.name}: P4Runtime has no such request")

    def _meter(self, name: str, index: str, *rates: str) -> None:
        entry = p4runtime_pb2.MeterEntry(meter_id=named(self.info.meters, name, "meter").preamble.id)
        entry.index.index = number(index)
        entry.config.CopyFrom(_meter_config(rates))
        self.write(MODIFY, meter_entry=entry)

    def _direct_meter(self, name: str, rates: tuple[str, ...], keys: tuple[str, ...]) -> None:
        table = named(self.info.tables, name, "table")
        pairs = (key.rpartition(":") for key in keys)
        entry = p4runtime_pb2.DirectMeterEntry(config=_meter_config(rates))
        entry.table_entry.CopyFrom(self._entry(table, [(key, value) for key, _, value in pairs], None))
        self.write(MODIFY, direct_meter_entry=entry)

    def _profile(self, name: str) -> p4info_pb2.ActionProfile:
        return named(self.info.action_profiles, name, "action profile")

    def _member(self, name: str, member: str, wanted: str) -> None:
        profile = self._profile(name)
        tables = (t for t in self.info.tables if t.implementation_id == profile.preamble.id)
        ids = {ref.id for table in tables for ref in table.action_refs}
        entry = p4runtime_pb2.ActionProfileMember(action_profile_id=profile.preamble.id, member_id=number(member))
        self._call(ids, call(wanted), entry.action)
        self._upsert(action_profile_member=entry)

    def _group(self, name: str, group: int, members: tuple[str, ...]) -> None:
        profile = self._profile(name)
        entry = p4runtime_pb2.ActionProfileGroup(
            action_profile_id=profile.preamble.id, group_id=group, max_size=profile.max_group_size
        )
        for member in members:
            number_, _, weight = member.partition("*")
            entry.members.add(member_id=number(number_), weight=number(weight or "1"))
        self._upsert(action_profile_group=entry)

    def _upsert(self, **entity: Any) -> None:
        """Insert the entity; modify it when it already exists."""
        try:
            self.write(INSERT, **entity)
        except grpc.RpcError as error:
            # Any other status than that of a failed batch is an error of another kind.
            if error.code() != grpc.StatusCode.UNKNOWN:
                raise
            self.write(MODIFY, **entity)

    def _delete(self, what: str, name: str, target: str) -> None:
        profile = self._profile(name).preamble.id
        if what == "member":
            member = p4runtime_pb2.ActionProfileMember(action_profile_id=profile, member_id=number(target))
            self.write(DELETE, action_profile_member=member)
        elif what == "group":
            group = p4runtime_pb2.ActionProfileGroup(action_profile_id=profile, group_id=number(target))
            self.write(DELETE, action_profile_group=group)
        else:
            raise StfError(f"delete {what}: there are member and group")

    def _value_set(self, name: str, members: tuple[str, ...]) -> None:
        value_set = named(self.info.value_sets, name, "value set")
        entry = p4runtime_pb2.ValueSetEntry(value_set_id=value_set.preamble.id)
        for member in members:
            added = entry.members.add()
            for field, text in zip(value_set.match, member.split(","), strict=True):
                self._match(field, None if text == "*" else text, added)
        self.write(MODIFY, value_set_entry=entry)

    def _associate(self, group: int, node: int) -> None:
        replicas = self._groups[group]
        first = not replicas
        replicas += self._nodes[node]
        entry = p4runtime_pb2.PacketReplicationEngineEntry()
        entry.multicast_group_entry.multicast_group_id = group
        for port, instance in replicas:
            entry.multicast_group_entry.replicas.add(egress_port=port, instance=instance)
        self.write(INSERT if first else MODIFY, packet_replication_engine_entry=entry)

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
        self.write(MODIFY, register_entry=entry)

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


def _meter_config(rates: tuple[str, ...]) -> p4runtime_pb2.MeterConfig:
    cir, cburst, pir, pburst = map(number, rates)
    return p4runtime_pb2.MeterConfig(cir=cir, cburst=cburst, pir=pir, pburst=pburst)


BITS_PER_DIGIT = {"0x": 4, "0b": 1, "0o": 3}


def _masked(text: str, width: int) -> tuple[int, int]:
    """Return (value, mask) of a ternary key: V, V&&&MASK, or digits some of which are ``*``."""
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
    """Return (value, prefix length) of an LPM key: V/LENGTH, or digits of which the last ones may be ``*``."""
    value, slash, length = text.partition("/")
    if slash:
        bits = number(length)
        return number(value) >> (width - bits) << (width - bits), bits
    value, mask = _masked(text, width)  # type: ignore[assignment]
    return value, mask.bit_count()  # type: ignore[return-value, attr-defined]
