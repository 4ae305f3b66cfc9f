"""Gives the common updates of a WriteRequest to the runtime, which applies them from the request's bytes
(runtime/write.c).

This is for speed only: the rest of this package does what the runtime does not apply, with the same result. This module
tells the runtime which tables it may write, and what the P4Info says of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from softswitch.compiler.layout import storage_bits
from softswitch.dataplane.codec import Places
from softswitch.dataplane.device import Device
from softswitch.p4runtime.schema import ActionSchema, Schema, TableSchema
from softswitch.p4runtime.stubs import p4info_pb2

# The numbers of FieldMatch's fields, and the runtime's limits: bytes of a key, bytes of an action's parameters, fields
# or parameters.
_KINDS = {"exact": 2, "ternary": 3, "lpm": 4, "optional": 7}
_MAX_KEY_BYTES, _MAX_PARAMS_BYTES, _MAX_MEMBERS = 256, 512, 64


class WireWriter:
    """Writes entries of one device under one schema; the caller holds the device's lock."""

    def __init__(self, device: Device, schema: Schema) -> None:
        self._device = device
        numbers = list(_numbers(device, schema))
        self._schema = (ctypes.c_uint32 * len(numbers))(*numbers)

    def write(self, data: bytes, at: int, only_inserts: bool) -> tuple[int, int]:
        """Apply updates, as :meth:`softswitch.dataplane.tables.Tables.write` does."""
        return self._device.write(self._schema, data, at, only_inserts)


def _numbers(device: Device, schema: Schema) -> Iterator[int]:
    """Yield the schema's numbers in the order that runtime/write.c declares."""
    tables: list[int] = []
    fields: list[tuple[int, ...]] = []
    actions: list[tuple[int, ...]] = []
    params: list[tuple[int, ...]] = []
    n_tables = 0
    for table in sorted(schema.tables.values(), key=lambda table: table.id):
        places = device.places(table.name)
        if places is None or not _is_plain(table, places):
            continue
        n_tables += 1
        called = [action for action in table.actions_by_id.values() if _is_common(table, action, places)]
        tables += (table.id, places.number, places.key_bytes, table.info.needs_priority)
        tables += (len(fields), len(table.fields), len(actions), len(called))
        fields += [
            (field.id, _KINDS[field.kind], field.width, *place)
            for field, place in zip(table.fields, places.keys, strict=True)
        ]
        for action in called:
            number, size, param_places = places.actions[action.name]
            actions.append((action.id, number, len(params), len(action.params), size))
            for param, (at, width) in zip(action.params, param_places, strict=True):
                stored = storage_bits(width)
                params.append((param.id, param.width, at, stored // 8 or (width + 7) // 8, stored > 0))
    yield from (n_tables, len(fields), len(actions), *tables)
    for group in (fields, actions, params):
        for one in group:
            yield from one


def _is_plain(table: TableSchema, places: Places) -> bool:
    """Return whether an entry consists only of its key and its action."""
    return (
        0 < len(table.fields) <= _MAX_MEMBERS
        and all(field.kind in _KINDS for field in table.fields)
        and all(field.width == key.width for field, key in zip(table.fields, table.info.keys, strict=True))
        and sum(field.kind == "lpm" for field in table.fields) <= 1
        and places.key_bytes <= _MAX_KEY_BYTES
        and not table.is_const
        and table.profile is None
        and table.meter_type is None
        and not table.info.has_idle_timeout
    )


def _is_common(table: TableSchema, action: ActionSchema, places: Places) -> bool:
    return (
        table.scopes[action.id] != p4info_pb2.ActionRef.DEFAULT_ONLY
        and action.name in places.actions
        and places.actions[action.name][1] <= _MAX_PARAMS_BYTES
        and len(action.params) <= _MAX_MEMBERS
    )
