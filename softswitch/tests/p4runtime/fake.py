"""A data plane made of a few dictionaries, against which the P4Runtime server is tested."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from softswitch.bmv2json.model import Action, Counter, Field, FieldRef, HeaderType, Key, Match, Register
from softswitch.dataplane.codec import Entry
from softswitch.dataplane.device import Device
from softswitch.dataplane.program import Program, TableInfo
from softswitch.errors import AlreadyExists, BadProgram, CapacityExceeded, InvalidValue, NotFound, UnsupportedConstruct

PROGRAM_JSON = (Path(__file__).parent / "demo.json").read_bytes()


def table(name: str, keys: list[tuple[str, str, int]], actions: list[str], **more: object) -> TableInfo:
    settings: dict = {
        "size": 1024,
        "const_entries": False,
        "default_action": "NoAction",
        "default_params": (),
        "default_const": False,
        "has_direct_counter": False,
    }
    settings.update(more)
    return TableInfo(
        name=f"MyIngress.{name}",
        keys=tuple(Key(name, kind, FieldRef("h", "f"), width, None) for name, kind, width in keys),
        actions=tuple(actions),
        needs_priority=any(kind in ("ternary", "range", "optional") for _, kind, _ in keys),
        **settings,
    )


class FakeProgram(Program):
    """The declarations of demo.p4."""

    @classmethod
    def load(cls, bmv2_json: bytes | str) -> Program:
        if bmv2_json == b'{"program": "unsupported"}':
            raise UnsupportedConstruct("header union", "demo.p4:17")
        if bmv2_json != PROGRAM_JSON:
            raise BadProgram("this is not a bmv2 JSON")
        return cls()

    def __init__(self) -> None:
        self.digest = "demo"
        self.digests = ()
        drop, forward, no_action = "MyIngress.drop", "MyIngress.forward", "NoAction"
        tables = [
            table(
                "exact_table",
                [("hdr.eth.dst", "exact", 48), ("standard_metadata.ingress_port", "exact", 9)],
                [forward, drop, no_action],
                has_direct_counter=True,
                size=64,
            ),
            table("lpm_table", [("hdr.ipv4.dst", "lpm", 32)], ["MyIngress.route", drop], default_action=drop),
            table(
                "acl",
                [
                    ("hdr.ipv4.protocol", "ternary", 16),
                    ("meta.port", "range", 16),
                    ("meta.class", "ternary", 8),  # p4c's bmv2 JSON has optional keys in this form
                    ("hdr.ipv4.valid", "exact", 1),
                ],
                [forward, drop, "MyIngress.replicate", no_action],
                has_direct_counter=True,
            ),
            table(
                "const_table",
                [("hdr.eth.type", "exact", 16)],
                [forward, no_action],
                const_entries=True,
                default_const=True,
                has_direct_counter=True,
            ),
            table("keyless", [], [forward, "MyIngress.copy", no_action]),
        ]
        self.tables = {info.name: info for info in tables}
        self.actions = {
            action.name: action
            for action in (
                Action(drop, 1, ()),
                Action(forward, 2, (("port", 9),)),
                Action(no_action, 3, ()),
                Action("MyIngress.route", 4, (("mac", 48), ("port", 9))),
                Action("MyIngress.replicate", 5, (("group", 16),)),
                Action("MyIngress.copy", 6, (("session", 32),)),
            )
        }
        self.counters = {
            "MyIngress.verdicts": Counter("MyIngress.verdicts", 8),
            "MyIngress.exact_counter": Counter("MyIngress.exact_counter", 64, "MyIngress.exact_table"),
        }
        fields = (Field("ingress_port", 9, False, 0), Field("reason", 7, False, 9))
        self.header_types = (HeaderType("packet_in_t", fields),)
        self.profiles = {}
        self.meters = {}
        self.value_sets = {}
        self.registers = {
            "MyIngress.sums": Register("MyIngress.sums", 4, 32),
            "MyIngress.signed": Register("MyIngress.signed", 2, 12),
        }


class FakeDevice(Device):
    """A device as in docs/internals.md; frames to the pipeline are kept in ``sent``."""

    def __init__(self, device_id: int, cpu_port: int | None = 255) -> None:
        self.device_id = device_id
        self.cpu_port = cpu_port
        self.packet_in: Callable[[bytes], None] | None = None
        self.digest: Callable[[int, bytes], None] | None = None
        self.sent: list[bytes] = []
        self.before_write: Callable[[], None] = lambda: None  # lets a test run in the middle of a write
        self.unload()

    def unload(self) -> None:
        self.program = None
        self._entries: dict[str, dict[tuple, Entry]] = {}
        self._defaults: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._direct: dict[tuple, tuple[int, int]] = {}
        self.counters: dict[str, list[tuple[int, int]]] = {}
        self.registers: dict[str, list[int]] = {}
        self.profiles = {}
        self.groups: dict[int, list[tuple[int, int]]] = {}
        self.sessions: dict[int, tuple[list[tuple[int, int]], int]] = {}
        self._handle = 0

    def load(self, program: Program) -> None:
        self.unload()
        self.program = program
        self._entries = {name: {} for name in program.tables}
        self._defaults = {name: (info.default_action, info.default_params) for name, info in program.tables.items()}
        self.counters = {name: [(0, 0)] * info.size for name, info in program.counters.items()}
        self.registers = {name: [0] * info.size for name, info in program.registers.items()}
        for name, info in program.tables.items():
            if info.const_entries:
                key = (Match("exact", 0x0800),)
                self._entries[name][key, 0] = Entry(0, key, 0, "MyIngress.forward", (3,), True)

    def stage(self, program: Program, changeable: Collection[str] = ()) -> Device:
        staged = FakeDevice(self.device_id, self.cpu_port)
        staged.load(program)
        staged.before_write = lambda: self.before_write()
        return staged

    def commit(self, staged: Device) -> None:
        """Commit a staged device; both are one device afterwards."""
        kept = ("device_id", "cpu_port", "packet_in", "digest", "sent", "before_write")
        self.__dict__.update({name: value for name, value in staged.__dict__.items() if name not in kept})
        staged.__dict__ = self.__dict__

    def discard(self) -> None:
        self.unload()

    def places(self, table: str) -> None:
        """Return None: all updates come one by one."""

    def write(self, schema: object, data: bytes, at: int, only_inserts: bool) -> tuple[int, int]:
        return 0, len(data)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        yield

    def insert(  # type: ignore[override]  # it has no action profiles
        self, table: str, match: Sequence[Match], action: str, params: Sequence[int], priority: int = 0
    ) -> int:
        self.before_write()
        assert self.program is not None
        entries, info = self._entries[table], self.program.tables[table]
        key = (tuple(match), priority)
        self._check_entry(info, match, action, params)
        if key in entries:
            raise AlreadyExists("this entry exists already")
        if len(entries) >= info.size:
            raise CapacityExceeded(f"table {table} is full")
        self._handle += 1
        entries[key] = Entry(self._handle, key[0], priority, action, tuple(params), False)
        self._direct[table, key] = (0, 0)
        return self._handle

    def _check_entry(self, info: TableInfo, match: Sequence[Match], action: str, params: Sequence[int]) -> None:
        assert self.program is not None
        if [one.kind for one in match] != [key.match_kind for key in info.keys]:
            raise InvalidValue("match does not fit the key")
        for one, key in zip(match, info.keys, strict=True):
            if max(one.value, one.mask, one.high) >> key.width or one.prefix_len > key.width:
                raise InvalidValue("value too wide")
        widths = [width for _, width in self.program.actions[action].params]
        if len(params) != len(widths) or any(value >> width for value, width in zip(params, widths, strict=True)):
            raise InvalidValue("parameters do not fit the action")

    def modify(  # type: ignore[override]
        self, table: str, match: Sequence[Match], action: str, params: Sequence[int], priority: int = 0
    ) -> None:
        self.before_write()
        old = self.get(table, match, priority)
        self._entries[table][tuple(match), priority] = Entry(
            old.handle, old.match, priority, action, tuple(params), False
        )

    def delete(self, table: str, match: Sequence[Match], priority: int = 0) -> None:
        self.before_write()
        self.get(table, match, priority)
        del self._entries[table][tuple(match), priority]

    def get(self, table: str, match: Sequence[Match], priority: int = 0) -> Entry:
        try:
            return self._entries[table][tuple(match), priority]
        except KeyError:
            raise NotFound(f"no such entry in {table}") from None

    def entries(self, table: str) -> list[Entry]:
        return list(self._entries[table].values())

    def set_default(self, table: str, action: str | None, params: Sequence[int] = ()) -> None:
        assert self.program is not None
        info = self.program.tables[table]
        self._defaults[table] = (
            (info.default_action, info.default_params) if action is None else (action, tuple(params))
        )

    def get_default(self, table: str) -> tuple[str, tuple[int, ...]]:
        return self._defaults[table]

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        return self.counters[name][index]

    def counter_read_all(self, name: str) -> list[tuple[int, int]]:
        return list(self.counters[name])

    def counter_write(self, name: str, index: int, packets: int, bytes_: int) -> None:
        self.counters[name][index] = (packets, bytes_)

    def _direct_key(self, table: str, match: Sequence[Match] | None, priority: int) -> tuple:
        if match is not None:
            self.get(table, match, priority)
        return table, None if match is None else (tuple(match), priority)

    def direct_counter_read(self, table: str, match: Sequence[Match] | None, priority: int = 0) -> tuple[int, int]:
        return self._direct.get(self._direct_key(table, match, priority), (0, 0))

    def direct_counter_write(
        self, table: str, match: Sequence[Match] | None, packets: int, bytes_: int, priority: int = 0
    ) -> None:
        self._direct[self._direct_key(table, match, priority)] = (packets, bytes_)

    def register_read(self, name: str, index: int) -> int:
        return self.registers[name][index]

    def register_read_all(self, name: str) -> list[int]:
        return list(self.registers[name])

    def register_write(self, name: str, index: int, value: int) -> None:
        self.registers[name][index] = value

    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        self.groups[group] = list(replicas)

    def multicast_delete(self, group: int) -> None:
        del self.groups[group]

    def clone_set(self, session: int, replicas: Sequence[tuple[int, int]], truncate: int = 0) -> None:
        self.sessions[session] = (list(replicas), truncate)

    def clone_delete(self, session: int) -> None:
        del self.sessions[session]

    def packet_out(self, frame: bytes) -> None:
        self.sent.append(frame)
