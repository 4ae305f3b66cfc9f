"""``TableEntry`` and ``DirectCounterEntry``: writes, and reads with wildcards.

P4Runtime specification, "TableEntry" and "DirectCounterEntry".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2 as p4rt

from softswitch import errors
from softswitch.device import Device, Entry, Match
from softswitch.p4runtime import bytestring
from softswitch.p4runtime.schema import ActionSchema, FieldSchema, Schema, TableSchema
from softswitch.p4runtime.status import P4RuntimeError, denied, invalid, unimplemented
from softswitch.p4runtime.undo import Journal

Key = tuple[Match, ...]
# A default entry is (table, None, 0).
_EntryKey = tuple[str, Key | None, int]
# controller_metadata and metadata of an entry: opaque, kept for the client.
_Opaque = tuple[int, bytes]
_NO_OPAQUE: _Opaque = (0, b"")


class TableAccess:
    """The tables of one device under one schema.

    The caller holds the device's lock during every call; iterators that reads return need no lock any more.
    """

    def __init__(self, device: Device, schema: Schema) -> None:
        self._device = device
        self._schema = schema
        self._opaque: dict[_EntryKey, _Opaque] = {}

    # --- writes ---

    def write(self, kind: int, entry: p4rt.TableEntry, journal: Journal) -> None:
        """Apply one INSERT, MODIFY or DELETE; a refusal changes nothing."""
        table = self._schema.table(entry.table_id)
        if entry.is_const:
            raise invalid(f"table {table.name}: is_const is for reads; a client cannot write const entries")
        if entry.is_default_action:
            self._write_default(kind, table, entry, journal)
            return
        if not table.fields:
            raise invalid(f"table {table.name} has no key, so it has no entries but the default one")
        if kind == p4rt.Update.DELETE:
            self._delete(table, entry, journal)
            return
        _check_attributes(table, entry)
        if kind == p4rt.Update.INSERT:
            self._insert(table, entry, journal)
        else:
            self._modify(table, entry, journal)

    def write_direct_counter(self, kind: int, entry: p4rt.DirectCounterEntry, journal: Journal) -> None:
        """Set the counter of an entry (MODIFY only)."""
        if kind != p4rt.Update.MODIFY:
            raise invalid("a direct counter can only be modified: it comes and goes with its table entry")
        table = self._schema.table(entry.table_entry.table_id)
        _require_direct_counter(table)
        key, priority = self._locate(table, entry.table_entry)
        if key is not None:
            self._get(table, key, priority)
        if entry.HasField("data"):
            self._set_direct_counter(table, key, priority, entry.data, journal)

    def _insert(self, table: TableSchema, entry: p4rt.TableEntry, journal: Journal) -> None:
        if table.is_const:
            raise denied(f"table {table.name} has its entries from the program; nothing can be inserted")
        action, params = _action(table, entry, default=False)
        key, priority = decode_key(table, entry)
        counts = _counter_data(table, entry)
        self._device.insert(table.name, key, action, params, priority)
        if counts is not None:
            self._device.direct_counter_write(table.name, key, *counts, priority)
        self._remember((table.name, key, priority), entry)
        journal.add(lambda: self._remove(table.name, key, priority))

    def _modify(self, table: TableSchema, entry: p4rt.TableEntry, journal: Journal) -> None:
        changes_action = entry.HasField("action")
        if changes_action and table.is_const:
            raise denied(f"table {table.name} has its entries from the program; their actions cannot be changed")
        key, priority = decode_key(table, entry)
        action, params = _action(table, entry, default=False) if changes_action else ("", ())
        if not changes_action or journal.active:
            old = self._get(table, key, priority)
        counts = _counter_data(table, entry)
        if changes_action:
            self._device.modify(table.name, key, action, params, priority)
            identity = (table.name, key, priority)
            if journal.active:
                opaque = self._opaque.get(identity)
                journal.add(lambda: self._device.modify(table.name, key, old.action, old.params, priority))
                journal.add(lambda: self._recall(identity, opaque))
            self._remember(identity, entry)
        if counts is not None:
            self._set_direct_counter(table, key, priority, entry.counter_data, journal)

    def _delete(self, table: TableSchema, entry: p4rt.TableEntry, journal: Journal) -> None:
        if table.is_const:
            raise denied(f"table {table.name} has its entries from the program; nothing can be deleted")
        key, priority = decode_key(table, entry)
        identity = (table.name, key, priority)
        if journal.active:
            old = self._get(table, key, priority)
            opaque = self._opaque.get(identity)
            counts = self._device.direct_counter_read(table.name, key, priority) if _has_counter(table) else None

            def restore() -> None:
                self._device.insert(table.name, key, old.action, old.params, priority)
                if counts is not None:
                    self._device.direct_counter_write(table.name, key, *counts, priority)
                self._recall(identity, opaque)

        self._device.delete(table.name, key, priority)
        self._opaque.pop(identity, None)
        if journal.active:
            journal.add(restore)

    def _write_default(self, kind: int, table: TableSchema, entry: p4rt.TableEntry, journal: Journal) -> None:
        if kind != p4rt.Update.MODIFY:
            raise invalid(f"table {table.name}: the default entry always exists; it can only be modified")
        if entry.match or entry.priority:
            raise invalid(f"table {table.name}: a default entry has neither match nor priority")
        _check_attributes(table, entry)
        if table.default_const:
            raise denied(f"table {table.name}: its default action is const")
        action: str | None = None  # an entry without action resets to what the program says
        params: tuple[int, ...] = ()
        if entry.HasField("action"):
            action, params = _action(table, entry, default=True)
        counts = _counter_data(table, entry)
        identity: _EntryKey = (table.name, None, 0)
        old_action, old_params = self._device.get_default(table.name)
        opaque = self._opaque.get(identity)
        self._device.set_default(table.name, action, params)
        self._recall(identity, None)
        if action is not None:
            self._remember(identity, entry)
        journal.add(lambda: self._recall(identity, opaque))
        journal.add(lambda: self._device.set_default(table.name, old_action, old_params))
        if counts is not None:
            self._set_direct_counter(table, None, 0, entry.counter_data, journal)

    def _set_direct_counter(
        self, table: TableSchema, key: Key | None, priority: int, data: p4rt.CounterData, journal: Journal
    ) -> None:
        packets, bytes_ = counter_values(data, f"table {table.name}")
        if journal.active:
            old = self._device.direct_counter_read(table.name, key, priority)
            journal.add(lambda: self._device.direct_counter_write(table.name, key, *old, priority))
        self._device.direct_counter_write(table.name, key, packets, bytes_, priority)

    def _get(self, table: TableSchema, key: Key, priority: int) -> Entry:
        return self._device.get(table.name, key, priority)

    def _remove(self, table: str, key: Key, priority: int) -> None:
        self._device.delete(table, key, priority)
        self._opaque.pop((table, key, priority), None)

    def _remember(self, identity: _EntryKey, entry: p4rt.TableEntry) -> None:
        opaque = (entry.controller_metadata, entry.metadata)
        self._recall(identity, opaque if opaque != _NO_OPAQUE else None)

    def _recall(self, identity: _EntryKey, opaque: _Opaque | None) -> None:
        if opaque is None:
            self._opaque.pop(identity, None)
        else:
            self._opaque[identity] = opaque

    # --- reads ---

    def read(self, query: p4rt.TableEntry) -> Iterator[p4rt.Entity]:
        """The entries that a ``TableEntry`` in a ReadRequest selects."""
        if query.HasField("meter_config") or query.HasField("meter_counter_data"):
            raise unimplemented("direct meters are not supported; leave meter_config and meter_counter_data unset")
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
            _require_direct_counter(table)
        if query.is_default_action:
            if query.match or query.priority:
                raise invalid(f"table {table.name}: a default entry has neither match nor priority")
            return self._read_default(table, query)
        return self._read_tables([table], query)

    def read_direct_counters(self, query: p4rt.DirectCounterEntry) -> Iterator[p4rt.Entity]:
        """The counters that a ``DirectCounterEntry`` in a ReadRequest selects."""
        wanted = query.table_entry
        if wanted.table_id == 0:
            if wanted.match or wanted.priority or wanted.is_default_action:
                raise invalid("a read of all direct counters (table_id 0) takes no other filter")
            tables = [table for table in self._schema.tables.values() if _has_counter(table)]
        else:
            tables = [self._schema.table(wanted.table_id)]
            _require_direct_counter(tables[0])
        if wanted.match or wanted.is_default_action:
            table = tables[0]
            key, priority = self._locate(table, wanted)
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
        found: list[tuple[TableSchema, Entry, _Opaque, tuple[int, int] | None]] = []
        for table in tables:
            with_counter = query.HasField("counter_data") and _has_counter(table)
            for entry in self._select(table, query):
                opaque = self._opaque.get((table.name, entry.match, entry.priority), _NO_OPAQUE)
                if (query.controller_metadata and query.controller_metadata != opaque[0]) or (
                    query.metadata and query.metadata != opaque[1]
                ):
                    continue
                counts = None
                if with_counter:
                    counts = self._device.direct_counter_read(table.name, entry.match, entry.priority)
                found.append((table, entry, opaque, counts))
        return (_entry_entity(*one) for one in found)

    def _select(self, table: TableSchema, query: p4rt.TableEntry) -> list[Entry]:
        keep: list[Callable[[Entry], bool]] = []
        if query.HasField("action"):
            wanted = _action_filter(table, query)
            keep.append(lambda entry: wanted(entry.action, entry.params))
        if query.HasField("time_since_last_hit") or query.idle_timeout_ns:
            raise _no_idle_timeout(table)
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

    def _read_default(self, table: TableSchema, query: p4rt.TableEntry) -> Iterator[p4rt.Entity]:
        name, params = self._device.get_default(table.name)
        opaque = self._opaque.get((table.name, None, 0), _NO_OPAQUE)
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
        if name in table.actions_by_name:  # an action that the P4Info hides cannot be named to the client
            _encode_action(entry, table.actions_by_name[name], params)
        _encode_opaque(entry, opaque)
        if query.HasField("counter_data"):
            packets, bytes_ = self._device.direct_counter_read(table.name, None, 0)
            entry.counter_data.packet_count, entry.counter_data.byte_count = packets, bytes_
            entry.counter_data.SetInParent()
        return iter([entity])

    def _locate(self, table: TableSchema, entry: p4rt.TableEntry) -> tuple[Key | None, int]:
        if entry.is_default_action:
            if entry.match or entry.priority:
                raise invalid(f"table {table.name}: a default entry has neither match nor priority")
            return None, 0
        return decode_key(table, entry)


# --- match keys ---


def decode_key(table: TableSchema, entry: p4rt.TableEntry) -> tuple[Key, int]:
    """Match and priority of an entry."""
    priority = entry.priority
    if table.info.needs_priority:
        if priority <= 0:
            raise invalid(f"table {table.name} has ternary, range or optional fields: set a priority above 0")
    elif priority:
        raise invalid(f"table {table.name} has no ternary, range or optional field: leave priority 0")
    return decode_match(table, entry), priority


def decode_match(table: TableSchema, entry: p4rt.TableEntry) -> Key:
    """The match of an entry, one element per key field; fields that are left out match anything."""
    key = list(table.wildcards)
    seen = set()
    for match in entry.match:
        field = table.fields_by_id.get(match.field_id)
        if field is None:
            raise invalid(f"table {table.name} has no match field with id {match.field_id}")
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


def _encode_match(entry: p4rt.TableEntry, table: TableSchema, key: Key, priority: int) -> None:
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
    if table.info.needs_priority:
        entry.priority = priority


# --- actions and attributes ---


def _action(table: TableSchema, entry: p4rt.TableEntry, default: bool) -> tuple[str, tuple[int, ...]]:
    """Name and parameters of the entry's action, checked against what the table allows."""
    kind = entry.action.WhichOneof("type")
    if kind is None:
        raise invalid(f"table {table.name}: the entry has no action")
    if table.has_implementation:
        raise unimplemented(f"table {table.name} has an action profile or selector, which is not supported")
    if kind != "action":
        raise invalid(f"table {table.name} has no action profile or selector: give an action, not {kind}")
    wanted = entry.action.action
    action = table.actions_by_id.get(wanted.action_id)
    if action is None:
        raise invalid(f"table {table.name} has no action with id {wanted.action_id}")
    forbidden = p4info_pb2.ActionRef.TABLE_ONLY if default else p4info_pb2.ActionRef.DEFAULT_ONLY
    if table.scopes[action.id] == forbidden:
        raise denied(
            f"table {table.name}: action {action.name} is "
            + ("not allowed as default action" if default else "allowed as default action only")
        )
    return action.name, _params(action, wanted)


