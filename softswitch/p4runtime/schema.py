"""Compares P4Info and program, and maps ids to the names, positions and widths that the data plane uses.

:class:`Schema` is built once per forwarding pipeline config and refuses a P4Info that does not describe the program.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from softswitch.bmv2json.model import Action, Digest, Match
from softswitch.dataplane.program import Program, TableInfo
from softswitch.p4runtime.p4data import Shape, shape_of
from softswitch.p4runtime.packetio import ControllerHeader
from softswitch.p4runtime.status import invalid, unimplemented
from softswitch.p4runtime.stubs import p4data_pb2, p4info_pb2, p4types_pb2
from softswitch.p4runtime.unknown import later_field

_log = logging.getLogger(__name__)

_MATCH_KINDS: dict[int, str] = {
    p4info_pb2.MatchField.EXACT: "exact",
    p4info_pb2.MatchField.LPM: "lpm",
    p4info_pb2.MatchField.TERNARY: "ternary",
    p4info_pb2.MatchField.RANGE: "range",
    p4info_pb2.MatchField.OPTIONAL: "optional",
}


_SCOPES = (
    p4info_pb2.ActionRef.TABLE_AND_DEFAULT,
    p4info_pb2.ActionRef.TABLE_ONLY,
    p4info_pb2.ActionRef.DEFAULT_ONLY,
)


def any_match(kind: str, width: int) -> Match | None:
    """Return the match that every value satisfies; ``None`` for exact matches, which have no such match."""
    if kind == "exact":
        return None
    return Match("range", high=(1 << width) - 1) if kind == "range" else Match(kind)


@dataclass(frozen=True)
class FieldSchema:
    """One match field: its P4Info id, its place in the key, and its kind of match.

    ``kind`` is the P4Info's; ``device_kind`` is the program's, which is ternary for P4's optional (p4c's bmv2 JSON has
    no optional).
    """

    id: int
    index: int
    name: str
    kind: str
    device_kind: str
    width: int
    wildcard: Match | None


@dataclass(frozen=True)
class ParamSchema:
    """One action parameter."""

    id: int
    index: int
    name: str
    width: int


@dataclass(frozen=True)
class ActionSchema:
    """One action and its parameters, in the program's order."""

    id: int
    name: str
    params: tuple[ParamSchema, ...]
    params_by_id: dict[int, ParamSchema]


@dataclass(frozen=True)
class ProfileSchema:
    """An action profile or selector. Sizes of 0 are not limited.

    ``by_members`` says whether ``size`` and ``max_group_size`` count members, and not weights.
    """

    id: int
    name: str
    with_selector: bool
    size: int
    max_group_size: int
    by_members: bool
    weights_disallowed: bool
    max_member_weight: int
    actions_by_id: dict[int, ActionSchema]
    actions_by_name: dict[str, ActionSchema]


@dataclass(frozen=True)
class MeterSchema:
    """An array of meters; ``type`` is a ``MeterSpec.Type``."""

    id: int
    name: str
    size: int
    type: int


@dataclass(frozen=True)
class ValueSetSchema:
    """A parser value set."""

    id: int
    name: str
    size: int
    fields: tuple[FieldSchema, ...]
    fields_by_id: dict[int, FieldSchema]
    wildcards: tuple[Match | None, ...]


@dataclass(frozen=True)
class TableSchema:
    """A table. ``scopes`` maps the ids of its actions to their ``ActionRef.Scope``.

    ``is_const`` says whether its entries come from the program and cannot be changed; the P4Info tells them from
    ``entries`` without ``const``, which the bmv2 JSON does not.
    """

    id: int
    name: str
    info: TableInfo
    fields: tuple[FieldSchema, ...]
    fields_by_id: dict[int, FieldSchema]
    wildcards: tuple[Match | None, ...]
    actions_by_id: dict[int, ActionSchema]
    actions_by_name: dict[str, ActionSchema]
    scopes: dict[int, int]
    is_const: bool
    default_const: bool
    meter_type: int | None  # MeterSpec.Type of its direct meter
    profile: ProfileSchema | None


@dataclass(frozen=True)
class CounterSchema:
    id: int
    name: str
    size: int


