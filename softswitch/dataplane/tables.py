"""A device's tables: entries, default actions, and the entries' direct counters and direct meters."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from softswitch.bmv2json.model import Match
from softswitch.compiler.codegen import CHOICE_BYTES
from softswitch.dataplane.codec import Entry, NativeKey, Places, TableCodec
from softswitch.dataplane.meters import (
    MeterConfig,
    MeterState,
    NativeConfig,
    NativeMeter,
    colours,
    config_of,
    native_config,
)
from softswitch.dataplane.profiles import Group, Member
from softswitch.dataplane.state import State, check_u64
from softswitch.errors import InvalidValue


class Tables(State):
    """The table part of a :class:`softswitch.dataplane.device.Device`."""

    def insert(
        self,
        table: str,
        match: Sequence[Match],
        action: str | Member | Group,
        params: Sequence[int] = (),
        priority: int = 0,
    ) -> int:
        """Add an entry and return its handle. Where several entries match, the largest ``priority`` wins (ternary,
        range).

        In a table with an action profile, ``action`` is one of its members or groups. Raise ``NotFound`` if there is no
        such member or group.
        """
        codec = self._mutable(table)
        if not codec.info.keys:
            raise InvalidValue(f"table {table} has no key: only its default action can be set")
        return self._insert(codec, match, action, params, priority=priority, const=False)

    def _insert(
        self,
        codec: TableCodec,
        match: Sequence[Match],
        action: str | Member | Group,
        params: Sequence[int],
        *,
        priority: int,
        const: bool,
    ) -> int:
        key = codec.key(match, priority)
        if isinstance(action, str):
            return self._add(codec, key, *codec.action(action, params), const)
        with self._call(codec, action, params) as (number, data):
            return self._add(codec, key, number, data, const)

    def _add(self, codec: TableCodec, key: NativeKey, number: int, data: bytes, const: bool) -> int:
        handle = ctypes.c_uint64()
        entry = self._native_entry(codec, key, number, data)
        result = self._lib.ss_table_insert(*entry, const, ctypes.byref(handle))
        self._check(result, f"entry of table {codec.info.name}")
        return handle.value

    def _native_entry(self, codec: TableCodec, key: NativeKey, number: int, data: bytes) -> tuple[object, ...]:
        """Return an entry as the runtime's functions take it: the table, the key, and the action's number and data."""
        return self.native, codec.plan.index, key.key, key.mask, key.ranges, key.priority, number, data, len(data)

    @contextmanager
    def _call(
        self, codec: TableCodec, action: str | Member | Group, params: Sequence[int]
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the runtime's form of an entry's action; a member or group counts as used from then on, unless an error
        follows.
        """
        profile = codec.profile
        if isinstance(action, str):
            yield codec.action(action, params)
            return
        if profile is None:
            raise InvalidValue(f"table {codec.info.name} has no action profile: give an action")
        with profile.lock:
            choice = profile.take(action)
            try:
                yield 0, choice.to_bytes(CHOICE_BYTES, "little")
            except BaseException:
                profile.release(action)
                raise

    def _mutable(self, table: str) -> TableCodec:
        codec = self._codec(table)
        if table in self._const_tables:
            raise InvalidValue(f"table {table} has const entries: it cannot be changed")
        return codec

    def modify(
        self,
        table: str,
        match: Sequence[Match],
        action: str | Member | Group,
        params: Sequence[int] = (),
        priority: int = 0,
    ) -> None:
        """Change the action of an entry; its counter continues. Raise ``NotFound`` if there is no such entry."""
        codec = self._mutable(table)
        key = codec.key(match, priority)
        with self._released(codec, match, priority), self._call(codec, action, params) as (number, data):
            result = self._lib.ss_table_modify(*self._native_entry(codec, key, number, data))
            self._check(result, f"entry of table {table}")

    @contextmanager
    def _released(self, codec: TableCodec, match: Sequence[Match], priority: int) -> Iterator[None]:
        """Release the member or group that the entry used before, when the statements of the context succeed."""
        if codec.profile is None:
            yield
            return
        with codec.profile.lock:
            chosen = self._record(codec, match, priority)[0].chosen
            assert chosen is not None
            yield
            codec.profile.release(chosen)

    def delete(self, table: str, match: Sequence[Match], priority: int = 0) -> None:
        """Remove an entry. Raise ``NotFound`` if there is no such entry."""
        codec = self._mutable(table)
        key = codec.key(match, priority)
        with self._released(codec, match, priority):
            result = self._lib.ss_table_delete(
                self.native, codec.plan.index, key.key, key.mask, key.ranges, key.priority
            )
            self._check(result, f"entry of table {table}")

    def places(self, table: str) -> Places | None:
        """Return the places of an entry's parts for :meth:`write`; ``None`` if it cannot write the table's entries."""
        return self._codec(table).places()

    def write(self, schema: ctypes.Array[ctypes.c_uint32], data: bytes, at: int, only_inserts: bool) -> tuple[int, int]:
        """Apply updates of a serialised P4Runtime ``WriteRequest`` from byte ``at`` on, up to one that it cannot apply.

        Return the number of updates applied, and the first byte that was not applied. runtime/write.c describes
        ``schema``.
        """
        end = ctypes.c_uint64(at)
        done = self._lib.ss_write(self.native, schema, data, len(data), ctypes.byref(end), only_inserts)
        return done, end.value

    def set_idle_timeout(self, table: str, match: Sequence[Match], timeout_ns: int, priority: int = 0) -> None:
        """Have ``idle`` called each time that an entry was not hit for this long (0: never).

        Timeouts below 10 ms are raised to 10 ms.
        """
        codec = self._codec(table)
        if not codec.info.has_idle_timeout:
            raise InvalidValue(f"table {table} is not declared with an idle timeout")
        check_u64(timeout_ns)
        key = codec.key(match, priority)
        result = self._lib.ss_table_idle(
            self.native, codec.plan.index, key.key, key.mask, key.ranges, key.priority, timeout_ns
        )
        self._check(result, f"entry of table {table}")

    def _record(self, codec: TableCodec, match: Sequence[Match] | None, priority: int) -> tuple[Entry, int, int]:
        out = ctypes.create_string_buffer(codec.record_bytes)
        if match is None:
            result = self._lib.ss_table_get(self.native, codec.plan.index, None, None, None, 0, out)
        else:
            key = codec.key(match, priority)
            result = self._lib.ss_table_get(
                self.native, codec.plan.index, key.key, key.mask, key.ranges, key.priority, out
            )
        self._check(result, f"entry of table {codec.info.name}")
        return codec.decode(out.raw)

    def get(self, table: str, match: Sequence[Match], priority: int = 0) -> Entry:
        """Return the entry with exactly this match and priority. Raise ``NotFound`` if there is none."""
        return self._record(self._codec(table), match, priority)[0]

    def entries(self, table: str) -> list[Entry]:
        """Return all entries, oldest first."""
        codec = self._codec(table)
        out = ctypes.c_void_p()
        n = self._check(self._lib.ss_table_dump(self.native, codec.plan.index, ctypes.byref(out)), f"table {table}")
        try:
            data = ctypes.string_at(out, n * codec.record_bytes) if n else b""
        finally:
            self._lib.ss_free(out)
        size = codec.record_bytes
        found = [codec.decode(data[i * size : (i + 1) * size])[0] for i in range(n)]
        return sorted(found, key=lambda e: e.handle)

    def set_default(self, table: str, action: str | None, params: Sequence[int] = ()) -> None:
        """Set the default action; ``None`` restores the program's own."""
        codec = self._codec(table)
        if action is None:
            action, params = codec.info.default_action, codec.info.default_params
        elif codec.info.default_const:
            raise InvalidValue(f"the default action of table {table} is const")
        number, data = codec.action(action, params)
        result = self._lib.ss_table_set_default(self.native, codec.plan.index, number, data, len(data))
        self._check(result, f"default action of table {table}")

    def get_default(self, table: str) -> tuple[str, tuple[int, ...]]:
        """Return (action, parameters) that a miss runs."""
        if self._codec(table).profile is not None:
            return "NoAction", ()
        entry = self._record(self._codec(table), None, 0)[0]
        return entry.action, entry.params

    # -------------------------------------------------------------------------------- direct counters, direct meters

    def direct_counter_read(self, table: str, match: Sequence[Match] | None, priority: int = 0) -> tuple[int, int]:
        """Return (packets, bytes) of an entry, or of the default entry where ``match`` is None."""
        _, packets, bytes_ = self._record(self._counted(table), match, priority)
        return packets, bytes_

    def direct_counter_write(
        self, table: str, match: Sequence[Match] | None, packets: int, bytes_: int, priority: int = 0
    ) -> None:
        """Set the counter of an entry, or of the default entry where ``match`` is None."""
        codec = self._counted(table)
        check_u64(packets, bytes_)
        key = codec.key(match, priority) if match is not None else None
        parts = (key.key, key.mask, key.ranges, key.priority) if key else (None, None, None, 0)
        result = self._lib.ss_table_count(self.native, codec.plan.index, *parts, packets, bytes_)
        self._check(result, f"entry of table {table}")

    def _counted(self, table: str) -> TableCodec:
        codec = self._codec(table)
        if not codec.info.has_direct_counter:
            raise InvalidValue(f"table {table} has no direct counter")
        return codec

    def direct_meter_read(self, table: str, match: Sequence[Match], priority: int = 0) -> MeterState:
        """Return an entry's meter."""
        out = NativeMeter()
        self._direct_meter(table, match, priority, out=out)
        return MeterState(config_of(out), colours(out), out)

    def direct_meter_restore(self, table: str, match: Sequence[Match], state: MeterState, priority: int = 0) -> None:
        """Set an entry's meter back to a state that was read before: configuration, tokens and counters."""
        self._direct_meter(table, match, priority, old=state.native)

    def direct_meter_write(
        self, table: str, match: Sequence[Match], config: MeterConfig | None, priority: int = 0
    ) -> None:
        """Configure an entry's meter, with full buckets; ``None`` makes every packet green."""
        self._direct_meter(table, match, priority, config=native_config(config))

    def direct_meter_clear(self, table: str, match: Sequence[Match], priority: int = 0) -> None:
        """Zero the counters of an entry's meter."""
        self._direct_meter(table, match, priority, clear=True)

    def _direct_meter(
        self,
        table: str,
        match: Sequence[Match],
        priority: int,
        *,
        old: NativeMeter | None = None,
        config: NativeConfig | None = None,
        clear: bool = False,
        out: NativeMeter | None = None,
    ) -> None:
        codec = self._codec(table)
        if not codec.info.has_direct_meter:
            raise InvalidValue(f"table {table} has no direct meter")
        key = codec.key(match, priority)
        pointers = [None if p is None else ctypes.byref(p) for p in (old, config, out)]
        result = self._lib.ss_table_meter(
            self.native, codec.plan.index, key.key, key.mask, key.ranges, key.priority,
            pointers[0], pointers[1], clear, pointers[2],
        )  # fmt: skip
        self._check(result, f"entry of table {table}")
