"""The base of a device's tables and externs: the native device and the program on it."""

from __future__ import annotations

import errno
import os

from softswitch.bmv2json.model import Match
from softswitch.dataplane import native
from softswitch.dataplane.codec import TableCodec
from softswitch.dataplane.profiles import ActionProfile
from softswitch.dataplane.program import Program
from softswitch.errors import AlreadyExists, CapacityExceeded, InvalidValue, NoSuchObject, NotFound, SoftswitchError


class State:
    """A native device and the program on it."""

    device_id: int

    def __init__(self, device_id: int) -> None:
        self._lib = native.library()
        self._codecs: dict[str, TableCodec] = {}
        self._value_sets: dict[str, tuple[tuple[Match, ...], ...]] = {}
        self._const_tables: frozenset[str] = frozenset()
        self.device_id = device_id
        self.program: Program | None = None
        self.profiles: dict[str, ActionProfile] = {}

    @property
    def native(self) -> int:
        """The native device; this raises an error once it is gone."""
        raise NotImplementedError

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

    def _codec(self, table: str) -> TableCodec:
        codec = self._codecs.get(table)
        if codec is None:
            raise NoSuchObject(f"no table {table}" if self.program else f"no table {table}: no program is loaded")
        return codec

    def _program(self) -> Program:
        if self.program is None:
            raise NoSuchObject("no program is loaded")
        return self.program


def check_u64(*values: int) -> None:
    """Check that a 64-bit counter holds these numbers; raise ``InvalidValue`` otherwise."""
    for value in values:
        if not 0 <= value < 1 << 64:
            raise InvalidValue(f"{value} is not an unsigned 64-bit number")