@dataclass(frozen=True)
class RegisterSchema:
    """A register array. Its ``kind`` is bit, int or bool, or ``None`` if its type cannot be read or written over
    P4Runtime.
    """

    id: int
    name: str
    size: int
    width: int
    kind: str | None


@dataclass(frozen=True)
class DigestSchema:
    """A digest; ``number`` is its position in the program."""

    id: int
    name: str
    number: int
    info: Digest
    shape: Shape

    def encode(self, message: bytes, data: p4data_pb2.P4Data) -> None:
        """Convert a message of the data plane to the form that the client gets."""
        self.shape.encode(iter(self.info.values(message)), data)


class Schema:
    """The objects that P4Runtime requests refer to by id.

    It raises :class:`P4RuntimeError` (INVALID_ARGUMENT, or UNIMPLEMENTED for what softswitch cannot serve), which names
    the first object in which ``p4info`` and ``program`` differ.
    """

    def __init__(self, p4info: p4info_pb2.P4Info, program: Program) -> None:
        self.names = _check_ids(p4info)
        actions = {action.preamble.id: action for action in p4info.actions}
        direct_meters = {meter.direct_table_id: meter for meter in p4info.direct_meters}
        self.profiles = {p.preamble.id: _profile(p, p4info, actions, program) for p in p4info.action_profiles}
        self.tables = {
            t.preamble.id: _table(t, actions, direct_meters.get(t.preamble.id), self.profiles, program)
            for t in p4info.tables
        }
        _check_complete(p4info, program)
        self.changeable = frozenset(table.name for table in self.tables.values() if not table.is_const)
        self.tables_by_name = {table.name: table for table in self.tables.values()}
        self.meters = {meter.preamble.id: _meter(meter, program) for meter in p4info.meters}
        self.value_sets = {v.preamble.id: _value_set(v, program) for v in p4info.value_sets}
        self.counters = {counter.preamble.id: _counter(counter, program) for counter in p4info.counters}
        self.registers = {register.preamble.id: _register(register, program) for register in p4info.registers}
        self.digests = _digests(p4info, program)
        for direct in p4info.direct_counters:
            _check_direct_counter(direct, self.tables)
        for table_id, meter in direct_meters.items():
            if table_id not in self.tables or self.tables[table_id].meter_type is None:
                raise invalid(f"direct meter {meter.preamble.name} of the P4Info is on no table of the program")
        headers = {header.preamble.name: header for header in p4info.controller_packet_metadata}
        self.packet_in = ControllerHeader(headers.get("packet_in"), program.header_types)
        self.packet_out = ControllerHeader(headers.get("packet_out"), program.header_types)

    def table(self, table_id: int) -> TableSchema:
        return self._find(self.tables, table_id, "table")

    def counter(self, counter_id: int) -> CounterSchema:
        return self._find(self.counters, counter_id, "indirect counter")

    def register(self, register_id: int) -> RegisterSchema:
        return self._find(self.registers, register_id, "register")

    def meter(self, meter_id: int) -> MeterSchema:
        return self._find(self.meters, meter_id, "indirect meter")

    def profile(self, profile_id: int) -> ProfileSchema:
        return self._find(self.profiles, profile_id, "action profile")

    def value_set(self, value_set_id: int) -> ValueSetSchema:
        return self._find(self.value_sets, value_set_id, "value set")

    def _find(self, objects: dict[int, Any], object_id: int, noun: str) -> Any:
        found = objects.get(object_id)
        if found is not None:
            return found
        if object_id == 0:
            raise invalid(f"the {noun} id is 0, which is not valid here")
        other = self.names.get(object_id)
        raise invalid(f"no {noun} has id {object_id}" + (f"; it is the id of {other}" if other else ""))


def _check_ids(p4info: p4info_pb2.P4Info) -> dict[int, str]:
    names: dict[int, str] = {}
    groups: Iterable[Iterable[Any]] = (
        p4info.tables,
        p4info.actions,
        p4info.action_profiles,
        p4info.counters,
        p4info.direct_counters,
        p4info.meters,
        p4info.direct_meters,
        p4info.value_sets,
        p4info.registers,
        p4info.digests,
        p4info.controller_packet_metadata,
    )
    for group in groups:
        for entity in group:
            preamble = entity.preamble
            if preamble.id == 0:
                raise invalid(f"P4Info: {preamble.name!r} has id 0")
            if preamble.id in names:
                raise invalid(f"P4Info: id {preamble.id} is both {names[preamble.id]} and {preamble.name}")
            names[preamble.id] = preamble.name
    return names


