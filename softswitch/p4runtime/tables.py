"""Writes of ``TableEntry`` and ``DirectCounterEntry`` (table_reads.py answers reads).

The P4Runtime specification describes this in "TableEntry" and "DirectCounterEntry".
"""

from __future__ import annotations

from dataclasses import dataclass

from softswitch import errors
from softswitch.dataplane.codec import Entry
from softswitch.dataplane.device import Device
from softswitch.dataplane.meters import MeterState
from softswitch.dataplane.profiles import Group, Member
from softswitch.p4runtime.actions import decode_params
from softswitch.p4runtime.matches import Key, decode_key
from softswitch.p4runtime.meters import (
    decode_clear,
    decode_config,
    refuse_default,
    require_direct_meter,
)
from softswitch.p4runtime.profiles import ProfileAccess
from softswitch.p4runtime.schema import Schema, TableSchema
from softswitch.p4runtime.status import denied, invalid
from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.table_reads import (
    NO_OPAQUE,
    EntryKey,
    Opaque,
    TableReads,
    has_counter,
    locate,
    require_direct_counter,
    require_idle_timeout,
)
from softswitch.p4runtime.undo import Journal


@dataclass(frozen=True)
class _Saved:
    """The complete state of an entry, from which it can be restored."""

    entry: Entry
    action: p4rt.TableAction  # set in a table with an action profile
    counts: tuple[int, int] | None
    meter: MeterState | None
    opaque: Opaque | None


class TableAccess:
    """The tables of one device under one schema.

    The caller holds the device's lock during every call; the iterators that reads return need no lock.
    """

    def __init__(self, device: Device, schema: Schema, profiles: ProfileAccess) -> None:
        self._device = device
        self._schema = schema
        self._profiles = profiles
        self._opaque: dict[EntryKey, Opaque] = {}
        self.reads = TableReads(device, schema, profiles, self._opaque)

    @property
    def has_opaque(self) -> bool:
        """Whether an entry has metadata, which is lost when the entry is modified or deleted."""
        return bool(self._opaque)

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
        if kind == p4rt.Update.INSERT:
            self._insert(table, entry, journal)
        else:
            self._modify(table, entry, journal)

    def write_direct_counter(self, kind: int, entry: p4rt.DirectCounterEntry, journal: Journal) -> None:
        """Set the counter of an entry (MODIFY only)."""
        if kind != p4rt.Update.MODIFY:
            raise invalid("a direct counter can only be modified: it comes and goes with its table entry")
        table = self._schema.table(entry.table_entry.table_id)
        require_direct_counter(table)
        key, priority = locate(table, entry.table_entry)
        if key is not None:
            self._get(table, key, priority)
        if entry.HasField("data"):
            self._set_direct_counter(table, key, priority, entry.data, journal)

    def _insert(self, table: TableSchema, entry: p4rt.TableEntry, journal: Journal) -> None:
        if table.is_const:
            raise denied(f"table {table.name} has const entries of the program; no entry can be inserted")
        resources = _Resources(table, entry)
        key, priority = decode_key(table, entry)
        action, params = self._call(table, entry)
        try:
            self._device.insert(table.name, key, action, params, priority)
        except errors.SoftswitchError:
            self._forget(table, action)
            raise
        resources.write(self._device, key, priority, fresh=True)
        self._remember_cookie_of((table.name, key, priority), entry)
        journal.add(lambda: self._remove(table, key, priority))

    def _modify(self, table: TableSchema, entry: p4rt.TableEntry, journal: Journal) -> None:
        changes_action = entry.HasField("action")
        if changes_action and table.is_const:
            raise denied(f"table {table.name} has const entries of the program; their actions cannot be changed")
        resources = _Resources(table, entry)
        key, priority = decode_key(table, entry)
        old = self._get(table, key, priority) if journal.active or table.profile or not changes_action else None
        if journal.active:
            assert old is not None
            saved = self._save(table, old)
            journal.add(lambda: self._bring_back(table, saved))
        if changes_action:
            action, params = self._call(table, entry)
            try:
                self._device.modify(table.name, key, action, params, priority)
            except errors.SoftswitchError:
                self._forget(table, action)
                raise
            if old is not None:
                self._forget(table, old.chosen)
            self._remember_cookie_of((table.name, key, priority), entry)
        resources.write(self._device, key, priority, fresh=False, reset=changes_action)

    def _delete(self, table: TableSchema, entry: p4rt.TableEntry, journal: Journal) -> None:
        if table.is_const:
            raise denied(f"table {table.name} has const entries of the program; no entry can be deleted")
        key, priority = decode_key(table, entry)
        if journal.active:
            saved = self._save(table, self._get(table, key, priority))
            journal.add(lambda: self._bring_back(table, saved))
        self._remove(table, key, priority)

    def _remove(self, table: TableSchema, key: Key, priority: int) -> None:
        old = self._get(table, key, priority) if table.profile else None
        self._device.delete(table.name, key, priority)
        self._opaque.pop((table.name, key, priority), None)
        if old is not None:
            self._forget(table, old.chosen)

    def _call(self, table: TableSchema, entry: p4rt.TableEntry) -> tuple[str | Member | Group, tuple[int, ...]]:
        """Return an entry's action and parameters; call :meth:`_forget` if the entry is not made."""
        if table.profile is not None and entry.HasField("action"):
            return self._profiles.choose(table, entry.action), ()
        return _action(table, entry, default=False)

    def _forget(self, table: TableSchema, action: str | Member | Group | None) -> None:
        if not isinstance(action, str):
            self._profiles.forget(table, action)

    def _save(self, table: TableSchema, entry: Entry) -> _Saved:
        place = (table.name, entry.match, entry.priority)
        action = p4rt.TableAction()
        if entry.chosen is not None:
            self._profiles.encode(table, entry.chosen, action)
        return _Saved(
            entry,
            action,
            self._device.direct_counter_read(*place) if has_counter(table) else None,
            self._device.direct_meter_read(*place) if table.meter_type is not None else None,
            self._opaque.get(place),
        )

    def _bring_back(self, table: TableSchema, saved: _Saved) -> None:
        """Restore a saved entry, whether it exists or not."""
        entry = saved.entry
        key, priority = entry.match, entry.priority
        action: str | Member | Group = entry.action
        if entry.chosen is not None:
            action = self._profiles.choose(table, saved.action)
        try:
            current = self._get(table, key, priority)
        except errors.NotFound:
            self._device.insert(table.name, key, action, entry.params, priority)
        else:
            self._device.modify(table.name, key, action, entry.params, priority)
            self._forget(table, current.chosen)
        if saved.counts is not None:
            self._device.direct_counter_write(table.name, key, *saved.counts, priority)
        if saved.meter is not None:
            self._device.direct_meter_restore(table.name, key, saved.meter, priority)
        if table.info.has_idle_timeout:
            self._device.set_idle_timeout(table.name, key, entry.idle_timeout_ns, priority)
        self._remember_cookie((table.name, key, priority), saved.opaque)

    def _write_default(self, kind: int, table: TableSchema, entry: p4rt.TableEntry, journal: Journal) -> None:
        if kind != p4rt.Update.MODIFY:
            raise invalid(f"table {table.name}: the default entry always exists; it can only be modified")
        if entry.match or entry.priority:
            raise invalid(f"table {table.name}: a default entry has neither match nor priority")
        if entry.idle_timeout_ns or entry.HasField("time_since_last_hit"):
            raise invalid(f"table {table.name}: a default entry has no idle timeout")
        if entry.HasField("meter_config") or entry.HasField("meter_counter_data"):
            require_direct_meter(table)
            refuse_default(table, entry)
        if table.default_const:
            raise denied(f"table {table.name}: its default action is const")
        action: str | None = None  # An entry without action restores the program's default action.
        params: tuple[int, ...] = ()
        if entry.HasField("action"):
            action, params = _action(table, entry, default=True)
        counts = _counter_data(table, entry)
        identity: EntryKey = (table.name, None, 0)
        old_action, old_params = self._device.get_default(table.name)
        opaque = self._opaque.get(identity)
        self._device.set_default(table.name, action, params)
        self._remember_cookie(identity, None)
        if action is not None:
            self._remember_cookie_of(identity, entry)
        journal.add(lambda: self._remember_cookie(identity, opaque))
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

    def _remember_cookie_of(self, identity: EntryKey, entry: p4rt.TableEntry) -> None:
        opaque = (entry.controller_metadata, entry.metadata)
        self._remember_cookie(identity, opaque if opaque != NO_OPAQUE else None)

    def _remember_cookie(self, identity: EntryKey, opaque: Opaque | None) -> None:
        if opaque is None:
            self._opaque.pop(identity, None)
        else:
            self._opaque[identity] = opaque


