"""``ValueSetEntry``: the members of a parser value set, replaced and read as a whole.

The P4Runtime specification describes this in "ValueSetEntry".
"""

from __future__ import annotations

from collections.abc import Iterator

from google.rpc import code_pb2

from softswitch.bmv2json.model import Match
from softswitch.dataplane.device import Device
from softswitch.p4runtime.matches import decode_match, encode_fields
from softswitch.p4runtime.schema import Schema, ValueSetSchema
from softswitch.p4runtime.status import P4RuntimeError, invalid
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.undo import Journal


class ValueSetAccess:
    """Value sets of one device under one schema; the caller holds the device's lock during calls."""

    def __init__(self, device: Device, schema: Schema) -> None:
        self._device = device
        self._schema = schema

    def write(self, kind: int, entry: p4rt.ValueSetEntry, journal: Journal) -> None:
        """Replace all members (MODIFY only)."""
        value_set = self._schema.value_set(entry.value_set_id)
        if kind != p4rt.Update.MODIFY:
            raise invalid(f"value set {value_set.name} can only be modified")
        if len(entry.members) > value_set.size:
            raise P4RuntimeError(
                code_pb2.RESOURCE_EXHAUSTED,
                f"value set {value_set.name} has room for {value_set.size} members, not {len(entry.members)}",
            )
        members: dict[tuple[Match, ...], None] = {}
        for member in entry.members:
            key = decode_match(value_set, member)
            if key in members:
                raise P4RuntimeError(
                    code_pb2.ALREADY_EXISTS, f"value set {value_set.name}: the request has one member twice"
                )
            members[key] = None
        old = self._device.value_set_read(value_set.name)
        self._device.value_set_write(value_set.name, list(members))
        journal.add(lambda: self._device.value_set_write(value_set.name, old))

    def read(self, query: p4rt.ValueSetEntry) -> Iterator[p4rt.Entity]:
        """Return the value sets that a ``ValueSetEntry`` in a ReadRequest selects."""
        if query.members:
            raise invalid("a read of a value set takes no members")
        if query.value_set_id:
            selected = [self._schema.value_set(query.value_set_id)]
        else:
            selected = list(self._schema.value_sets.values())
        found = [(value_set, self._device.value_set_read(value_set.name)) for value_set in selected]
        return (_entity(value_set, members) for value_set, members in found)


def _entity(value_set: ValueSetSchema, members: tuple[tuple[Match, ...], ...]) -> p4rt.Entity:
    answer = p4rt.Entity()
    entry = answer.value_set_entry
    entry.value_set_id = value_set.id
    for member in members:
        encode_fields(entry.members.add(), value_set, member)
    return answer
