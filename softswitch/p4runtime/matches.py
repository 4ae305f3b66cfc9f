"""Converts the match keys of table entries and value set members between messages and the data plane.

The P4Runtime specification describes this in "Match Format".
"""

from __future__ import annotations

from softswitch.bmv2json.model import Match
from softswitch.p4runtime import bytestring
from softswitch.p4runtime.schema import FieldSchema, TableSchema, ValueSetSchema
from softswitch.p4runtime.status import invalid
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt

Key = tuple[Match, ...]


def decode_key(table: TableSchema, entry: p4rt.TableEntry) -> tuple[Key, int]:
    """Return the match and the priority of an entry."""
    priority = entry.priority
    if table.info.needs_priority:
        if priority <= 0:
            raise invalid(f"table {table.name} has ternary, range or optional fields: set a priority above 0")
    elif priority:
        raise invalid(f"table {table.name} has no ternary, range or optional field: leave priority 0")
    return decode_match(table, entry), priority


def decode_match(table: TableSchema | ValueSetSchema, entry: p4rt.TableEntry | p4rt.ValueSetMember) -> Key:
    """Return the match of an entry or member, one element per key field; omitted fields match anything."""
    key = list(table.wildcards)
    seen = set()
    for match in entry.match:
        field = table.fields_by_id.get(match.field_id)
        if field is None:
            raise invalid(f"{table.name} has no match field with id {match.field_id}")
        if field.id in seen:
            raise invalid(f"{field.name} is given twice")
        seen.add(field.id)
        key[field.index] = _decode_field(field, match)
    for field in table.fields:
        if key[field.index] is None:
            raise invalid(f"{field.name} is exact: it cannot be left out")
    return tuple(key)  # type: ignore[arg-type]  # no None is left


def _decode_field(field: FieldSchema, match: p4rt.FieldMatch) -> Match:
    given = match.WhichOneof("field_match_type")
    if given != field.kind:
        raise invalid(f"{field.name} is {field.kind}, the entry gives {given or 'nothing'}")
    width, name = field.width, field.name
    if given == "exact":
        return Match("exact", bytestring.decode(match.exact.value, width, name))
    if given == "lpm":
        value = bytestring.decode(match.lpm.value, width, name)
        prefix = match.lpm.prefix_len
        if not 0 < prefix <= width:
            raise invalid(f"{name}: prefix length {prefix} is not in 1..{width}; leave the field out to match anything")
        if value & (1 << (width - prefix)) - 1:
            raise invalid(f"{name}: {value:#x} has bits set behind its prefix of {prefix} bits")
        return Match("lpm", value, prefix_len=prefix)
    if given == "ternary":
        value = bytestring.decode(match.ternary.value, width, name)
        mask = bytestring.decode(match.ternary.mask, width, name)
        if not mask:
            raise invalid(f"{name}: the mask is 0; leave the field out to match anything")
        if value & ~mask:
            raise invalid(f"{name}: {value:#x} has bits set that the mask {mask:#x} excludes")
        return Match("ternary", value, mask=mask)
    if given == "range":
        low = bytestring.decode(match.range.low, width, name)
        high = bytestring.decode(match.range.high, width, name)
        if low > high:
            raise invalid(f"{name}: the range {low}..{high} is empty")
        chosen = Match("range", low, high=high)
        if chosen == field.wildcard:
            raise invalid(f"{name}: the range covers every value; leave the field out to match anything")
        return chosen
    return Match(field.device_kind, bytestring.decode(match.optional.value, width, name), mask=(1 << width) - 1)


def encode_match(entry: p4rt.TableEntry, table: TableSchema, key: Key, priority: int) -> None:
    """Fill in the match and the priority of an entry, the inverse of :func:`decode_key`."""
    encode_fields(entry, table, key)
    if table.info.needs_priority:
        entry.priority = priority


def encode_fields(entry: p4rt.TableEntry | p4rt.ValueSetMember, table: TableSchema | ValueSetSchema, key: Key) -> None:
    """Fill in the match of an entry or member, the inverse of :func:`decode_match`."""
    encode = bytestring.encode
    for field, match in zip(table.fields, key, strict=True):
        kind = field.kind
        if kind == "exact":
            entry.match.add(field_id=field.id).exact.value = encode(match.value)
        elif match == field.wildcard:
            continue
        elif kind == "lpm":
            lpm = entry.match.add(field_id=field.id).lpm
            lpm.value = encode(match.value)
            lpm.prefix_len = match.prefix_len
        elif kind == "ternary":
            ternary = entry.match.add(field_id=field.id).ternary
            ternary.value = encode(match.value)
            ternary.mask = encode(match.mask)
        elif kind == "range":
            bounds = entry.match.add(field_id=field.id).range
            bounds.low = encode(match.value)
            bounds.high = encode(match.high)
        else:
            entry.match.add(field_id=field.id).optional.value = encode(match.value)