def _params(action: ActionSchema, wanted: p4rt.Action) -> tuple[int, ...]:
    values: list[int | None] = [None] * len(action.params)
    for param in wanted.params:
        schema = action.params_by_id.get(param.param_id)
        if schema is None:
            raise invalid(f"action {action.name} has no parameter with id {param.param_id}")
        if values[schema.index] is not None:
            raise invalid(f"{schema.name} is given twice")
        values[schema.index] = bytestring.decode(param.value, schema.width, schema.name)
    for schema, value in zip(action.params, values, strict=True):
        if value is None:
            raise invalid(f"{schema.name} is missing")
    return tuple(values)  # type: ignore[arg-type]  # no None is left


def _action_filter(table: TableSchema, query: p4rt.TableEntry) -> Callable[[str, tuple[int, ...]], bool]:
    """Whether an action is the one that a query asks for; parameters count when the query gives them."""
    if query.action.WhichOneof("type") != "action":
        raise invalid(f"table {table.name}: entries can only be filtered by an action")
    wanted = query.action.action
    action = table.actions_by_id.get(wanted.action_id)
    if action is None:
        raise invalid(f"table {table.name} has no action with id {wanted.action_id}")
    expected = _params(action, wanted) if wanted.params else None
    return lambda name, params: name == action.name and expected in (None, params)


