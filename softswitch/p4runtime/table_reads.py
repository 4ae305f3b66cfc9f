"""Reads of ``TableEntry`` and ``DirectCounterEntry``, with wildcards, and idle notifications.

The P4Runtime specification describes this in "TableEntry" and "DirectCounterEntry".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from softswitch import errors
from softswitch.dataplane.codec import Entry
from softswitch.dataplane.device import Device
from softswitch.dataplane.meters import MeterState
from softswitch.p4runtime.actions import decode_params, encode_action
from softswitch.p4runtime.matches import Key, decode_key, decode_match, encode_match
from softswitch.p4runtime.meters import (
    encode_colours,
    encode_config,
    refuse_default,
    require_direct_meter,
)
from softswitch.p4runtime.profiles import ProfileAccess
from softswitch.p4runtime.schema import Schema, TableSchema
from softswitch.p4runtime.status import invalid
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt

# A default entry is (table, None, 0).
EntryKey = tuple[str, Key | None, int]
# controller_metadata and metadata of an entry: opaque, kept for the client.
Opaque = tuple[int, bytes]
NO_OPAQUE: Opaque = (0, b"")


class TableReads:
    """Answers reads of the tables of one device under one schema.

    The caller holds the device's lock during every call; the iterators that reads return need no lock. ``opaque`` has
    the data that clients keep with entries, by entry; the writer of the tables (tables.py) maintains it.
    """

    def __init__(
        self, device: Device, schema: Schema, profiles: ProfileAccess, opaque: Mapping[EntryKey, Opaque]
    ) -> None:
        self._device = device
        self._schema = schema
        self._profiles = profiles
        self._opaque = opaque

    def idle_notification(self, table: str, entries: list[Entry]) -> p4rt.IdleTimeoutNotification:
        """Return the message, without its time, which says that entries were not hit for their timeouts."""
        message = p4rt.IdleTimeoutNotification()
        schema = self._schema.tables_by_name[table]
        for found in entries:
            opaque = self._opaque.get((table, found.match, found.priority), NO_OPAQUE)
            _encode_entry(message.table_entry.add(), schema, found, opaque)
        return message

    def read(self, query: p4rt.TableEntry) -> Iterator[p4rt.Entity]:
        """Return the entries that a ``TableEntry`` in a ReadRequest selects."""
        if query.table_id == 0:
            if (
                query.match
                or query.HasField("action")
                or query.priority
                or query.controller_metadata
                or query.metadata
                or query.is_default_action
            ):
                raise invalid("a read of all tables (table_id 0) takes no other filter")
            return self._read_tables(list(self._schema.tables.values()), query)
        table = self._schema.table(query.table_id)
        if query.HasField("counter_data"):
            require_direct_counter(table)
        if query.HasField("meter_config") or query.HasField("meter_counter_data"):
            require_direct_meter(table)
            refuse_default(table, query)
        if query.idle_timeout_ns or query.HasField("time_since_last_hit"):
            require_idle_timeout(table)
        if query.is_default_action:
            if query.match or query.priority:
                raise invalid(f"table {table.name}: a default entry has neither match nor priority")
            if query.idle_timeout_ns or query.HasField("time_since_last_hit"):
                raise invalid(f"table {table.name}: a default entry has no idle timeout")
            return self._read_default(table, query)
        return self._read_tables([table], query)

    def read_direct_counters(self, query: p4rt.DirectCounterEntry) -> Iterator[p4rt.Entity]:
        """Return the counters that a ``DirectCounterEntry`` in a ReadRequest selects."""
        wanted = query.table_entry
        if wanted.table_id == 0:
            if wanted.match or wanted.priority or wanted.is_default_action:
                raise invalid("a read of all direct counters (table_id 0) takes no other filter")
            tables = [table for table in self._schema.tables.values() if has_counter(table)]
        else:
            tables = [self._schema.table(wanted.table_id)]
            require_direct_counter(tables[0])
        if wanted.match or wanted.is_default_action:
            table = tables[0]
            key, priority = locate(table, wanted)
            counts = self._device.direct_counter_read(table.name, key, priority)
            return iter([_direct_counter_entity(table, key, priority, counts)])
        found = [
            (
                table,
                entry.match,
                entry.priority,
                self._device.direct_counter_read(table.name, entry.match, entry.priority),
            )
            for table in tables
            for entry in self._device.entries(table.name)
            if not wanted.priority or entry.priority == wanted.priority
        ]
        return (_direct_counter_entity(*one) for one in found)

    def _read_tables(self, tables: list[TableSchema], query: p4rt.TableEntry) -> Iterator[p4rt.Entity]:
        answers: list[_Answer] = []
        for table in tables:
            with_counter = query.HasField("counter_data") and has_counter(table)
            with_meter = table.meter_type is not None and (
                query.HasField("meter_config") or query.HasField("meter_counter_data")
            )
            for entry in self._select(table, query):
                place = (table.name, entry.match, entry.priority)
                opaque = self._opaque.get(place, NO_OPAQUE)
                if (query.controller_metadata and query.controller_metadata != opaque[0]) or (
                    query.metadata and query.metadata != opaque[1]
                ):
                    continue
                counts = self._device.direct_counter_read(*place) if with_counter else None
                meter = self._device.direct_meter_read(*place) if with_meter else None
                action = None
                # The set of a one-shot may be gone when the answer is built, so it is encoded now.
                if entry.chosen is not None:
                    action = p4rt.TableAction()
                    self._profiles.encode(table, entry.chosen, action)
                answers.append((table, entry, opaque, counts, meter, action))
        return (_entry_entity(query, *one) for one in answers)

    def _select(self, table: TableSchema, query: p4rt.TableEntry) -> list[Entry]:
        keep: list[Callable[[Entry], bool]] = []
        if query.HasField("action"):
            keep.append(self._entry_filter(table, query))
        if query.match:
            if query.priority or not table.info.needs_priority:
                key, priority = decode_key(table, query)
                try:
                    candidates = [self._device.get(table.name, key, priority)]
                except errors.NotFound:
                    return []
            else:
                key = decode_match(table, query)
                candidates = [entry for entry in self._device.entries(table.name) if entry.match == key]
        else:
            candidates = self._device.entries(table.name)
            if query.priority:
                keep.append(lambda entry: entry.priority == query.priority)
        return [entry for entry in candidates if all(test(entry) for test in keep)] if keep else candidates

    def _entry_filter(self, table: TableSchema, query: p4rt.TableEntry) -> Callable[[Entry], bool]:
        """Return a function that tests whether an entry has the action, member, group or set of a query."""
        if table.profile is None or query.action.WhichOneof("type") in (None, "action"):
            wanted = _action_filter(table, query)
            return lambda entry: wanted(entry.action, entry.params)

        def same(entry: Entry) -> bool:
            action = p4rt.TableAction()
            if entry.chosen is not None:
                self._profiles.encode(table, entry.chosen, action)
            return action == query.action

        return same

    def _read_default(self, table: TableSchema, query: p4rt.TableEntry) -> Iterator[p4rt.Entity]:
        name, params = self._device.get_default(table.name)
        opaque = self._opaque.get((table.name, None, 0), NO_OPAQUE)
        if (
            (query.HasField("action") and not _action_filter(table, query)(name, params))
            or (query.controller_metadata and query.controller_metadata != opaque[0])
            or (query.metadata and query.metadata != opaque[1])
        ):
            return iter(())
        entity = p4rt.Entity()
        entry = entity.table_entry
        entry.table_id = table.id
        entry.is_default_action = True
        entry.is_const = table.default_const
        if name in table.actions_by_name:  # An action that the P4Info hides cannot be named to the client.
            encode_action(entry.action.action, table.actions_by_name[name], params)
        _encode_opaque(entry, opaque)
        if query.HasField("counter_data"):
            packets, bytes_ = self._device.direct_counter_read(table.name, None, 0)
            entry.counter_data.packet_count, entry.counter_data.byte_count = packets, bytes_
            entry.counter_data.SetInParent()
        return iter([entity])


# --- what is asked for ---


def locate(table: TableSchema, entry: p4rt.TableEntry) -> tuple[Key | None, int]:
    """Return the key and the priority of an entry; None and 0 for the default entry."""
    if entry.is_default_action:
        if entry.match or entry.priority:
            raise invalid(f"table {table.name}: a default entry has neither match nor priority")
        return None, 0
    return decode_key(table, entry)


def _action_filter(table: TableSchema, query: p4rt.TableEntry) -> Callable[[str, tuple[int, ...]], bool]:
    """Return a function that tests whether an action is the one in a query; parameters count if the query has them."""
    if query.action.WhichOneof("type") != "action":
        raise invalid(f"table {table.name} has no action profile or selector: filter by an action")
    wanted = query.action.action
    action = table.actions_by_id.get(wanted.action_id)
    if action is None:
        raise invalid(f"table {table.name} has no action with id {wanted.action_id}")
    expected = decode_params(action, wanted) if wanted.params else None
    return lambda name, params: name == action.name and expected in (None, params)


def require_idle_timeout(table: TableSchema) -> None:
    if not table.info.has_idle_timeout:
        raise invalid(f"table {table.name} is not declared with an idle timeout")


def has_counter(table: TableSchema) -> bool:
    return table.info.has_direct_counter


def require_direct_counter(table: TableSchema) -> None:
    if not has_counter(table):
        raise invalid(f"table {table.name} has no direct counter")


# --- building answers ---


def _encode_opaque(entry: p4rt.TableEntry, opaque: Opaque) -> None:
    if opaque is not NO_OPAQUE:
        entry.controller_metadata, entry.metadata = opaque


_Answer = tuple[TableSchema, Entry, Opaque, tuple[int, int] | None, MeterState | None, p4rt.TableAction | None]


def _entry_entity(
    query: p4rt.TableEntry,
    table: TableSchema,
    found: Entry,
    opaque: Opaque,
    *resources: tuple[int, int] | MeterState | p4rt.TableAction | None,
) -> p4rt.Entity:
    counts, meter, chosen = resources
    entity = p4rt.Entity()
    entry = entity.table_entry
    _encode_entry(entry, table, found, opaque)
    if isinstance(chosen, p4rt.TableAction):
        entry.action.CopyFrom(chosen)
    else:
        action = table.actions_by_name.get(found.action)
        if action is not None:
            encode_action(entry.action.action, action, found.params)
    if isinstance(counts, tuple):
        entry.counter_data.packet_count, entry.counter_data.byte_count = counts
        entry.counter_data.SetInParent()
    if isinstance(meter, MeterState):
        if query.HasField("meter_config"):
            encode_config(meter.config, entry)
        if query.HasField("meter_counter_data"):
            encode_colours(meter.colours, entry.meter_counter_data)
    if query.HasField("time_since_last_hit") and table.info.has_idle_timeout:
        entry.time_since_last_hit.elapsed_ns = found.since_hit_ns
        entry.time_since_last_hit.SetInParent()
    return entity


def _encode_entry(entry: p4rt.TableEntry, table: TableSchema, found: Entry, opaque: Opaque) -> None:
    entry.table_id = table.id
    encode_match(entry, table, found.match, found.priority)
    if found.is_const:
        entry.is_const = True
    if found.idle_timeout_ns:
        entry.idle_timeout_ns = found.idle_timeout_ns
    _encode_opaque(entry, opaque)


def _direct_counter_entity(table: TableSchema, key: Key | None, priority: int, counts: tuple[int, int]) -> p4rt.Entity:
    entity = p4rt.Entity()
    counter = entity.direct_counter_entry
    counter.table_entry.table_id = table.id
    if key is None:
        counter.table_entry.is_default_action = True
    else:
        encode_match(counter.table_entry, table, key, priority)
    counter.data.packet_count, counter.data.byte_count = counts
    counter.data.SetInParent()
    return entity
