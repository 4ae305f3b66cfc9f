"""A device's externs: counters, meters, registers, parser value sets and digests."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Literal

from softswitch.bmv2json.model import Counter, Match, Meter, Register
from softswitch.compiler.calculations import custom_crcs
from softswitch.dataplane.codec import alternatives
from softswitch.dataplane.crc import Crc
from softswitch.dataplane.meters import (
    MeterConfig,
    MeterState,
    NativeConfig,
    NativeMeter,
    colours,
    config_of,
    native_config,
)
from softswitch.dataplane.state import State, check_u64
from softswitch.dataplane.value_sets import MAX_VALUES, expand
from softswitch.errors import CapacityExceeded, InvalidValue, NoSuchObject


class Externs(State):
    """The externs of a :class:`softswitch.dataplane.device.Device`."""

    # ------------------------------------------------------------------------------------------------------ checks

    def set_crc(self, calculation: str, parameters: Crc) -> None:
        """Choose how a crc16_custom or crc32_custom calculation is computed, until another program is loaded."""
        program = self._program()
        bits = custom_crcs(program.p4).get(calculation)
        if bits is None:
            there = ", ".join(custom_crcs(program.p4)) or "none"
            raise NoSuchObject(f"no crc16_custom or crc32_custom calculation {calculation}; there are {there}")
        numbers = (parameters.polynomial, parameters.initial, parameters.final_xor)
        if not all(0 <= number < 1 << bits for number in numbers):
            raise InvalidValue(f"the parameters of {calculation} have {bits} bits")
        reflect = int(parameters.reflect_data) | int(parameters.reflect_remainder) << 1
        number = program.code.crcs[calculation]
        self._check(self._lib.ss_crc_set(self.native, number, *numbers, reflect), f"calculation {calculation}")

    # ------------------------------------------------------------------------------------------------------- counters

    def _counter(self, name: str) -> tuple[int, Counter]:
        program = self._program()
        info = program.counters.get(name)
        if info is None:
            raise NoSuchObject(f"no counter {name}")
        if info.table is not None:
            raise InvalidValue(f"counter {name} is direct: read it by the entries of table {info.table}")
        return program.code.counters[name], info

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        """Return (packets, bytes) of one element."""
        number, info = self._counter(name)
        return self._read_counters(number, self._index(name, index, info.size), 1)[0]

    def counter_read_all(self, name: str) -> list[tuple[int, int]]:
        """Return (packets, bytes) of all elements."""
        number, info = self._counter(name)
        return self._read_counters(number, 0, info.size)

    def _read_counters(self, number: int, first: int, n: int) -> list[tuple[int, int]]:
        out = (ctypes.c_uint64 * (2 * n))()
        self._check(self._lib.ss_counter_read(self.native, number, first, n, out), "counter")
        return list(zip(out[0::2], out[1::2], strict=True))

    def counter_write(self, name: str, index: int, packets: int, bytes_: int) -> None:
        """Set the packets and bytes of one element."""
        number, info = self._counter(name)
        self._index(name, index, info.size)
        check_u64(packets, bytes_)
        self._check(self._lib.ss_counter_write(self.native, number, index, packets, bytes_), f"counter {name}")

    # --------------------------------------------------------------------------------------------------------- meters

    def meter_read(self, name: str, first: int = 0, n: int | None = None) -> list[MeterState]:
        """Return elements of an array; all from ``first`` on if ``n`` is not given."""
        number, info = self._meter(name)
        n = info.size - first if n is None else n
        out = (NativeMeter * max(n, 0))()
        self._meter_access(number, info, first, n, out=out)
        return [MeterState(config_of(m), colours(m), m) for m in out]

    def meter_restore(self, name: str, states: Sequence[MeterState], first: int = 0) -> None:
        """Set elements of an array back to states that were read before: configuration, tokens and counters."""
        number, info = self._meter(name)
        old = (NativeMeter * len(states))(*(state.native for state in states))
        self._meter_access(number, info, first, len(states), old=old)

    def meter_write(self, name: str, config: MeterConfig | None, first: int = 0, n: int | None = None) -> None:
        """Configure elements of an array, with full buckets; ``None`` makes every packet green."""
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
        info: Meter,
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
        result = self._lib.ss_meter_access(self.native, number, first, n, old, pointer, clear, out)
        self._check(result, f"meter {info.name}")

    def _meter(self, name: str) -> tuple[int, Meter]:
        program = self._program()
        info = program.meters.get(name)
        if info is None:
            raise NoSuchObject(f"no meter {name}")
        if info.table is not None:
            raise InvalidValue(f"meter {name} is direct: it belongs to the entries of table {info.table}")
        return program.code.meters[name], info

    # ----------------------------------------------------------------------------------------------------- value sets

    def value_set_read(self, name: str) -> tuple[tuple[Match, ...], ...]:
        """Return the members of a parser value set, each with one match per field."""
        if name not in self._program().value_sets:
            raise NoSuchObject(f"no value set {name}")
        return self._value_sets[name]

    def value_set_write(self, name: str, members: Sequence[Sequence[Match]]) -> None:
        """Replace the members of a parser value set; a packet sees either the old ones or the new ones.

        Every kind of match is allowed. Raise ``CapacityExceeded`` if there are more than the set's size.
        """
        program = self._program()
        info = program.value_sets.get(name)
        if info is None:
            raise NoSuchObject(f"no value set {name}")
        if info.size and len(members) > info.size:
            raise CapacityExceeded(f"value set {name} has room for {info.size} members, not {len(members)}")
        if info.widths:
            words = (sum((w + 7) // 8 for w in info.widths) + 7) // 8
            values: list[bytes] = []
            for member in members:
                if len(member) != len(info.widths):
                    raise InvalidValue(f"members of value set {name} have {len(info.widths)} fields")
                fields = [alternatives(m, w, name) for m, w in zip(member, info.widths, strict=True)]
                values += expand(fields, info.widths, words)
                if len(values) > MAX_VALUES:
                    raise CapacityExceeded(f"value set {name}: ranges that make more than {MAX_VALUES} values")
            number = program.code.value_sets[name]
            result = self._lib.ss_value_set_write(self.native, number, b"".join(values), len(values))
            self._check(result, f"value set {name}")
        self._value_sets[name] = tuple(tuple(member) for member in members)

    # ------------------------------------------------------------------------------------------------------ registers

    def _index(self, name: str, index: int, size: int) -> int:
        if not 0 <= index < size:
            raise NoSuchObject(f"{name}[{index}]: the index is not in 0..{size - 1}")
        return index

    def register_read(self, name: str, index: int) -> int:
        """Return one element, as an unsigned number."""
        info = self._register(name)
        return self._read_registers(name, self._index(name, index, info.size), 1)[0]

    def register_read_all(self, name: str) -> list[int]:
        """Return all elements, as unsigned numbers."""
        return self._read_registers(name, 0, self._register(name).size)

    def _register(self, name: str) -> Register:
        info = self._program().registers.get(name)
        if info is None:
            raise NoSuchObject(f"no register {name}")
        return info

    def _read_registers(self, name: str, first: int, n: int) -> list[int]:
        place = self._program().code.registers[name]
        size = place.element_bytes
        out = ctypes.create_string_buffer(n * size)
        at = first * place.row_bytes + place.offset
        result = self._lib.ss_register_copy(self.native, place.group, at, place.row_bytes, size, n, out, 0)
        self._check(result, f"register {name}")
        data, order = out.raw, byte_order(place.c_type)
        return [int.from_bytes(data[i * size : (i + 1) * size], order) for i in range(n)]

    def register_write(self, name: str, index: int, value: int) -> None:
        """Set one element; the value is an unsigned number of the register's width."""
        info = self._register(name)
        self._index(name, index, info.size)
        if not 0 <= value < 1 << info.width:
            raise InvalidValue(f"register {name}: {value} does not fit {info.width} bits")
        place = self._program().code.registers[name]
        data = ctypes.create_string_buffer(value.to_bytes(place.element_bytes, byte_order(place.c_type)))
        at = index * place.row_bytes + place.offset
        result = self._lib.ss_register_copy(self.native, place.group, at, 0, place.element_bytes, 1, data, 1)
        self._check(result, f"register {name}")

    # -------------------------------------------------------------------------------------------------------- digests

    def digest_enable(self, number: int, enabled: bool, filter_duplicates: bool = True) -> None:
        """Have messages of digest ``number`` given to the callback ``digest``, or not.

        With the filter, a message that was given is not given again until ``digest_forget``. Turning either setting off
        forgets all messages of this kind.
        """
        result = self._lib.ss_digest_enable(self.native, number, enabled, filter_duplicates)
        self._check(result, f"digest {number}")

    def digest_forget(self, number: int, messages: Sequence[bytes]) -> None:
        """Allow these messages to be given again."""
        if messages:
            size = len(messages[0])
            data = b"".join(messages)
            self._check(self._lib.ss_digest_forget(self.native, number, data, size, len(messages)), f"digest {number}")


def byte_order(c_type: str) -> Literal["little", "big"]:
    return "little" if c_type else "big"