def _check_attributes(table: TableSchema, entry: p4rt.TableEntry) -> None:
    if entry.idle_timeout_ns or entry.HasField("time_since_last_hit"):
        raise _no_idle_timeout(table)
    if entry.HasField("meter_config") or entry.HasField("meter_counter_data"):
        if table.has_direct_meter:
            raise unimplemented(f"table {table.name}: direct meters are not supported")
        raise invalid(f"table {table.name} has no direct meter")


def _no_idle_timeout(table: TableSchema) -> P4RuntimeError:
    if table.has_idle_timeout:
        return unimplemented(f"table {table.name}: idle timeouts are not supported")
    return invalid(f"table {table.name} is not declared with an idle timeout")


def _has_counter(table: TableSchema) -> bool:
    return table.info.has_direct_counter


def _require_direct_counter(table: TableSchema) -> None:
    if not _has_counter(table):
        raise invalid(f"table {table.name} has no direct counter")


def _counter_data(table: TableSchema, entry: p4rt.TableEntry) -> tuple[int, int] | None:
    if not entry.HasField("counter_data"):
        return None
    _require_direct_counter(table)
    return counter_values(entry.counter_data, f"table {table.name}")


def counter_values(data: p4rt.CounterData, what: str) -> tuple[int, int]:
    """Packets and bytes of a ``CounterData``."""
    if data.packet_count < 0 or data.byte_count < 0:
        raise invalid(f"{what}: a counter cannot be negative")
    return data.packet_count, data.byte_count


