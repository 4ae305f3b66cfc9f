"""BRI table entries as data, and their checks against a bf-rt.json. This needs no switch and no SDE."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.targets.base import Operation
from controlplane.targets.bri.schema import Field, Schema, SchemaError, Table, local

DEVICE_PORT_BITS = 9
"""Width of a device port's number. Tofino 1 has ports 0 to 511: two bits name the pipe, seven the port in the pipe."""


@dataclass(frozen=True)
class PortName:
    """A placeholder for the device port of a front-panel port, used where no switch was asked."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Prefix:
    """An LPM key: the first `length` bits of `value`, an IPv4 address."""

    value: int
    length: int

    def __str__(self) -> str:
        return f"{ipaddress.IPv4Address(self.value)}/{self.length}"


Port = int | PortName


@dataclass(frozen=True)
class Masked:
    """A ternary key. It matches where the bits that are ones in `mask` are equal; other bits may be anything."""

    value: Port
    mask: int

    def __str__(self) -> str:
        if not self.mask:
            return "any"
        value = f"{self.value:#x}" if isinstance(self.value, int) else self.value
        return f"{value}/{self.mask:#x}"


KeyValue = int | str | PortName | Prefix | Masked
DataValue = int | str | bool | PortName | tuple[bool, ...] | tuple[Port, ...]


@dataclass(frozen=True)
class Entry:
    """A table entry with full names. `action` is None in tables without actions. For a deletion only the key
    matters."""

    table: str
    key: tuple[tuple[str, KeyValue], ...]
    action: str | None
    data: tuple[tuple[str, DataValue], ...]

    def __str__(self) -> str:
        key = ", ".join(f"{name}={value}" for name, value in self.key)
        data = ", ".join(f"{local(name)}={_show(value, name)}" for name, value in self.data)
        action = f"{local(self.action)}({data})" if self.action is not None else f"({data})"
        return f"{local(self.table)}: {key} -> {action}"

    def to_json(self) -> dict[str, Any]:
        """Return the entry as plain data, with front-panel ports as strings like "1/0"."""
        return {
            "table": self.table,
            "key": {name: _plain(value) for name, value in self.key},
            "action": self.action,
            "data": {name: _plain(value) for name, value in self.data},
        }


@dataclass(frozen=True)
class Step:
    """One write to a switch."""

    operation: Operation
    entry: Entry


BITS = {"flow", "everyone", "slot_mask"}
"""Names of fields that are sets of bits; they are shown in hexadecimal."""


def _show(value: DataValue, name: str = "") -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, int) and not isinstance(value, bool):
        if name in BITS:
            return f"{value:#x}"
        if name.endswith("_mac"):
            return value.to_bytes(6, "big").hex(":") if value < 1 << 48 else f"{value:#x}"
    return str(value)


def _plain(value: KeyValue | DataValue) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Prefix):
        return {"value": value.value, "prefix_length": value.length}
    if isinstance(value, Masked):
        return {"value": _plain(value.value), "mask": value.mask}
    return value.name if isinstance(value, PortName) else value


def problems(schema: Schema, entries: Sequence[Entry]) -> list[str]:
    """Return all reasons for which a switch with this schema would refuse the entries: problems of single entries,
    duplicate keys, and tables that overflow."""
    found = [f"{entry}: {problem}" for entry in entries for problem in entry_problems(schema, entry)]
    keys = Counter((entry.table, tuple(sorted(entry.key, key=str))) for entry in entries)
    found += [
        f"{local(table)}: {len_} entries have the key {dict(key)}" for (table, key), len_ in keys.items() if len_ > 1
    ]
    for table, count in Counter(entry.table for entry in entries).items():
        if table in schema.tables and count > schema.tables[table].size:
            found.append(f"{local(table)}: {count} entries, {schema.tables[table].size} fit")
    return found


def entry_problems(schema: Schema, entry: Entry) -> list[str]:
    """Return what is wrong with one entry: names, match kinds, widths, missing and unknown fields."""
    if entry.table not in schema.tables:
        return [f"{schema.source} has no table {entry.table!r}"]
    table = schema.tables[entry.table]
    if table.constant:
        return [f"table {table.name} is constant"]
    found = list(_key_problems(table, entry))
    if entry.action is None and table.actions:
        return [*found, f"an action is missing, one of {', '.join(map(local, table.actions))}"]
    if entry.action is not None and entry.action not in table.actions:
        return [*found, f"no action {entry.action!r}; there are {', '.join(table.actions) or 'none'}"]
    if entry.action is not None and table.actions[entry.action].scope == "DefaultOnly":
        found.append(f"action {local(entry.action)} is only for the default entry")
    return found + list(_data_problems(table, entry))


def _key_problems(table: Table, entry: Entry) -> Iterable[str]:
    given = dict(entry.key)
    if len(given) != len(entry.key):
        yield "a key field is given twice"
    for name in table.keys:
        # The compiler calls no key field mandatory (the driver takes 0), but leaving one out is a mistake all the same.
        if name not in given and name != "$MATCH_PRIORITY":
            yield f"key field {name} is missing"
    for name, value in given.items():
        if name not in table.keys:
            yield f"no key field {name!r}; there are {', '.join(table.keys)}"
            continue
        field = table.keys[name]
        if {Prefix: "LPM", Masked: "Ternary"}.get(type(value), "Exact") != field.match:
            yield f"key field {name} matches by {field.match}, got {value}"
        elif isinstance(value, Masked):
            yield from _value_problems(field, value.value)
            yield from _value_problems(field, value.mask)
            if isinstance(value.value, int) and value.value & ~value.mask:
                yield f"key field {name}: {value} has bits where its mask has none"
        elif isinstance(value, Prefix):
            yield from _prefix_problems(field, value)
        else:
            yield from _value_problems(field, value)


def _prefix_problems(field: Field, prefix: Prefix) -> Iterable[str]:
    bits = field.bits or 0
    if not 0 <= prefix.length <= bits:
        yield f"key field {field.name}: prefix length {prefix.length} is not in 0..{bits}"
        return
    yield from _value_problems(field, prefix.value)
    if prefix.value & ((1 << (bits - prefix.length)) - 1):
        yield f"key field {field.name}: {prefix} has bits behind its prefix"


def _data_problems(table: Table, entry: Entry) -> Iterable[str]:
    given, fields = dict(entry.data), table.fields(entry.action)
    if len(given) != len(entry.data):
        yield "a data field is given twice"
    for name, field in fields.items():
        if field.mandatory and name not in given:
            yield f"data field {name} is missing"
    for name, value in given.items():
        if name not in fields:
            yield f"no data field {name!r}; there are {', '.join(fields) or 'none'}"
        elif fields[name].read_only:
            yield f"data field {name} can only be read"
        elif fields[name].repeated != isinstance(value, tuple):
            yield f"data field {name} takes {'a list' if fields[name].repeated else 'one value'}, got {_show(value)}"
        elif isinstance(value, tuple):
            for one in value:
                yield from _value_problems(fields[name], one)
        else:
            yield from _value_problems(fields[name], value)


def _value_problems(field: Field, value: int | str | bool | PortName) -> Iterable[str]:
    if field.bits is not None:
        if isinstance(value, PortName):
            if field.bits < DEVICE_PORT_BITS:
                yield f"{field.name} has {field.bits} bits, a device port needs {DEVICE_PORT_BITS}"
        elif isinstance(value, bool) or not isinstance(value, int):
            yield f"{field.name} is a number of {field.bits} bits, got {value!r}"
        elif not 0 <= value < 1 << field.bits:
            yield f"{field.name}: {value:#x} does not fit in {field.bits} bits"
    elif field.kind == "bool":
        if not isinstance(value, bool):
            yield f"{field.name} is true or false, got {value!r}"
    elif field.kind == "string":
        if not isinstance(value, str):
            yield f"{field.name} is a text, got {value!r}"
        elif field.choices and value not in field.choices:
            yield f"{field.name} is one of {', '.join(field.choices)}, got {value!r}"
    else:
        yield f"{field.name} is of kind {field.kind}, which is not supported here"


def check(schema: Schema, entries: Sequence[Entry], where: str) -> None:
    """Check that a switch with this schema would accept the entries; raise SchemaError with everything that is wrong
    otherwise."""
    found = problems(schema, entries)
    if found:
        more = [f"  ... and {len(found) - 8} more"] if len(found) > 8 else []
        raise SchemaError(
            "\n".join([f"{where}: {schema.source} does not allow:", *(f"  {line}" for line in found[:8]), *more])
        )