def _width(what: str, declared: int, actual: int, named_type: p4types_pb2.P4NamedType) -> int:
    """Return the width of a value: P4Info and program must agree, except for a type translated to another number."""
    if declared == 0:
        raise unimplemented(f"{what}: values of type {named_type.name or '?'} (no bit width) are not supported")
    if declared != actual and not named_type.name:
        raise invalid(f"{what} has {declared} bits in the P4Info and {actual} in the program")
    return min(declared, actual)


def _match_kind(what: str, field: p4info_pb2.MatchField) -> str:
    kind = _MATCH_KINDS.get(field.match_type)
    if kind is None:
        raise unimplemented(f"{what}: match kind {field.other_match_type or field.match_type} is not supported")
    return kind


def _check_complete(p4info: p4info_pb2.P4Info, program: Program) -> None:
    """Check that the P4Info has all tables of the program that get their entries from outside."""
    described = {table.preamble.name for table in p4info.tables}
    for name, info in program.tables.items():  # p4c adds tables of its own: without keys, or with const entries.
        if info.keys and not info.const_entries and name not in described:
            raise invalid(f"table {name} of the program is not in the P4Info")


def _check_order(what: str, described: list[str], declared: list[str]) -> None:
    """Check that names in both lists are at the same places; otherwise values would go to wrong places."""
    for place, name in enumerate(described):
        if name in declared and declared[place] != name and declared[place] in described:
            raise invalid(f"{what}: {name} is number {place + 1} in the P4Info and not in the program")


def _check_left_out(table: p4info_pb2.Table, info: TableInfo, actions: dict[int, p4info_pb2.Action]) -> None:
    """Check what p4c omits, with a warning, in the JSON of a table with an action profile: its entries and default
    action.

    Raise INVALID_ARGUMENT for entries, and log a warning for a default action.
    """
    name = table.preamble.name
    if (table.is_const_table or table.has_initial_entries) and not info.const_entries:
        raise invalid(f"table {name} has entries in the P4Info and none in the program (it has an action profile)")
    default = actions.get(table.initial_default_action.action_id)
    if default is not None and default.preamble.name != "NoAction":
        _log.warning(
            "table %s: p4c left out its default action %s (it has an action profile); a miss does nothing",
            name,
            default.preamble.name,
        )


def _table(
    table: p4info_pb2.Table,
    actions: dict[int, p4info_pb2.Action],
    meter: p4info_pb2.DirectMeter | None,
    profiles: dict[int, ProfileSchema],
    program: Program,
) -> TableSchema:
    name = table.preamble.name
    info = program.tables.get(name)
    if info is None:
        raise invalid(f"table {name} of the P4Info is not in the program")
    fields = _match_fields(table, info)
    calls = {}
    for ref in table.action_refs:
        if ref.scope not in _SCOPES:
            raise unimplemented(f"table {name}: scope {ref.scope} of action {ref.id} is not supported")
        if ref.id not in actions:
            raise invalid(f"table {name}: the P4Info has no action with id {ref.id}")
        calls[ref.id] = _action(actions[ref.id], info, program)
    for action in actions.values():
        if action.preamble.name in info.actions and action.preamble.id not in calls:
            raise invalid(f"table {name} has the action {action.preamble.name} in the program and not in the P4Info")
    profile = profiles.get(table.implementation_id)
    if (profile.name if profile else None) != info.profile:
        raise invalid(f"table {name} has not the same action profile in P4Info and program")
    if info.has_idle_timeout != (table.idle_timeout_behavior != p4info_pb2.Table.NO_TIMEOUT):
        raise invalid(f"table {name} has idle timeouts in the P4Info or in the program, not in both")
    if profile is not None:
        _check_left_out(table, info, actions)
    if info.const_entries and not (table.is_const_table or table.has_initial_entries):
        raise invalid(f"table {name} has const entries in the program and none in the P4Info")
    return TableSchema(
        id=table.preamble.id,
        name=name,
        info=info,
        fields=fields,
        fields_by_id={field.id: field for field in fields},
        wildcards=tuple(field.wildcard for field in fields),
        actions_by_id=calls,
        actions_by_name={action.name: action for action in calls.values()},
        scopes={ref.id: ref.scope for ref in table.action_refs},
        is_const=table.is_const_table,
        default_const=info.default_const or table.const_default_action_id != 0,
        meter_type=None if meter is None or not info.has_direct_meter else meter.spec.type,
        profile=profile,
    )


def _match_fields(table: p4info_pb2.Table, info: TableInfo) -> tuple[FieldSchema, ...]:
    name = table.preamble.name
    if len(table.match_fields) != len(info.keys):
        raise invalid(
            f"table {name} has {len(table.match_fields)} match fields in the P4Info and {len(info.keys)} in the program"
        )
    _check_order(f"table {name}", [field.name for field in table.match_fields], [key.name for key in info.keys])
    fields = []
    for index, (field, key) in enumerate(zip(table.match_fields, info.keys, strict=True)):
        what = f"{name} field {field.name}"
        kind = _match_kind(what, field)
        if kind != key.match_kind and (kind, key.match_kind) != ("optional", "ternary"):
            raise invalid(f"{what} is {kind} in the P4Info and {key.match_kind} in the program")
        width = _width(what, field.bitwidth, key.width, field.type_name)
        fields.append(
            FieldSchema(field.id, index, what, kind, key.match_kind, width, any_match(key.match_kind, key.width))
        )
    if len({field.id for field in fields}) != len(fields):
        raise invalid(f"table {name} has two match fields with one id in the P4Info")
    return tuple(fields)


def _action(action: p4info_pb2.Action, table: TableInfo, program: Program) -> ActionSchema:
    name = action.preamble.name
    if name not in table.actions:
        raise invalid(f"table {table.name} has no action {name} in the program")
    info: Action = program.actions[name]
    if len(action.params) != len(info.params):
        raise invalid(
            f"action {name} has {len(action.params)} parameters in the P4Info and {len(info.params)} in the program"
        )
    _check_order(f"action {name}", [param.name for param in action.params], [param for param, _ in info.params])
    params = tuple(
        ParamSchema(
            param.id,
            index,
            f"{name} parameter {param.name}",
            _width(f"{name} parameter {param.name}", param.bitwidth, width, param.type_name),
        )
        for index, (param, (_, width)) in enumerate(zip(action.params, info.params, strict=True))
    )
    return ActionSchema(action.preamble.id, name, params, {param.id: param for param in params})


def _profile(
    profile: p4info_pb2.ActionProfile,
    p4info: p4info_pb2.P4Info,
    actions: dict[int, p4info_pb2.Action],
    program: Program,
) -> ProfileSchema:
    name = profile.preamble.name
    info = program.profiles.get(name)
    if info is None:
        raise invalid(f"action profile {name} of the P4Info is not in the program")
    if profile.with_selector != info.with_selector or info.size not in (0, profile.size):
        raise invalid(f"action profile {name} is not the same in P4Info and program")
    calls: dict[int, ActionSchema] = {}
    for table in p4info.tables:
        if table.implementation_id == profile.preamble.id and table.preamble.name in program.tables:
            for ref in table.action_refs:
                if ref.id in actions:
                    calls[ref.id] = _action(actions[ref.id], program.tables[table.preamble.name], program)
    return ProfileSchema(
        id=profile.preamble.id,
        name=name,
        with_selector=info.with_selector,
        size=profile.size,
        max_group_size=profile.max_group_size,
        by_members=profile.HasField("sum_of_members"),
        weights_disallowed=bool(later_field(profile, "weights_disallowed")),
        max_member_weight=profile.sum_of_members.max_member_weight,
        actions_by_id=calls,
        actions_by_name={action.name: action for action in calls.values()},
    )


def _array(kind: str, declared: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the program's array that the P4Info declares, after checking that both have one size. An array that is
    direct has no declaration of this kind.
    """
    name = declared.preamble.name
    info = arrays.get(name)
    if info is None or getattr(info, "table", None) is not None:
        raise invalid(f"{kind} {name} of the P4Info is not in the program")
    if declared.size != info.size:
        raise invalid(f"{kind} {name} has {declared.size} elements in the P4Info and {info.size} in the program")
    return info


def _meter(meter: p4info_pb2.Meter, program: Program) -> MeterSchema:
    info = _array("meter", meter, program.meters)
    return MeterSchema(meter.preamble.id, info.name, info.size, meter.spec.type)


def _value_set(value_set: p4info_pb2.ValueSet, program: Program) -> ValueSetSchema:
    name = value_set.preamble.name
    info = program.value_sets.get(name)
    if info is None:
        raise invalid(f"value set {name} of the P4Info is not in the program")
    if info.size not in (0, value_set.size) or (info.widths and len(value_set.match) != len(info.widths)):
        raise invalid(f"value set {name} is not the same in P4Info and program")
    fields = []
    for index, field in enumerate(value_set.match):
        what = f"{name} field {field.name or field.id}"
        kind = _match_kind(what, field)
        bits = info.widths[index] if info.widths else field.bitwidth
        width = _width(what, field.bitwidth, bits, field.type_name)
        device_kind = "ternary" if kind == "optional" else kind
        fields.append(FieldSchema(field.id, index, what, kind, device_kind, width, any_match(device_kind, bits)))
    by_id = {field.id: field for field in fields}
    if len(by_id) != len(fields):
        raise invalid(f"value set {name} has two fields with one id in the P4Info")
    return ValueSetSchema(
        value_set.preamble.id, name, value_set.size, tuple(fields), by_id, tuple(field.wildcard for field in fields)
    )


def _counter(counter: p4info_pb2.Counter, program: Program) -> CounterSchema:
    info = _array("counter", counter, program.counters)
    return CounterSchema(counter.preamble.id, info.name, info.size)


def _check_direct_counter(counter: p4info_pb2.DirectCounter, tables: dict[int, TableSchema]) -> None:
    table = tables.get(counter.direct_table_id)
    if table is None or not table.info.has_direct_counter:
        raise invalid(f"direct counter {counter.preamble.name} of the P4Info is on no table of the program")


def _register(register: p4info_pb2.Register, program: Program) -> RegisterSchema:
    name = register.preamble.name
    info = _array("register", register, program.registers)
    kind, width = _register_type(register.type_spec)
    if width is not None and width != info.width:
        raise invalid(f"register {name} has {width}-bit elements in the P4Info and {info.width}-bit in the program")
    return RegisterSchema(register.preamble.id, name, info.size, info.width, kind)


def _digests(p4info: p4info_pb2.P4Info, program: Program) -> dict[int, DigestSchema]:
    """Return the digests by id.

    p4c names digests without a type name differently in P4Info and JSON; these pair up in order.
    """
    numbers = {}
    free = list(range(len(program.digests)))
    for digest in p4info.digests:
        same = [n for n in free if program.digests[n].name == digest.preamble.name]
        if same:
            numbers[digest.preamble.id] = same[0]
            free.remove(same[0])
    found: dict[int, DigestSchema] = {}
    for digest in p4info.digests:
        name = digest.preamble.name
        if digest.preamble.id not in numbers and not free:
            raise invalid(f"digest {name} of the P4Info is not in the program")
        number = numbers[digest.preamble.id] if digest.preamble.id in numbers else free.pop(0)
        shape = shape_of(digest.type_spec, p4info.type_info, f"digest {name}")
        info = program.digests[number]
        if [leaf.width for leaf in shape.leaves()] != list(info.widths):
            raise invalid(f"digest {name} has fields of other widths in the P4Info than in the program")
        found[digest.preamble.id] = DigestSchema(digest.preamble.id, name, number, info, shape)
    return found


def _register_type(spec: p4types_pb2.P4DataTypeSpec) -> tuple[str | None, int | None]:
    which = spec.WhichOneof("type_spec")
    if which == "bool":
        return "bool", 1
    if which == "bitstring":
        kind = spec.bitstring.WhichOneof("type_spec")
        if kind in ("bit", "int"):
            return kind, getattr(spec.bitstring, kind).bitwidth
    return None, None