# --- building answers ---


def _encode_action(entry: p4rt.TableEntry, action: ActionSchema, params: tuple[int, ...]) -> None:
    chosen = entry.action.action
    chosen.action_id = action.id
    for schema, value in zip(action.params, params, strict=True):
        chosen.params.add(param_id=schema.id, value=bytestring.encode(value))


def _encode_opaque(entry: p4rt.TableEntry, opaque: _Opaque) -> None:
    if opaque is not _NO_OPAQUE:
        entry.controller_metadata, entry.metadata = opaque


def _entry_entity(table: TableSchema, found: Entry, opaque: _Opaque, counts: tuple[int, int] | None) -> p4rt.Entity:
    entity = p4rt.Entity()
    entry = entity.table_entry
    entry.table_id = table.id
    _encode_match(entry, table, found.match, found.priority)
    action = table.actions_by_name.get(found.action)
    if action is not None:
        _encode_action(entry, action, found.params)
    if found.is_const:
        entry.is_const = True
    _encode_opaque(entry, opaque)
    if counts is not None:
        entry.counter_data.packet_count, entry.counter_data.byte_count = counts
        entry.counter_data.SetInParent()
    return entity


def _direct_counter_entity(table: TableSchema, key: Key | None, priority: int, counts: tuple[int, int]) -> p4rt.Entity:
    entity = p4rt.Entity()
    counter = entity.direct_counter_entry
    counter.table_entry.table_id = table.id
    if key is None:
        counter.table_entry.is_default_action = True
    else:
        _encode_match(counter.table_entry, table, key, priority)
    counter.data.packet_count, counter.data.byte_count = counts
    counter.data.SetInParent()
    return entity
