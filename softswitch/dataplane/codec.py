"""Translates between table entries as Python sees them (:class:`Match`, :class:`Entry`) and the runtime's bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from softswitch.bmv2json.model import Action, Key, Match
from softswitch.compiler.codegen import TablePlan, pack_params, unpack_params
from softswitch.dataplane import native
from softswitch.dataplane.profiles import ActionProfile, Group, Member
from softswitch.dataplane.program import Program
from softswitch.dataplane.value_sets import prefixes
from softswitch.errors import InvalidValue, NoSuchObject


@dataclass(frozen=True)
class Entry:
    """A table entry as installed. In a table with an action profile, ``chosen`` is set and ``action`` empty.

    Attributes:
        idle_timeout_ns: the idle timeout; 0: none.
        since_hit_ns: time since the entry was last hit, inserted or changed; only in a table with idle timeouts.
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


class NativeKey(NamedTuple):
    """An entry's identity in the runtime's form."""

    key: bytes
    mask: bytes
    ranges: bytes
    priority: int


class Places(NamedTuple):
    """The places of an entry's parts in the runtime's form, for :meth:`softswitch.dataplane.tables.Tables.write`.

    Attributes:
        keys: (byte offset, bytes) of each key, in network order.
        actions: by name, the number, the bytes of all parameters and their (byte offset, width in bits).
    """

    number: int
    key_bytes: int
    keys: tuple[tuple[int, int], ...]
    actions: dict[str, tuple[int, int, tuple[tuple[int, int], ...]]]


class TableCodec:
    """A translator between one table's entries and the runtime's bytes."""

    def __init__(self, program: Program, plan: TablePlan, profile: ActionProfile | None) -> None:
        self.program = program
        self.plan = plan
        self.profile = profile
        self.info = program.tables[plan.table.name]
        self._key_parts = tuple(
            (key, 8 * (8 * plan.key_words - at - size), size)
            for key, (at, size) in zip(self.info.keys, plan.key_places, strict=True)
        )
        self._numbers: dict[str, int] = {}
        for number, action_id in enumerate(plan.action_ids):
            self._numbers.setdefault(program.p4.actions[action_id].name, number)
        range_bytes = sum(2 * plan.key_places[i][1] for i in plan.ranges)
        self.record_bytes = struct.calcsize(native.ENTRY) + plan.params_bytes + 16 * plan.key_words + range_bytes

    def key(self, match: Sequence[Match], priority: int) -> NativeKey:
        info, plan = self.info, self.plan
        if len(match) != len(info.keys):
            raise InvalidValue(f"table {info.name} has {len(info.keys)} keys, got {len(match)} matches")
        value = mask = prefix = 0  # the whole key as one number, big-endian
        ranges = b""
        for m, (key, shift, size) in zip(match, self._key_parts, strict=True):
            v, k = self._value_mask(m, key)
            if key.match_kind == "range":
                ranges += m.value.to_bytes(size, "big") + m.high.to_bytes(size, "big")
            elif key.match_kind == "lpm":
                prefix = m.prefix_len
            if key.mask is not None:
                v, k = v & key.mask, k & key.mask
            value |= v << shift
            mask |= k << shift
        key_bytes = 8 * plan.key_words
        identity = value.to_bytes(key_bytes, "big"), mask.to_bytes(key_bytes, "big"), ranges
        if info.needs_priority:
            if not 0 <= priority < 1 << 31:
                raise InvalidValue(f"priority {priority} is not in 0..2^31-1")
            return NativeKey(*identity, priority)
        if priority:
            raise InvalidValue(f"table {info.name} has no ternary or range key: its entries have no priority")
        return NativeKey(*identity, prefix)

    def _value_mask(self, m: Match, key: Key) -> tuple[int, int]:
        full = (1 << key.width) - 1
        if m.kind == key.match_kind == "exact" and 0 <= m.value <= full:
            return m.value, full
        where = f"key {key.name} of table {self.info.name}"
        if m.kind != key.match_kind and (m.kind, key.match_kind) != ("optional", "ternary"):
            raise InvalidValue(f"{where} is matched {key.match_kind}, not {m.kind}")
        if not 0 <= m.value <= full:
            raise InvalidValue(f"{where}: {m.value:#x} does not fit {key.width} bits")
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
        """Return (number, packed parameters) of an action of this table."""
        if self.profile is not None:
            raise InvalidValue(f"table {self.info.name} has an action profile: its entries have a member or a group")
        number = self._numbers.get(name)
        if number is None:
            if name in self.program.actions:
                raise InvalidValue(f"action {name} is not an action of table {self.info.name}")
            raise NoSuchObject(f"no action {name}")
        action = self._action(number)
        check_params(self.program.actions[name], params)
        places, size = self.program.code.params[action.id]
        return number, pack_params(places, size, tuple(params))

    def places(self) -> Places | None:
        """Return the places of an entry's parts; ``None`` if entries have ranges, members of a profile, or keys with a
        static mask.
        """
        plan = self.plan
        if self.profile is not None or plan.ranges or any(key.mask is not None for key in plan.table.keys):
            return None
        actions = {}
        for name, number in self._numbers.items():
            places, size = self.program.code.params[plan.action_ids[number]]
            actions[name] = number, size, places
        return Places(plan.index, 8 * plan.key_words, plan.key_places, actions)

    def _action(self, number: int) -> Action:
        return self.program.p4.actions[self.plan.action_ids[number]]

    def decode(self, data: bytes) -> tuple[Entry, int, int]:
        """Return (entry, packets, bytes) from a record of the runtime."""
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


def check_params(action: Action, params: Sequence[int]) -> None:
    if len(params) != len(action.params):
        raise InvalidValue(f"action {action.name} takes {len(action.params)} parameters, got {len(params)}")
    for value, (param, width) in zip(params, action.params, strict=True):
        if not 0 <= value < 1 << width:
            raise InvalidValue(f"parameter {param} of action {action.name}: {value} does not fit {width} bits")


def alternatives(m: Match, width: int, name: str) -> list[tuple[int, int]]:
    """Return (value, mask) pairs such that a number satisfies the match if and only if it satisfies one of them."""
    full = (1 << width) - 1
    if not (0 <= m.value <= full and 0 <= m.mask <= full and 0 <= m.high <= full and 0 <= m.prefix_len <= width):
        raise InvalidValue(f"value set {name}: a match that does not fit {width} bits")
    if m.kind == "exact":
        return [(m.value, full)]
    if m.kind == "range":
        return list(prefixes(m.value, m.high, width))
    mask = full ^ (full >> m.prefix_len) if m.kind == "lpm" else m.mask
    return [(m.value & mask, mask)]
