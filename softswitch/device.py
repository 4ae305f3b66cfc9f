"""The Python face of the data plane: ``Program``, ``Fabric`` and ``Device``.

Names are those of the bmv2 JSON (``MyIngress.ipv4_lpm``), values are Python ints. All methods are thread-safe and
release the GIL while they are in native code; a table write is atomic as packets see it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


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
    """A table entry as installed."""

    handle: int
    match: tuple[Match, ...]
    priority: int
    action: str
    params: tuple[int, ...]
    is_const: bool


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

    digest: str
    tables: dict[str, TableInfo]
    actions: dict[str, ActionInfo]
    counters: dict[str, CounterInfo]
    registers: dict[str, RegisterInfo]

    @classmethod
    def load(cls, bmv2_json: bytes | str) -> Program:
        """Parse, check, generate C and compile it (cached by digest)."""
        raise NotImplementedError


class Device:
    """One switch of a fabric."""

    device_id: int
    cpu_port: int | None
    program: Program | None
    packet_in: Callable[[bytes], None] | None
    capture: Callable[[int, bytes], None] | None

    def load(self, program: Program) -> None:
        raise NotImplementedError

    def unload(self) -> None:
        """Back to no pipeline and no state, as after power-up: frames are dropped until the next ``load``."""
        raise NotImplementedError

    def insert(
        self, table: str, match: Sequence[Match], action: str, params: Sequence[int], priority: int = 0
    ) -> int:
        raise NotImplementedError

    def modify(
        self, table: str, match: Sequence[Match], action: str, params: Sequence[int], priority: int = 0
    ) -> None:
        raise NotImplementedError

    def delete(self, table: str, match: Sequence[Match], priority: int = 0) -> None:
        raise NotImplementedError

    def get(self, table: str, match: Sequence[Match], priority: int = 0) -> Entry:
        raise NotImplementedError

    def entries(self, table: str) -> list[Entry]:
        raise NotImplementedError

    def set_default(self, table: str, action: str | None, params: Sequence[int] = ()) -> None:
        raise NotImplementedError

    def get_default(self, table: str) -> tuple[str, tuple[int, ...]]:
        raise NotImplementedError

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        raise NotImplementedError

    def counter_read_all(self, name: str) -> list[tuple[int, int]]:
        raise NotImplementedError

    def counter_write(self, name: str, index: int, packets: int, bytes_: int) -> None:
        raise NotImplementedError

    def direct_counter_read(self, table: str, match: Sequence[Match] | None, priority: int = 0) -> tuple[int, int]:
        raise NotImplementedError

    def direct_counter_write(
        self, table: str, match: Sequence[Match] | None, packets: int, bytes_: int, priority: int = 0
    ) -> None:
        raise NotImplementedError

    def register_read(self, name: str, index: int) -> int:
        raise NotImplementedError

    def register_read_all(self, name: str) -> list[int]:
        raise NotImplementedError

    def register_write(self, name: str, index: int, value: int) -> None:
        raise NotImplementedError

    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        raise NotImplementedError

    def multicast_delete(self, group: int) -> None:
        raise NotImplementedError

    def clone_set(self, session: int, replicas: Sequence[tuple[int, int]], truncate: int = 0) -> None:
        raise NotImplementedError

    def clone_delete(self, session: int) -> None:
        raise NotImplementedError

    def packet_out(self, frame: bytes) -> None:
        raise NotImplementedError

    def add_port(self, port: int, interface: str, **shape: float) -> None:
        raise NotImplementedError

    def remove_port(self, port: int) -> None:
        raise NotImplementedError

    def inject(self, port: int, frame: bytes) -> None:
        raise NotImplementedError

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Run one frame to completion, past all queues and links; the frames that left, as (port, frame)."""
        raise NotImplementedError

    def port_stats(self) -> dict[int, PortStats]:
        raise NotImplementedError

    def drop_stats(self) -> dict[str, int]:
        raise NotImplementedError


class Fabric:
    """All devices of this process, their threads and the links between them."""

    devices: dict[int, Device]

    def __init__(self, threads: int = 1, seed: int = 0) -> None:
        raise NotImplementedError

    def add_device(self, device_id: int, cpu_port: int | None = None) -> Device:
        raise NotImplementedError

    def connect(self, a: tuple[int, int], b: tuple[int, int], **shape: float) -> None:
        raise NotImplementedError

    def shape(self, device_id: int, port: int, **shape: float) -> None:
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError
