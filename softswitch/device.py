"""The Python face of the data plane: ``Program``, ``Fabric`` and ``Device``.

Names are those of the bmv2 JSON (``MyIngress.ipv4_lpm``), values are Python ints. All methods are thread-safe and
release the GIL while they are in native code; a table write is atomic as packets see it.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

from softswitch import links, native
from softswitch.bmv2json import Action, KeyValue, P4Program, Table, read_program
from softswitch.compiler.build import compile_program
from softswitch.compiler.codegen import CHOICE_BYTES, Generated, TablePlan, generate, pack_params, unpack_params
from softswitch.compiler.trace import Point
from softswitch.errors import (
    AlreadyExists,
    CapacityExceeded,
    InvalidValue,
    NoSuchObject,
    NotFound,
    SoftswitchError,
)
from softswitch.meters import (
    MeterConfig,
    MeterInfo,
    MeterState,
    NativeConfig,
    NativeMeter,
    colours,
    config_of,
    native_config,
)
from softswitch.profiles import ActionProfile, Group, Member, ProfileInfo
from softswitch.value_sets import MAX_VALUES, ValueSetInfo, expand, prefixes

log = logging.getLogger(__name__)

CONST_PRIORITY = 1 << 24  # const entries get this minus their JSON priority, where a lower number wins
DEFAULT_QUEUE_BYTES = 256 * 1024  # of a shaped port


@dataclass(frozen=True)
class KeyInfo:
    """One key field of a table: P4 name, match kind (exact, lpm, ternary, range, optional) and width in bits."""

    name: str
    match_kind: str
    width: int


@dataclass(frozen=True)
class TableInfo:
    """A match-action table as the program declares it.

    ``const_entries``: the entries come from the program and cannot be changed. ``default_const``: the default action
    cannot be changed. ``needs_priority``: the table has a ternary, range or optional key, so entries carry one.
    ``profile``: the entries point to members or groups of this action profile, and the default action is none.
    """

    name: str
    keys: tuple[KeyInfo, ...]
    actions: tuple[str, ...]
    size: int
    const_entries: bool
    default_action: str
    default_params: tuple[int, ...]
    default_const: bool
    has_direct_counter: bool
    needs_priority: bool
    has_direct_meter: bool = False
    has_idle_timeout: bool = False
    profile: str | None = None


@dataclass(frozen=True)
class ActionInfo:
    """An action: its name and its parameters as (name, width in bits)."""

    name: str
    params: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class CounterInfo:
    """An indirect counter array. ``table`` is set for a direct counter (then size is the table's)."""

    name: str
    size: int
    table: str | None = None


@dataclass(frozen=True)
class RegisterInfo:
    """A register array: number of elements and their width in bits."""

    name: str
    size: int
    width: int


@dataclass(frozen=True)
class DigestInfo:
    """A kind of digest: the widths in bits of its fields. A message has each field in whole bytes, network order."""

    name: str
    widths: tuple[int, ...]

    def values(self, message: bytes) -> tuple[int, ...]:
        """The fields of a message, as unsigned numbers."""
        found: list[int] = []
        at = 0
        for width in self.widths:
            size = (width + 7) // 8
            found.append(int.from_bytes(message[at : at + size], "big"))
            at += size
        return tuple(found)


@dataclass(frozen=True)
class Match:
    """What an entry wants of one key field; every value matches with lpm and ``prefix_len`` 0, ternary and optional
    with ``mask`` 0 (optional with a value has all bits of the mask set), range from 0 to the field's highest value.
    """

    kind: str
    value: int = 0
    mask: int = 0
    prefix_len: int = 0
    high: int = 0


@dataclass(frozen=True)
class Entry:
    """A table entry as installed. In a table with an action profile, ``chosen`` is set and ``action`` empty.

    ``idle_timeout_ns``: 0: none. ``since_hit_ns``: since it was last hit, inserted or changed; only in a table with
    idle timeouts.
    """

    handle: int
    match: tuple[Match, ...]
    priority: int
    action: str
    params: tuple[int, ...]
    is_const: bool
    chosen: Member | Group | None = None
    idle_timeout_ns: int = 0
    since_hit_ns: int = field(default=0, compare=False)


@dataclass(frozen=True)
class PortStats:
    """Packets and bytes in and out of one port since it was added, and frames dropped, by reason."""

    rx_packets: int
    rx_bytes: int
    tx_packets: int
    tx_bytes: int
    drops: dict[str, int] = field(default_factory=dict)


class Program:
    """A compiled P4 program: what it declares, and the native code of its pipeline."""

    def __init__(self, p4: P4Program, code: Generated, path: str, digest: str) -> None:
        self.p4 = p4
        self.code = code
        self.digest = digest
        self._library = ctypes.CDLL(path)
        self._traced: tuple[ctypes.CDLL, int, tuple[Point, ...]] | None = None
        self._traced_lock = threading.Lock()
        self.address = ctypes.addressof(ctypes.c_char.in_dll(self._library, "ss_program"))
        self.actions: dict[str, ActionInfo] = {}
        for action in p4.actions.values():
            self.actions.setdefault(action.name, ActionInfo(action.name, action.params))
        self.tables = {plan.table.name: self._table_info(plan.table) for plan in code.tables.values()}
        self.counters = {
            c.name: CounterInfo(c.name, self.tables[c.table].size if c.table else c.size, c.table)
            for c in p4.counters.values()
        }
        self.registers = {r.name: RegisterInfo(r.name, r.size, r.width) for r in p4.registers.values()}
        self.profiles = {
            p.name: ProfileInfo(p.name, tuple(code.profiles[p.name].numbers), p.size, p.selector is not None)
            for p in p4.profiles.values()
        }
        self.meters = {
            m.name: MeterInfo(m.name, self.tables[m.table].size if m.table else m.size, m.in_bytes, m.table)
            for m in p4.meters.values()
        }
        self.value_sets = {v.name: ValueSetInfo(v.name, v.size, v.widths) for v in p4.value_sets.values()}
        self.digests = tuple(DigestInfo(d.name, tuple(w for _, w in d.elements)) for d in p4.digests.values())

    @classmethod
    def load(cls, bmv2_json: bytes | str) -> Program:
        """Parse, check, generate C and compile it (cached by digest).

        Raises ``BadProgram`` for malformed JSON, ``UnsupportedConstruct`` for what softswitch does not implement,
        ``CompilerFailed`` without a working C compiler.
        """
        p4 = read_program(bmv2_json)
        code = generate(p4)
        path, digest = compile_program(code.source)
        return cls(p4, code, str(path), digest)

    def traced(self) -> tuple[int, tuple[Point, ...]]:
        """The variant of the program that reports what it does: its address and the points that it reports.

        It has the same state. Compiled at the first call.
        """
        with self._traced_lock:
            if self._traced is None:
                code = generate(self.p4, trace=True)
                path, _ = compile_program(code.source, quick=True)
                library = ctypes.CDLL(str(path))
                address = ctypes.addressof(ctypes.c_char.in_dll(library, "ss_program"))
                self._traced = (library, address, code.points)
            return self._traced[1:]

    def _table_info(self, table: Table) -> TableInfo:
        return TableInfo(
            name=table.name,
            keys=tuple(KeyInfo(k.name, k.match_kind, k.width) for k in table.keys),
            actions=tuple(self.p4.actions[i].name for i in table.actions),
            size=table.size,
            const_entries=table.const_entries,
            default_action="NoAction" if table.profile else self.p4.actions[table.default_action].name,
            default_params=table.default_params,
            default_const=table.default_const,
            has_direct_counter=table.with_counters,
            needs_priority=any(k.match_kind in ("ternary", "range") for k in table.keys),
            has_direct_meter=table.meter is not None,
            has_idle_timeout=table.with_timeout,
            profile=table.profile,
        )


@dataclass(frozen=True)
class _NativeKey:
    """An entry's identity as the runtime takes it."""

    key: bytes
    mask: bytes
    ranges: bytes
    priority: int


class _TableCodec:
    """Translates between one table's entries and the runtime's bytes."""

    def __init__(self, program: Program, plan: TablePlan, profile: ActionProfile | None) -> None:
        self.program = program
        self.plan = plan
        self.profile = profile
        self.info = program.tables[plan.table.name]
        self._numbers: dict[str, int] = {}
        for number, action_id in enumerate(plan.action_ids):
            self._numbers.setdefault(program.p4.actions[action_id].name, number)
        range_bytes = sum(2 * plan.key_places[i][1] for i in plan.ranges)
        self.record_bytes = struct.calcsize(native.ENTRY) + plan.params_bytes + 16 * plan.key_words + range_bytes

    def key(self, match: Sequence[Match], priority: int) -> _NativeKey:
        info, plan = self.info, self.plan
        if len(match) != len(info.keys):
            raise InvalidValue(f"table {info.name} has {len(info.keys)} keys, got {len(match)} matches")
        value, mask, ranges = bytearray(8 * plan.key_words), bytearray(8 * plan.key_words), bytearray()
        prefix = 0
        for m, key, static, (at, size) in zip(match, info.keys, plan.table.keys, plan.key_places, strict=True):
            v, k = self._value_mask(m, key)
            if key.match_kind == "range":
                ranges += m.value.to_bytes(size, "big") + m.high.to_bytes(size, "big")
            if key.match_kind == "lpm":
                prefix = m.prefix_len
            if static.mask is not None:
                v, k = v & static.mask, k & static.mask
            value[at : at + size] = v.to_bytes(size, "big")
            mask[at : at + size] = k.to_bytes(size, "big")
        if info.needs_priority:
            if not 0 <= priority < 1 << 31:
                raise InvalidValue(f"priority {priority} is not in 0..2^31-1")
            return _NativeKey(bytes(value), bytes(mask), bytes(ranges), priority)
        if priority:
            raise InvalidValue(f"table {info.name} has no ternary or range key: its entries have no priority")
        return _NativeKey(bytes(value), bytes(mask), bytes(ranges), prefix)

    def _value_mask(self, m: Match, key: KeyInfo) -> tuple[int, int]:
        full = (1 << key.width) - 1
        allowed = {"ternary": ("ternary", "optional")}.get(key.match_kind, (key.match_kind,))
        where = f"key {key.name} of table {self.info.name}"
        if m.kind not in allowed:
            raise InvalidValue(f"{where} is matched {key.match_kind}, not {m.kind}")
        if not 0 <= m.value <= full:
            raise InvalidValue(f"{where}: {m.value:#x} does not fit {key.width} bits")
        if m.kind == "exact":
            return m.value, full
        if m.kind == "range":
            if not m.value <= m.high <= full:
                raise InvalidValue(f"{where}: {m.value:#x}..{m.high:#x} is not a range of {key.width}-bit values")
            return 0, 0
        if m.kind == "lpm":
            if not 0 <= m.prefix_len <= key.width:
                raise InvalidValue(f"{where}: prefix length {m.prefix_len} is not in 0..{key.width}")
            mask = full ^ (full >> m.prefix_len)
        else:
            mask = m.mask
            if not 0 <= mask <= full:
                raise InvalidValue(f"{where}: mask {mask:#x} does not fit {key.width} bits")
            if m.kind == "optional" and mask not in (0, full):
                raise InvalidValue(f"{where}: the mask of an optional match is all ones or 0")
        if m.value & ~mask:
            raise InvalidValue(f"{where}: {m.value:#x} has bits outside the mask {mask:#x}")
        return m.value, mask

    def action(self, name: str, params: Sequence[int]) -> tuple[int, bytes]:
        """(number, packed parameters) of an action of this table."""
        if self.profile is not None:
            raise InvalidValue(f"table {self.info.name} has an action profile: its entries have a member or a group")
        number = self._numbers.get(name)
        if number is None:
            if name in self.program.actions:
                raise InvalidValue(f"action {name} is not an action of table {self.info.name}")
            raise NoSuchObject(f"no action {name}")
        action = self._action(number)
        _check_params(self.program.actions[name], params)
        places, size = self.program.code.params[action.id]
        return number, pack_params(places, size, tuple(params))

    def _action(self, number: int) -> Action:
        return self.program.p4.actions[self.plan.action_ids[number]]

    def decode(self, data: bytes) -> tuple[Entry, int, int]:
        """(entry, packets, bytes) from a record of the runtime."""
        handle, packets, bytes_, ttl, since, priority, number, is_const, _ = struct.unpack_from(native.ENTRY, data)
        at = struct.calcsize(native.ENTRY)
        name, params, chosen = self._decode_action(number, data[at : at + self.plan.params_bytes])
        at += self.plan.params_bytes
        key = data[at : at + 8 * self.plan.key_words]
        at += 8 * self.plan.key_words
        mask = data[at : at + 8 * self.plan.key_words]
        at += 8 * self.plan.key_words
        match: list[Match] = []
        for info, (offset, size) in zip(self.info.keys, self.plan.key_places, strict=True):
            value = int.from_bytes(key[offset : offset + size], "big")
            bits = int.from_bytes(mask[offset : offset + size], "big")
            if info.match_kind == "lpm":
                match.append(Match("lpm", value, prefix_len=bits.bit_count()))
            elif info.match_kind == "ternary":
                match.append(Match("ternary", value, mask=bits))
            elif info.match_kind == "range":
                low, high = data[at : at + size], data[at + size : at + 2 * size]
                at += 2 * size
                match.append(Match("range", int.from_bytes(low, "big"), high=int.from_bytes(high, "big")))
            else:
                match.append(Match("exact", value))
        shown = priority if self.info.needs_priority else 0
        entry = Entry(handle, tuple(match), shown, name, params, bool(is_const), chosen, ttl, 1000 * since)
        return entry, packets, bytes_

    def _decode_action(self, number: int, data: bytes) -> tuple[str, tuple[int, ...], Member | Group | None]:
        if self.profile is None:
            action = self._action(number)
            return action.name, unpack_params(self.program.code.params[action.id][0], data), None
        return "", (), self.profile.chosen(int.from_bytes(data, "little"))


class Device:
    """One switch of a fabric: its program, tables, counters, registers, groups and ports.

    Names that do not exist raise ``NoSuchObject``; values that do not fit raise ``InvalidValue``. ``packet_in`` gets
    the frames that the pipeline sent to ``cpu_port``; ``capture`` those sent to ports that have neither interface nor
    link; ``digest`` the number of a digest (as in ``Program.digests``) and a message, for those that are enabled. All
    are called on the fabric's own thread; an exception in them is logged and goes no further.
    """

    def __init__(self, fabric: Fabric, handle: int, device_id: int, cpu_port: int | None) -> None:
        self._fabric = fabric
        self._address: int | None = handle
        self._lib = native.library()
        self._capture: Callable[[int, bytes], None] | None = None
        self._codecs: dict[str, _TableCodec] = {}
        self._load_lock = threading.RLock()
        self.device_id = device_id
        self.cpu_port = cpu_port
        self.program: Program | None = None
        self.packet_in: Callable[[bytes], None] | None = None
        self.digest: Callable[[int, bytes], None] | None = None
        self.traced: Callable[[bytes], None] | None = None
        self.idle: Callable[[str, list[Entry]], None] | None = None
        self.profiles: dict[str, ActionProfile] = {}
        self._value_sets: dict[str, tuple[tuple[Match, ...], ...]] = {}
        self._attached: dict[int, tuple[str, int] | None] = {}  # port -> its interface and its index; None: a link

    @property
    def _native(self) -> int:
        """The native device; ``SoftswitchError`` once its fabric is closed, or a staged device discarded."""
        if self._fabric.closed:
            raise SoftswitchError(f"device {self.device_id}: its fabric is closed")
        if self._address is None:
            raise SoftswitchError(f"device {self.device_id}: this staged program was discarded")
        return self._address

    # -------------------------------------------------------------------------------------------------------- program

    def load(self, program: Program) -> None:
        """Replace the pipeline. All state starts fresh, also groups and sessions; ports, links and shaping stay."""
        self.commit(self.stage(program))

    def stage(self, program: Program) -> Device:
        """A device without ports that has this program, fresh, while this one goes on: for writes ahead of ``commit``.

        ``discard`` frees one that is not committed.
        """
        handle = self._lib.ss_device_stage(self._native)
        if not handle:
            raise SoftswitchError("out of memory")
        staged = Device(self._fabric, handle, self.device_id, self.cpu_port)
        staged._attached = self._attached
        try:
            staged._start(program)
        except BaseException:
            staged.discard()
            raise
        self._fabric._staged.add(handle)
        return staged

    def commit(self, staged: Device) -> None:
        """Go over to the program and state of a staged device, between two frames; ports and shaping stay.

        From then on ``staged`` is another name for this device, until its program is replaced.
        """
        with self._load_lock:
            handle = staged._native
            self._fabric._staged.discard(handle)
            staged._address = self._address
            self.program, self._codecs = staged.program, staged._codecs
            self.profiles, self._value_sets = staged.profiles, staged._value_sets
            for profile in self.profiles.values():
                profile.handle, profile.is_up = self._own_handle, self.port_is_up
            self._lib.ss_device_adopt(self._native, handle)
            if self.profiles:
                self._fabric._watch_links()
            for profile in self.profiles.values():
                profile.refresh()

    def discard(self) -> None:
        """Free a staged device."""
        handle = self._native
        self._fabric._staged.discard(handle)
        self._address = None
        self._lib.ss_device_discard(handle)

    def _start(self, program: Program) -> None:
        self._check(self._lib.ss_device_load(self._native, program.address), "load")
        self.program = program
        self.profiles = {name: self._profile(program, name) for name in program.profiles}
        self._value_sets = dict.fromkeys(program.value_sets, ())
        self._codecs = {
            name: _TableCodec(program, plan, self.profiles.get(plan.table.profile or ""))
            for name, plan in program.code.tables.items()
        }
        for name, plan in program.code.tables.items():
            for entry in plan.table.entries:
                widths = [k.width for k in plan.table.keys]
                match = tuple(_const_match(k, width) for k, width in zip(entry.keys, widths, strict=True))
                needs = program.tables[name].needs_priority
                priority = CONST_PRIORITY - entry.priority if needs else 0
                action = program.p4.actions[entry.action_id].name
                self._insert(self._codecs[name], match, action, entry.params, priority=priority, const=True)

    def unload(self) -> None:
        """Back to no pipeline and no state, as after power-up: frames are dropped until the next ``load``."""
        with self._load_lock:
            self._check(self._lib.ss_device_load(self._native, None), "unload")
            self.program = None
            self._codecs = {}
            self.profiles = {}
            self._value_sets = {}

    def _own_handle(self) -> int:
        return self._native

    def _profile(self, program: Program, name: str) -> ActionProfile:
        plan, info = program.code.profiles[name], program.profiles[name]

        def pack(action: str, params: Sequence[int]) -> tuple[int, bytes]:
            if action not in plan.numbers:
                raise InvalidValue(f"action {action} is not an action of action profile {name}")
            places, size = program.code.params[plan.action_ids[action]]
            _check_params(program.actions[action], params)
            return plan.numbers[action], pack_params(places, size, tuple(params))

        return ActionProfile(info, plan.index, self._own_handle, pack, self.port_is_up)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """No frame is processed meanwhile (on any device of the same thread): changes are one step to the data plane.

        What changes must do so in the system thread that entered.
        """
        self._lib.ss_device_freeze(self._native)
        try:
            yield
        finally:
            self._lib.ss_device_thaw(self._native)

    def _check(self, result: int, what: str) -> int:
        if result >= 0:
            return result
        code = -result
        if code == errno.EEXIST:
            raise AlreadyExists(f"{what}: already there")
        if code == errno.ENOENT:
            raise NotFound(f"{what}: not there")
        if code == errno.ENOSPC:
            raise CapacityExceeded(f"{what}: the table is full")
        if code == errno.ENODEV:
            raise NoSuchObject(f"{what}: no program is loaded")
        raise SoftswitchError(f"{what}: {os.strerror(code)}")

    def _codec(self, table: str) -> _TableCodec:
        codec = self._codecs.get(table)
        if codec is None:
            raise NoSuchObject(f"no table {table}" if self.program else f"no table {table}: no program is loaded")
        return codec

    def _program(self) -> Program:
        if self.program is None:
            raise NoSuchObject("no program is loaded")
        return self.program

    # --------------------------------------------------------------------------------------------------------- tables

    def insert(
        self, table: str, match: Sequence[Match], action: str | Member | Group, params: Sequence[int] = (),
        priority: int = 0,
    ) -> int:
        """Add an entry and return its handle. Of several that match, the largest ``priority`` wins (ternary, range).

        In a table with an action profile, ``action`` is one of its members or groups; ``NotFound`` if there is none.
        """
        codec = self._mutable(table)
        if not codec.info.keys:
            raise InvalidValue(f"table {table} has no key: only its default action can be set")
        return self._insert(codec, match, action, params, priority=priority, const=False)

    def _insert(
        self,
        codec: _TableCodec,
        match: Sequence[Match],
        action: str | Member | Group,
        params: Sequence[int],
        *,
        priority: int,
        const: bool,
    ) -> int:
        key = codec.key(match, priority)
        handle = ctypes.c_uint64()
        with self._call(codec, action, params) as (number, data):
            self._check(
                self._lib.ss_table_insert(
                    self._native,
                    codec.plan.index,
                    key.key,
                    key.mask,
                    key.ranges,
                    key.priority,
                    number,
                    data,
                    len(data),
                    const,
                    ctypes.byref(handle),
                ),
                f"entry of table {codec.info.name}",
            )
        return handle.value

    @contextmanager
    def _call(
        self, codec: _TableCodec, action: str | Member | Group, params: Sequence[int]
    ) -> Iterator[tuple[int, bytes]]:
        """What the runtime is told of an entry's action. A member or group is used from then on, but for an error."""
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

    def _mutable(self, table: str) -> _TableCodec:
        codec = self._codec(table)
        if codec.info.const_entries:
            raise InvalidValue(f"table {table} has const entries: it cannot be changed")
        return codec

    def modify(
        self, table: str, match: Sequence[Match], action: str | Member | Group, params: Sequence[int] = (),
        priority: int = 0,
    ) -> None:
        """Change the action of an entry; its counter goes on. ``NotFound`` if there is no such entry."""
        codec = self._mutable(table)
        key = codec.key(match, priority)
        with self._released(codec, match, priority), self._call(codec, action, params) as (number, data):
            result = self._lib.ss_table_modify(
                self._native, codec.plan.index, key.key, key.mask, key.ranges, key.priority, number, data, len(data)
            )
            self._check(result, f"entry of table {table}")

    @contextmanager
    def _released(self, codec: _TableCodec, match: Sequence[Match], priority: int) -> Iterator[None]:
        """When this succeeds, the entry does not use the member or group any more that it used before."""
        if codec.profile is None:
            yield
            return
        with codec.profile.lock:
            chosen = self._record(codec, match, priority)[0].chosen
            assert chosen is not None
            yield
            codec.profile.release(chosen)

    def delete(self, table: str, match: Sequence[Match], priority: int = 0) -> None:
        """Remove an entry; ``NotFound`` if there is no such entry."""
        codec = self._mutable(table)
        key = codec.key(match, priority)
        with self._released(codec, match, priority):
            result = self._lib.ss_table_delete(
                self._native, codec.plan.index, key.key, key.mask, key.ranges, key.priority
            )
            self._check(result, f"entry of table {table}")

    def set_idle_timeout(self, table: str, match: Sequence[Match], timeout_ns: int, priority: int = 0) -> None:
        """Have ``idle`` called when an entry was not hit for so long, again and again (0: never), from now on.

        What is shorter than 10 ms is taken as 10 ms.
        """
        codec = self._codec(table)
        if not codec.info.has_idle_timeout:
            raise InvalidValue(f"table {table} is not declared with an idle timeout")
        _check_u64(timeout_ns)
        key = codec.key(match, priority)
        result = self._lib.ss_table_idle(
            self._native, codec.plan.index, key.key, key.mask, key.ranges, key.priority, timeout_ns
        )
        self._check(result, f"entry of table {table}")

    def _record(self, codec: _TableCodec, match: Sequence[Match] | None, priority: int) -> tuple[Entry, int, int]:
        out = ctypes.create_string_buffer(codec.record_bytes)
        if match is None:
            result = self._lib.ss_table_get(self._native, codec.plan.index, None, None, None, 0, out)
        else:
            key = codec.key(match, priority)
            result = self._lib.ss_table_get(
                self._native, codec.plan.index, key.key, key.mask, key.ranges, key.priority, out
            )
        self._check(result, f"entry of table {codec.info.name}")
        return codec.decode(out.raw)

    def get(self, table: str, match: Sequence[Match], priority: int = 0) -> Entry:
        """The entry with exactly this match and priority; ``NotFound`` if there is none."""
        return self._record(self._codec(table), match, priority)[0]

    def entries(self, table: str) -> list[Entry]:
        """All entries, oldest first."""
        codec = self._codec(table)
        out = ctypes.c_void_p()
        n = self._check(self._lib.ss_table_dump(self._native, codec.plan.index, ctypes.byref(out)), f"table {table}")
        try:
            data = ctypes.string_at(out, n * codec.record_bytes) if n else b""
        finally:
            self._lib.ss_free(out)
        size = codec.record_bytes
        found = [codec.decode(data[i * size : (i + 1) * size])[0] for i in range(n)]
        return sorted(found, key=lambda e: e.handle)

    def set_default(self, table: str, action: str | None, params: Sequence[int] = ()) -> None:
        """Set the default action; ``None`` brings back the program's own."""
        codec = self._codec(table)
        if action is None:
            action, params = codec.info.default_action, codec.info.default_params
        elif codec.info.default_const:
            raise InvalidValue(f"the default action of table {table} is const")
        number, data = codec.action(action, params)
        result = self._lib.ss_table_set_default(self._native, codec.plan.index, number, data, len(data))
        self._check(result, f"default action of table {table}")

    def get_default(self, table: str) -> tuple[str, tuple[int, ...]]:
        """(action, parameters) that a miss runs."""
        if self._codec(table).profile is not None:
            return "NoAction", ()
        entry = self._record(self._codec(table), None, 0)[0]
        return entry.action, entry.params

    # -------------------------------------------------------------------------------------------- counters, registers

    def _counter(self, name: str) -> tuple[int, CounterInfo]:
        program = self._program()
        info = program.counters.get(name)
        if info is None:
            raise NoSuchObject(f"no counter {name}")
        if info.table is not None:
            raise InvalidValue(f"counter {name} is direct: read it by the entries of table {info.table}")
        return program.code.counters[name], info

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        """(packets, bytes) of one element."""
        number, info = self._counter(name)
        return self._read_counters(number, self._index(name, index, info.size), 1)[0]

    def counter_read_all(self, name: str) -> list[tuple[int, int]]:
        """(packets, bytes) of all elements."""
        number, info = self._counter(name)
        return self._read_counters(number, 0, info.size)

    def _read_counters(self, number: int, first: int, n: int) -> list[tuple[int, int]]:
        out = (ctypes.c_uint64 * (2 * n))()
        self._check(self._lib.ss_counter_read(self._native, number, first, n, out), "counter")
        return list(zip(out[0::2], out[1::2], strict=True))

    def counter_write(self, name: str, index: int, packets: int, bytes_: int) -> None:
        """Set one element."""
        number, info = self._counter(name)
        self._index(name, index, info.size)
        _check_u64(packets, bytes_)
        self._check(self._lib.ss_counter_write(self._native, number, index, packets, bytes_), f"counter {name}")

    def direct_counter_read(self, table: str, match: Sequence[Match] | None, priority: int = 0) -> tuple[int, int]:
        """(packets, bytes) of an entry; ``None``: of the default entry."""
        _, packets, bytes_ = self._record(self._counted(table), match, priority)
        return packets, bytes_

    def direct_counter_write(
        self, table: str, match: Sequence[Match] | None, packets: int, bytes_: int, priority: int = 0
    ) -> None:
        """Set an entry's counter; ``None``: the default entry's."""
        codec = self._counted(table)
        _check_u64(packets, bytes_)
        key = codec.key(match, priority) if match is not None else None
        parts = (key.key, key.mask, key.ranges, key.priority) if key else (None, None, None, 0)
        result = self._lib.ss_table_count(self._native, codec.plan.index, *parts, packets, bytes_)
        self._check(result, f"entry of table {table}")

    def _counted(self, table: str) -> _TableCodec:
        codec = self._codec(table)
        if not codec.info.has_direct_counter:
            raise InvalidValue(f"table {table} has no direct counter")
        return codec

    # --------------------------------------------------------------------------------------------------------- meters

    def meter_read(self, name: str, first: int = 0, n: int | None = None) -> list[MeterState]:
        """Elements of an array; all from ``first`` if ``n`` is not given."""
        number, info = self._meter(name)
        n = info.size - first if n is None else n
        out = (NativeMeter * max(n, 0))()
        self._meter_access(number, info, first, n, out=out)
        return [MeterState(config_of(m), colours(m), m) for m in out]

    def meter_restore(self, name: str, states: Sequence[MeterState], first: int = 0) -> None:
        """Set elements of an array back to what was read before: configuration, tokens and counters."""
        number, info = self._meter(name)
        old = (NativeMeter * len(states))(*(state.native for state in states))
        self._meter_access(number, info, first, len(states), old=old)

    def meter_write(self, name: str, config: MeterConfig | None, first: int = 0, n: int | None = None) -> None:
        """Configure elements of an array, with full buckets (``None``: all is green)."""
        number, info = self._meter(name)
        n = info.size - first if n is None else n
        self._meter_access(number, info, first, n, config=native_config(config))

    def meter_clear(self, name: str, first: int = 0, n: int | None = None) -> None:
        """Zero the counters of elements of an array."""
        number, info = self._meter(name)
        n = info.size - first if n is None else n
        self._meter_access(number, info, first, n, clear=True)

    def _meter_access(
        self,
        number: int,
        info: MeterInfo,
        first: int,
        n: int,
        *,
        old: ctypes.Array[NativeMeter] | None = None,
        config: NativeConfig | None = None,
        clear: bool = False,
        out: ctypes.Array[NativeMeter] | None = None,
    ) -> None:
        if not (0 <= first <= info.size and 0 <= n <= info.size - first):
            raise NoSuchObject(f"{info.name}[{first}]: the index is not in 0..{info.size - 1}")
        pointer = None if config is None else ctypes.byref(config)
        result = self._lib.ss_meter_access(self._native, number, first, n, old, pointer, clear, out)
        self._check(result, f"meter {info.name}")

    def _meter(self, name: str) -> tuple[int, MeterInfo]:
        program = self._program()
        info = program.meters.get(name)
        if info is None:
            raise NoSuchObject(f"no meter {name}")
        if info.table is not None:
            raise InvalidValue(f"meter {name} is direct: it belongs to the entries of table {info.table}")
        return program.code.meters[name], info

    def direct_meter_read(self, table: str, match: Sequence[Match], priority: int = 0) -> MeterState:
        """An entry's meter."""
        out = NativeMeter()
        self._direct_meter(table, match, priority, out=out)
        return MeterState(config_of(out), colours(out), out)

    def direct_meter_restore(
        self, table: str, match: Sequence[Match], state: MeterState, priority: int = 0
    ) -> None:
        """Set an entry's meter back to what was read before: configuration, tokens and counters."""
        self._direct_meter(table, match, priority, old=state.native)

    def direct_meter_write(
        self, table: str, match: Sequence[Match], config: MeterConfig | None, priority: int = 0
    ) -> None:
        """Configure an entry's meter, with full buckets (``None``: all is green)."""
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
            self._native, codec.plan.index, key.key, key.mask, key.ranges, key.priority,
            pointers[0], pointers[1], clear, pointers[2],
        )  # fmt: skip
        self._check(result, f"entry of table {table}")

    # ----------------------------------------------------------------------------------------------------- value sets

    def value_set_read(self, name: str) -> tuple[tuple[Match, ...], ...]:
        """The members of a parser value set, one match per field each."""
        if name not in self._program().value_sets:
            raise NoSuchObject(f"no value set {name}")
        return self._value_sets[name]

    def value_set_write(self, name: str, members: Sequence[Sequence[Match]]) -> None:
        """Replace the members of a parser value set; a packet sees the old ones or the new ones.

        Every kind of match will do. ``CapacityExceeded`` if they are more than the set's size.
        """
        program = self._program()
        info = program.value_sets.get(name)
        if info is None:
            raise NoSuchObject(f"no value set {name}")
        if len(members) > info.size:
            raise CapacityExceeded(f"value set {name} has room for {info.size} members, not {len(members)}")
        if info.widths:
            words = (sum((w + 7) // 8 for w in info.widths) + 7) // 8
            values: list[bytes] = []
            for member in members:
                if len(member) != len(info.widths):
                    raise InvalidValue(f"members of value set {name} have {len(info.widths)} fields")
                fields = [_alternatives(m, w, name) for m, w in zip(member, info.widths, strict=True)]
                values += expand(fields, info.widths, words)
                if len(values) > MAX_VALUES:
                    raise CapacityExceeded(f"value set {name}: ranges that make more than {MAX_VALUES} values")
            number = program.code.value_sets[name]
            result = self._lib.ss_value_set_write(self._native, number, b"".join(values), len(values))
            self._check(result, f"value set {name}")
        self._value_sets[name] = tuple(tuple(member) for member in members)

    # ------------------------------------------------------------------------------------------------------ registers

    def _index(self, name: str, index: int, size: int) -> int:
        if not 0 <= index < size:
            raise NoSuchObject(f"{name}[{index}]: the index is not in 0..{size - 1}")
        return index

    def register_read(self, name: str, index: int) -> int:
        """One element, as an unsigned number."""
        info = self._register(name)
        return self._read_registers(name, self._index(name, index, info.size), 1)[0]

    def register_read_all(self, name: str) -> list[int]:
        """All elements, as unsigned numbers."""
        return self._read_registers(name, 0, self._register(name).size)

    def _register(self, name: str) -> RegisterInfo:
        info = self._program().registers.get(name)
        if info is None:
            raise NoSuchObject(f"no register {name}")
        return info

    def _read_registers(self, name: str, first: int, n: int) -> list[int]:
        place = self._program().code.registers[name]
        size = place.element_bytes
        out = ctypes.create_string_buffer(n * size)
        at = first * place.row_bytes + place.offset
        result = self._lib.ss_register_copy(self._native, place.group, at, place.row_bytes, size, n, out, 0)
        self._check(result, f"register {name}")
        data, order = out.raw, _byte_order(place.c_type)
        return [int.from_bytes(data[i * size : (i + 1) * size], order) for i in range(n)]

    def register_write(self, name: str, index: int, value: int) -> None:
        """Set one element; the value is an unsigned number of the register's width."""
        info = self._register(name)
        self._index(name, index, info.size)
        if not 0 <= value < 1 << info.width:
            raise InvalidValue(f"register {name}: {value} does not fit {info.width} bits")
        place = self._program().code.registers[name]
        data = ctypes.create_string_buffer(value.to_bytes(place.element_bytes, _byte_order(place.c_type)))
        at = index * place.row_bytes + place.offset
        result = self._lib.ss_register_copy(self._native, place.group, at, 0, place.element_bytes, 1, data, 1)
        self._check(result, f"register {name}")

    # --------------------------------------------------------------------------------------------------- replication

    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Insert or replace multicast group ``group`` (1..65535): copies for (egress port, replication id)."""
        if not 0 < group < 1 << 16:
            raise InvalidValue(f"multicast group {group} is not in 1..65535")
        self._group_write(0, group, replicas, 0)

    def multicast_delete(self, group: int) -> None:
        """Remove a group; ``NotFound`` if there is none."""
        self._check(self._lib.ss_group_write(self._native, 0, group & 0xFFFF, b"", -1, 0), f"multicast group {group}")

    def clone_set(self, session: int, replicas: Sequence[tuple[int, int]], truncate: int = 0) -> None:
        """Insert or replace clone session ``session`` (0..32767). Clones are cut to ``truncate`` bytes (0: not)."""
        if not 0 <= session < 1 << 15:
            raise InvalidValue(f"clone session {session} is not in 0..32767")
        if not 0 <= truncate < 1 << 32:
            raise InvalidValue(f"cannot truncate to {truncate} bytes")
        self._group_write(1, session, replicas, truncate)

    def clone_delete(self, session: int) -> None:
        """Remove a session; ``NotFound`` if there is none."""
        self._check(self._lib.ss_group_write(self._native, 1, session & 0x7FFF, b"", -1, 0), f"clone session {session}")

    def _group_write(self, sessions: int, number: int, replicas: Sequence[tuple[int, int]], truncate: int) -> None:
        for port, rid in replicas:
            if not (0 <= port < MAX_PORTS and 0 <= rid < 1 << 16):
                raise InvalidValue(f"no such replica: port {port}, replication id {rid}")
        data = b"".join(struct.pack("<HH", port, rid) for port, rid in replicas)
        result = self._lib.ss_group_write(self._native, sessions, number, data, len(replicas), truncate)
        self._check(result, "clone session" if sessions else "multicast group")

    # -------------------------------------------------------------------------------------------------------- digests

    def digest_enable(self, number: int, enabled: bool, filter_duplicates: bool = True) -> None:
        """Have messages of digest ``number`` given to ``digest``, or not.

        With the filter, a message that was given is not given again until ``digest_forget``. Switching either off
        forgets all messages of this kind.
        """
        result = self._lib.ss_digest_enable(self._native, number, enabled, filter_duplicates)
        self._check(result, f"digest {number}")

    def digest_forget(self, number: int, messages: Sequence[bytes]) -> None:
        """Let these messages come again."""
        if messages:
            size = len(messages[0])
            data = b"".join(messages)
            self._check(
                self._lib.ss_digest_forget(self._native, number, data, size, len(messages)), f"digest {number}"
            )

    def trace(self, frames: int, in_port: int | None = None, out_port: int | None = None) -> tuple[Point, ...]:
        """Have the next ``frames`` frames (0: no more) that come in by a port and leave by a port traced.

        Each is given to ``traced`` when it is done; :mod:`softswitch.trace` reads that with the points returned here.
        Another program ends it.
        """
        generation = self._lib.ss_device_generation(self._native)
        address, points = self._program().traced()
        ports = [-1 if port is None else port for port in (in_port, out_port)]
        result = self._lib.ss_device_trace(self._native, address, generation, frames, *ports)
        if result == -errno.ESTALE:
            raise SoftswitchError(f"device {self.device_id}: the program was replaced meanwhile; try again")
        self._check(result, "trace")
        return points

    @property
    def generation(self) -> int:
        """A number that is another one for each program."""
        return self._lib.ss_device_generation(self._native)

    # --------------------------------------------------------------------------------------------------------- frames

    @property
    def capture(self) -> Callable[[int, bytes], None] | None:
        """Called with (port, frame) for frames sent to ports without interface or link."""
        return self._capture

    @capture.setter
    def capture(self, function: Callable[[int, bytes], None] | None) -> None:
        self._capture = function
        self._lib.ss_device_capture(self._native, function is not None)

    def packet_out(self, frame: bytes) -> None:
        """Process a frame as if it were received on the CPU port."""
        if self.cpu_port is None:
            raise InvalidValue(f"device {self.device_id} has no CPU port")
        self.inject(self.cpu_port, frame)

    def inject(self, port: int, frame: bytes) -> None:
        """Process a frame, soon, as if it were received on ``port``."""
        self._check_frame(port, frame)
        self._check(self._lib.ss_inject(self._native, port, frame, len(frame)), "inject")

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Run one frame to completion, past all queues and links; the frames that left, as (port, frame)."""
        self._check_frame(port, frame)
        out = ctypes.c_void_p()
        n = self._check(
            self._lib.ss_process(self._native, port, frame, len(frame), ctypes.byref(out)), "process"
        )
        try:
            frames: list[tuple[int, bytes]] = []
            at = out.value or 0
            for _ in range(n):
                egress, size = struct.unpack("<II", ctypes.string_at(at, 8))
                frames.append((egress, ctypes.string_at(at + 8, size)))
                at += 8 + size
            return frames
        finally:
            self._lib.ss_free(out)

    def _check_frame(self, port: int, frame: bytes) -> None:
        if not 0 <= port < MAX_PORTS:
            raise InvalidValue(f"port {port} is not in 0..{MAX_PORTS - 1}")
        if len(frame) > MAX_FRAME:
            raise InvalidValue(f"a frame of {len(frame)} bytes: the most is {MAX_FRAME}")

    # ---------------------------------------------------------------------------------------------------------- ports

    def add_port(self, port: int, interface: str, **shape: float) -> None:
        """Attach ``port`` (0..510) to a Linux interface; ``shape`` as in :meth:`Fabric.shape`.

        Needs CAP_NET_RAW. Raises ``AlreadyExists`` if the port is in use.
        """
        _check_port(port)
        native_shape = _shape(shape)
        result = self._lib.ss_port_add(self._native, port, interface.encode())
        if result == -errno.ENODEV:
            raise InvalidValue(f"no interface {interface!r} here")
        if result in (-errno.EPERM, -errno.EACCES):
            raise SoftswitchError(f"may not open {interface!r}: run as root or with CAP_NET_RAW")
        self._check(result, f"port {port}")
        self._attach(port, (interface, _interface_index(interface)))
        if native_shape is not None:
            self._fabric._apply_shape(self, port, native_shape)

    def record(self, port: int, incoming: int, outgoing: int) -> None:
        """Write frames to two open files, which are the device's from now on; see :func:`softswitch.pcap.record`."""
        _check_port(port)
        self._check(self._lib.ss_port_pcap(self._native, port, incoming, outgoing), f"port {port}")

    def remove_port(self, port: int) -> None:
        """Detach a port from its interface or link; ``NotFound`` if it has neither."""
        self._check(self._lib.ss_port_remove(self._native, port), f"port {port}")
        self._detach(port)
        peer = self._fabric._links.pop((self.device_id, port), None)
        if peer is not None:
            self._fabric._links.pop(peer, None)
            self._fabric.devices[peer[0]]._detach(peer[1])

    def port_is_up(self, port: int) -> bool:
        """Whether a port has a link, or an interface that is switched on and has a carrier."""
        if port not in self._attached:
            return False
        interface = self._attached[port]
        return interface is None or links.is_up(*interface)

    def _attach(self, port: int, interface: tuple[str, int] | None) -> None:
        self._attached[port] = interface
        self._port_changed(port)

    def _detach(self, port: int) -> None:
        self._attached.pop(port, None)
        self._port_changed(port)

    def _port_changed(self, port: int) -> None:
        for profile in list(self.profiles.values()):
            profile.port_changed(port)

    def port_stats(self) -> dict[int, PortStats]:
        """Counts of every port that was ever used."""
        names = native.drop_names()
        out = (ctypes.c_uint64 * (4 + len(names)))()
        stats: dict[int, PortStats] = {}
        for port in range(MAX_PORTS):
            if self._lib.ss_port_stats(self._native, port, out) == 0:
                drops = {name: n for name, n in zip(names, out[4:], strict=True) if n}
                stats[port] = PortStats(out[0], out[1], out[2], out[3], drops)
        return stats

    def drop_stats(self) -> dict[str, int]:
        """Frames dropped, by reason; ``ingress`` and ``egress`` are the program's own decisions."""
        names = native.drop_names()
        out = (ctypes.c_uint64 * len(names))()
        self._lib.ss_device_drops(self._native, out)
        return dict(zip(names, out, strict=True))

    def _handle_event(self, kind: int, port: int, data: bytes, generation: int) -> None:
        if kind == native.CAPTURE and self._capture is not None:
            self._capture(port, data)
        elif kind == native.PCAP_ENDED:
            log.warning("device %d: recording port %d ended: its file cannot be written", self.device_id, port)
        elif self._fabric.closed or generation != self._lib.ss_device_generation(self._native):
            return  # what a program that is gone had to say
        elif kind == native.PACKET_IN and self.packet_in is not None:
            self.packet_in(data)
        elif kind == native.IDLE and self.idle is not None:
            codec = next((c for c in self._codecs.values() if c.plan.index == port), None)
            if codec is not None:
                size = codec.record_bytes
                self.idle(codec.info.name, [codec.decode(data[i : i + size])[0] for i in range(0, len(data), size)])
        elif kind == native.TRACE and self.traced is not None:
            self.traced(data)
        elif kind == native.DIGEST and self.digest is not None:
            self.digest(port, data)
        elif kind == native.LOG and self.program is not None:
            values = [int.from_bytes(data[i : i + 16], "little", signed=True) for i in range(0, len(data), 16)]
            log.info("device %d: %s", self.device_id, _format_log(self.program.code.messages[port], values))


class Fabric:
    """All devices of this process, their threads and the links between them.

    ``threads`` data-plane threads share the devices among them; ``seed`` makes injected faults and ``random()``
    repeatable. Usable as a context manager; :meth:`close` frees everything.
    """

    def __init__(self, threads: int = 1, seed: int = 0) -> None:
        if threads < 1:
            raise InvalidValue(f"{threads} threads")
        self._lib = native.library()
        handle = self._lib.ss_fabric_new(threads, seed & (1 << 64) - 1)
        if not handle:
            raise SoftswitchError("cannot make a fabric: out of memory or file descriptors")
        self._handle: int | None = handle
        self.closed = False
        self.devices: dict[int, Device] = {}
        self._staged: set[int] = set()
        self._links: dict[tuple[int, int], tuple[int, int]] = {}  # (device, port) -> the other end
        self._monitor: links.LinkMonitor | None = None
        self._events = threading.Thread(target=self._dispatch, args=(handle,), name="softswitch-events", daemon=True)
        self._events.start()

    def __enter__(self) -> Fabric:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add_device(self, device_id: int, cpu_port: int | None = None) -> Device:
        """A new switch without a program."""
        if self.closed:
            raise SoftswitchError("the fabric is closed")
        if device_id in self.devices:
            raise AlreadyExists(f"device {device_id} is already there")
        if not 0 <= device_id < 1 << 48:
            raise InvalidValue(f"device id {device_id} is not in 0..2^48-1")
        if cpu_port is not None:
            _check_port(cpu_port)
        handle = self._lib.ss_device_new(self._handle, device_id, -1 if cpu_port is None else cpu_port)
        if not handle:
            raise SoftswitchError("out of memory")
        device = Device(self, handle, device_id, cpu_port)
        self.devices[device_id] = device
        return device

    def _device(self, device_id: int) -> Device:
        device = self.devices.get(device_id)
        if device is None:
            raise NoSuchObject(f"no device {device_id}")
        return device

    def connect(self, a: tuple[int, int], b: tuple[int, int], **shape: float) -> None:
        """An in-memory link between (device, port) and (device, port); ``shape`` applies to both directions."""
        (first, port_a), (second, port_b) = (self._device(a[0]), a[1]), (self._device(b[0]), b[1])
        _check_port(port_a)
        _check_port(port_b)
        native_shape = _shape(shape)
        result = self._lib.ss_link(first._native, port_a, second._native, port_b)
        first._check(result, f"link {a} - {b}")
        self._links[a], self._links[b] = b, a
        first._attach(port_a, None)
        second._attach(port_b, None)
        if native_shape is not None:
            self._apply_shape(first, port_a, native_shape)
            self._apply_shape(second, port_b, native_shape)

    def shape(self, device_id: int, port: int, **shape: float) -> None:
        """Shape what leaves ``port``, from now on; without arguments, stop shaping it.

        rate_mbps: the line's rate in Mbit/s of frame bytes. burst_bytes: how far ahead of the line's schedule a frame
        may leave (0: back to back at the rate). queue_bytes (default 256 KiB) or queue_packets: what may wait for the
        line; more is dropped. delay_ms: propagation, +- jitter_ms uniformly, in order. loss, duplicate, reorder:
        probabilities; a reordered frame is held back by reorder_ms (default 1) more, and later ones overtake it.
        """
        _check_port(port)
        self._apply_shape(self._device(device_id), port, _shape(shape))

    def _apply_shape(self, device: Device, port: int, shape: native.Shape | None) -> None:
        pointer = None if shape is None else ctypes.byref(shape)
        device._check(self._lib.ss_port_shape(device._native, port, pointer), f"port {port}")

    def start(self) -> None:
        """Start the data-plane threads."""
        if self.closed:
            raise SoftswitchError("the fabric is closed")
        result = self._lib.ss_fabric_start(self._handle)
        if result:
            raise SoftswitchError(f"cannot start a thread: {os.strerror(-result)}")

    def stop(self) -> None:
        """Stop the data-plane threads; :meth:`start` goes on where they left."""
        if self._handle:
            self._lib.ss_fabric_stop(self._handle)

    def close(self) -> None:
        """Stop and free everything; the devices must not be used any more."""
        if self._handle is None:
            return
        self.closed = True
        self.stop()
        handle, self._handle = self._handle, None
        if self._monitor is not None:
            self._monitor.close()
        self._lib.ss_events_close(handle)
        if threading.current_thread() is not self._events:
            self._events.join()
        for staged in self._staged:
            self._lib.ss_device_discard(staged)
        self._staged.clear()
        self._lib.ss_fabric_free(handle)
        self.devices.clear()

    def _watch_links(self) -> None:
        """From now on, tell devices when one of their interfaces goes up or down."""
        if self._monitor is None:
            self._monitor = links.LinkMonitor(self._link_changed)

    def _link_changed(self, index: int | None) -> None:
        for device in list(self.devices.values()):
            for port, interface in list(device._attached.items()):
                if interface is not None and index in (None, interface[1]):
                    try:
                        device._port_changed(port)
                    except SoftswitchError as error:  # the fabric is being closed
                        log.debug("port %d of device %d: %s", port, device.device_id, error)

    def _dispatch(self, handle: int) -> None:
        while True:
            address = self._lib.ss_event_wait(handle)
            if not address:
                return
            event = native.Event.from_address(address)
            data = ctypes.string_at(address + native.Event.device.offset + 8, event.len)
            kind, port, device_id, generation = event.type, event.port, event.device, event.generation
            self._lib.ss_free(address)
            device = self.devices.get(device_id)
            if device is None:
                continue
            try:
                device._handle_event(kind, port, data, generation)
            except Exception:
                log.exception("a callback of device %d failed", device_id)


def _const_match(key: KeyValue, width: int) -> Match:
    """An entry of the program: P4 allows bits of the value outside the mask, and ignores them."""
    value = key.value
    if key.kind == "ternary":
        value &= key.mask
    elif key.kind == "lpm":
        value = value >> (width - key.prefix_len) << (width - key.prefix_len)
    return Match(key.kind, value, key.mask, key.prefix_len, key.high)


MAX_PORTS = 512
MAX_FRAME = 65536
_SHAPE_NAMES = frozenset(
    ("rate_mbps", "burst_bytes", "queue_bytes", "queue_packets", "delay_ms", "jitter_ms", "loss", "duplicate",
     "reorder", "reorder_ms")
)  # fmt: skip


def _check_port(port: int) -> None:
    if not 0 <= port < MAX_PORTS - 1:
        raise InvalidValue(f"port {port} is not in 0..{MAX_PORTS - 2} (511 is v1model's drop port)")


def _interface_index(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        return -1  # it vanished right away


def _check_params(action: ActionInfo, params: Sequence[int]) -> None:
    if len(params) != len(action.params):
        raise InvalidValue(f"action {action.name} takes {len(action.params)} parameters, got {len(params)}")
    for value, (param, width) in zip(params, action.params, strict=True):
        if not 0 <= value < 1 << width:
            raise InvalidValue(f"parameter {param} of action {action.name}: {value} does not fit {width} bits")


def _alternatives(m: Match, width: int, name: str) -> list[tuple[int, int]]:
    """(value, mask) pairs of which a value satisfies one if it satisfies a match."""
    full = (1 << width) - 1
    if not (0 <= m.value <= full and 0 <= m.mask <= full and 0 <= m.high <= full and 0 <= m.prefix_len <= width):
        raise InvalidValue(f"value set {name}: a match that does not fit {width} bits")
    if m.kind == "exact":
        return [(m.value, full)]
    if m.kind == "range":
        return list(prefixes(m.value, m.high, width))
    mask = full ^ (full >> m.prefix_len) if m.kind == "lpm" else m.mask
    return [(m.value & mask, mask)]


def _check_u64(*values: int) -> None:
    for value in values:
        if not 0 <= value < 1 << 64:
            raise InvalidValue(f"{value} is not an unsigned 64-bit number")


def _shape(shape: dict[str, float]) -> native.Shape | None:
    """The native form of the arguments of :meth:`Fabric.shape`; ``None`` if they ask for nothing."""
    unknown = set(shape) - _SHAPE_NAMES
    if unknown:
        raise InvalidValue(f"unknown link property {sorted(unknown)[0]!r}; there are {', '.join(sorted(_SHAPE_NAMES))}")
    given = {name: value for name, value in shape.items() if value is not None}
    for name, value in given.items():
        if not 0 <= value < float("inf"):
            raise InvalidValue(f"{name} {value} is out of range")
        if name in ("loss", "duplicate", "reorder") and value > 1:
            raise InvalidValue(f"{name} {value} is not a probability")
    if not any(given.values()):
        return None
    rate = given.get("rate_mbps", 0)
    default_queue = DEFAULT_QUEUE_BYTES if rate and "queue_packets" not in given else 0
    return native.Shape(
        rate_bps=rate * 1e6,
        burst_bytes=int(given.get("burst_bytes", 0)),
        queue_bytes=int(given.get("queue_bytes", default_queue)),
        queue_packets=int(given.get("queue_packets", 0)),
        delay_ns=int(given.get("delay_ms", 0) * 1e6),
        jitter_ns=int(given.get("jitter_ms", 0) * 1e6),
        reorder_ns=int(given.get("reorder_ms", 1) * 1e6),
        loss=given.get("loss", 0),
        duplicate=given.get("duplicate", 0),
        reorder=given.get("reorder", 0),
    )


def _byte_order(c_type: str) -> Literal["little", "big"]:
    return "little" if c_type else "big"


def _format_log(message: str, values: Sequence[int]) -> str:
    """``log_msg``'s text: each {} is replaced by the next value."""
    parts = message.split("{}")
    texts = [str(v) for v in values]
    texts += ["{}"] * (len(parts) - 1 - len(texts))
    return "".join(part + text for part, text in zip(parts, [*texts[: len(parts) - 1], ""], strict=True))