# --- actions and attributes ---


def _action(table: TableSchema, entry: p4rt.TableEntry, default: bool) -> tuple[str, tuple[int, ...]]:
    """Return the name and parameters of the entry's action, checked against what the table allows."""
    kind = entry.action.WhichOneof("type")
    if kind is None:
        raise invalid(f"table {table.name}: the entry has no action")
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
    return action.name, decode_params(action, wanted)


class _Resources:
    """The counter, meter and idle timeout in a write of an entry, after checks."""

    def __init__(self, table: TableSchema, entry: p4rt.TableEntry) -> None:
        self._table = table
        self._counts = _counter_data(table, entry)
        self._meter_given = entry.HasField("meter_config")
        self._config = None
        self._clear = False
        if entry.HasField("meter_config") or entry.HasField("meter_counter_data"):
            self._config = decode_config(require_direct_meter(table), entry, f"table {table.name}")
        if entry.HasField("meter_counter_data"):
            self._clear = decode_clear(entry.meter_counter_data, f"table {table.name}")
        self._timeout = entry.idle_timeout_ns
        if self._timeout:
            require_idle_timeout(table)
        if self._timeout < 0:
            raise invalid(f"table {table.name}: the idle timeout is negative")
        if entry.HasField("time_since_last_hit"):
            require_idle_timeout(table)
            raise invalid(f"table {table.name}: time_since_last_hit is for reads; leave it unset in a write")

    def write(self, device: Device, key: Key, priority: int, *, fresh: bool, reset: bool = True) -> None:
        """Apply them to an entry that is ``fresh``, or to one whose meter and timeout start anew if ``reset``."""
        name = self._table.name
        if self._counts is not None:
            device.direct_counter_write(name, key, *self._counts, priority)
        if self._meter_given or (self._table.meter_type is not None and reset and not fresh):
            device.direct_meter_write(name, key, self._config, priority)
        if self._clear:
            device.direct_meter_clear(name, key, priority)
        if self._timeout or (self._table.info.has_idle_timeout and reset and not fresh):
            device.set_idle_timeout(name, key, self._timeout, priority)


def _counter_data(table: TableSchema, entry: p4rt.TableEntry) -> tuple[int, int] | None:
    if not entry.HasField("counter_data"):
        return None
    require_direct_counter(table)
    return counter_values(entry.counter_data, f"table {table.name}")


def counter_values(data: p4rt.CounterData, what: str) -> tuple[int, int]:
    """Return packets and bytes of a ``CounterData``."""
    if data.packet_count < 0 or data.byte_count < 0:
        raise invalid(f"{what}: a counter cannot be negative")
    return data.packet_count, data.byte_count
